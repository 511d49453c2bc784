use super::*;
use proptest::prelude::*;
use tidegate_model::Bytes;

fn flight(command: Command, offset: u64, length: u32) -> Flight {
    let buffer = match command {
        Command::Write { .. } => {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            Buffer::from(&bytes[..])
        }
        _ => Buffer::empty(),
    };
    let (connection, cookie, tenant) = (5, 6, TenantId(7));
    Flight { connection, cookie, command, tenant, volume: 0, offset, length, one: false, buffer }
}

fn layout(parts: u32) -> Layout {
    Layout::new(Bytes(64 << 10), parts, Bytes(4096))
}

/// Sends a request out, and has `serve` do the jobs, in this order of their places.
fn flown(
    parts: u32,
    flight: Flight,
    order: &[usize],
    mut serve: impl FnMut(u32, &mut Job),
) -> Landed {
    let layout = layout(parts);
    let (mut flights, mut jobs) = (Flights::default(), Vec::new());
    flights.launch(flight, &layout, |_, part, job| jobs.push(Some((part, job)))).unwrap();
    let mut landed = None;
    let all = order.iter().copied().chain(0..jobs.len());
    for place in all.map(|place| place % jobs.len()).collect::<Vec<_>>() {
        let Some((part, mut job)) = jobs[place].take() else { continue };
        serve(part, &mut job);
        assert!(landed.is_none(), "an answer before all of it was there");
        landed = flights.land(|_| layout, job);
    }
    assert!(flights.places.is_empty());
    assert_eq!(flights.free.len(), flights.seats.len());
    landed.expect("all jobs were done")
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
            let asked = flight(command, offset, length);
            match kind {
                0 => row[range.clone()].copy_from_slice(&asked.buffer),
                1 => {}
                _ => row[range.clone()].fill(0),
            }
            let landed = flown(parts, asked, &order, |part, job| disk.serve(part, job));
            prop_assert_eq!(landed.outcome, Ok(()));
            if kind == 1 {
                let data: Vec<u8> = landed.data().flat_map(|buffer| buffer.to_vec()).collect();
                prop_assert!(data == row[range]);
            }
        }
    }
}

#[test]
fn a_flush_goes_to_every_part_and_one_fault_is_enough() {
    let mut parts = Vec::new();
    let landed = flown(3, flight(Command::Flush, 0, 0), &[2, 0, 1], |part, job| {
        assert_eq!((job.tag.operation, job.tag.cost, job.length), (Operation::Sync, 1, 0));
        parts.push(part);
        if part == 1 {
            job.outcome = Err(Fault::NoSpace);
        }
    });
    assert_eq!((parts, landed.outcome), (vec![2, 0, 1], Err(Fault::NoSpace)));
}

#[test]
fn a_read_that_brings_less_is_a_fault_and_not_old_memory() {
    for parts in [1, 2] {
        let landed = flown(parts, flight(Command::Read, 0, 8192), &[], |_, job| {
            job.buffer.set_length(100);
        });
        assert_eq!(landed.outcome, Err(Fault::Io));
    }
}

fn extents(said: &[(u64, u64)]) -> Buffer {
    let numbers = said.iter().flat_map(|(length, flags)| [*length, *flags]);
    let bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    Buffer::from(&bytes[..])
}

#[test]
fn holes_of_parts_are_holes_of_the_volume() {
    let ask = |parts, offset, length, one, said: &dyn Fn(u32) -> Buffer| {
        let asked = Flight { one, ..flight(Command::Map, offset, length) };
        let landed = flown(parts, asked, &[1], |part, job| job.buffer = said(part));
        (landed.outcome, landed.extents)
    };
    // Part 0 is data, part 1 is a hole: stripes of 4 KiB in turn.
    let halves = |part| extents(&[(1 << 20, if part == 1 { 3 } else { 0 })]);
    let striped = vec![(2048, 0), (4096, 3), (2048, 0)];
    assert_eq!(ask(2, 2048, 8192, false, &halves), (Ok(()), striped));
    assert_eq!(ask(2, 2048, 8192, true, &halves), (Ok(()), vec![(2048, 0)]));
    // Adjacent extents of the same kind on both parts are one extent; unknown bits are dropped.
    let same = |_| extents(&[(4096, 3), (4096, 7)]);
    assert_eq!(ask(2, 0, 16_384, false, &same), (Ok(()), vec![(16_384, 3)]));
    // A part that says less than it was asked ends the answer, and one that says nothing fails it.
    let short = |part| extents(&[(if part == 1 { 1000 } else { 4096 }, 0)]);
    assert_eq!(ask(2, 0, 16_384, false, &short), (Ok(()), vec![(5096, 0)]));
    assert_eq!(ask(1, 0, 4096, false, &|_| extents(&[])), (Err(Fault::Io), vec![]));
    assert_eq!(ask(1, 0, 4096, false, &|_| extents(&[(0, 3)])), (Err(Fault::Io), vec![]));
}

/// The answer is about less than was asked, and nobody waits for a walk over a million stripes.
#[test]
fn a_question_about_many_stripes_is_answered_in_bounded_steps() {
    let layout = Layout::new(Bytes(1 << 40), 3, Bytes(4096));
    let stripes = u64::from(MAP_STRIPES);
    for (offset, length, one) in [(0, u32::MAX, false), (2048, u32::MAX, true), (1 << 39, 9, false)]
    {
        let (mut flights, mut jobs) = (Flights::default(), Vec::new());
        let asked = Flight { one, ..flight(Command::Map, offset, length) };
        flights.launch(asked, &layout, |_, _, job| jobs.push(job)).unwrap();
        let bytes: u64 = jobs.iter().map(|job| u64::from(job.length)).sum();
        assert!(bytes <= stripes * 4096 && bytes > 0, "{bytes}");
        let mut landed = None;
        for mut job in jobs {
            job.buffer = extents(&[(u64::from(job.length), 3)]);
            landed = flights.land(|_| layout, job);
        }
        let landed = landed.expect("all jobs were done");
        assert_eq!((landed.outcome, landed.extents), (Ok(()), vec![(bytes as u32, 3)]));
    }
}

#[test]
fn who_cannot_tell_holes_has_data() {
    let landed = flown(3, flight(Command::Map, 0, 16_384), &[], |part, job| {
        if part == 2 {
            job.outcome = Err(Fault::Unsupported);
        }
        job.buffer = Buffer::empty();
    });
    assert_eq!((landed.outcome, landed.extents), (Ok(()), vec![(16_384, 0)]));
}

#[test]
fn what_is_out_is_found_by_its_tickets_and_nobodys_later() {
    let layout = layout(2);
    let (mut flights, mut jobs) = (Flights::default(), Vec::new());
    for (connection, length) in [(1, 100), (2, 100), (1, 8192)] {
        let asked = Flight { connection, ..flight(Command::Read, 0, length) };
        flights.launch(asked, &layout, |_, _, job| jobs.push(job)).unwrap();
    }
    let out = flights.errands(|flight| flight.connection == 1);
    let tickets: Vec<u64> = jobs.iter().map(|job| job.ticket).collect();
    assert!([0, 2, 3].iter().all(|place| out.contains(&tickets[*place])));
    assert!(!out.contains(&tickets[1]));
    assert_eq!(flights.abandon().len(), 3);
    assert!(jobs.into_iter().all(|job| flights.land(|_| layout, job).is_none()));
}

#[test]
fn each_errand_that_may_change_something_is_forsaken_once() {
    let write = Command::Write { durable: false };
    let whole = flight(write, 4096, 512);
    let split = flight(write, 0, 3 * 4096);
    let other = Flight { connection: 9, ..flight(write, 8192, 512) };
    let (mut flights, mut jobs) = (Flights::default(), Vec::new());
    for flight in [whole, split, flight(Command::Read, 0, 4096), other] {
        flights.launch(flight, &layout(3), |_, part, job| jobs.push((part, job))).unwrap();
    }
    let is_own = |flight: &Flight| flight.connection == 5;
    let mut forsaken = |is_held: &dyn Fn(u64) -> bool| {
        let mut parts = flights.forsake(is_own, is_held, |_| layout(3));
        parts.sort_unstable();
        parts
    };
    let first = jobs[0].1.ticket;
    assert_eq!(forsaken(&|ticket| ticket == first), [(0, 0), (0, 1), (0, 2)], "one waits here");
    assert_eq!(forsaken(&|_| false), [(0, 1)]);
    assert_eq!(forsaken(&|_| false), []);
    let settled = jobs.iter().filter_map(|(part, job)| {
        let settled = flights.settle(job.ticket)?;
        assert_eq!((settled, flights.settle(job.ticket)), ((0, *part), None));
        Some(*part)
    });
    assert_eq!(settled.collect::<Vec<_>>(), [1, 0, 1, 2]);
}
