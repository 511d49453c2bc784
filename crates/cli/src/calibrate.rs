//! Measures the rates of a folder's file system: numbers for the `capacity` of a resource.
//!
//! # Mechanism
//! All I/O is direct, on one file without a name, which is gone when the process is, however it
//! ends. The file is written once with random bytes, because file systems answer reads of holes
//! from memory and some compress. Then each [`Pattern`] runs by itself: threads that each keep one
//! request at the file system. A pattern's first moments are not counted.
//!
//! The capacity in operations is the least that a pattern of small requests reached, and in bytes
//! the least of the patterns of large ones: what holds whatever tenants ask for. With a bound of
//! latency, a pattern runs again with half the requests at a time, until 99 of 100 take no longer.
//!
//! Left out: a device's cache that holds the whole file, or a write cache that is never full in
//! the time given. Both are shown as the device shows them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{io, thread};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use tidegate_algo::concurrent::histogram::Histogram;
use tidegate_console::amounts;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_fabric::buffer::Buffer;
use tidegate_model::Span;

const SMALL: usize = 4 << 10;
const LARGE: usize = 1 << 20;

/// The least size of the file. Less would lie in any device's own cache.
const FILE_MIN: u64 = 64 << 20;

/// The part of a run that is not counted at its beginning.
const RAMP_PART: u64 = 8;

/// Threads that write the file in the beginning.
const FILLERS: usize = 4;

/// One kind of load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    pub(crate) name: &'static str,
    /// Bytes of a request.
    pub(crate) size: usize,
    /// Writes among a hundred requests.
    writes: u64,
    /// Requests at a time.
    depth: usize,
}

/// Reads, writes, and both, small and large. Small requests go anywhere and large ones one after
/// the other. Chosen by hand: 32 small requests, or 8 MiB, are what devices need to be busy.
const PATTERNS: [Pattern; 6] = [
    Pattern { name: "4 KiB reads", size: SMALL, writes: 0, depth: 32 },
    Pattern { name: "4 KiB writes", size: SMALL, writes: 100, depth: 32 },
    Pattern { name: "4 KiB, a third writes", size: SMALL, writes: 33, depth: 32 },
    Pattern { name: "1 MiB reads", size: LARGE, writes: 0, depth: 8 },
    Pattern { name: "1 MiB writes", size: LARGE, writes: 100, depth: 8 },
    Pattern { name: "1 MiB, a third writes", size: LARGE, writes: 33, depth: 8 },
];

/// Requests that are alone on the device: what a bound of latency is chosen by.
const ALONE: Pattern = Pattern { name: "4 KiB, alone", size: SMALL, writes: 33, depth: 1 };

/// The rates that a pattern reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    pub(crate) pattern: Pattern,
    /// Requests at a time.
    pub(crate) depth: usize,
    pub(crate) operations_per_second: u64,
    pub(crate) p50: Span,
    pub(crate) p99: Span,
    /// Whether 99 of 100 requests kept the bound; true where there is none.
    pub(crate) is_within: bool,
}

impl Reached {
    pub(crate) fn bytes_per_second(&self) -> u64 {
        self.operations_per_second.saturating_mul(self.pattern.size as u64)
    }
}

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CalibrationSettings {
    /// How long each pattern runs.
    pub(crate) length: Span,
    /// The latency that at most one of 100 requests may exceed.
    pub(crate) latency: Option<Span>,
    /// The size of the file, in bytes; a quarter of the free space, where that is less.
    pub(crate) file_max: u64,
}

/// The results of a measurement.
#[derive(Debug)]
pub(crate) struct Calibration {
    pub(crate) file_bytes: u64,
    /// Requests of which each was alone; they are part of no capacity.
    pub(crate) alone: Reached,
    pub(crate) reached: Vec<Reached>,
}

impl Calibration {
    /// The least rate of small requests, per second.
    pub(crate) fn operations(&self) -> u64 {
        self.least(SMALL, |reached| reached.operations_per_second)
    }

    /// The least bandwidth of large requests, in bytes per second.
    pub(crate) fn bytes(&self) -> u64 {
        self.least(LARGE, Reached::bytes_per_second)
    }

    fn least(&self, size: usize, of: impl Fn(&Reached) -> u64) -> u64 {
        let reached = self.reached.iter().filter(|reached| reached.pattern.size == size);
        reached.map(of).min().unwrap_or(0)
    }
}

/// Measures the file system of `folder`. `progress` is told of each step as it begins.
///
/// # Errors
/// If the folder cannot be written, lacks the space, or has no direct I/O; if a request fails, or a
/// signal ends the command.
pub(crate) fn calibrate(
    folder: &Path,
    settings: CalibrationSettings,
    interrupt: &Interrupt,
    progress: &dyn Fn(&str),
) -> Result<Calibration, Failure> {
    let failed = |what: &str, error: io::Error| {
        Failure::new(Code::Failure, format!("{}: {what}", folder.display())).cause(error)
    };
    let free = free_bytes(folder).map_err(|error| {
        failed("cannot be examined", error).help("name a folder of the file system to measure")
    })?;
    let file_bytes = (free / 4).min(settings.file_max) / LARGE as u64 * LARGE as u64;
    if settings.file_max < FILE_MIN {
        let message = format!("--size: a file of less than {}", amounts::bytes(FILE_MIN));
        return Err(Failure::new(Code::Usage, message).help("its device would have it in a cache"));
    }
    if file_bytes < FILE_MIN {
        let message = format!("{}: only {} are free", folder.display(), amounts::bytes(free));
        let help = format!("calibration writes a quarter of the free space, at least {}", {
            amounts::bytes(FILE_MIN)
        });
        return Err(Failure::new(Code::Failure, message).help(help));
    }
    let file = open(folder).map_err(|error| {
        let failure = failed("cannot write a file with direct I/O there", error);
        failure.help("name a folder on a file system that is mounted for writing and has O_DIRECT")
    })?;
    let bed = Bed { file, file_bytes, clock: Clock::start(), interrupt };
    let failed = |error: StepError| match error {
        StepError::Io(error) => failed("a request failed", error),
        StepError::Ended(failure) => failure,
    };
    progress(&format!("writing {}", amounts::bytes(file_bytes)));
    bed.fill().map_err(failed)?;
    progress(ALONE.name);
    let alone = bed.measure(ALONE, ALONE.depth, settings).map_err(failed)?;
    let mut reached = Vec::new();
    for pattern in PATTERNS {
        progress(pattern.name);
        reached.push(bed.search(pattern, settings).map_err(failed)?);
    }
    Ok(Calibration { file_bytes, alone, reached })
}

/// The bytes that this user may still write.
fn free_bytes(folder: &Path) -> io::Result<u64> {
    let all = rustix::fs::statvfs(folder)?;
    Ok(all.f_bavail.saturating_mul(all.f_frsize))
}

/// A file without a name, or where the file system has none, one that is unlinked at once.
fn open(folder: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(folder, flags | OFlags::TMPFILE, mode) {
        Ok(file) => Ok(File::from(file)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let path = folder.join(format!(".tidegate-calibration-{}", std::process::id()));
            let file = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
            std::fs::remove_file(&path)?;
            Ok(File::from(file))
        }
        Err(error) => Err(error.into()),
    }
}

/// Why a step ended early.
enum StepError {
    Io(io::Error),
    Ended(Failure),
}

impl From<io::Error> for StepError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

struct Bed<'a> {
    file: File,
    file_bytes: u64,
    clock: Clock,
    interrupt: &'a Interrupt,
}

/// Shared by the threads of one run.
#[derive(Default)]
struct Run {
    is_over: AtomicBool,
    /// Requests that began, which also says where the next large one goes.
    begun: AtomicU64,
    done: AtomicU64,
    times: Histogram,
    error: Mutex<Option<io::Error>>,
}

impl Bed<'_> {
    /// Writes the whole file.
    fn fill(&self) -> Result<(), StepError> {
        let pattern = Pattern { name: "", size: LARGE, writes: 100, depth: FILLERS };
        let run = Run::default();
        let last = self.file_bytes / LARGE as u64;
        self.with_threads(pattern, FILLERS, &run, last, || {
            while run.done.load(Ordering::Relaxed) < last && !run.is_over.load(Ordering::Relaxed) {
                self.interrupt
                    .sleep_until(self.clock, self.clock.now().after(Span::MILLISECOND))?;
            }
            Ok(())
        })?;
        Ok(self.file.sync_data()?)
    }

    /// Runs the pattern, again with half the requests at a time as long as they take too long.
    fn search(
        &self,
        pattern: Pattern,
        settings: CalibrationSettings,
    ) -> Result<Reached, StepError> {
        let mut depth = pattern.depth;
        loop {
            let reached = self.measure(pattern, depth, settings)?;
            if reached.is_within || depth == 1 {
                return Ok(reached);
            }
            depth /= 2;
        }
    }

    fn measure(
        &self,
        pattern: Pattern,
        depth: usize,
        settings: CalibrationSettings,
    ) -> Result<Reached, StepError> {
        let run = Run::default();
        let (mut operations, mut took) = (0, Span::ZERO);
        self.with_threads(pattern, depth, &run, u64::MAX, || {
            let began = self.clock.now();
            let ramp = Span(settings.length.0 / RAMP_PART);
            self.interrupt.sleep_until(self.clock, began.after(ramp))?;
            run.times.clear();
            let (counted_from, before) = (self.clock.now(), run.done.load(Ordering::Relaxed));
            let end = counted_from.after(settings.length);
            // Of no request at all nothing could be said, and least of all that it was fast enough.
            let is_short = || self.clock.now() < end || run.done.load(Ordering::Relaxed) == before;
            while is_short() && !run.is_over.load(Ordering::Relaxed) {
                let next = self.clock.now().after(Span(25 * Span::MILLISECOND.0));
                let next = if self.clock.now() < end { next.min(end) } else { next };
                self.interrupt.sleep_until(self.clock, next)?;
            }
            operations = run.done.load(Ordering::Relaxed) - before;
            took = self.clock.now().since(counted_from);
            Ok(())
        })?;
        let times = run.times.counts();
        let time = |percent| times.percentile(percent).unwrap_or(Span::ZERO);
        let rate = u128::from(operations) * u128::from(Span::SECOND.0) / u128::from(took.0.max(1));
        let p99 = time(99.0);
        Ok(Reached {
            pattern,
            depth,
            operations_per_second: u64::try_from(rate).unwrap_or(u64::MAX),
            p50: time(50.0),
            p99,
            is_within: settings.latency.is_none_or(|latency| p99 <= latency),
        })
    }

    /// Has `depth` threads make requests, `last` of them at most, until `watch` returns.
    fn with_threads(
        &self,
        pattern: Pattern,
        depth: usize,
        run: &Run,
        last: u64,
        watch: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), StepError> {
        let watched = thread::scope(|scope| {
            for number in 0..depth {
                scope.spawn(move || {
                    if let Err(error) = self.work(pattern, number as u64, run, last) {
                        run.is_over.store(true, Ordering::Relaxed);
                        let mut first = run.error.lock().unwrap_or_else(|error| error.into_inner());
                        first.get_or_insert(error);
                    }
                });
            }
            let watched = watch();
            run.is_over.store(true, Ordering::Relaxed);
            watched
        });
        let mut error = run.error.lock().unwrap_or_else(|error| error.into_inner());
        match error.take() {
            Some(error) => Err(StepError::Io(error)),
            None => watched.map_err(StepError::Ended),
        }
    }

    /// One thread's requests.
    fn work(&self, pattern: Pattern, thread: u64, run: &Run, last: u64) -> io::Result<()> {
        let mut buffer = Buffer::with_length(pattern.size);
        let mut filled = 0;
        while filled < buffer.len() {
            filled += getrandom(&mut buffer[filled..], GetRandomFlags::empty())?;
        }
        let slots = self.file_bytes / pattern.size as u64;
        let mut numbers = Numbers(thread);
        while !run.is_over.load(Ordering::Relaxed) {
            let begun = run.begun.fetch_add(1, Ordering::Relaxed);
            if begun >= last {
                return Ok(());
            }
            let is_sequential = pattern.size == LARGE;
            let slot = if is_sequential { begun } else { numbers.next() } % slots;
            let at = slot * pattern.size as u64;
            let is_write = numbers.next() % 100 < pattern.writes;
            let began = self.clock.now();
            if is_write {
                // A number in each block, so that no two blocks are the same.
                for block in buffer.chunks_mut(SMALL) {
                    block[..8].copy_from_slice(&numbers.next().to_le_bytes());
                }
                self.file.write_all_at(&buffer, at)?;
            } else {
                self.file.read_exact_at(&mut buffer, at)?;
            }
            run.times.record(self.clock.now().since(began));
            run.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Numbers that look random: SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }
}
