//! The NIC against a queue on paper, and what comes out of it at the speeds that it is made for.

use std::sync::Barrier;
use std::sync::atomic::AtomicU64;

use proptest::prelude::*;
use tidegate_onesided::one_sided::BufferPosition;

use super::*;

const RATES: Speed =
    Speed { total: Iops(1_570_000), each: Iops(400_000), round_trip: Span(5_000), least: 256 };

fn clients(speed: Speed, count: usize) -> Vec<Model> {
    let region = Arc::new(Region::create(1 << 16).unwrap());
    set(&region, 0, speed);
    (0..count).map(|_| Model::new(Arc::clone(&region), 0, 1)).collect()
}

fn read(length: u32) -> Operation {
    Operation::Read { from: 4096, into: BufferPosition::start(0), length }
}

/// Looks at each client whenever it wants to be looked at, up to `end`. Tells what was done, by
/// client, and when. After each look `refill` may post more.
fn run(
    clients: &mut [Model],
    end: Time,
    mut refill: impl FnMut(usize, &mut Model, Time, &[Done]),
) -> Vec<(Time, usize, u64)> {
    let mut seen = Vec::new();
    let mut done = Vec::new();
    loop {
        let next = clients
            .iter()
            .enumerate()
            .filter_map(|(at, client)| client.next_deadline().map(|deadline| (deadline, at)));
        let Some((now, at)) = next.min().filter(|(now, _)| *now <= end) else { return seen };
        clients[at].poll(now, &mut done).unwrap();
        seen.extend(done.iter().map(|done| (now, at, done.id)));
        refill(at, &mut clients[at], now, &done);
        done.clear();
    }
}

/// Keeps `window` reads of 4 KiB of each client under way for so long; tells how many were done.
fn burst(clients: &mut [Model], window: u64, from: Time, end: Time) -> usize {
    let fill = |client: &mut Model, now, count| {
        (0..count).for_each(|id| client.post(Post { id, operation: read(4096) }).unwrap());
        client.flush(now).unwrap();
    };
    clients.iter_mut().for_each(|client| fill(client, from, window));
    run(clients, end, |_, client, now, done| fill(client, now, done.len() as u64)).len()
}

#[test]
fn one_client_is_as_fast_as_its_own_stage_and_ten_as_the_shared_one() {
    let tenth = Time(100_000_000);
    for (count, wanted) in [(1, 40_000), (3, 120_000), (4, 157_000), (10, 157_000)] {
        let done = burst(&mut clients(RATES, count), 64, Time::ZERO, tenth);
        // All but the first few are done, and none too many.
        assert!((wanted - 20..=wanted).contains(&done), "{count} clients: {done}");
    }
}

#[test]
fn a_step_of_the_capacity_is_a_store() {
    let mut clients = clients(RATES, 10);
    let tenths = |at: u64| Time(at * 100_000_000);
    let run = |clients: &mut [Model], at| {
        run(clients, tenths(at), |_, client, now, done| {
            done.iter().for_each(|done| {
                client.post(Post { id: done.id, operation: read(4096) }).unwrap();
            });
            client.flush(now).unwrap();
        })
        .len()
    };
    burst(&mut clients, 64, Time::ZERO, tenths(1));
    // 640 reads have their places already, at the speed of before.
    set(&clients[0].region.clone(), 0, Speed { total: Iops(1_000_000), ..RATES });
    assert!(run(&mut clients, 2).abs_diff(100_000) < 640);
    set(&clients[0].region.clone(), 0, Speed { total: Iops(2_000_000), ..RATES });
    assert!(run(&mut clients, 3).abs_diff(200_000) <= 640);
}

/// A client that looks only every millisecond, or five, loses what its window cannot hold over, but
/// the NIC loses nothing: late places are taken with the arrival that they should have had.
#[test]
fn late_polls_do_not_make_a_nic_slower() {
    let speed = Speed { total: Iops(157_000), each: Iops(40_000), ..RATES };
    let mut clients = clients(speed, 10);
    let (mut done, mut count) = (Vec::new(), 0);
    for tick in 0..10_000u64 {
        let now = Time(tick * 100_000);
        for (at, client) in (0..).zip(&mut clients) {
            // Each at another time, and now and then 4 ms late.
            let is_late = (tick / 10 + at) % 50 < 5;
            if !is_late && tick % 10 == at {
                client.poll(now, &mut done).unwrap();
                count += done.len();
                done.clear();
                while client.queue.len() < 64 {
                    client.post(Post { id: 0, operation: read(4096) }).unwrap();
                }
                client.flush(now).unwrap();
            }
        }
    }
    assert!((156_000..=157_000).contains(&count), "{count}");
}

/// Every operation of every thread takes its slot of a NIC that has never time: none is lost
/// among them.
#[test]
fn threads_take_different_slots() {
    let mut clients = clients(Speed { total: Iops(200_000), ..RATES }, 4);
    let nic = Arc::clone(&clients[0].region);
    let (clock, start) = (AtomicU64::new(0), Barrier::new(clients.len()));
    let repeat = |client: &mut Model| {
        let mut done = Vec::new();
        start.wait();
        for id in 0..20_000 {
            let now = Time(clock.fetch_add(1_000, Relaxed));
            // Without a free slot, the iteration only polls.
            let _ = client.post(Post { id, operation: read(4096) });
            client.flush(now).unwrap();
            client.poll(now, &mut done).unwrap();
        }
        done.len() + client.placed
    };
    let placed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(|| repeat(client))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let share = PARTS * 5_000;
    assert!(placed > 10_000 && nic.word(BUSY).load(Relaxed) >= placed as u64 * share);
}

#[test]
fn small_operations_pay_by_their_bytes_but_not_less_than_the_least() {
    let slot = Iops(1_000_000);
    let speed = Speed { total: slot, each: slot, round_trip: Span(0), least: 512 };
    let [mut client] = <[Model; 1]>::try_from(clients(speed, 1)).unwrap();
    let word = Operation::FetchAdd { at: 8, add: 1 };
    let mut now = 0;
    for (operation, parts) in
        [(word, 1), (read(1), 1), (read(512), 1), (read(1024), 2), (read(4096), 8), (read(4160), 8)]
    {
        client.post(Post { id: 0, operation }).unwrap();
        client.flush(Time(now)).unwrap();
        let seen = run(std::slice::from_mut(&mut client), Time::MAX, |_, _, _, _| {});
        // The same at both stages.
        now += 2 * parts * 125;
        assert_eq!(seen, [(Time(now), 0, 0)], "{operation:?}");
    }
}

#[test]
fn a_nic_without_a_speed_costs_no_time() {
    let region = Arc::new(Region::create(4096).unwrap());
    let mut client = Model::new(region, 128, 1);
    client.post(Post { id: 3, operation: Operation::FetchAdd { at: 0, add: 1 } }).unwrap();
    let mut done = Vec::new();
    client.poll(Time(9), &mut done).unwrap();
    assert_eq!((done.len(), client.next_deadline()), (0, None), "it was not flushed");
    client.flush(Time(9)).unwrap();
    client.poll(Time(9), &mut done).unwrap();
    assert_eq!(done, [Done { id: 3, word: 0 }]);
}

#[test]
fn a_damaged_nic_only_takes_long() {
    let [mut client] = <[Model; 1]>::try_from(clients(RATES, 1)).unwrap();
    (0..16).for_each(|word| client.region.word(word * 8).store(u64::MAX, Relaxed));
    client.post(Post { id: 0, operation: read(4160) }).unwrap();
    client.flush(Time(1)).unwrap();
    let mut done = Vec::new();
    let left = client.next_deadline().unwrap();
    client.poll(left, &mut done).unwrap();
    assert!(done.is_empty() && client.next_deadline() > Some(left));
}

#[test]
#[should_panic(expected = "under way")]
fn a_buffer_is_not_to_be_seen_from_post_to_poll() {
    let [mut client] = <[Model; 1]>::try_from(clients(RATES, 1)).unwrap();
    assert_eq!(client.buffer(0)[0], 0);
    client.post(Post { id: 0, operation: read(1) }).unwrap();
    client.buffer(0);
}

/// The completions of a queue on paper for the same posts: every operation in the order of its
/// arrival at the shared stage, which is the order in which their clients' stages let them go.
fn on_paper(clients: usize, posts: &[(usize, u64, u32)]) -> Vec<(Time, usize, u64)> {
    let share = |length: u32, rate: Iops| {
        (PARTS * 1_000_000_000 / rate.0) * u64::from(length.clamp(256, 4096)) / 4096
    };
    let mut free = vec![0; clients];
    let mut arrivals = Vec::new();
    for (id, (client, at, length)) in (0..).zip(posts) {
        free[*client] = free[*client].max(at * PARTS) + share(*length, RATES.each);
        // A client looks at the first whole nanosecond.
        arrivals.push((free[*client].div_ceil(PARTS), *client, id, free[*client], *length));
    }
    arrivals.sort_unstable();
    let mut busy = 0;
    let done = arrivals.into_iter().map(|(_, client, id, arrival, length)| {
        busy = busy.max(arrival) + share(length, RATES.total);
        (Time((busy + 5_000 * PARTS).div_ceil(PARTS)), client, id)
    });
    let mut done: Vec<_> = done.collect();
    done.sort_unstable();
    done
}

proptest! {
    /// Every operation is done to the nanosecond when a queue on paper says.
    #[test]
    fn it_is_a_queue(
        mut posts in prop::collection::vec((0usize..4, 0u64..60_000, 1u32..=4160), 1..200),
    ) {
        posts.sort_by_key(|(_, at, _)| *at);
        let mut clients = clients(RATES, 4);
        let mut seen = Vec::new();
        for (id, (client, at, length)) in (0..).zip(&posts) {
            let before = Time(at.saturating_sub(1));
            seen.extend(run(&mut clients, before, |_, _, _, _| {}));
            clients[*client].post(Post { id, operation: read(*length) }).unwrap();
            clients[*client].flush(Time(*at)).unwrap();
        }
        seen.extend(run(&mut clients, Time::MAX, |_, _, _, _| {}));
        seen.sort_unstable();
        prop_assert_eq!(seen, on_paper(4, &posts));
    }
}
