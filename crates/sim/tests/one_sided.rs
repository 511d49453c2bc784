//! The scenarios under `scenarios/haechi/`: each is read, run at a hundredth of its speed, and
//! compared with the table beside it.
//!
//! A table changes when the machines do, and is to be looked at before it is accepted:
//! `TIDEGATE_ACCEPT=1 cargo test -p tidegate-sim --test one_sided` writes it anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

mod folder;

use folder::Folder;
use tidegate_model::{Iops, Span};
use tidegate_onesided::haechi::MonitorEvent;
use tidegate_sim::one_sided::{
    self, Background, Change, Control, OneSidedReport, Order, Scenario, Service,
};

const FOLDER: Folder = Folder("haechi");

/// How much slower than the paper's.
const SLOWER: u32 = 100;

/// A scenario, but slower and shorter.
fn read(name: &str) -> Scenario {
    let read = FOLDER.read(name, Scenario::parse).slowed(SLOWER);
    Scenario { periods: 2, ..read }
}

fn run(scenario: &Scenario) -> OneSidedReport {
    one_sided::run(scenario).unwrap()
}

/// Runs a scenario and compares.
#[track_caller]
fn golden(name: &str) -> OneSidedReport {
    let scenario = read(name);
    let outcome = run(&scenario);
    FOLDER.golden(name, &scenario.name, &outcome.table());
    outcome
}

/// Within so many percent, at the paper's speed.
#[track_caller]
fn near(value: f64, expected: f64, percent: f64) {
    let value = value * f64::from(SLOWER);
    let off = (value / expected - 1.0).abs() * 100.0;
    assert!(off <= percent, "{value} instead of {expected}");
}

#[test]
fn four_clients_saturate_a_data_node() {
    let mut scenario = read("figure-7");
    for (count, expected) in [(1, 400e3), (2, 800e3), (3, 1200e3), (4, 1570e3), (10, 1570e3)] {
        scenario.client[0].count = count;
        near(run(&scenario).total(), expected, 0.3);
    }
    golden("figure-7");
}

#[test]
fn two_clients_saturate_its_processor() {
    let mut scenario = read("figure-7-two-sided");
    scenario.client[0].count = 1;
    near(run(&scenario).total(), 320e3, 0.3);
    near(golden("figure-7-two-sided").total(), 427e3, 0.3);
}

#[test]
fn bursts_of_unequal_demands_leave_it_idle() {
    near(golden("figure-8a").total(), 1570e3, 0.3);
    let burst = golden("figure-8b");
    near(burst.total(), 1380e3, 1.0);
    near(burst.mean(0), 278e3, 1.0);
    let constant = golden("figure-8c");
    near(constant.total(), 1564e3, 1.0);
    near(constant.mean(0), 332e3, 2.0);
    assert!(constant.latency[0].begun.mean() < burst.latency[0].begun.mean());
}

#[test]
fn the_order_at_the_link_changes_little() {
    let plain = run(&read("figure-8b")).total();
    let orders = [Order::Arrival, Order::RoundRobin, Order::Shared];
    for (order, service) in orders
        .into_iter()
        .flat_map(|order| [Service::Constant, Service::Exponential].map(|service| (order, service)))
    {
        let mut scenario = read("figure-8b");
        (scenario.nics.order, scenario.nics.service) = (order, service);
        let total = run(&scenario).total();
        assert!((total / plain - 1.0).abs() < 0.01, "{order:?} {service:?}: {total}, {plain}");
    }
}

#[test]
fn a_job_in_the_background_takes_its_share_and_leaves() {
    let mut scenario = Scenario { periods: 3, ..read("figure-7") };
    // Of eight and two windows of eight.
    scenario.client[0].count = 8;
    scenario.background = Some(Background {
        count: 2,
        window: 8,
        from: Span::SECOND,
        until: Some(Span(2_000_000_000)),
    });
    let outcome = run(&scenario);
    let shares: Vec<u64> = outcome.samples.iter().map(|sample| sample.background / 100).collect();
    assert_eq!((shares[0], shares[2]), (0, 0));
    assert!((30..=32).contains(&shares[1]), "{shares:?}");
    outcome.totals().zip([1570e3, 1256e3, 1570e3]).for_each(|(total, all)| near(total, all, 0.3));
}

#[test]
fn a_data_node_may_change() {
    let mut scenario = read("figure-7");
    scenario.change = vec![Change { at: Span::SECOND, node: Iops(10_000) }];
    let rates: Vec<f64> = run(&scenario).totals().collect();
    near(rates[0], 1570e3, 0.3);
    near(rates[1], 1000e3, 0.3);
}

/// The mechanism's own operations take more of a slow data node than of a fast one, and a window is
/// a larger part of a period. So a promise may be missed, and throughput may fall, by so many
/// percent here.
const COARSE: f64 = 3.0;

fn under(name: &str, control: Control) -> OneSidedReport {
    run(&Scenario { control, ..read(name) })
}

/// All have what they want of their reservations, in each period.
#[track_caller]
fn keeps(outcome: &OneSidedReport) {
    for client in 0..outcome.promised.len() {
        let missing = outcome.missing_percent(client);
        assert!(missing <= COARSE, "C{} misses {missing} %", client + 1);
    }
}

/// Sound rules keep all promises, and use what is used without control.
#[track_caller]
fn sound(name: &str) -> OneSidedReport {
    let outcome = golden(name);
    keeps(&outcome);
    let part = outcome.total() / under(name, Control::None).total() * 100.0;
    assert!(part >= 100.0 - COARSE, "only {part} % are used");
    outcome
}

#[test]
fn reservations_are_met() {
    sound("figure-9a");
    sound("figure-9b");
    sound("figure-13b");
}

/// With paced tokens the node grants reservations that it refuses without pacing.
#[test]
fn a_spike_is_met_in_bursts_too() {
    let paced = sound("figure-13a");
    assert!(paced.total() > under("figure-13a", Control::None).total() * 1.05);
    let refused = Scenario { control: Control::Unpaced, ..read("figure-13a") };
    let why = one_sided::run(&refused).unwrap_err().to_string();
    assert!(why.contains("if all clients began at once"), "{why}");
}

/// The text takes reservation tokens from whoever has some left, also where others are the reason
/// that it has.
#[test]
fn the_text_loses_a_reservation_in_bursts() {
    let [bare, paper] =
        [Control::None, Control::Paper].map(|control| under("figure-9b", control).mean(0));
    assert!(paper < bare * 1.05, "{paper} {bare}");
    near(paper, 158e3, 3.0);
}

#[test]
fn conversion_gives_others_what_two_leave() {
    for name in ["figure-10a", "figure-10b"] {
        let outcome = golden(name);
        keeps(&outcome);
        let basic = under(name, Control::Basic);
        let others =
            |outcome: &OneSidedReport| (2..10).map(|client| outcome.mean(client)).sum::<f64>();
        assert!(others(&outcome) > others(&basic) * 1.05, "{name}");
        assert!(basic.total() < outcome.total() * 0.97, "{name}");
    }
}

/// A scenario in which something changes, but earlier.
fn earlier(name: &str) -> Scenario {
    let at = Span(2 * Span::SECOND.0);
    let mut scenario = Scenario { periods: 9, ..read(name) };
    if let Some(jobs) = &mut scenario.background {
        if jobs.from > Span::ZERO {
            jobs.from = at;
        }
        jobs.until = jobs.until.map(|_| at);
    }
    scenario
}

#[test]
fn what_others_take_of_the_link_is_noticed() {
    for name in ["figure-16a", "figure-16b", "figure-18a", "figure-18b"] {
        let scenario = earlier(name);
        let outcome = run(&scenario);
        FOLDER.golden(name, &scenario.name, &outcome.table());
        for sample in outcome.samples.iter().skip(8) {
            for (done, promised) in sample.completed.iter().zip(&outcome.promised) {
                assert!(*done as f64 >= *promised as f64 * (1.0 - COARSE / 100.0), "{name}");
            }
        }
    }
}

#[test]
fn a_seed_is_a_run() {
    let mut scenario = read("figure-9b");
    scenario.nics.service = Service::Exponential;
    let outcome = run(&scenario);
    assert_eq!(outcome, run(&scenario));
    assert_ne!(outcome.samples, run(&Scenario { seed: 1, ..scenario }).samples);
}

/// A window is a thirtieth of what the node does in a period, so with all windows full there would
/// be a line of up to 0.7 s. The estimate does not take what stands in a line for what was done.
#[test]
fn a_slow_node_keeps_a_reservation_in_each_period() {
    for others in [4, 20] {
        let scenario = format!(
            r#"
            name = "many windows at a slow node"
            seed = 1
            control = "sound"
            period = "1s"
            skip = 2
            periods = 14
            cards = {{ client = "2k iops", node = "2k iops" }}
            client = [{{ count = 1, reservation = "1400 iops" }}, {{ count = {others} }}]
            "#
        );
        let outcome = run(&Scenario::parse(&scenario).unwrap());
        let table = outcome.table();
        assert!(outcome.samples.iter().all(|sample| sample.completed[0] >= 1_400), "{table}");
        // Reports and grants of so many clients take up to a tenth of the node.
        assert!(outcome.totals().all(|total| total >= 1_750.0), "{table}");
        for event in &outcome.events {
            let MonitorEvent::Over(summary) = event else { continue };
            assert!(summary.capacity <= 2_040, "{summary:?}");
        }
    }
}

#[test]
fn what_is_refused() {
    let good = std::fs::read_to_string(FOLDER.path("figure-8b.toml")).unwrap();
    let refused = |from: &str, to: &str| {
        assert!(good.contains(from));
        Scenario::parse(&good.replace(from, to)).unwrap_err().to_string()
    };
    assert!(refused("demand", "demnad").contains("demnad"));
    assert!(refused("\"400k iops\"", "\"0 iops\"").contains("1 iops"));
    assert!(refused("periods = 10", "periods = 0").contains("at least 1"));
    assert!(refused("count = 3", "count = 3\nwindow = 0").contains("window"));
    let upside_down = "count = 3\nreservation = \"2k iops\"\nlimit = \"1k iops\"";
    assert!(refused("count = 3", upside_down).contains("above its limit"));
}
