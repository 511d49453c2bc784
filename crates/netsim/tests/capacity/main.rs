//! Measured capacities in virtual time: that of a resource of files, with the shipped controller,
//! stage machine and token buckets, and that of a storage node, with the shipped controller and
//! node. Each is before three devices: one whose requests all take the same time, a solid-state
//! drive that cleans, and a disk with slow writes. Each device halves its speed, is itself again,
//! doubles it, is itself again, and stands still for two seconds.
//!
//! The rows are golden files beside this one; `UPDATE_GOLDEN=1` writes them anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

use std::fmt::Write;
use std::path::Path;

use tidegate_model::Span;

mod device;
mod node;
mod world;

use device::{Device, Kind, bound};
use node::NodeWorld;
use world::{Load, Second, World};

/// A world with a capacity that is found.
trait Measured {
    fn seconds(&mut self, count: usize) -> Vec<Second>;
    fn set_speed(&mut self, speed: f64);
    /// Operations per second.
    fn found(&self) -> f64;
}

impl Measured for World {
    fn seconds(&mut self, count: usize) -> Vec<Second> {
        self.seconds(count)
    }

    fn set_speed(&mut self, speed: f64) {
        let now = self.now();
        self.device.set_speed(now, speed);
    }

    fn found(&self) -> f64 {
        self.status().measured.unwrap().operations_per_second as f64
    }
}

impl Measured for NodeWorld {
    fn seconds(&mut self, count: usize) -> Vec<Second> {
        self.seconds(count)
    }

    fn set_speed(&mut self, speed: f64) {
        let now = self.now();
        self.device.set_speed(now, speed);
    }

    fn found(&self) -> f64 {
        self.found()
    }
}

/// A database and a backup, with more threads than the bound allows at the device.
const LOADS: [Load; 2] = [
    Load { tenant: "oltp", threads: 96, writes: 30, bytes: 8_192 },
    Load { tenant: "backup", threads: 96, writes: 30, bytes: 8_192 },
];

/// Answers per second without gates, which is all that the device can do.
fn capacity(kind: Kind, speed: f64) -> f64 {
    let policy = "[[tenant]]\nname = \"oltp\"\n[[tenant]]\nname = \"backup\"";
    let mut world = World::new(policy, &LOADS, Device::new(kind));
    world.device.set_speed(0, speed);
    world.seconds(5);
    mean(&world.seconds(10))
}

fn mean(seconds: &[Second]) -> f64 {
    seconds.iter().map(Second::all).sum::<u64>() as f64 / seconds.len() as f64
}

/// The database is promised two fifths of what the device can do.
fn policy(kind: Kind, capacity: f64) -> String {
    let reserved = (capacity * 0.4) as u64;
    format!(
        r#"
        [[resource]]
        name = "disk"
        path = "/data/**"
        capacity = "measured"
        latency = "p99 < {}"
        [[tenant]]
        name = "oltp"
        on.disk = {{ reservation = "{reserved} iops" }}
        [[tenant]]
        name = "backup"
        "#,
        bound(kind)
    )
}

/// The second from which on three in a row are good: nine tenths of the device are used and the
/// bound is kept.
fn good_from(seconds: &[Second], capacity: f64, kind: Kind) -> Option<usize> {
    let is_good =
        |second: &Second| second.all() as f64 >= capacity * 0.9 && second.p99() <= bound(kind);
    seconds.windows(3).position(|three| three.iter().all(is_good))
}

/// The row of a device that can do so much, and what is wrong with it.
fn row(kind: Kind, can: f64, world: &mut impl Measured) -> (String, Vec<String>) {
    let found = good_from(&world.seconds(15), can, kind);
    let rest = world.seconds(40);
    let kept = rest.iter().filter(|second| second.p99() <= bound(kind)).count() * 100 / rest.len();
    let used = mean(&rest) / can * 100.0;
    let oltp = rest.iter().map(|second| second.done[0]).min().unwrap_or(0) as f64 / can * 100.0;
    let estimate = world.found() / can * 100.0;
    let mut wrong = Vec::new();
    let mut check = |is_right: bool, what: String| {
        if !is_right {
            wrong.push(format!("{kind:?}: {what}"));
        }
    };
    // A drive that cleans stands still for tens of milliseconds now and then, and yields less in
    // such a second than is reserved: there is less to ask of it, and twice as slow it keeps no
    // bound of this length.
    let is_steady = !matches!(kind, Kind::Ssd);
    if is_steady {
        check(used >= 95.0, format!("{used}% used"));
        check((estimate - 100.0).abs() <= 5.0, format!("{estimate}% estimated"));
        check(kept >= 95, format!("{kept}% of seconds within the bound"));
        check(oltp >= 39.0, format!("{oltp}% for whom 40% is reserved"));
    }
    let mut row = format!(
        "{:9}{can:7.0}{:>6}{used:7.1}{estimate:8.1}{kept:6}{oltp:6.1}",
        format!("{kind:?}"),
        seconds_text(found),
    );
    for (speed, within) in [(0.5, 3), (1.0, 5), (2.0, 5), (1.0, 3)] {
        if !is_steady {
            write!(row, "{:>7}", "-").unwrap();
            continue;
        }
        world.set_speed(speed);
        let found = good_from(&world.seconds(10), can * speed, kind);
        check(found.is_some_and(|at| at <= within), format!("{found:?} s after speed {speed}"));
        write!(row, "{:>7}", seconds_text(found)).unwrap();
    }
    world.set_speed(0.0);
    world.seconds(2);
    world.set_speed(1.0);
    let after = good_from(&world.seconds(10), can, kind);
    check(!is_steady || after.is_some_and(|at| at <= 1), format!("{after:?} s after a stall"));
    writeln!(row, "{:>7}", seconds_text(after)).unwrap();
    (row, wrong)
}

fn seconds_text(seconds: Option<usize>) -> String {
    seconds.map_or("never".into(), |seconds| format!("{seconds}s"))
}

/// Compares the row of a device with its golden one, and refuses what is wrong with that of a
/// steady device. The promises are not kept before a drive that cleans: its row shows a change.
fn found_and_followed(kind: Kind) {
    let can = capacity(kind, 1.0);
    let mut world = World::new(&policy(kind, can), &LOADS, Device::new(kind));
    golden("", kind, row(kind, can, &mut world));
}

fn golden(gate: &str, kind: Kind, (row, wrong): (String, Vec<String>)) {
    let head =
        "device      can found  used% estim% kept% oltp%   half   same double   same  stall\n";
    let table = format!("{head}{row}");
    println!("{table}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    let name = format!("tests/capacity/{gate}{kind:?}.golden").to_lowercase();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &table).unwrap();
    }
    assert_eq!(table, std::fs::read_to_string(&golden).unwrap());
}

#[test]
fn a_constant_device() {
    found_and_followed(Kind::Constant);
}

#[test]
fn a_drive_that_cleans() {
    found_and_followed(Kind::Ssd);
}

#[test]
fn a_disk_with_slow_writes() {
    found_and_followed(Kind::Disk);
}

/// While threads see their answers late, because processors are busy, no rate keeps the bound and
/// the estimate falls. The tenant with a reservation has all of it.
fn reserved_beside_busy_processors(kind: Kind) {
    let can = capacity(kind, 1.0);
    let loads = LOADS.map(|load| Load { threads: 8 * load.threads, ..load });
    let mut world = World::new(&policy(kind, can), &loads, Device::new(kind));
    world.seconds(20);
    world.late = Span(bound(kind).0 * 3 / 2);
    world.seconds(2);
    let seconds = world.seconds(30);
    let part = |done: u64| done as f64 / can * 100.0;
    let least = part(seconds.iter().map(|second| second.done[0]).min().unwrap());
    let mean = part(seconds.iter().map(|second| second.done[0]).sum::<u64>()) / 30.0;
    // The budget is the reservation, and answers of one second may come in the next one.
    println!("{kind:?}: {mean}% in the mean, {least}% at least");
    assert!(least >= 38.0 && mean >= 39.0);
}

#[test]
fn a_constant_device_beside_busy_processors() {
    reserved_beside_busy_processors(Kind::Constant);
}

#[test]
fn a_drive_that_cleans_beside_busy_processors() {
    reserved_beside_busy_processors(Kind::Ssd);
}

#[test]
fn a_disk_with_slow_writes_beside_busy_processors() {
    reserved_beside_busy_processors(Kind::Disk);
}

/// More than the bound allows at any of the devices.
const DEPTH: u32 = 256;

fn node(kind: Kind, policy: &str, latency: Option<Span>) -> NodeWorld {
    NodeWorld::new(policy, &LOADS, Device::new(kind), (DEPTH, latency))
}

/// The rate of the device for a node without a bound, and two tenants, the first of which is
/// promised two fifths of that.
fn promised_by_a_node(kind: Kind) -> (f64, String) {
    let mut free = node(kind, "[[tenant]]\nname = \"oltp\"\n[[tenant]]\nname = \"backup\"", None);
    free.seconds(5);
    let can = mean(&free.seconds(10));
    let reserved = (can * 0.4) as u64;
    let policy = format!(
        "[[tenant]]\nname = \"oltp\"\nreservation = \"{reserved} iops\"\n\
         [[tenant]]\nname = \"backup\""
    );
    (can, policy)
}

/// A node's capacity is what its device does for all that a gateway sends, and no more is at the
/// device than keeps the bound.
fn found_by_a_node(kind: Kind) {
    let (can, policy) = promised_by_a_node(kind);
    let mut world = node(kind, &policy, Some(bound(kind)));
    golden("node_", kind, row(kind, can, &mut world));
}

#[test]
fn a_constant_device_behind_a_node() {
    found_by_a_node(Kind::Constant);
}

#[test]
fn a_drive_that_cleans_behind_a_node() {
    found_by_a_node(Kind::Ssd);
}

#[test]
fn a_disk_with_slow_writes_behind_a_node() {
    found_by_a_node(Kind::Disk);
}

/// While a node sees its answers late, because processors are busy, no number of requests keeps the
/// bound: it falls to one. The tenant with a reservation has all of it nevertheless.
fn reserved_beside_busy_processors_behind_a_node(kind: Kind) {
    let (can, policy) = promised_by_a_node(kind);
    let loads = LOADS.map(|load| Load { threads: 8 * load.threads, ..load });
    let limits = (4 * DEPTH, Some(bound(kind)));
    let mut world = NodeWorld::new(&policy, &loads, Device::new(kind), limits);
    world.seconds(20);
    world.late = Span(bound(kind).0 * 3 / 2);
    world.seconds(2);
    let seconds = world.seconds(30);
    let part = |done: u64| done as f64 / can.floor() * 100.0;
    let least = part(seconds.iter().map(|second| second.done[0]).min().unwrap());
    let mean = part(seconds.iter().map(|second| second.done[0]).sum::<u64>()) / 30.0;
    println!("{kind:?}: {mean}% in the mean, {least}% at least");
    assert!(least >= 38.0 && mean >= 39.2);
    world.late = Span::ZERO;
    let after = good_from(&world.seconds(10), can, kind);
    println!("{kind:?}: used within the bound from {after:?} s after that");
    // The drive that cleans is never used so far by a node.
    assert!(matches!(kind, Kind::Ssd) || after.is_some_and(|at| at <= 5));
}

#[test]
fn a_constant_device_beside_busy_processors_behind_a_node() {
    reserved_beside_busy_processors_behind_a_node(Kind::Constant);
}

#[test]
fn a_drive_that_cleans_beside_busy_processors_behind_a_node() {
    reserved_beside_busy_processors_behind_a_node(Kind::Ssd);
}

#[test]
fn a_disk_with_slow_writes_beside_busy_processors_behind_a_node() {
    reserved_beside_busy_processors_behind_a_node(Kind::Disk);
}

/// The capacity that a node assumes before its device was busy is not shown.
#[test]
fn a_capacity_is_not_known_before_the_first_requests() {
    let policy = "[[tenant]]\nname = \"oltp\"\nreservation = \"100 iops\"";
    let device = || Device::new(Kind::Constant);
    let limits = (4, Some(bound(Kind::Constant)));
    let mut world = NodeWorld::new(policy, &[], device(), limits);
    world.seconds(3);
    let status = world.status();
    assert!(status.reported_ns.is_some());
    assert_eq!((status.measured_operations_per_second, status.capacity_operations), (None, 0));
    let mut world = NodeWorld::new(policy, &LOADS[..1], device(), limits);
    world.seconds(3);
    assert!(world.status().measured_operations_per_second.is_some_and(|can| can <= 4_100));
}
