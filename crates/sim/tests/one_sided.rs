//! The scenarios under `scenarios/haechi/`: each is read, run at a hundredth of its speed, and compared
//! with the table beside it.
//!
//! A table changes when the machines do, and is to be looked at before it is accepted:
//! `TIDEGATE_ACCEPT=1 cargo test -p tidegate-sim --test one_sided` writes it anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

mod folder;

use folder::Folder;
use tidegate_model::{Iops, Span};
use tidegate_sim::one_sided::{self, Background, Change, Order, Outcome, Scenario, Service};

const FOLDER: Folder = Folder("haechi");

/// How much slower than the paper's.
const SLOWER: u32 = 100;

/// A scenario, but slower and shorter.
fn read(name: &str) -> Scenario {
    let read = FOLDER.read(name, Scenario::parse).slowed(SLOWER);
    Scenario { periods: 3, ..read }
}

fn run(scenario: &Scenario) -> Outcome {
    one_sided::run(scenario).unwrap()
}

/// Runs a scenario and compares.
#[track_caller]
fn golden(name: &str) -> Outcome {
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
    let orders = [Order::Arrival, Order::Turns, Order::Shared];
    for (order, service) in orders
        .into_iter()
        .flat_map(|order| [Service::Constant, Service::Exponential].map(|service| (order, service)))
    {
        let mut scenario = read("figure-8b");
        (scenario.cards.order, scenario.cards.service) = (order, service);
        let total = run(&scenario).total();
        assert!((total / plain - 1.0).abs() < 0.01, "{order:?} {service:?}: {total}, {plain}");
    }
}

#[test]
fn a_job_in_the_background_takes_its_share_and_leaves() {
    let mut scenario = read("figure-7");
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

#[test]
fn what_is_refused() {
    let good = std::fs::read_to_string(FOLDER.path("figure-8b.toml")).unwrap();
    let refused = |from: &str, to: &str| {
        assert!(good.contains(from));
        Scenario::parse(&good.replace(from, to)).unwrap_err().to_string()
    };
    assert!(refused("demand", "demnad").contains("demnad"));
    assert!(refused("\"400k iops\"", "\"0 iops\"").contains("1 iops"));
    assert!(refused("periods = 30", "periods = 0").contains("at least 1"));
    assert!(refused("count = 3", "count = 3\nwindow = 0").contains("window"));
    let upside_down = "count = 3\nreservation = \"2k iops\"\nlimit = \"1k iops\"";
    assert!(refused("count = 3", upside_down).contains("above its limit"));
}
