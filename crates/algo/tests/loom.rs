//! The lock-free modules under every order of their steps: `cargo xtask loom`.
//!
//! Each model is a few steps of two threads, so that all orders, with all values that each read may
//! see, are tried in seconds. Where these are too many, orders with more switches between threads
//! than the model has are left out.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use loom::model::Builder;
use loom::sync::{Arc, Mutex};
use loom::thread;
use tidegate_algo::concurrent::published::Published;
use tidegate_algo::scheduling::device::Device;
use tidegate_algo::scheduling::scheduler::{Pacing, RequestCost, Scheduler, Slot};
use tidegate_algo::scheduling::shards::ShardHeads;
use tidegate_algo::shaping::token_bucket::{Take, TokenBucket};
use tidegate_model::{Discipline, Span, Time};

const NOW: Time = Time::ZERO;

/// Tries all orders with at most so many involuntary switches to another thread.
fn orders(switches: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(model);
}

/// A reader sees a version as a whole, and none that is older than one it saw before, though the
/// one that it reads is overwritten meanwhile.
#[test]
fn a_reader_never_sees_half_of_a_version() {
    orders(3, || {
        let published = Arc::new(Published::<2>::default());
        let writer = {
            let published = published.clone();
            thread::spawn(move || (1..=4).for_each(|round| published.write([round; 2])))
        };
        let mut last = 0;
        for _ in 0..2 {
            let [one, other] = published.read();
            assert_eq!(one, other);
            assert!(one >= last, "{one} after {last}");
            last = one;
        }
        writer.join().unwrap();
        assert_eq!(published.read(), [4; 2]);
    });
}

/// Two takers, of one shard or of two, and nothing is earned: no token is taken twice, and none is
/// lost.
#[test]
fn takers_make_no_tokens_and_lose_none() {
    for shards in [[0, 0], [0, 1]] {
        orders(2, move || {
            let bucket = Arc::new(TokenBucket::new(1, 512 * 1024, NOW));
            let full = bucket.level(NOW);
            let takers = shards.map(|shard| {
                let bucket = bucket.clone();
                let take = move || bucket.take_in(shard, 100, || NOW) == Take::Granted;
                thread::spawn(move || (0..2).filter(|_| take()).count() as i64 * 100)
            });
            let taken: i64 = takers.map(|taker| taker.join().unwrap()).iter().sum();
            assert_eq!(taken, 400, "there is enough for all");
            assert_eq!(bucket.level(NOW), full - taken);
        });
    }
}

/// The last tokens are given to one taker.
#[test]
fn the_last_tokens_are_taken_once() {
    orders(3, || {
        let bucket = Arc::new(TokenBucket::new(1, 100, NOW));
        let takers = [0, 1].map(|shard| {
            let bucket = bucket.clone();
            thread::spawn(move || bucket.take_in(shard, 60, || NOW) == Take::Granted)
        });
        let granted = takers.map(|taker| taker.join().unwrap());
        assert_eq!(granted.into_iter().filter(|granted| *granted).count(), 1);
    });
}

/// When new parameters are in force, no shard has tokens cached under the old ones.
#[test]
fn no_cached_token_outlives_its_parameters() {
    orders(3, || {
        let bucket = Arc::new(TokenBucket::new(1, 512 * 1024, NOW));
        let taker = {
            let bucket = bucket.clone();
            thread::spawn(move || bucket.take_in(0, 10, || NOW))
        };
        bucket.configure(1, 64, NOW);
        let _ = taker.join().unwrap();
        let granted = (0..20).take_while(|_| bucket.take_in(0, 10, || NOW) == Take::Granted);
        assert!(granted.count() <= 6, "a burst of 64");
    });
}

/// There are never more at the device than it may have, and all headroom comes back.
#[test]
fn headroom_is_given_out_once() {
    orders(4, || {
        let device = Arc::new(Device::new(3, 1));
        let takers = [0, 1].map(|_| {
            let device = device.clone();
            thread::spawn(move || {
                let headroom = device.reserve(2);
                assert!((1..=3).contains(&device.in_flight()));
                device.release(headroom);
                headroom
            })
        });
        let headroom = takers.map(|taker| taker.join().unwrap());
        assert!(headroom.iter().all(|headroom| (1..=2).contains(headroom)), "{headroom:?}");
        assert_eq!(device.in_flight(), 0);
    });
}

/// The last thread that sees the device become busy or idle is right, and no time counts twice.
#[test]
fn time_is_busy_once() {
    orders(4, || {
        let device = Arc::new(Device::new(4, 1));
        device.note(Time(10), true);
        let notes = [Time(20), Time(30)].map(|now| {
            let device = device.clone();
            thread::spawn(move || device.note(now, false))
        });
        notes.into_iter().for_each(|note| note.join().unwrap());
        assert!(!device.is_busy());
        let busy = device.done(Time(40)).busy;
        assert!(busy == Span(10) || busy == Span(20), "{busy:?}");
    });
}

/// A scheduler behind its lock, and what is shown of it.
struct Shard {
    scheduler: Mutex<Scheduler<()>>,
    shard_heads: ShardHeads,
    device: Device,
}

impl Shard {
    /// Serves what waits as long as there is some, and headroom for it; how many.
    fn serve(&self) -> usize {
        let mut served = 0;
        while self.shard_heads.next(NOW, 0).is_some() && self.device.reserve(1) == 1 {
            let mut scheduler = self.scheduler.lock().unwrap();
            served += usize::from(scheduler.pop(NOW).is_some());
            self.shard_heads.show(0, &scheduler.shard_head());
            drop(scheduler);
            self.device.release(1);
        }
        served
    }
}

/// One thread puts a request in, another one makes headroom: at least one of them serves it before
/// both have gone.
#[test]
fn no_thread_leaves_while_a_request_waits_and_the_device_has_headroom() {
    orders(3, || {
        let shard = Arc::new(Shard {
            scheduler: Mutex::new(Scheduler::new(Discipline::Sfq, Pacing::Paper)),
            shard_heads: ShardHeads::new(1),
            device: Device::new(1, 1),
        });
        assert_eq!(shard.device.reserve(1), 1, "what is at the device from before");
        let finishing = {
            let shard = shard.clone();
            thread::spawn(move || {
                shard.device.release(1);
                shard.serve()
            })
        };
        let mut scheduler = shard.scheduler.lock().unwrap();
        scheduler.push(NOW, Slot::UNATTRIBUTED, RequestCost::ONE, ());
        shard.shard_heads.show(0, &scheduler.shard_head());
        drop(scheduler);
        let served = shard.serve() + finishing.join().unwrap();
        assert_eq!((served, shard.device.in_flight()), (1, 0));
    });
}
