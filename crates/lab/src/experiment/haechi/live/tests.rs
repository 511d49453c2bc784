//! Tests of live runs that need no processes.

use super::run::{PeriodLog, words};
use super::*;
use crate::experiment::verdict::Verdict;
use crate::kv::ReportRow;

/// A client's report of a period that took `ms` milliseconds.
pub(super) fn row(period: u64, operations: u64, ms: u64, late_ms: u64) -> ReportRow {
    let millisecond = Span::MILLISECOND.0;
    let mut row = ReportRow::new();
    (row.period, row.operations, row.nanoseconds) = (period, operations, ms * millisecond);
    row.late_in_sum = late_ms * millisecond;
    row
}

#[test]
fn periods_count_when_all_clients_have_reported_them_except_the_first() {
    let mut period_log = PeriodLog::of(2);
    // Parts of periods, then the one in which clients learn where values are.
    for client in [0, 1] {
        period_log.take(client, row(4, 1, 300, 0));
        period_log.take(client, row(5, 2, 1_000, 0));
    }
    period_log.take(0, row(6, 30, 1_000, 0));
    // The second slept through the end of the sixth.
    period_log.take(1, row(7, 70, 2_000, 900));
    period_log.take(0, row(7, 40, 1_000, 0));
    for number in 8..12 {
        period_log.take(1, row(number, 60, 1_000, 19));
        period_log.take(0, row(number, 50, if number == 11 { 1_021 } else { 1_000 }, 0));
    }
    let counts =
        period_log.whole().iter().map(|rows| rows.iter().map(|row| row.operations).collect());
    let counts: Vec<Vec<u64>> = counts.collect();
    assert_eq!(counts, [[40, 70], [50, 60], [50, 60], [50, 60], [50, 60]]);
    // A client was late in the first, which disturbs the next, too, and the last was too long.
    assert_eq!(period_log.quiet(Span::SECOND), [false, false, true, true, false]);
}

#[test]
fn clients_have_the_demands_of_the_scenario() {
    let plan = |text, control| LiveRun {
        scenario: slowed(text, control, WINDOW).unwrap(),
        window: WINDOW,
        periods: 1,
        job: None,
    };
    let all = words(&plan(FIGURE_13B, Control::Sound));
    assert_eq!(all.len(), 10);
    let has = |client: usize, word: &str| all[client].iter().any(|one| one == word);
    assert!(has(2, "--demand=17000 iops") && has(3, "--demand=4000 iops"));
    assert!(has(9, "--tenant=c10") && has(9, "--pattern=constant") && has(9, "--depth=16"));
    assert!(!has(0, "--bare"));
    let bare = words(&plan(FIGURE_7, Control::None)).concat();
    assert!(bare.contains(&"--bare".into()) && !bare.concat().contains("--demand"));
}

/// A run of ten clients that read so much each, of which so many periods of four were quiet.
fn seen(rate: u64, quiet: usize) -> RunPair {
    let text = "name = \"x\"\nseed = 7\nperiod = \"1s\"\nperiods = 4\nclient = [{ count = 10, \
                reservation = \"6k iops\" }]\ncards = { client = \"20k iops\", node = \"78500 \
                iops\" }";
    let scenario = Scenario::parse(text).unwrap();
    let simulated = faster(one_sided::run(&scenario).unwrap());
    let mut outcome = simulated.clone();
    outcome.samples.iter_mut().for_each(|sample| sample.completed = vec![rate; 10]);
    let live = Live {
        outcome,
        periods: 4,
        quiet,
        late: Span(12 * Span::MILLISECOND.0),
        node_percent: 1.0,
        seconds: 4.0,
    };
    RunPair { live, simulated }
}

#[test]
fn a_claim_is_disturbed_where_the_machine_was_busy() {
    let near = seen(155_000, 4);
    let claim = as_simulated("9", &[&near], "so");
    assert_eq!((claim.verdict, claim.world), (Verdict::Holds, LIVE));
    assert_eq!(claim.measured["apart_at_most_percent"], 1.3);
    assert_eq!(claim.measured["late_in_a_period_at_most_ms"], 12.0);
    let far = as_simulated("9", &[&near, &seen(119_000, 4)], "so");
    assert_eq!(far.verdict, Verdict::Fails);
    assert!(far.reason.unwrap().ends_with("24.2, 24.2 % instead of at most 5 %"));
    let busy = as_simulated("9", &[&near, &seen(119_000, 1)], "so");
    assert_eq!(busy.verdict, Verdict::Disturbed);
    assert!(busy.reason.unwrap().starts_with("3 of 8 seconds were disturbed"));
    // 120,000 are reserved.
    let sounds = |rate| sound("9", &seen(157_000, 4), &seen(rate, 4), "so").verdict;
    assert_eq!([157_000, 150_000, 119_000].map(sounds), {
        [Verdict::Holds, Verdict::Fails, Verdict::Fails]
    });
}
