//! `tidegate-lab load`: a load generator whose requests are due at times that do not depend on the
//! server's replies.
//!
//! ```text
//! schedule   when requests are due and what they are about        pure
//! pace       which may be sent now, and how long each took        pure
//! wire       a connection; nbd and memcached speak on it
//! worker     a thread: its connections, its pace, one clock
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tidegate_model::{Iops, Span};

use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};

pub(crate) mod expect;
mod memcached;
mod nbd;
pub(crate) mod pace;
pub(crate) mod schedule;
pub(crate) mod target;
mod wire;
mod worker;

#[cfg(test)]
mod tests;

use memcached::{Keys, Memcached};
use nbd::Nbd;
use pace::{Drive, LoadStats, Pace};
use schedule::{Arrivals, Choice, Dice, Schedule, Window, Zipf};
use target::Target;
use wire::{Dialect, Stream};
use worker::{LoadConnection, LoadCounters, Worker};

/// The interval of progress reports.
const POLL_INTERVAL: Span = Span(200 * Span::MILLISECOND.0);

/// The help of `--duration` and `--seconds`, which commands that make a load share.
pub(crate) const DURATION_HELP: &str =
    "How long it takes, without a warm-up: a span like 30s or 500ms, or a number of seconds";

/// The longest load: a day.
const DURATION_MAX: Span = Span(86_400 * Span::SECOND.0);

/// Reads the duration of a load as the user writes it.
///
/// # Errors
/// In words for people: what to write instead.
pub(crate) fn duration(text: &str) -> Result<Span, String> {
    let seconds = text.parse::<u64>().map(|seconds| seconds.saturating_mul(Span::SECOND.0));
    let span = seconds.map(Span).or_else(|_| text.parse::<Span>());
    match span.map_err(|error| error.to_string())? {
        Span(0) => Err("nothing would ever be sent; use at least \"1ms\"".into()),
        span if span > DURATION_MAX => Err("use at most \"86400s\", which is a day".into()),
        span => Ok(span),
    }
}

/// The parameters of a load.
#[derive(Clone, Debug)]
pub(crate) struct LoadParameters {
    pub(crate) target: Target,
    /// Requests per second; none for as many as the depth allows.
    pub(crate) rate: Option<Iops>,
    pub(crate) arrivals: Arrivals,
    /// How many requests a connection carries at most.
    pub(crate) depth: u32,
    pub(crate) connections: u32,
    pub(crate) threads: u32,
    pub(crate) warmup: Span,
    pub(crate) duration: Span,
    /// Bytes of a request or a value.
    pub(crate) size: u32,
    pub(crate) reads_permille: u64,
    pub(crate) keys: u64,
    pub(crate) is_zipf: bool,
    pub(crate) prefix: String,
    /// Store every key first.
    pub(crate) fill: bool,
    pub(crate) seed: u64,
}

/// How a run is doing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) elapsed: Span,
    pub(crate) whole: Span,
    pub(crate) answers: u64,
    pub(crate) failures: u64,
}

/// Puts the target under load. `watch` is called a few times a second until it is over or `stop`
/// is set.
///
/// # Errors
/// If the target cannot be reached, refuses, or goes away.
pub(crate) fn run(
    plan: &LoadParameters,
    stop: Arc<AtomicBool>,
    mut watch: impl FnMut(Progress),
) -> Result<(LoadStats, Window), Failure> {
    let mut connections = connect(plan)?;
    let shared = Arc::new(LoadCounters { stop, ..LoadCounters::default() });
    let window = Window::after(plan.warmup, plan.duration);
    let threads = plan.threads.clamp(1, plan.connections);
    let clock = Clock::start();
    let workers = (0..threads).map(|thread| {
        // Connections that do not divide by the threads are given to the first of them.
        let count = connections.len().div_ceil((threads - thread) as usize);
        let rest = connections.split_off(count);
        let connections = std::mem::replace(&mut connections, rest);
        let part = [u64::from(thread), u64::from(threads)];
        let drive = match plan.rate {
            Some(rate) => Drive::Open(Schedule::new(plan.arrivals, rate, part, plan.seed)),
            None => Drive::Closed,
        };
        let capacity = plan.depth * connections.len() as u32;
        let worker = Worker {
            connections,
            pace: Pace::new(drive, window, capacity),
            depth: plan.depth,
            reads_permille: plan.reads_permille,
            dice: Dice::new(!plan.seed ^ u64::from(thread) << 32),
            clock,
            until: window.until,
            shared: Arc::clone(&shared),
        };
        thread::Builder::new().name(format!("load-{thread}")).spawn(|| worker.run())
    });
    let workers = workers.collect::<io::Result<Vec<_>>>().map_err(|error| {
        Failure::new(Code::Failure, "there are no threads to be had").cause(error)
    })?;
    while workers.iter().any(|worker| !worker.is_finished()) {
        clock.sleep_until(clock.now().after(POLL_INTERVAL));
        watch(Progress {
            elapsed: clock.now().since(tidegate_model::Time::ZERO),
            whole: window.until.since(tidegate_model::Time::ZERO),
            answers: shared.answers.load(Ordering::Relaxed),
            failures: shared.failures.load(Ordering::Relaxed),
        });
        if workers.iter().any(|worker| worker.is_finished()) && clock.now() < window.until {
            // One that ended early has failed; the others need not go on.
            shared.stop.store(true, Ordering::Relaxed);
        }
    }
    let ended = clock.now().min(window.until);
    let mut stats = LoadStats::new();
    for worker in workers {
        let done = worker.join().map_err(|_| Failure::new(Code::Failure, "a thread broke down"))?;
        let done = done
            .map_err(|error| Failure::new(Code::Failure, "the server did not last").cause(error))?;
        stats.add(&done);
    }
    Ok((stats, Window { until: ended.max(window.from), ..window }))
}

/// All connections, ready to be asked.
fn connect(plan: &LoadParameters) -> Result<Vec<LoadConnection>, Failure> {
    let payload = payload(plan);
    let choice = match (&plan.target, plan.is_zipf) {
        (Target::Memcached { .. }, true) => Choice::Zipf(Arc::new(Zipf::new(plan.keys))),
        _ => Choice::Uniform(plan.keys),
    };
    let keys = Keys { prefix: plan.prefix.as_str().into(), choice, value: payload.clone() };
    let mut connections = Vec::new();
    for number in 0..plan.connections {
        let (stream, dialect): (Stream, Box<dyn Dialect>) = match &plan.target {
            Target::Nbd { address, export } => {
                let mut stream = Stream::connect(address)?;
                let found = nbd::shake_hands(&mut stream, export)?;
                let size = u64::from(plan.size);
                if found.length < size {
                    let message = format!("the export has {} bytes only", found.length);
                    return Err(Failure::new(Code::Failure, message).help("use a smaller --size"));
                }
                if found.is_read_only && plan.reads_permille < 1_000 {
                    let failure = Failure::new(Code::Failure, "the export may not be written");
                    return Err(failure.help("use --read 100%"));
                }
                (stream, Box::new(Nbd::new(found.length, payload.clone())))
            }
            Target::Memcached { address } => {
                let mut stream = Stream::connect(address)?;
                if plan.fill && number == 0 {
                    keys.fill(&mut stream)?;
                }
                (stream, Box::new(Memcached::new(keys.clone())))
            }
        };
        stream.set_nonblocking().map_err(|error| {
            Failure::new(Code::Failure, "cannot make a socket non-blocking").cause(error)
        })?;
        connections.push(LoadConnection::new(stream, dialect));
    }
    Ok(connections)
}

/// The data of writes: letters, so that people can read them, and hard to compress.
fn payload(plan: &LoadParameters) -> Arc<[u8]> {
    const ALPHABET: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ-abcdefghijklmnopqrstuvwxyz_";
    let mut dice = Dice::new(plan.seed);
    (0..plan.size).map(|_| ALPHABET[(dice.roll() >> 58) as usize]).collect()
}
