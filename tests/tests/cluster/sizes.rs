//! Limits hold for requests of every size and kind: what they cost is paid, however it is asked
//! for.
//!
//! Counted in periods and units of cost, as the controller counts them, and not in seconds: limits
//! are so low that any machine comes to them.

use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tidegate_tests::cluster::{Cluster, GATEWAY, volume};
use tidegate_tests::nbd::Client;
use tidegate_tests::wait_for;

/// Units that each tenant may have in a period, which is a second.
const LIMIT: u64 = 50;
/// Periods that are added up.
const PERIODS: usize = 10;
/// The tolerance of the sum: 2 % of it. One piece, of 128 KiB, is a unit, which is less.
const TOLERANCE: u64 = LIMIT * PERIODS as u64 / 50;

/// How long ten periods may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The request that a tenant's clients repeat, and the number of clients.
struct Load {
    tenant: &'static str,
    clients: usize,
    request: fn(&mut Client) -> io::Result<()>,
}

/// Small requests come from several clients, so that one always waits. One client with large ones
/// is enough: the pieces of its request wait.
const LOADS: [Load; 9] = [
    Load { tenant: "r512", clients: 4, request: |client| client.read(0, 512).map(drop) },
    Load { tenant: "w512", clients: 4, request: |client| client.write(0, &[1; 512]) },
    Load { tenant: "r4k", clients: 4, request: |client| client.read(0, 4 * KIB).map(drop) },
    Load { tenant: "w4k", clients: 4, request: |client| client.write(0, &[2; 4 * KIB]) },
    Load { tenant: "r1m", clients: 2, request: |client| client.read(0, MIB).map(drop) },
    Load { tenant: "w1m", clients: 2, request: |client| client.write(0, &vec![3; MIB]) },
    // The gateway has memory for one such request at a time and worker.
    Load {
        tenant: "rw32m",
        clients: 1,
        request: |client| {
            client.read(0, 32 * MIB)?;
            client.write(0, &vec![4; 32 * MIB])
        },
    },
    Load {
        tenant: "trim",
        clients: 4,
        request: |client| {
            [4 * KIB, MIB, 32 * MIB].iter().try_for_each(|length| client.trim(0, *length, false))
        },
    },
    Load {
        tenant: "zero",
        clients: 4,
        request: |client| {
            [4 * KIB, MIB, 32 * MIB].iter().try_for_each(|length| client.zero(0, *length))
        },
    },
];

/// The cluster's present period, and the units that each tenant got in the last one.
fn last_period(cluster: &mut Cluster) -> (u64, BTreeMap<String, u64>) {
    let status = &cluster.bed().status()["cluster"];
    let tenants = status["tenants"].as_array().expect("tenants").iter();
    let units = |tenant: &Value| {
        let name = tenant["name"].as_str().expect("a name").to_owned();
        (name, tenant["last_served_operations"].as_u64().expect("a count"))
    };
    (status["period"].as_u64().expect("a number"), tenants.map(units).collect())
}

#[test]
fn limits_hold_over_ten_periods_for_requests_of_512_bytes_to_32_mib() {
    let node = "[[node]]\nname = \"a\"\nmemory = true\ncapacity = \"10k iops\"\n";
    let gateway = format!("[[gateway]]\nname = {GATEWAY:?}\nnbd = \"unix:{GATEWAY}.sock\"\n");
    let volumes = LOADS.iter().map(|load| volume(load.tenant, load.tenant, "32MiB", &["a"]));
    let tenants = LOADS
        .iter()
        .map(|load| format!("[[tenant]]\nname = {:?}\nlimit = \"{LIMIT} iops\"\n", load.tenant));
    let file = format!("{node}{gateway}{}", volumes.collect::<String>());
    let mut cluster = Cluster::new(&file, &tenants.collect::<String>());
    cluster.up();
    let sums = thread::scope(|scope| {
        for load in &LOADS {
            for _ in 0..load.clients {
                let mut client = cluster.enter(load.tenant);
                scope.spawn(move || while (load.request)(&mut client).is_ok() {});
            }
        }
        let begun = last_period(&mut cluster).0;
        // The first period in which all of them asked from its beginning is the next one, and it is
        // told of in the one behind it.
        let mut periods = BTreeMap::new();
        wait_for("ten periods", PATIENCE, || {
            let (period, units) = last_period(&mut cluster);
            if period >= begun + 2 {
                periods.insert(period, units);
            }
            // The last one may still be told of.
            (periods.len() > PERIODS).then_some(())
        });
        // Clients end with it.
        cluster.bed().kill_controller();
        let mut sums = BTreeMap::<String, u64>::new();
        for (tenant, units) in periods.into_values().take(PERIODS).flatten() {
            *sums.entry(tenant).or_default() += units;
        }
        sums
    });
    println!("{sums:?}");
    let wanted = LIMIT * PERIODS as u64;
    for load in &LOADS {
        let sum = sums[load.tenant];
        assert!(sum.abs_diff(wanted) <= TOLERANCE, "{}: {sum} of {wanted}: {sums:?}", load.tenant);
    }
}
