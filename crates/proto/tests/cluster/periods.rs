//! Changes of the period: a limit holds over all periods together, however long each of them is and
//! however soon it is cut.
//!
//! Where a period is cut, a node counts what it served ahead of time as a debt, and pays it with
//! its next tokens. So a tenant has what its limit gives in the time that has passed, the tokens of
//! the period that runs, and what is owed: at each node at most the tokens of one period.

use proptest::prelude::*;
use tidegate_model::Span;
use tidegate_sim::cluster::ClusterTestbed;

use crate::{MS, slow};

const LIMIT: u64 = 900;
const NODES: u16 = 3;

/// A chunk for each node, and a request for each millisecond of what messages take.
const SLACK: u64 = 2 * NODES as u64 + 4;

fn policy(period: u64) -> String {
    format!(
        "period = \"{period}ms\"\nredistribute = \"{}ms\"\n\
         tenant = [{{ name = \"t\", limit = \"{LIMIT} iops\" }}]",
        (period / 4).max(10)
    )
}

/// The tokens of so many milliseconds.
const fn tokens(ms: u64) -> u64 {
    LIMIT * ms / 1_000
}

/// Answers in a world whose period changes after so many milliseconds to another length each time.
struct Answers {
    world: ClusterTestbed,
    ms: u64,
    /// The longest period so far.
    longest: u64,
}

impl Answers {
    fn new(period: u64, is_slow: bool) -> Self {
        let mut world = ClusterTestbed::new(&policy(period), 2_000, NODES);
        (world.is_watched, world.unchecked_until) = (false, u64::MAX);
        if is_slow {
            world.links(slow(1, 3));
        }
        Self { world, ms: 0, longest: period }
    }

    /// Lets milliseconds pass. In each, the limit holds from the start.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            // The demand moves, and is more than the limit.
            if self.ms.is_multiple_of(700) {
                for node in 0..NODES {
                    let is_hot = u64::from(node) == self.ms / 700 % u64::from(NODES);
                    self.world.demand(node, "t", if is_hot { 1_900 } else { 150 });
                }
            }
            self.world.run(Span(MS));
            self.ms += 1;
            let (line, answered) = (tokens(self.ms), self.world.answered("t"));
            let ahead = tokens(self.longest) * (1 + u64::from(NODES)) + SLACK;
            assert!(answered <= line + ahead, "{answered} at {} ms, of {line}", self.ms);
        }
    }

    fn apply(&mut self, period: u64) {
        self.longest = self.longest.max(period);
        self.world.apply(&policy(period));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// However the period changes; and once it stays as it is and debts are paid, the tenant has
    /// its whole limit again.
    #[test]
    fn a_limit_holds_over_periods_of_any_length(
        changes in prop::collection::vec((
            prop::sample::select(vec![100_u64, 500, 900, 1_000, 2_000]),
            prop_oneof![1_u64..20, 1_u64..900],
        ), 1..24),
        is_slow: bool,
    ) {
        let mut answers = Answers::new(1_000, is_slow);
        answers.run(150);
        for (period, ms) in changes {
            answers.apply(period);
            answers.run(ms);
        }
        answers.apply(500);
        answers.run(u64::from(NODES) * answers.longest + 1_000);
        let before = answers.world.answered("t");
        answers.run(2_000);
        let more = answers.world.answered("t") - before;
        prop_assert!(more >= tokens(2_000) * 9 / 10, "{more} of {}", tokens(2_000));
    }
}

/// An operator who changes the period as quickly as a script can.
#[test]
fn a_limit_holds_while_the_period_changes_a_hundred_times_a_second() {
    let mut answers = Answers::new(1_000, false);
    for change in 0..600 {
        answers.apply([1_000, 2_000, 500][change % 3]);
        answers.run(10);
    }
    let had = answers.world.answered("t");
    assert!(had >= tokens(6_000) / 2, "{had} of {}", tokens(6_000));
}
