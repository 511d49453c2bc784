//! A load on stock RocksDB in peaks and valleys: a hidden command, which `tidegate-lab repro paio`
//! starts for the paper's experiments with a key-value store.
//!
//! ```text
//! bursts    when operations are due                               pure
//! counts    operations and latencies of a second, and its line    pure
//! library   RocksDB's own library, opened at run time
//! load      threads that read and write
//! ```

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_model::{Iops, Rate, Span};

mod bursts;
mod counts;
mod library;
mod load;

pub(crate) use bursts::Bursts;
pub(crate) use counts::{LsmSecond, LsmTotals};
pub(crate) use library::{OwnLimiter, RocksDb};

/// The name of the hidden command.
pub(crate) const COMMAND: &str = "lsm-load";

/// Read and write the keys of a store of RocksDB at given times, for experiments
///
/// The lines go to a file, one for each second and one for all of them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder of the store
    store: PathBuf,

    /// The keys of the store
    #[arg(long)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,

    /// Make the store and fill it, and nothing else
    #[arg(long)]
    fill: bool,

    /// The file for the lines
    #[arg(long, required_unless_present = "fill")]
    lines: Option<PathBuf>,

    /// Of a hundred operations, how many read
    #[arg(long, default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=100))]
    read_percent: u64,

    /// Threads that read and write
    #[arg(long, default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,

    /// Operations per second in a valley
    #[arg(long, default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    valley: u64,

    /// Operations per second in a peak
    #[arg(long, default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    peak: u64,

    /// Milliseconds of the first valley
    #[arg(long, default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=36_000_000))]
    first_valley: u64,

    /// Milliseconds of each peak
    #[arg(long, default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=36_000_000))]
    peak_length: u64,

    /// Milliseconds of each other valley
    #[arg(long, default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=36_000_000))]
    valley_length: u64,

    /// Seconds of all of it
    #[arg(long, default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=36_000))]
    seconds: u64,

    /// The rate of a limiter of the store's own on what flushes and compactions write
    #[arg(long)]
    limiter: Option<Rate>,

    /// The limiter's rate follows the backlog, up to the one that is given
    #[arg(long, requires = "limiter")]
    auto_tuned: bool,

    /// The seed of the keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Args {
    /// A load, as it is written on a command line.
    pub(crate) fn words(work: &LsmPlannedLoad) -> Vec<String> {
        let LsmPlannedLoad { keys, read_percent, bursts, limiter, seed } = work;
        let ms = |span: Span| span.0 / Span::MILLISECOND.0;
        let mut words = vec![
            format!("--keys={keys}"),
            format!("--read-percent={read_percent}"),
            format!("--valley={}", bursts.valley.0),
            format!("--peak={}", bursts.peak.0),
            format!("--first-valley={}", ms(bursts.first_valley)),
            format!("--peak-length={}", ms(bursts.peak_length)),
            format!("--valley-length={}", ms(bursts.valley_length)),
            format!("--seconds={}", bursts.total.0 / Span::SECOND.0),
            format!("--seed={seed}"),
        ];
        match limiter {
            OwnLimiter::None => {}
            OwnLimiter::Static(rate) => words.push(format!("--limiter={rate}")),
            OwnLimiter::AutoTuned(rate) => {
                words.extend([format!("--limiter={rate}"), "--auto-tuned".into()]);
            }
        }
        words
    }

    fn limiter(&self) -> OwnLimiter {
        match (self.limiter, self.auto_tuned) {
            (None, _) => OwnLimiter::None,
            (Some(rate), false) => OwnLimiter::Static(rate),
            (Some(rate), true) => OwnLimiter::AutoTuned(rate),
        }
    }

    fn work(&self) -> load::LsmWork {
        let ms = |ms: u64| Span(ms * Span::MILLISECOND.0);
        let bursts = Bursts {
            valley: Iops(self.valley),
            peak: Iops(self.peak),
            first_valley: ms(self.first_valley),
            peak_length: ms(self.peak_length),
            valley_length: ms(self.valley_length),
            total: Span(self.seconds * Span::SECOND.0),
        };
        let Self { keys, read_percent, threads, seed, .. } = *self;
        load::LsmWork { keys, read_percent, threads, bursts, seed }
    }
}

/// A load that is to be started as a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LsmPlannedLoad {
    pub(crate) keys: u64,
    pub(crate) read_percent: u64,
    pub(crate) bursts: Bursts,
    pub(crate) limiter: OwnLimiter,
    pub(crate) seed: u64,
}

/// Fills a store, or runs the load on it.
///
/// # Errors
/// If the library is missing, or the store refuses something.
pub(crate) fn run(args: &Args, _: &Common) -> Result<ExitCode, Failure> {
    let failed = |why: String| Failure::new(Code::Failure, "the load on RocksDB failed").cause(why);
    let library = RocksDb::open().map_err(failed)?;
    let store = library.store(&args.store, args.limiter()).map_err(failed)?;
    if args.fill {
        load::fill(&store, args.keys, args.seed).map_err(failed)?;
    }
    let Some(path) = args.lines.as_ref().filter(|_| !args.fill) else {
        return Ok(ExitCode::SUCCESS);
    };
    let (seconds, totals) = load::run(&store, &args.work()).map_err(failed)?;
    let line = |json: Result<String, serde_json::Error>| {
        json.map(|json| json + "\n").map_err(|error| failed(error.to_string()))
    };
    let mut text = String::new();
    for second in &seconds {
        text += &line(serde_json::to_string(second))?;
    }
    text += &line(serde_json::to_string(&totals))?;
    fs::write(path, text).map_err(|error| {
        Failure::new(Code::Failure, format!("cannot write {}", path.display())).cause(error)
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_planned_load_is_read_as_it_was_written() {
        let span = |ms: u64| Span(ms * Span::MILLISECOND.0);
        let bursts = Bursts {
            valley: Iops(1_250),
            peak: Iops(5_000),
            first_valley: span(4_800),
            peak_length: span(8_000),
            valley_length: span(800),
            total: Span(24 * Span::SECOND.0),
        };
        let rate = Rate(50 << 20);
        for limiter in [OwnLimiter::None, OwnLimiter::Static(rate), OwnLimiter::AutoTuned(rate)] {
            let planned =
                LsmPlannedLoad { keys: 1_000, read_percent: 90, bursts, limiter, seed: 7 };
            let mut words = vec!["load".to_owned(), "store".into(), "--lines=x".into()];
            words.extend(Args::words(&planned));
            let Line { args } = Line::parse_from(words);
            let work = args.work();
            assert_eq!((work.keys, work.read_percent, work.seed), (1_000, 90, 7));
            assert_eq!(work.bursts, bursts);
            assert_eq!(args.limiter(), limiter);
        }
    }
}
