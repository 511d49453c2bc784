#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tidegate_fabric::service::{Command, Fault, Job, OpenPart, Part};
use tidegate_model::Bytes;
use tidegate_model::cluster::Geometry;

use super::*;
use crate::engine::samples::{Pipe, work};
use crate::store::{Directory, OpenError};
use crate::volumes::{self, Creation, PartPlan, PartStore};

/// A directory with a volume of one part, which is open.
fn directory(folder: &Path) -> (Directory, PartPlan) {
    let (length, offset) = (Bytes((1 << 20) + 5), Bytes(0));
    let geometry = Geometry::single(length);
    let (volume, index) = ("v".into(), 0);
    let (node, store) = ("a".into(), PartStore::Directory(folder.into()));
    let plan =
        PartPlan { node, store, volume: "v".into(), index: 0, offset, geometry, fallback: None };
    volumes::create(std::slice::from_ref(&plan), Creation::default()).unwrap();
    let directory = Directory::new(folder).unwrap();
    directory.open(&Part { volume, index, length, offset, geometry }).unwrap();
    (directory, plan)
}

/// A ring; none where the kernel or the file system has no such thing.
fn start(depth: u32, medium: Arc<dyn Medium>) -> Option<(Ring, Receiver<Work>)> {
    let probe = work(0, Command::Read, 0, 4096, b"");
    if medium.transfer(&probe.body.job).is_none() {
        eprintln!("skipped: no O_DIRECT here");
        return None;
    }
    let (sender, finished) = channel();
    match Ring::start(depth, true, medium, Arc::new(Pipe(Mutex::new(sender)))) {
        Ok(ring) => Some((ring, finished)),
        Err(error) => {
            eprintln!("skipped: no io_uring: {error}");
            None
        }
    }
}

fn ring(depth: u32) -> Option<(tempfile::TempDir, Ring, Receiver<Work>)> {
    let folder = tempfile::tempdir().unwrap();
    let (directory, _) = directory(folder.path());
    let (ring, finished) = start(depth, Arc::new(directory))?;
    Some((folder, ring, finished))
}

fn run(ring: &Ring, finished: &Receiver<Work>, mut work: Vec<Work>) -> Vec<Job> {
    let (count, mut done) = (work.len(), Vec::new());
    ring.run(&mut work, &mut done);
    while done.len() < count {
        done.push(finished.recv_timeout(Duration::from_secs(20)).unwrap());
    }
    done.sort_by_key(|work| work.body.job.ticket);
    done.into_iter().map(|work| work.body.job).collect()
}

#[test]
fn whole_pages_and_broken_ones_arrive_and_are_read_back() {
    let Some((_folder, ring, finished)) = ring(64) else { return };
    let page = |n: u64| vec![n as u8 + 1; 4096];
    let write = |n: u64| {
        let command = Command::Write { durable: n.is_multiple_of(2) };
        work(n, command, n * 4096, 4096, &page(n))
    };
    let done = run(&ring, &finished, (0..60).map(write).collect());
    assert!(done.iter().all(|job| job.outcome == Ok(())));
    let broken = work(0, Command::Write { durable: false }, 4090, 12, &[0xaa; 12]);
    assert_eq!(run(&ring, &finished, vec![broken])[0].outcome, Ok(()));
    let flush = work(0, Command::Flush, 0, 0, b"");
    assert_eq!(run(&ring, &finished, vec![flush])[0].outcome, Ok(()));
    let read = |n: u64| work(n, Command::Read, n * 4096, 4096, b"");
    for job in run(&ring, &finished, (0..60).map(read).collect()) {
        let mut expected = page(job.ticket);
        match job.ticket {
            0 => expected[4090..].fill(0xaa),
            1 => expected[..6].fill(0xaa),
            _ => {}
        }
        assert!(job.outcome == Ok(()) && job.buffer[..] == expected, "page {}", job.ticket);
    }
    ring.stop();
}

/// Writes side by side that meet nowhere: whole pages, parts of pages and zeros, in any order,
/// beside reads. Each byte is that of its last write, and no flush fails: nothing is written
/// through the cache beside direct writes.
#[test]
fn parts_of_pages_and_whole_pages_are_written_side_by_side() {
    const LENGTH: usize = 1 << 20;
    let Some((_folder, ring, finished)) = ring(64) else { return };
    let mut expected = vec![0; LENGTH];
    let mut random = 1u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % bound
    };
    for round in 0..40u64 {
        let (mut jobs, mut at) = (Vec::new(), 0);
        while at < LENGTH {
            let sizes = [4096, 8192, 65_536, 512, 1536, 512 * (1 + below(20)), 1 + below(5000)];
            let size = (sizes[below(7) as usize] as usize).min(LENGTH - at);
            let bytes = vec![(round * 7 + at as u64 / 512) as u8 | 1; size];
            let (command, bytes) = match below(16) {
                0 => (Command::Zero { allocate: true, durable: false }, vec![0; size]),
                1 => (Command::Zero { allocate: false, durable: false }, vec![0; size]),
                number => (Command::Write { durable: number == 2 }, bytes),
            };
            expected[at..at + size].copy_from_slice(&bytes);
            let sent = if matches!(command, Command::Write { .. }) { &bytes[..] } else { b"" };
            jobs.push(work(jobs.len() as u64, command, at as u64, size as u32, sent));
            // Most begin within a page.
            at += size + if below(4) == 0 { (4096 - (at + size) % 4096) % 4096 } else { 0 };
        }
        // Reads beside them, of old or new bytes: through the cache they would make large folios.
        for _ in 0..64 {
            let (at, number) = (below(LENGTH as u64 - 70_000), jobs.len() as u64);
            jobs.push(work(number, Command::Read, at, 1 + below(70_000) as u32, b""));
        }
        for index in (1..jobs.len()).rev() {
            jobs.swap(index, below(index as u64 + 1) as usize);
        }
        jobs.push(work(jobs.len() as u64, Command::Flush, 0, 0, b""));
        for job in run(&ring, &finished, jobs) {
            assert_eq!(job.outcome, Ok(()), "round {round}: {:?} of {}", job.command, job.length);
        }
        let reads = (0..64).map(|n| work(n, Command::Read, n * 16_384 + 100, 16_000, b""));
        for job in run(&ring, &finished, reads.collect()) {
            let range = job.offset as usize..job.offset as usize + job.length as usize;
            assert!(job.buffer[..] == expected[range], "round {round} at {}", job.offset);
        }
    }
    let whole = run(&ring, &finished, vec![work(0, Command::Read, 0, LENGTH as u32, b"")]);
    assert!(whole[0].buffer[..] == expected[..]);
    ring.stop();
}

#[test]
fn more_than_the_ring_holds_and_what_makes_no_sense_end_in_the_pool() {
    let Some((_folder, ring, finished)) = ring(2) else { return };
    let read = |n: u64| work(n, Command::Read, n * 4096, 4096, b"");
    let done = run(&ring, &finished, (0..200).map(read).collect());
    assert!(done.iter().all(|job| job.outcome == Ok(()) && job.buffer.len() == 4096));
    let outside = work(0, Command::Read, 1 << 20, 4096, b"");
    assert_eq!(run(&ring, &finished, vec![outside])[0].outcome, Err(Fault::Invalid));
    let short = work(0, Command::Write { durable: false }, 0, 4096, b"short");
    assert_eq!(run(&ring, &finished, vec![short])[0].outcome, Err(Fault::Invalid));
    ring.stop();
    let late = run(&ring, &finished, vec![read(0)]);
    assert_eq!(late[0].outcome, Err(Fault::Ending));
}

#[test]
fn stopping_waits_for_what_the_kernel_has() {
    let Some((_folder, ring, finished)) = ring(32) else { return };
    let mut work = (0..32).map(|n| work(n, Command::Read, n * 4096, 4096, b"")).collect();
    ring.run(&mut work, &mut Vec::new());
    ring.stop();
    assert_eq!(finished.try_iter().count(), 32);
}

/// A kernel that is out of memory for a moment is asked again, and meanwhile what it has done is
/// taken in: the thread that hands over neither holds the lock nor the processor.
#[test]
fn a_refused_submission_blocks_no_other() {
    use std::sync::atomic::Ordering::Relaxed;
    let Some((_folder, ring, finished)) = ring(8) else { return };
    let read = |n: u64| work(n, Command::Read, n * 4096, 4096, b"");
    ring.shared.is_refused.store(true, Relaxed);
    thread::scope(|scope| {
        scope.spawn(|| ring.run(&mut vec![read(1)], &mut Vec::new()));
        let start = std::time::Instant::now();
        let mut is_free = false;
        // The thread has pushed its work, and the lock is free all the same. The thread that takes
        // completions may have handed the work over before it slept: then it is done.
        while !is_free && start.elapsed() < Duration::from_secs(20) {
            is_free = ring.shared.slots.try_lock().is_ok_and(|slots| !slots.work.is_empty());
            thread::yield_now();
        }
        // Before anything can fail, or the thread would not end.
        ring.shared.is_refused.store(false, Relaxed);
        assert!(is_free, "who hands over holds the lock");
    });
    assert_eq!(finished.recv_timeout(Duration::from_secs(20)).unwrap().body.job.outcome, Ok(()));
    ring.stop();
}

/// A directory whose writes past the page cache the kernel refuses: they go to a descriptor that is
/// open to read only.
struct Refusing {
    directory: Directory,
    read_only: std::fs::File,
}

impl Medium for Refusing {
    fn open(&self, part: &Part) -> Result<OpenPart, OpenError> {
        self.directory.open(part)
    }

    fn perform(&self, jobs: &mut dyn Iterator<Item = &mut Job>) {
        self.directory.perform(jobs);
    }

    fn transfer(&self, job: &Job) -> Option<Transfer> {
        let transfer = self.directory.transfer(job)?;
        let descriptor = self.read_only.as_raw_fd();
        Some(if transfer.is_write { Transfer { descriptor, ..transfer } } else { transfer })
    }

    fn on_failure(&self, job: &Job, errno: i32) {
        self.directory.on_failure(job, errno);
    }

    fn faults(&self) -> Vec<(String, u32, String)> {
        self.directory.faults()
    }

    fn describe(&self) -> String {
        "a directory that refuses writes".into()
    }
}

#[test]
fn a_durable_write_that_fails_in_the_ring_is_stored_and_fails_every_flush() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, plan) = directory(folder.path());
    let read_only = std::fs::File::open(folder.path().join("v.0")).unwrap();
    let medium = Arc::new(Refusing { directory, read_only });
    let Some((ring, finished)) = start(2, medium.clone()) else { return };
    let outcome = |work: Work| run(&ring, &finished, vec![work])[0].outcome;
    let write = |durable| work(0, Command::Write { durable }, 0, 4096, &[7; 4096]);
    // A write without a promise of durability is repeated without the flag.
    assert_eq!(outcome(write(false)), Ok(()));
    let flush = || work(0, Command::Flush, 0, 0, b"");
    assert_eq!((outcome(flush()), medium.faults()), (Ok(()), vec![]));
    assert_eq!(outcome(write(true)), Err(Fault::Io));
    assert_eq!(outcome(flush()), Err(Fault::Io));
    assert_eq!(outcome(flush()), Err(Fault::Io), "not once only");
    assert_eq!(medium.faults().len(), 1);
    ring.stop();
    let stored = volumes::show(&[plan])[0].label.as_ref().unwrap().error;
    assert_eq!(stored.map(|error| error.errno), Some(libc::EBADF));
}
