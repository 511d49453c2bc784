//! One link to a node behind a socket, and its notices about parts.

use std::collections::HashSet;

use tidegate_fabric::remote::{Notice, Remote};
use tidegate_fabric::service::Part;
use tidegate_model::{NodeId, PartNumber};

use crate::barriers::{Barriers, Cause};
use crate::parts::VolumeParts;
use crate::reachability::Reporter;
use crate::volumes::VolumeIndex;

/// A link to a node behind a socket, and the reported state of its parts.
pub(super) struct There {
    pub(super) remote: Remote,
    node: NodeId,
    /// The link that all nodes have. It reports whether the node is reachable; the state of parts
    /// is reported by each, because any may be the first to reach a new process of the node.
    is_main: bool,
    pub(super) reporter: Reporter,
    /// By number there: the volume and the part.
    pub(super) parts: Vec<(VolumeIndex, Part)>,
    /// Volumes and parts that jobs which failed with the link may still change.
    unsettled: Vec<(VolumeIndex, u32)>,
    /// Parts that are open over this link, by number there.
    open: HashSet<PartNumber>,
}

impl There {
    /// A link that has the `parts` opened, so that their numbers are those of the list.
    pub(super) fn new(
        mut remote: Remote,
        node: NodeId,
        is_main: bool,
        reporter: Reporter,
        parts: Vec<(VolumeIndex, Part)>,
    ) -> Self {
        for (_, part) in &parts {
            remote.open(part.clone());
        }
        let (unsettled, open) = (Vec::new(), HashSet::new());
        Self { remote, node, is_main, reporter, parts, unsettled, open }
    }

    /// Takes the notices of the link, and reports them.
    pub(super) fn on_notices(&mut self, known: &mut [VolumeParts], barriers: &Barriers) {
        while let Some(notice) = self.remote.poll_notice() {
            if matches!(notice, Notice::Up { .. }) {
                for (volume, part) in self.unsettled.drain(..) {
                    barriers.lower(volume, part, Cause::Link);
                }
            }
            if matches!(notice, Notice::Down { .. }) {
                for part in self.open.drain() {
                    let (volume, part) = &self.parts[part.index()];
                    known[volume.0].on_link_lost(part.index);
                }
            }
            match notice {
                Notice::Unsettled { part } => {
                    let (volume, part) = &self.parts[part.index()];
                    barriers.raise(*volume, part.index, Cause::Link);
                    self.unsettled.push((*volume, part.index));
                }
                Notice::Up { .. } | Notice::Down { .. } if !self.is_main => {}
                Notice::Up { .. } => self.reporter.on_up(self.node),
                Notice::Down { reason } => self.reporter.on_away(self.node, reason),
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
