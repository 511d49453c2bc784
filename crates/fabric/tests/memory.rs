//! Live one-sided memory does what every connection does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its own functions too")]

mod conformance;

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use conformance::{Backend, Threads};
use tidegate_fabric::memory::model::{self, Model, Speed};
use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::shm::Shm;
use tidegate_model::{Iops, Span, Time};
use tidegate_onesided::one_sided::{Done, Operation, Post, RemoteMemory};

/// A region of an odd size. Every client has a mapping of its own, as in processes of its own.
fn region() -> Region {
    Region::create((1 << 20) + 13).unwrap()
}

fn again(region: &Region) -> Arc<Region> {
    Region::from_fd(region.as_fd().try_clone_to_owned().unwrap()).unwrap().into()
}

/// Time that goes on by 1 us at each reading.
#[derive(Clone, Default)]
struct Ticks(Arc<AtomicU64>);

impl Ticks {
    fn now(&self) -> Time {
        Time(self.0.fetch_add(1_000, Ordering::Relaxed))
    }
}

struct Shared(Region);

impl Backend for Shared {
    type RemoteMemory = Shm;

    fn open(&mut self) -> Shm {
        Shm::new(again(&self.0), 4)
    }

    fn area(&self) -> Range<u64> {
        4096..1 << 16
    }

    fn pass(&mut self) -> Time {
        Time::ZERO
    }
}

impl Threads for Shared {
    fn clock(&self) -> impl Fn() -> Time + Send + Sync + 'static {
        || Time::ZERO
    }

    const ROUNDS: u64 = 20_000;
}

struct Modelled(Region, Ticks);

/// Behind a NIC of the paper's speed, in the region's first bytes.
fn modelled() -> Modelled {
    let speed = Speed::new(Iops(1_570_000), Iops(400_000));
    let region = region();
    model::set(&region, 0, Speed { round_trip: Span(5_000), ..speed });
    Modelled(region, Ticks::default())
}

impl Backend for Modelled {
    type RemoteMemory = Model;

    fn open(&mut self) -> Model {
        Model::new(again(&self.0), 0, 4)
    }

    fn area(&self) -> Range<u64> {
        4096..1 << 16
    }

    fn pass(&mut self) -> Time {
        self.1.now()
    }
}

impl Threads for Modelled {
    fn clock(&self) -> impl Fn() -> Time + Send + Sync + 'static {
        let ticks = self.1.clone();
        move || ticks.now()
    }

    const ROUNDS: u64 = 5_000;
}

mod shm {
    crate::conformance::conformance! { super::Shared(super::region()) }
    crate::conformance::conformance_among_threads! { super::Shared(super::region()) }
}

mod modelled {
    crate::conformance::conformance! { super::modelled() }
    crate::conformance::conformance_among_threads! { super::modelled() }
}

/// Whether the word is zero decides when something is told, not when it was begun.
fn reports_nothing_of_memory_that_was_left<F: RemoteMemory>(region: &Region, mut remote: F) {
    let add = |id| Post { id, operation: Operation::FetchAdd { at: 4096, add: 1 } };
    let (ticks, mut done) = (Ticks::default(), Vec::new());
    remote.post(add(1)).unwrap();
    remote.flush(ticks.now()).unwrap();
    while done.is_empty() {
        remote.poll(ticks.now(), &mut done).unwrap();
    }
    remote.post(add(2)).unwrap();
    remote.flush(ticks.now()).unwrap();
    let left = Operation::WriteWord { word: 1, to: LEFT };
    Shm::new(again(region), 0).perform(&left).unwrap();
    while remote.poll(ticks.now(), &mut done).is_ok() {}
    assert_eq!(done, [Done { id: 1, word: 0 }]);
}

const LEFT: u64 = 256;

#[test]
fn memory_that_was_left_is_lost() {
    let region = region();
    let shm = Shm::new(again(&region), 1).until_left(LEFT);
    reports_nothing_of_memory_that_was_left(&region, shm);
    let Modelled(region, _) = modelled();
    let model = Model::new(again(&region), 0, 1).until_left(LEFT);
    reports_nothing_of_memory_that_was_left(&region, model);
}
