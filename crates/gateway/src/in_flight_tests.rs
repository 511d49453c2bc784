use super::*;
use proptest::prelude::*;
use tidegate_model::Bytes;

const VOLUME: VolumeIndex = VolumeIndex(0);

fn request(command: Command, offset: u64, length: u32) -> InFlightRequest {
    let buffer = match command {
        Command::Write { .. } => {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            Buffer::from(&bytes[..])
        }
        _ => Buffer::empty(),
    };
    let (connection, cookie, tenant) = (5, 6, TenantId(7));
    InFlightRequest {
        connection,
        received_at: Time::ZERO,
        cookie,
        command,
        tenant,
        class: Class::Low,
        volume: VOLUME,
        offset,
        length,
        one: false,
        buffer,
    }
}

fn layout(parts: u32) -> Layout {
    Layout::new(Bytes(64 << 10), parts, Bytes(4096))
}

/// Sends a request out, and has `serve` do the jobs, in this order of their places.
fn run(
    parts: u32,
    request: InFlightRequest,
    order: &[usize],
    mut serve: impl FnMut(u32, &mut Job),
) -> Completed {
    let layout = layout(parts);
    let (mut in_flight, mut jobs) = (InFlight::default(), Vec::new());
    in_flight.submit(request, &layout, |_, part, job| jobs.push(Some((part, job)))).unwrap();
    let mut completed = None;
    let all = order.iter().copied().chain(0..jobs.len());
    for index in all.map(|index| index % jobs.len()).collect::<Vec<_>>() {
        let Some((part, mut job)) = jobs[index].take() else { continue };
        serve(part, &mut job);
        assert!(completed.is_none(), "an answer before all of it was there");
        completed = in_flight.complete(|_| layout, job);
    }
    assert!(in_flight.parents.is_empty());
    assert_eq!(in_flight.free.len(), in_flight.slots.len());
    completed.expect("all jobs were done")
}

/// Parts of a volume as vectors, and the same bytes in one piece.
struct Disk {
    parts: Vec<Vec<u8>>,
}

impl Disk {
    fn new(parts: u32) -> Self {
        let part = |part| vec![0; layout(parts).part_length(part).0 as usize];
        Self { parts: (0..parts).map(part).collect() }
    }

    fn serve(&mut self, part: u32, job: &mut Job) {
        let range = job.offset as usize..job.offset as usize + job.length as usize;
        match job.command {
            Command::Read => job.buffer.copy_from_slice(&self.parts[part as usize][range]),
            Command::Write { .. } => self.parts[part as usize][range].copy_from_slice(&job.buffer),
            Command::Discard { .. } => self.parts[part as usize][range].fill(0),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_striped_volume_is_one_row_of_bytes(
        parts in 1_u32..5,
        steps in prop::collection::vec((0..3_u8, 0..64_u64 << 10, 1..30_000_u32), 1..12),
        order in prop::collection::vec(0..9_usize, 0..9),
    ) {
        let (mut disk, mut row) = (Disk::new(parts), vec![0_u8; 64 << 10]);
        for (kind, offset, length) in steps {
            let length = length.min((row.len() as u64 - offset) as u32);
            let range = offset as usize..offset as usize + length as usize;
            let command = match kind {
                0 => Command::Write { durable: false },
                1 => Command::Read,
                _ => Command::Discard { durable: false },
            };
            let request = request(command, offset, length);
            match kind {
                0 => row[range.clone()].copy_from_slice(&request.buffer),
                1 => {}
                _ => row[range.clone()].fill(0),
            }
            let completed = run(parts, request, &order, |part, job| disk.serve(part, job));
            prop_assert_eq!(completed.outcome, Ok(()));
            if kind == 1 {
                let data: Vec<u8> = completed.data().flat_map(|buffer| buffer.to_vec()).collect();
                prop_assert!(data == row[range]);
            }
        }
    }
}

#[test]
fn a_flush_goes_to_every_part_and_one_fault_is_enough() {
    let mut parts = Vec::new();
    let completed = run(3, request(Command::Flush, 0, 0), &[2, 0, 1], |part, job| {
        assert_eq!((job.tag.operation, job.tag.cost, job.length), (Operation::Sync, 1, 0));
        parts.push(part);
        if part == 1 {
            job.outcome = Err(Fault::NoSpace);
        }
    });
    assert_eq!((parts, completed.outcome), (vec![2, 0, 1], Err(Fault::NoSpace)));
}

/// Ten stripes over three nodes are three operations: the others carry no cost.
#[test]
fn a_request_over_many_stripes_costs_something_once_at_each_part() {
    for command in [Command::Read, Command::Write { durable: false }] {
        let mut costs = [const { Vec::new() }; 3];
        let completed = run(3, request(command, 4096, 10 * 4096), &[], |part, job| {
            costs[part as usize].push(job.tag.cost);
        });
        assert_eq!(completed.outcome, Ok(()));
        let whole = 10 * 4096;
        assert_eq!(costs, [vec![whole, 0, 0], vec![whole, 0, 0, 0], vec![whole, 0, 0]]);
    }
}

#[test]
fn a_read_that_brings_less_is_a_fault_and_not_old_memory() {
    for parts in [1, 2] {
        let completed = run(parts, request(Command::Read, 0, 8192), &[], |_, job| {
            job.buffer.set_length(100);
        });
        assert_eq!(completed.outcome, Err(Fault::Io));
    }
}

fn extents(reported: &[(u64, u64)]) -> Buffer {
    let numbers = reported.iter().flat_map(|(length, flags)| [*length, *flags]);
    let bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    Buffer::from(&bytes[..])
}

#[test]
fn holes_of_parts_are_holes_of_the_volume() {
    let map = |parts, offset, length, one, reported: &dyn Fn(u32) -> Buffer| {
        let request = InFlightRequest { one, ..request(Command::Map, offset, length) };
        let completed = run(parts, request, &[1], |part, job| job.buffer = reported(part));
        (completed.outcome, completed.extents)
    };
    // Part 0 is data, part 1 is a hole: alternate stripes of 4 KiB.
    let halves = |part| extents(&[(1 << 20, if part == 1 { 3 } else { 0 })]);
    let striped = vec![(2048, 0), (4096, 3), (2048, 0)];
    assert_eq!(map(2, 2048, 8192, false, &halves), (Ok(()), striped));
    assert_eq!(map(2, 2048, 8192, true, &halves), (Ok(()), vec![(2048, 0)]));
    // Adjacent extents of the same kind on both parts are one extent; unknown bits are dropped.
    let same = |_| extents(&[(4096, 3), (4096, 7)]);
    assert_eq!(map(2, 0, 16_384, false, &same), (Ok(()), vec![(16_384, 3)]));
    // A part that says less than it was asked ends the answer, and one that says nothing fails it.
    let short = |part| extents(&[(if part == 1 { 1000 } else { 4096 }, 0)]);
    assert_eq!(map(2, 0, 16_384, false, &short), (Ok(()), vec![(5096, 0)]));
    assert_eq!(map(1, 0, 4096, false, &|_| extents(&[])), (Err(Fault::Io), vec![]));
    assert_eq!(map(1, 0, 4096, false, &|_| extents(&[(0, 3)])), (Err(Fault::Io), vec![]));
}

/// The answer covers less than was requested: no client waits for a walk over a million stripes.
#[test]
fn a_question_about_many_stripes_is_answered_in_bounded_steps() {
    let layout = Layout::new(Bytes(1 << 40), 3, Bytes(4096));
    let stripes = u64::from(MAP_STRIPES);
    for (offset, length, one) in [(0, u32::MAX, false), (2048, u32::MAX, true), (1 << 39, 9, false)]
    {
        let (mut in_flight, mut jobs) = (InFlight::default(), Vec::new());
        let request = InFlightRequest { one, ..request(Command::Map, offset, length) };
        in_flight.submit(request, &layout, |_, _, job| jobs.push(job)).unwrap();
        let bytes: u64 = jobs.iter().map(|job| u64::from(job.length)).sum();
        assert!(bytes <= stripes * 4096 && bytes > 0, "{bytes}");
        let mut completed = None;
        for mut job in jobs {
            job.buffer = extents(&[(u64::from(job.length), 3)]);
            completed = in_flight.complete(|_| layout, job);
        }
        let completed = completed.expect("all jobs were done");
        assert_eq!((completed.outcome, completed.extents), (Ok(()), vec![(bytes as u32, 3)]));
    }
}

#[test]
fn a_node_that_cannot_report_holes_has_data() {
    let completed = run(3, request(Command::Map, 0, 16_384), &[], |part, job| {
        if part == 2 {
            job.outcome = Err(Fault::Unsupported);
        }
        job.buffer = Buffer::empty();
    });
    assert_eq!((completed.outcome, completed.extents), (Ok(()), vec![(16_384, 0)]));
}

#[test]
fn requests_in_flight_are_found_by_their_tickets_until_they_are_abandoned() {
    let layout = layout(2);
    let (mut in_flight, mut jobs) = (InFlight::default(), Vec::new());
    for (connection, length) in [(1, 100), (2, 100), (1, 8192)] {
        let request = InFlightRequest { connection, ..request(Command::Read, 0, length) };
        in_flight.submit(request, &layout, |_, _, job| jobs.push(job)).unwrap();
    }
    let out = in_flight.sub_requests(|request| request.connection == 1);
    let tickets: Vec<u64> = jobs.iter().map(|job| job.ticket).collect();
    assert!([0, 2, 3].iter().all(|index| out.contains(&tickets[*index])));
    assert!(!out.contains(&tickets[1]));
    assert_eq!(in_flight.abandon_all().len(), 3);
    assert!(jobs.into_iter().all(|job| in_flight.complete(|_| layout, job).is_none()));
}

#[test]
fn each_mutating_sub_request_is_abandoned_once() {
    let write = Command::Write { durable: false };
    let whole = request(write, 4096, 512);
    let split = request(write, 0, 3 * 4096);
    let other = InFlightRequest { connection: 9, ..request(write, 8192, 512) };
    let (mut in_flight, mut jobs) = (InFlight::default(), Vec::new());
    for request in [whole, split, request(Command::Read, 0, 4096), other] {
        in_flight.submit(request, &layout(3), |_, part, job| jobs.push((part, job))).unwrap();
    }
    let is_own = |request: &InFlightRequest| request.connection == 5;
    let mut abandoned = |is_held: &dyn Fn(u64) -> bool| {
        let mut parts = in_flight.abandon(is_own, is_held, |_| layout(3));
        parts.sort_unstable();
        parts
    };
    let first = jobs[0].1.ticket;
    assert_eq!(
        abandoned(&|ticket| ticket == first),
        [0, 1, 2].map(|part| (VOLUME, part)),
        "one waits here"
    );
    assert_eq!(abandoned(&|_| false), [(VOLUME, 1)]);
    assert_eq!(abandoned(&|_| false), []);
    let settled = jobs.iter().filter_map(|(part, job)| {
        let settled = in_flight.settle(job.ticket)?;
        assert_eq!((settled, in_flight.settle(job.ticket)), ((VOLUME, *part), None));
        Some(*part)
    });
    assert_eq!(settled.collect::<Vec<_>>(), [1, 0, 1, 2]);
}
