//! One link to a node of another process, and the consequences of its notices: new incarnations and
//! refusals of parts, whether the node is reachable, barriers before parts that jobs of a lost
//! connection may still change, and the fence of such a connection over another link.

use std::collections::HashSet;

use tidegate_fabric::remote::{Notice, Remote};
use tidegate_fabric::service::Part;
use tidegate_model::{NodeId, PartNumber};
use tidegate_proto::data::LinkKind;

use crate::barriers::{Barriers, Cause};
use crate::parts::VolumeParts;
use crate::reachability::Reporter;
use crate::volumes::VolumeIndex;

/// A link to a node behind a socket, and the reported state of its parts.
pub(super) struct There {
    pub(super) remote: Remote,
    node: NodeId,
    /// The main link, which all nodes have, reports whether the node is reachable; the state of
    /// parts is reported by each, because any may be the first to reach a new process of the node.
    kind: LinkKind,
    pub(super) reporter: Reporter,
    /// By number there: the volume and the part.
    pub(super) parts: Vec<(VolumeIndex, Part)>,
    /// Parts that jobs which failed with the link may still change.
    unsettled: Vec<Unsettled>,
    /// The link over which the last of these connections is being fenced.
    fenced_over: Option<LinkKind>,
    /// Parts that are open over this link, by number there.
    open: HashSet<PartNumber>,
    pub(super) span: tracing::Span,
}

/// A part that jobs of a lost connection may still change.
struct Unsettled {
    volume: VolumeIndex,
    part: u32,
    connection: u64,
}

/// Changes at a link that concern the other links to its node.
#[derive(Default)]
pub(super) struct LinkChanges {
    /// It is up, or down.
    pub(super) is_other: bool,
    /// Another link's connections that the node has fenced, by their number, up to this one.
    pub(super) fenced: Vec<(u32, u64)>,
}

impl There {
    /// A link that has the `parts` opened, so that their numbers are those of the list.
    pub(super) fn new(
        mut remote: Remote,
        (node, kind): (NodeId, LinkKind),
        reporter: Reporter,
        parts: Vec<(VolumeIndex, Part)>,
    ) -> Self {
        for (_, part) in &parts {
            remote.open(part.clone());
        }
        let (unsettled, open, span) = (Vec::new(), HashSet::new(), reporter.span(node));
        Self { remote, node, kind, reporter, parts, unsettled, fenced_over: None, open, span }
    }

    /// Takes the notices of the link, and reports them.
    pub(super) fn on_notices(
        &mut self,
        known: &mut [VolumeParts],
        barriers: &Barriers,
        changes: &mut LinkChanges,
    ) {
        while let Some(notice) = self.remote.poll_notice() {
            match notice {
                Notice::Unsettled { part, connection } => {
                    let (volume, part) =
                        (self.parts[part.index()].0, self.parts[part.index()].1.index);
                    barriers.raise(volume, part, Cause::Link);
                    self.unsettled.push(Unsettled { volume, part, connection });
                    self.fenced_over = None;
                }
                Notice::Up { .. } => {
                    self.settle(u64::MAX, barriers);
                    self.reporter.on_up(self.node, self.kind);
                    changes.is_other = true;
                }
                Notice::Down { reason } => {
                    for part in self.open.drain() {
                        let (volume, part) = &self.parts[part.index()];
                        known[volume.0].on_link_lost(part.index);
                    }
                    self.reporter.on_away(self.node, self.kind, reason);
                    changes.is_other = true;
                }
                Notice::Fenced { link, connection } => changes.fenced.push((link, connection)),
                Notice::PartRefused { part, reason } => {
                    self.note(known, part, |known, index| known.on_refused(index, reason));
                }
                Notice::PartReady { part, state } => {
                    let is_new = self.open.insert(part);
                    self.note(known, part, |known, index| {
                        known.on_open(index, state);
                        if is_new {
                            known.on_link(index);
                        }
                    });
                }
                Notice::Incarnation { part, incarnation } => {
                    self.note(known, part, |known, index| known.on_incarnation(index, incarnation));
                }
            }
        }
    }

    /// No job of the link's connections, up to this one, is carried out any more.
    pub(super) fn settle(&mut self, connection: u64, barriers: &Barriers) {
        for settled in self.unsettled.extract_if(.., |it| it.connection <= connection) {
            barriers.lower(settled.volume, settled.part, Cause::Link);
        }
    }

    /// The connection to be fenced over another link, with the number of this link: the last one
    /// with unsettled jobs, unless the fence is under way.
    pub(super) fn wants_fence(&self) -> Option<(u32, u64)> {
        let last = self.unsettled.iter().map(|it| it.connection).max()?;
        self.fenced_over.is_none().then_some((self.remote.link(), last))
    }

    /// The fence is under way over a link of this kind.
    pub(super) fn set_fenced_over(&mut self, kind: LinkKind) {
        self.fenced_over = Some(kind);
    }

    /// A link of this kind is down: a fence over it may not have reached the node.
    pub(super) fn on_other_down(&mut self, kind: LinkKind) {
        if self.fenced_over == Some(kind) {
            self.fenced_over = None;
        }
    }

    /// Records a change of a part, and reports whether its volume is served.
    fn note(
        &self,
        known: &mut [VolumeParts],
        part: PartNumber,
        note: impl FnOnce(&mut VolumeParts, u32),
    ) {
        let (volume, part) = &self.parts[part.index()];
        let known = &mut known[volume.0];
        let before = [known.fault(), known.mismatch()].map(|it| it.map(String::from));
        note(known, part.index);
        let now = [known.fault(), known.mismatch()];
        if before.each_ref().map(Option::as_deref) != now {
            self.reporter.on_volume(&part.volume, now[0], now[1]);
        }
    }
}
