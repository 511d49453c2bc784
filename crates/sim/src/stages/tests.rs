//! Fifty programs on eight hosts: shares follow their demand.

use tidegate_model::Policy;

use super::{HOSTS, Programs, StageEvent, StageSim};
use crate::link::Conduct;
use crate::time::Picoseconds;

const STAGES: u16 = 50;
const TENANTS: u16 = 3;
const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000_000;

const POLICY: &str = r#"
    budget = "1000MiB/s"
    redistribute = "100ms"
    tenant = [
        { name = "t0", reservation = "400MiB/s" },
        { name = "t1", reservation = "200MiB/s" },
        { name = "t2" },
    ]
"#;

/// The demand of a program in MiB per second, by the number of the change.
fn wants(change: usize, program: u16) -> u64 {
    let (host, tenant) = (program % HOSTS, program % TENANTS);
    match (change, tenant) {
        // The demand of the first tenant is at one half of the hosts, and moves to the other.
        (0, 0) => 60 * u64::from(host < 4),
        (1, 0) => 60 * u64::from(host >= 4),
        // It stops, and begins at all hosts as the second stops.
        (2, 0) => 0,
        (3, 0) => 40,
        (3, 1) => 0,
        // The third tenant goes on with one program, and the second with little.
        (4, 0) => 20,
        (4, 1) => 5,
        (4, 2) => 2_000 * u64::from(program == 2),
        _ => 100,
    }
}

/// When demands change, in milliseconds: at different distances from the rounds.
const CHANGES: [u64; 5] = [0, 2_003, 4_051, 6_077, 8_098];

fn simulation() -> StageSim {
    let policy = Policy::parse(POLICY).unwrap();
    let host = |program| (usize::from(program % TENANTS), wants(0, program) * MIB);
    let programs = Programs {
        policies: [policy].into(),
        hosts: (0..STAGES).map(host).collect(),
        ..Programs::default()
    };
    let link = Conduct { least: Picoseconds(MS / 10), most: Picoseconds(MS), ..Conduct::default() };
    let links = vec![link; usize::from(STAGES)];
    let mut simulation = StageSim::new(programs, 7, &links, Picoseconds(1_000 * MS));
    for (change, at) in CHANGES.into_iter().enumerate().skip(1) {
        for host in 0..STAGES {
            let wants = wants(change, host) * MIB;
            simulation.plan(Picoseconds(at * MS), StageEvent::Demand { host, wants });
        }
    }
    simulation.start();
    simulation
}

/// The use of each tenant's programs so far, in MiB.
fn used(simulation: &mut StageSim) -> [u64; 3] {
    let (now, mut used) = (simulation.now.time(), [0; 3]);
    for program in simulation.hosts.iter_mut().filter_map(|host| host.process.as_mut()) {
        program.count(now);
        used[program.tenant] += program.bytes / MIB;
    }
    used
}

/// The rates in use of each tenant, in MiB per second, and what there is to use of the budget.
fn rates(simulation: &StageSim) -> ([u64; 3], u64) {
    let (mut used, mut wanted) = ([0; 3], 0);
    for program in simulation.hosts.iter().filter_map(|host| host.process.as_ref()) {
        used[program.tenant] += program.used();
        wanted += program.wants;
    }
    (used.map(|used| used / MIB), (wanted / MIB).min(1_000))
}

#[test]
fn shares_of_fifty_programs_on_eight_hosts_follow_demand_within_two_intervals() {
    let mut simulation = simulation();
    let mut table = String::from("change   ms   t0   t1   t2  all  there\n");
    let mut is_late = false;
    for (number, at) in CHANGES.into_iter().enumerate().skip(1) {
        for after in (0..=300).step_by(50) {
            simulation.run_until(Picoseconds((at + after) * MS));
            let ([t0, t1, t2], there) = rates(&simulation);
            let all = t0 + t1 + t2;
            table += &format!("{number:6} {after:4} {t0:4} {t1:4} {t2:4} {all:4} {there:6}\n");
            is_late |= after >= 200 && all * 100 < there * 97;
        }
        // A whole period in which nothing changes.
        simulation.run_until(Picoseconds((at + 900) * MS));
        let before = used(&mut simulation);
        simulation.run_until(Picoseconds((at + 1_900) * MS));
        let after = used(&mut simulation);
        for (index, reserved) in [(0, 400), (1, 200)] {
            let programs = (0..STAGES).filter(|program| usize::from(program % TENANTS) == index);
            let wanted: u64 = programs.map(|program| wants(number, program)).sum();
            let (got, want) = (after[index] - before[index], wanted.min(reserved));
            assert!(got * 100 >= want * 98, "t{index} got {got} of {want}");
        }
    }
    assert!(!is_late, "{table}");
    assert_eq!(table, GOLDEN);
    // At no instant there was more than the budget, and a hundredth for programs that start, each
    // with a byte per second at least.
    let most = 1_010 * MIB + u64::from(STAGES);
    assert!(simulation.peers.most.0 <= most, "{:?}", simulation.peers.most);
}

const GOLDEN: &str = "\
change   ms   t0   t1   t2  all  there
     1    0    1  332  135  468   1000
     1   50    1  332  135  468   1000
     1  100  480  332  135  947   1000
     1  150  480  332  135  947   1000
     1  200  480  350  153  983   1000
     1  250  480  350  153  983   1000
     1  300  480  350  153  983   1000
     2    0    0  350  153  503   1000
     2   50    0  350  153  503   1000
     2  100    0  596  399  995   1000
     2  150    0  596  399  995   1000
     2  200    0  596  399  995   1000
     2  250    0  596  399  995   1000
     2  300    0  596  399  995   1000
     3    0    3    0  399  402   1000
     3   50    3    0  399  402   1000
     3  100  680    0  299  979   1000
     3  150  680    0  299  979   1000
     3  200  680    0  299  979   1000
     3  250  680    0  299  979   1000
     3  300  680    0  299  979   1000
     4    0  340    3   18  361   1000
     4   50  340    3   18  361   1000
     4  100  340   85   52  477   1000
     4  150  340   85  476  901   1000
     4  200  340   85  558  983   1000
     4  250  340   85  558  983   1000
     4  300  340   85  558  983   1000
";
