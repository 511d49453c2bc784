//! The load: threads that read and write keys of one store as they are due, and the counts of each
//! second.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;

use tidegate_console::clock::Clock;
use tidegate_model::{Span, Time};
use tidegate_sim::rng::Stream;

use super::bursts::Bursts;
use super::counts::{LsmSecond, LsmTotals, SecondCounts};
use super::library::LsmStore;

/// Bytes of a value, as in the paper. A key has eight.
pub(super) const VALUE: usize = 1024;

/// Of the keys, one in so many is written a second time, in no order, when a store is filled: the
/// backlog of compactions that a load finds.
const BACKLOG: u64 = 16;

/// The work of the threads.
#[derive(Clone, Debug)]
pub(super) struct LsmWork {
    pub(super) keys: u64,
    /// Of a hundred operations, how many read.
    pub(super) read_percent: u64,
    pub(super) threads: u64,
    pub(super) bursts: Bursts,
    pub(super) seed: u64,
}

/// Writes every key in order, then some again in no order.
///
/// # Errors
/// If the store refuses, in its words.
pub(super) fn fill(store: &LsmStore, keys: u64, seed: u64) -> Result<(), String> {
    let mut random = Stream::new(seed, "fill", 0);
    let mut value = [0; VALUE];
    for number in 0..keys {
        refresh(&mut value, &mut random);
        store.put(&number.to_be_bytes(), &value)?;
    }
    for _ in 0..keys / BACKLOG {
        refresh(&mut value, &mut random);
        store.put(&random.below(keys).to_be_bytes(), &value)?;
    }
    store.flush()
}

/// No value is as the one before: a store may leave out what is the same.
fn refresh(value: &mut [u8; VALUE], random: &mut Stream) {
    value[..8].copy_from_slice(&random.draw().to_le_bytes());
}

/// Runs the load to its end.
///
/// # Errors
/// If the store refuses an operation, or a key has no value.
pub(super) fn run(store: &LsmStore, work: &LsmWork) -> Result<(Vec<LsmSecond>, LsmTotals), String> {
    let seconds = work.bursts.total.0.div_ceil(Span::SECOND.0).max(1);
    let counts = Mutex::new(vec![SecondCounts::new(); usize::try_from(seconds).unwrap_or(1)]);
    let (shared, clock) = (&counts, Clock::start());
    let (unserved, disk) = thread::scope(|scope| {
        let client = |number| {
            let client = LsmClient { store, work, clock, counts: shared, number };
            scope.spawn(move || client.run())
        };
        let clients: Vec<_> = (0..work.threads).map(client).collect();
        let disk = watch(clock, seconds);
        let unserved = clients.into_iter().map(|client| {
            client.join().unwrap_or_else(|_| Err("a client of the load broke down".into()))
        });
        (unserved.sum::<Result<u64, String>>(), disk)
    });
    let unserved = unserved?;
    let counts = counts.into_inner().unwrap_or_else(PoisonError::into_inner);
    let lines: Vec<LsmSecond> = lines(&work.bursts, &counts, &disk);
    let totals = LsmTotals {
        due: work.bursts.count(),
        operations: lines.iter().map(|line| line.operations).sum(),
        unserved,
        library: super::library::RocksDb::path(),
        flush_written_bytes: store.counter("rocksdb.flush.write.bytes"),
        compaction_read_bytes: store.counter("rocksdb.compact.read.bytes"),
        compaction_written_bytes: store.counter("rocksdb.compact.write.bytes"),
    };
    Ok((lines, totals))
}

fn lines(bursts: &Bursts, counts: &[SecondCounts], disk: &[DiskBytes]) -> Vec<LsmSecond> {
    let line = |(second, counts): (u64, &SecondCounts)| {
        let [from, to] = [second, second + 1].map(|second| Time(second * Span::SECOND.0));
        let at = usize::try_from(second).unwrap_or(0);
        let bytes = |at: usize| disk.get(at).copied().unwrap_or_default();
        let (before, after) = (bytes(at), bytes(at + 1));
        LsmSecond {
            due: bursts.due_before(to) - bursts.due_before(from),
            disk_read_bytes: after.read.saturating_sub(before.read),
            disk_written_bytes: after.written.saturating_sub(before.written),
            ..counts.line(second)
        }
    };
    (0..).zip(counts).map(line).collect()
}

/// Bytes that this process has had the disk read and write so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DiskBytes {
    read: u64,
    written: u64,
}

impl DiskBytes {
    fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/io").unwrap_or_default())
    }

    fn parse(io: &str) -> Self {
        let number = |name: &str| {
            let found = io.lines().find_map(|line| line.strip_prefix(name));
            found.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
        };
        Self { read: number("read_bytes:"), written: number("write_bytes:") }
    }
}

/// The disk's counters at the beginning and at the end of each second.
fn watch(clock: Clock, seconds: u64) -> Vec<DiskBytes> {
    let at = |second: u64| {
        clock.sleep_until(Time(second * Span::SECOND.0));
        DiskBytes::now()
    };
    (0..=seconds).map(at).collect()
}

/// A thread of the load. The operations are dealt to the threads in turn.
struct LsmClient<'a> {
    store: &'a LsmStore,
    work: &'a LsmWork,
    clock: Clock,
    counts: &'a Mutex<Vec<SecondCounts>>,
    number: u64,
}

impl LsmClient<'_> {
    /// Operations that were due and not begun at the end.
    fn run(self) -> Result<u64, String> {
        let Self { work, clock, .. } = self;
        let end = Time(work.bursts.total.0);
        let mut random = Stream::new(work.seed, "client", self.number);
        let mut value = [0; VALUE];
        let (mut second, mut counts) = (0, SecondCounts::new());
        let step = work.threads;
        let mut index = self.number;
        while let Some(due) = work.bursts.due(index) {
            if clock.now() < due {
                clock.sleep_until(due);
            }
            if clock.now() >= end {
                break;
            }
            let key = random.below(work.keys).to_be_bytes();
            let is_read = random.below(100) < work.read_percent;
            if is_read {
                if self.store.get(&key)? != Some(VALUE) {
                    return Err("a key of the store has no value, or a damaged one".into());
                }
            } else {
                refresh(&mut value, &mut random);
                self.store.put(&key, &value)?;
            }
            let now = clock.now();
            let now_second = now.0 / Span::SECOND.0;
            if now_second != second {
                self.merge(second, &counts);
                (second, counts) = (now_second, SecondCounts::new());
            }
            counts.add(is_read, now.since(due));
            index += step;
        }
        let mut unserved = 0;
        while let Some(due) = work.bursts.due(index) {
            counts.add_unserved(end.since(due));
            unserved += 1;
            index += step;
        }
        self.merge(second, &counts);
        Ok(unserved)
    }

    /// Adds a second's counts to those of the other threads. The last second has what comes after.
    fn merge(&self, second: u64, counts: &SecondCounts) {
        let mut all = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let last = all.len() - 1;
        let at = usize::try_from(second).unwrap_or(last).min(last);
        all[at].merge(counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counters_are_read() {
        let io = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\nwrite_bytes: 8192\n\
                  cancelled_write_bytes: 5\n";
        assert_eq!(DiskBytes::parse(io), DiskBytes { read: 4096, written: 8192 });
        assert_eq!(DiskBytes::parse(""), DiskBytes::default());
    }
}
