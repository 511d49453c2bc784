//! The pShift solver: whatever is asked and however it changes, the allocation is prudent and its
//! certificate proves it the best; one that goes on from the last is worth what a new one is.

use tidegate_algo::allocation::pshift::{Configuration, Solver};

use super::tape::Tape;

const SERVERS_MAX: usize = 6;
const BUCKETS_MAX: usize = 10;

/// The input is a configuration, and then what changes in it.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let capacities: Vec<u64> = (0..tape.below(SERVERS_MAX + 1)).map(|_| tape.number()).collect();
    let mut configuration = Configuration::new(&capacities);
    for _ in 0..tape.below(BUCKETS_MAX + 1) {
        let (reservation, demands) = bucket(&mut tape, capacities.len());
        configuration.push(reservation, &demands).expect("servers that there are");
    }
    let mut solver = Solver::new(configuration);
    if tape.flag() {
        solver.solve_among(tape.below(4));
        is_proved(&mut solver, None);
    }
    let worth = solver.solve().effective_capacity;
    is_proved(&mut solver, Some(worth));
    while !tape.is_over() {
        change(&mut solver, &mut tape);
    }
}

fn bucket(tape: &mut Tape<'_>, servers: usize) -> (u64, Vec<(u32, u32)>) {
    let count = if servers == 0 { 0 } else { tape.below(servers + 2) };
    let demand = |_| (tape.below(servers) as u32, tape.word());
    let demands = (0..count).map(demand).collect();
    (tape.number(), demands)
}

fn change(solver: &mut Solver, tape: &mut Tape<'_>) {
    let configuration = solver.configuration();
    let (servers, buckets) = (configuration.capacities().len(), configuration.reservations().len());
    for _ in 0..=tape.below(4) {
        if tape.flag() && servers > 0 {
            solver.set_capacity(tape.below(servers), tape.number());
        } else if buckets > 0 {
            let number = tape.below(buckets);
            let (reservation, mut demands) = bucket(tape, servers);
            let row_length = solver.configuration().row(number).len();
            let taken = solver.set(number, reservation, &demands);
            assert_eq!(taken.is_ok(), demands.len() <= row_length, "room for {row_length}");
            demands.truncate(row_length);
            solver.set(number, reservation, &demands).expect("there is room");
        }
    }
    let worth = solver.shift().effective_capacity;
    is_proved(solver, Some(worth));
    let anew = Solver::new(solver.configuration().clone()).solve().effective_capacity;
    assert_eq!(worth, anew, "what goes on from the last is not what a new one is");
    if tape.flag() {
        shortfall_is_shared(solver, worth);
    }
}

/// The certificate of the allocation holds; of one that is not the best, it bounds what it is.
fn is_proved(solver: &mut Solver, worth: Option<u64>) {
    let certificate = solver.certificate();
    let configuration = solver.configuration();
    let effective = configuration.effective_capacity();
    match worth {
        Some(worth) => {
            assert_eq!(worth, effective, "the outcome is not what the tokens are worth");
            assert_eq!(certificate.verify(configuration), Ok(()));
        }
        None => assert!(effective <= certificate.bound()),
    }
}

fn shortfall_is_shared(solver: &mut Solver, worth: u64) {
    let shares = solver.share_shortfall();
    let configuration = solver.configuration();
    assert_eq!(shares.met.iter().sum::<u64>(), worth, "sharing loses tokens");
    let mut left = configuration.capacities().to_vec();
    for (share, granted) in configuration.shares().iter().zip(&shares.granted) {
        assert!(*granted <= share.tokens && share.tokens <= share.demand);
        let left = &mut left[share.server as usize];
        *left = left.checked_sub(u64::from(*granted)).expect("no server has more than it can do");
    }
    let mut granted = shares.granted.iter();
    for (bucket, met) in shares.met.iter().enumerate() {
        assert!(*met <= configuration.entitlement(bucket));
        let row = granted.by_ref().take(configuration.row(bucket).len());
        assert_eq!(row.map(|granted| u64::from(*granted)).sum::<u64>(), *met);
    }
    is_proved(solver, Some(worth));
}

/// The paper's third example, one that is short, and one with corners.
pub fn seeds() -> Vec<Vec<u8>> {
    let small = |numbers: &[u8]| numbers.iter().flat_map(|number| [0, *number]).collect::<Vec<_>>();
    let bucket = |reservation: u8, demands: &[(u8, u8)]| {
        let cells = demands.iter().flat_map(|(server, demand)| [*server, 0, *demand]);
        let count = demands.len() as u8;
        [vec![count], cells.collect(), vec![0, reservation]].concat()
    };
    let third = [
        vec![3],
        small(&[100; 3]),
        vec![3],
        bucket(100, &[(0, 150), (1, 50)]),
        bucket(100, &[(1, 150), (2, 50)]),
        bucket(100, &[(0, 50), (2, 50)]),
        vec![0],
    ];
    let changes = [vec![1, 1, 0, 0, 40, 0, 1], bucket(90, &[(0, 9), (2, 200)]), vec![1]];
    let corners = [
        vec![2, 2, 7, 2, 3, 2],
        [vec![2, 0, 2, 7, 1, 2, 7, 2, 7], vec![2, 1, 2, 2, 1, 2, 2, 2, 6]].concat(),
        vec![1, 2, 3, 1, 0, 2, 7, 1],
    ];
    vec![third.concat(), [third.concat(), changes.concat()].concat(), corners.concat()]
}
