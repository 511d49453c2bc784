//! Drives beside MQSim: the same drive and load must take the same time.

use tidegate_model::{Bytes, Class, Portion, Span};
use tidegate_netsim::storage::alone::{Arrivals, CommandFlow, DriveReport, Length, run};
use tidegate_netsim::storage::{Before, Choice, Parameters};

mod reference;

/// Mean within 2 %, 95th percentile within 4 %, 99th within 6 % or its noise; shares of classes
/// within 5 %.
#[test]
fn as_long_as_in_mqsim() {
    let wrong: Vec<String> =
        reference::rows().iter().flat_map(|row| row.wrong(&row.run(1, 1))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A drive of four planes that was filled and overwritten, under random writes.
fn old(choice: Choice, first: bool) -> DriveReport {
    let mut drive = Parameters::default();
    let geometry = &mut drive.geometry;
    (geometry.channels, geometry.chips, geometry.dies) = (1, 2, 1);
    (geometry.blocks, geometry.pages) = (128, 64);
    drive.cleaning.spare = Portion(250_000);
    drive.cleaning.threshold = Portion(80_000);
    drive.cleaning.reserve = 2;
    (drive.cleaning.choice, drive.cleaning.first) = (choice, first);
    drive.cache.writes = false;
    drive.before = Before { filled: Portion::WHOLE, overwrites: 3 };
    let flow = CommandFlow {
        class: Class::High,
        arrivals: Arrivals::Closed(256),
        reads: Portion(0),
        sizes: vec![(8_192, 1)],
        spread: Portion::WHOLE,
    };
    run(&drive, &[flow], Length { total: Span(16 * Span::SECOND.0), skip: Span(0) }, 1)
}

/// In simulated time cleaning moves as much as the closed form says that it must: with 118 of 128
/// blocks in use, those of the threshold being free, and 75 % of 128 seen by the host, ρ is 0.814,
/// and random victims hold as much. And it takes the chips' time: a write costs (750 + 25) us, and
/// what is moved for it 75 + 25 + 750 + 25 us a page, on two chips.
#[test]
fn an_old_drive_cleans_as_it_must() {
    let outcome = old(Choice::Random, true);
    let counts = outcome.counts;
    let moved = counts.moves as f64 / counts.programs as f64;
    let full = 128.0 * 0.75 / (128.0 - 10.0);
    let expected = 1.0 / (1.0 - full) - 1.0;
    assert!((moved / expected - 1.0).abs() < 0.06, "{moved} moved for {expected}");
    let blocks = (counts.moves + counts.programs) as f64 / 64.0;
    assert!((counts.erasures as f64 / blocks - 1.0).abs() < 0.02, "{counts:?}");
    let busy = 775.0 + moved * 875.0 + 3_800.0 * (1.0 + moved) / 64.0;
    let most = 2.0 * 1e6 / busy;
    let rate = outcome.flows[0].per_second;
    assert!((0.85..1.0).contains(&(rate / most)), "{rate} of {most} per second");
    // Greedy moves less, so the host gets more.
    let greedy = old(Choice::Greedy, true);
    assert!(greedy.counts.moves * 10 < counts.moves * 9, "{:?}", greedy.counts);
    assert!(greedy.flows[0].per_second > 1.2 * rate);
}

/// The same to the last event; another seed is another run.
#[test]
fn runs_are_the_same() {
    let rows = reference::rows();
    let print = |outcome: &DriveReport| {
        let flow = |flow: usize| {
            let flow = &outcome.flows[flow];
            (flow.count(), flow.mean().to_bits(), flow.percentile(99.0).to_bits())
        };
        (outcome.events, outcome.counts, flow(0), flow(outcome.flows.len() - 1))
    };
    let mut flow = rows[3].flows[0].clone();
    flow.sizes = vec![(512, 1), (12_288, 2), (65_536, 1)];
    flow.reads = Portion(600_000);
    let low = CommandFlow { class: Class::Low, ..flow.clone() };
    let mut drive = rows[4].drive();
    drive.cache.writes = true;
    (drive.geometry.channels, drive.geometry.chips, drive.geometry.blocks) = (2, 2, 16);
    drive.geometry.pages = 8;
    drive.cleaning.spare = Portion(400_000);
    drive.cleaning.reserve = 2;
    drive.cache.capacity = Bytes(1 << 20);
    let length = Length { total: Span::SECOND, skip: Span(0) };
    let flows = [flow, low];
    let [first, again, other] = [1, 1, 2].map(|seed| run(&drive, &flows, length, seed));
    assert_eq!(print(&first), print(&again));
    assert_ne!(print(&first), print(&other));
    assert!(first.counts.erasures > 0 && first.counts.updates > 0, "{:?}", first.counts);
}
