//! Stages of this machine whose supervisors were killed or stopped, while their programs may go on.
//!
//! The machine keeps a share for such a stage until it hears that no program is left. The kernel
//! knows: a program maps the segment that the supervisor has made ([`segment_use`]). A program that
//! replaces itself by another one maps nothing for a moment, so the answer has to be the same
//! twice.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_fabric::segment_use;
use tidegate_model::{Span, StageId, Time};
use tidegate_proto::controller::Controller;

/// The time between two questions about the same segment. A program that replaces itself has the
/// shim again after some milliseconds. Chosen by hand.
const PAUSE: Span = Span(250 * Span::MILLISECOND.0);

/// The stages without a connection.
#[derive(Debug)]
pub(crate) struct Orphans {
    next_check: Time,
    /// Stages whose segments were unused at the last check.
    unused: BTreeSet<StageId>,
}

impl Orphans {
    pub(crate) const fn new() -> Self {
        Self { next_check: Time::MAX, unused: BTreeSet::new() }
    }

    /// A connection has ended.
    pub(crate) fn on_closed(&mut self, now: Time) {
        self.next_check = self.next_check.min(now);
    }

    /// When to call [`Self::check`].
    pub(crate) const fn next_check(&self) -> Time {
        self.next_check
    }

    /// Reports stages to the controller of which no program is left.
    pub(crate) fn check(&mut self, now: Time, controller: &mut Controller) {
        let orphans: Vec<_> = controller.orphans().collect();
        let mut processes = BTreeMap::<u32, BTreeSet<u32>>::new();
        for (_, user, process) in &orphans {
            processes.entry(*user).or_default().insert(*process);
        }
        // One reading of a user's directory for all of the user's stages.
        let used: BTreeMap<u32, BTreeSet<u32>> = processes
            .iter()
            .map(|(user, processes)| (*user, segment_use::in_use(*user, processes)))
            .collect();
        let is_unused = |(_, user, process): &&(StageId, u32, u32)| !used[user].contains(process);
        let unused: BTreeSet<StageId> =
            orphans.iter().filter(is_unused).map(|orphan| orphan.0).collect();
        for stage in unused.intersection(&self.unused) {
            controller.on_unused(now, *stage);
        }
        self.next_check = if orphans.is_empty() { Time::MAX } else { now.after(PAUSE) };
        self.unused = unused;
    }
}
