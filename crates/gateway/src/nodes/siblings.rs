//! Failover between the links to a node: one that is down leaves its jobs to another, and has its
//! lost connection fenced over it.
//!
//! # Problem
//! The connection of one class may break while the others stay up, and may not come back: a network
//! that drops its code point, a limit, a certificate. Requests of the class, and jobs that wait for
//! the link, could be served over the other connections. And a write that was on the link may still
//! happen, so that requests of *all* classes for its part wait at a barrier.
//!
//! # Mechanism
//! Jobs go to the first link that is up, of: their own kind; class medium, of the same length; any
//! other. Jobs that wait for a link which is down move likewise, except behind a barrier.
//!
//! A link that is down and has unsettled jobs has its last connection ended over another link
//! ([`tidegate_proto::data::ToNode::Fence`]). The node answers once it carries out no more jobs of
//! that connection, and the barrier is lowered; or, if that is earlier, once the link is up again,
//! for then the node has fenced the lost connection, too. Until then no later request passes.

use tidegate_fabric::reactor::Reactor;
use tidegate_fabric::service::{Fault, Job};
use tidegate_model::NodeId;
use tidegate_proto::data::LinkKind;

use super::there::{LinkChanges, There};
use super::{Link, MAIN, NodeConnection, NodeSlot, Nodes};
use crate::barriers::Barriers;
use crate::clock;
use crate::message::Message;

impl Nodes {
    /// The link for jobs of a kind, which is made with the first of them. Without a link that is
    /// up, jobs wait for the one of class medium.
    pub(super) fn link(&mut self, node: NodeId, kind: LinkKind) -> &mut Link {
        let medium = LinkKind { class: MAIN.class, ..kind };
        let own = self.find_or_make(node, kind);
        let takes_jobs = self.slots[node.index()].0[own].connection.takes_jobs();
        let index = if takes_jobs { own } else { self.find_or_make(node, medium) };
        let slot = &self.slots[node.index()];
        let is_down = slot.0[index].connection.is_down();
        let substitute = if is_down { slot.substitute(kind) } else { None };
        let index = substitute.unwrap_or(index);
        &mut self.slots[node.index()].0[index]
    }

    /// The index of the link of a kind.
    fn find_or_make(&mut self, node: NodeId, kind: LinkKind) -> usize {
        let links = &self.slots[node.index()].0;
        links.binary_search_by_key(&kind, |link| link.kind).unwrap_or_else(|index| {
            let link = self.new_link(node, kind);
            self.slots[node.index()].0.insert(index, link);
            index
        })
    }

    /// Moves jobs that wait for a link which is down to another one, unless a barrier stands before
    /// them: that of the link itself holds them, too.
    pub(super) fn redirect(&mut self) {
        let (barriers, known) = (self.membership.barriers(), &self.known);
        for slot in &mut self.slots {
            for index in 0..slot.0.len() {
                let is_stuck = |there: &There| there.remote.is_down() && there.remote.has_waiting();
                let is_meant = slot.there(index).is_some_and(|there| is_stuck(there));
                let substitute = if is_meant { slot.substitute(slot.0[index].kind) } else { None };
                let Some(other) = substitute else { continue };
                let Some(there) = slot.there(index) else { continue };
                let parts = &there.parts;
                let may_pass = |job: &Job| {
                    let (volume, part) = &parts[job.part.index()];
                    !barriers.holds(*volume, part.index)
                };
                let is_refused = |job: &mut Job| {
                    let (volume, part) = &parts[job.part.index()];
                    let known = &known[volume.0];
                    known.fault().is_some() || known.is_lost(part.index, job.incarnation)
                };
                let mut jobs = there.remote.take_waiting(may_pass);
                let refused = jobs.extract_if(.., is_refused);
                self.refused.extend(refused.map(|job| Job { outcome: Err(Fault::Io), ..job }));
                slot.0[other].batch.append(&mut jobs);
            }
        }
    }

    /// Has lost connections fenced over other links, and lowers the barriers of those that are.
    /// Returns whether jobs may go on by that.
    pub(super) fn fence_lost_links(
        &mut self,
        reactor: &Reactor<Message>,
        done: &mut Vec<Job>,
    ) -> bool {
        let mut is_changed = false;
        for (slot, changes) in self.slots.iter_mut().zip(&mut self.changes) {
            let LinkChanges { is_other, fenced } = std::mem::take(changes);
            is_changed |= is_other || !fenced.is_empty();
            for (link, connection) in fenced {
                slot.on_fenced(link, connection, self.membership.barriers());
            }
            if is_other {
                slot.request_fences(reactor, done);
                let barriers = self.membership.barriers();
                slot.theres().for_each(|(_, there)| {
                    there.on_notices(&mut self.known, barriers, changes);
                });
            }
        }
        is_changed
    }
}

impl NodeSlot {
    /// The index of the link that is up and comes next to this kind: class medium of the same
    /// length, then the nearest class of the same length, then others.
    fn substitute(&self, kind: LinkKind) -> Option<usize> {
        let distance = |link: &Link| {
            let is_other_length = link.kind.is_bulk != kind.is_bulk;
            let is_other_class = link.kind.class != MAIN.class;
            (is_other_length, is_other_class, (link.kind.class as u8).abs_diff(kind.class as u8))
        };
        let up = (0..).zip(&self.0).filter(|(_, link)| link.connection.takes_jobs());
        up.min_by_key(|(_, link)| distance(link)).map(|(index, _)| index)
    }

    /// The link with this index, if the node is behind a socket.
    fn there(&mut self, index: usize) -> Option<&mut There> {
        match &mut self.0[index].connection {
            NodeConnection::There(there) => Some(there),
            NodeConnection::Here(_) => None,
        }
    }

    /// The links behind sockets, by kind.
    fn theres(&mut self) -> impl Iterator<Item = (LinkKind, &mut There)> {
        self.0.iter_mut().filter_map(|link| match &mut link.connection {
            NodeConnection::There(there) => Some((link.kind, &mut **there)),
            NodeConnection::Here(_) => None,
        })
    }

    /// The node carries out no more jobs of the link with this number, up to this connection.
    fn on_fenced(&mut self, link: u32, connection: u64, barriers: &Barriers) {
        let fenced = self.theres().map(|(_, there)| there).find(|it| it.remote.link() == link);
        fenced.into_iter().for_each(|there| there.settle(connection, barriers));
    }

    /// Has the lost connections of links that are down fenced over one that is up.
    fn request_fences(&mut self, reactor: &Reactor<Message>, done: &mut Vec<Job>) {
        let down = self.theres().filter(|(_, there)| !there.remote.is_up());
        let down: Vec<_> = down.map(|(kind, _)| kind).collect();
        for (_, there) in self.theres() {
            down.iter().for_each(|kind| there.on_other_down(*kind));
        }
        let wanted = |(kind, there): (LinkKind, &mut There)| Some((kind, there.wants_fence()?));
        let wanted: Vec<_> = self.theres().filter_map(wanted).collect();
        for (kind, (link, connection)) in wanted {
            let up = self.theres().find(|(_, there)| there.remote.is_up());
            let Some((over, carrier)) = up else { return };
            if carrier.remote.fence(link, connection) {
                carrier.remote.flush(reactor, clock::now(), done);
                let lost = self.theres().find(|(other, _)| *other == kind);
                lost.into_iter().for_each(|(_, there)| there.set_fenced_over(over));
            }
        }
    }
}
