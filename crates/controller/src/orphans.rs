//! Stages of this machine whose supervisors were killed or stopped, while their programs may go on.
//!
//! The machine keeps a share for such a stage until it hears that no program is left. The kernel
//! knows: a program maps the segment that the supervisor has made ([`segment_use`]). A program that
//! replaces itself by another one maps nothing for a moment, so the answer has to be the same
//! twice.
//!
//! Any user of the machine can make orphans: a process that maps a file is all that one needs. So
//! one check asks for some of them only, and beyond [`OF_USER_MAX`] of a user no further stage of
//! this user becomes one.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_fabric::segment_use;
use tidegate_model::{Span, StageId, Time};
use tidegate_proto::controller::Controller;

/// The time between two checks. A program that replaces itself has the shim again after some
/// milliseconds. Chosen by hand.
const PAUSE: Span = Span(250 * Span::MILLISECOND.0);
/// The most segments of one check. Each takes some five system calls, some microseconds in all.
const CHECKED_MAX: usize = 256;
/// The most orphans of one user, as of the last check. Chosen by hand: more programs whose
/// supervisors were killed than anybody has.
const OF_USER_MAX: usize = 1_024;

/// The stages without a connection.
#[derive(Debug)]
pub(crate) struct Orphans {
    next_check: Time,
    /// Stages whose segments were unused when they were checked last.
    unused: BTreeSet<StageId>,
    /// The stage that was checked last: the next ones are next.
    last: StageId,
    /// How many there are, by user.
    of_user: BTreeMap<u32, usize>,
}

impl Orphans {
    pub(crate) const fn new() -> Self {
        Self {
            next_check: Time::MAX,
            unused: BTreeSet::new(),
            last: StageId(0),
            of_user: BTreeMap::new(),
        }
    }

    /// A connection has ended. While there are orphans their next check is due soon enough.
    pub(crate) fn on_closed(&mut self, now: Time) {
        if self.next_check == Time::MAX {
            self.next_check = now;
        }
    }

    /// When to call [`Self::check`].
    pub(crate) const fn next_check(&self) -> Time {
        self.next_check
    }

    /// Whether a further stage of this user may become an orphan.
    pub(crate) fn may_have(&self, user: u32) -> bool {
        self.of_user.get(&user).is_none_or(|count| *count < OF_USER_MAX)
    }

    /// Reports stages to the controller of which no program is left.
    pub(crate) fn check(&mut self, now: Time, controller: &mut Controller) {
        let orphans: Vec<_> = controller.orphans().collect();
        self.of_user.clear();
        for (_, user, _) in &orphans {
            *self.of_user.entry(*user).or_default() += 1;
        }
        let first = orphans.iter().position(|orphan| orphan.0 > self.last).unwrap_or(0);
        let (before, behind) = orphans.split_at(first);
        let mut earlier = std::mem::take(&mut self.unused);
        let mut gone = Vec::new();
        for (stage, user, segment) in behind.iter().chain(before).take(CHECKED_MAX) {
            self.last = *stage;
            let was_unused = earlier.remove(stage);
            match (segment_use::is_used(*user, segment), was_unused) {
                (true, _) => {}
                (false, true) => gone.push(*stage),
                (false, false) => _ = self.unused.insert(*stage),
            }
        }
        let is_orphan = |id: &StageId| orphans.binary_search_by_key(id, |orphan| orphan.0).is_ok();
        self.unused.extend(earlier.into_iter().filter(is_orphan));
        self.next_check = if orphans.is_empty() { Time::MAX } else { now.after(PAUSE) };
        gone.into_iter().for_each(|stage| controller.on_unused(now, stage));
    }
}

#[cfg(test)]
mod tests {
    use tidegate_model::Policy;
    use tidegate_proto::controller::{ConnectionId, Peer, Setup};
    use tidegate_proto::message::{Held, Hello, StageInfo, VERSION};

    use super::*;

    /// A controller with so many stages of one user, which have lost their connections and whose
    /// segments nobody has.
    fn orphaned(count: usize) -> Controller {
        let policy = Policy::parse("tenant = [{ name = \"a\" }]").unwrap();
        let mut controller = Controller::new(Time::ZERO, Setup::default(), Some((1, policy)));
        for number in 1..=count as u64 {
            let held = Held { segment: format!("nobody-has-{number}"), ..Held::default() };
            let info = StageInfo { tenant: "a".into(), held, ..StageInfo::default() };
            let peer = Peer { uid: 7, is_watched: true, ..Peer::default() };
            let hello = Hello::Stage { version: VERSION, info };
            controller.on_hello(Time::ZERO, ConnectionId(number), peer, hello);
            controller.on_closed(Time::ZERO, ConnectionId(number), "killed");
        }
        controller
    }

    #[test]
    fn a_check_is_short_however_many_orphans_there_are_and_all_are_checked_in_turn() {
        let mut controller = orphaned(2 * CHECKED_MAX + 1);
        let mut orphans = Orphans::new();
        let mut left = || {
            orphans.check(Time::ZERO, &mut controller);
            controller.orphans().count()
        };
        // Three checks ask for each once, and the second question is the one that frees.
        assert_eq!([left(), left()], [2 * CHECKED_MAX + 1; 2]);
        let mut counts = Vec::from_iter((0..4).map(|_| left()));
        counts.insert(0, 2 * CHECKED_MAX + 1);
        assert!(counts.windows(2).all(|two| two[0] - two[1] <= CHECKED_MAX), "{counts:?}");
        assert_eq!(counts.last(), Some(&0));
    }

    #[test]
    fn the_end_of_a_connection_brings_no_check_forward() {
        let mut orphans = Orphans::new();
        orphans.on_closed(Time(7));
        assert_eq!(orphans.next_check(), Time(7), "the first one is at once");
        orphans.check(Time(7), &mut orphaned(1));
        orphans.on_closed(Time(8));
        assert_eq!(orphans.next_check(), Time(7).after(PAUSE));
        orphans.check(orphans.next_check(), &mut orphaned(0));
        assert_eq!(orphans.next_check(), Time::MAX);
    }

    #[test]
    fn one_user_has_a_bounded_number_of_orphans() {
        let mut orphans = Orphans::new();
        orphans.check(Time::ZERO, &mut orphaned(OF_USER_MAX - 1));
        assert!(orphans.may_have(7));
        orphans.check(Time::ZERO, &mut orphaned(OF_USER_MAX));
        assert!(!orphans.may_have(7) && orphans.may_have(8));
        orphans.check(Time::ZERO, &mut orphaned(0));
        assert!(orphans.may_have(7));
    }
}
