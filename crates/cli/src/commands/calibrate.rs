//! `tidegate check --calibrate`: the capacity of a folder's file system, for a policy.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use tidegate_console::amounts;
use tidegate_console::command_line::Common;
use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;
use tidegate_console::output::{self, Paint, Tone};
use tidegate_console::table::{Cell, Table};
use tidegate_model::Span;
use tidegate_model::policy::Resource;

use crate::calibrate::{Calibration, CalibrationSettings, Reached, calibrate};

/// The columns of a screen that a table is cut at; none of ours is as wide.
const COLUMNS: usize = 100;

/// The answer for programs.
#[derive(Debug, Serialize)]
struct Report<'a> {
    folder: &'a str,
    file_bytes: u64,
    seconds: f64,
    latency_bound_ns: Option<u64>,
    alone_p50_ns: u64,
    alone_p99_ns: u64,
    patterns: Vec<PatternReport>,
    capacity_operations_per_second: u64,
    capacity_bytes_per_second: u64,
}

#[derive(Debug, Serialize)]
struct PatternReport {
    pattern: &'static str,
    request_bytes: usize,
    depth: usize,
    operations_per_second: u64,
    bytes_per_second: u64,
    p50_ns: u64,
    p99_ns: u64,
    is_within_bound: bool,
}

impl From<&Reached> for PatternReport {
    fn from(reached: &Reached) -> Self {
        Self {
            pattern: reached.pattern.name,
            request_bytes: reached.pattern.size,
            depth: reached.depth,
            operations_per_second: reached.operations_per_second,
            bytes_per_second: reached.bytes_per_second(),
            p50_ns: reached.p50.0,
            p99_ns: reached.p99.0,
            is_within_bound: reached.is_within,
        }
    }
}

/// Measures `folder` and prints the capacity.
pub(super) fn run(
    folder: &Path,
    settings: CalibrationSettings,
    common: &Common,
) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::listen()?;
    let shows_progress = !common.json && std::io::stderr().is_terminal();
    let progress = |step: &str| {
        if shows_progress {
            eprint!("\r\x1b[K{step} …");
        }
    };
    let measured = calibrate(folder, settings, &interrupt, &progress);
    if shows_progress {
        eprint!("\r\x1b[K");
    }
    let calibration = measured?;
    if common.json {
        output::print_json(&Report {
            folder: &folder.display().to_string(),
            file_bytes: calibration.file_bytes,
            seconds: settings.length.0 as f64 / 1e9,
            latency_bound_ns: settings.latency.map(|latency| latency.0),
            alone_p50_ns: calibration.alone.p50.0,
            alone_p99_ns: calibration.alone.p99.0,
            patterns: calibration.reached.iter().map(PatternReport::from).collect(),
            capacity_operations_per_second: calibration.operations(),
            capacity_bytes_per_second: calibration.bytes(),
        })?;
    } else {
        output::print(&render(&calibration, settings, Paint::stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn render(calibration: &Calibration, settings: CalibrationSettings, paint: Paint) -> String {
    let mut table = Table::new()
        .left("PATTERN")
        .right("AT A TIME")
        .right("OPERATIONS")
        .right("BANDWIDTH")
        .right("P50")
        .right("P99");
    for reached in [&calibration.alone].into_iter().chain(&calibration.reached) {
        let tone = if reached.is_within { Tone::Plain } else { Tone::Warn };
        table.row([
            Cell::from(reached.pattern.name),
            Cell::from(reached.depth.to_string()),
            Cell::from(amounts::iops(reached.operations_per_second)),
            Cell::from(amounts::bandwidth(reached.bytes_per_second())),
            Cell::from(amounts::span(reached.p50.0)),
            Cell::toned(tone, amounts::span(reached.p99.0)),
        ]);
    }
    let mut text = table.render(paint, COLUMNS);
    let missed = calibration.reached.iter().any(|reached| !reached.is_within);
    if let Some(latency) = settings.latency.filter(|_| missed) {
        text += &format!(
            "\nSome requests take longer than {} even alone: no capacity keeps the bound.\n",
            amounts::span(latency.0)
        );
    }
    text += &format!(
        "\nThe least of the small and of the large patterns, for the policy:\n\n\
         capacity = [\"{}\", \"{}MiB/s\"]\n",
        iops(rounded(calibration.operations())),
        rounded(calibration.bytes() >> 20),
    );
    let bound = bound_us(calibration.alone.p99);
    let why = if bound == BOUND_LEAST_US {
        "the shortest bound that a policy may have".into()
    } else {
        format!("a bound of {BOUND_TIMES} times the 99th percentile of requests that are alone")
    };
    text += &format!(
        "\nOr found while programs run, with {why}:\n\n\
         capacity = \"measured\"\nlatency = \"p99 < {bound}us\"\n",
    );
    text
}

/// A bound of latency that leaves a measured capacity room to be found, in 99th percentiles of
/// requests that are alone.
const BOUND_TIMES: u64 = 6;

/// The shortest bound that a policy may have, in microseconds.
const BOUND_LEAST_US: u64 = Resource::LATENCY_MIN.0.div_ceil(Span::MICROSECOND.0);

/// The bound in microseconds, with two digits, rounded up, and long enough for a policy.
fn bound_us(alone: Span) -> u64 {
    let bound = alone.0.saturating_mul(BOUND_TIMES).div_ceil(1_000).max(BOUND_LEAST_US);
    let digits = bound.checked_ilog10().unwrap_or(0);
    bound.next_multiple_of(10u64.pow(digits.saturating_sub(1)))
}

/// The rate as a policy has it.
fn iops(rate: u64) -> String {
    match rate % 1_000 {
        0 => format!("{}k iops", rate / 1_000),
        _ => format!("{rate} iops"),
    }
}

/// The number with its first two digits: a device does not repeat more of them. At least one, which
/// a policy accepts.
fn rounded(number: u64) -> u64 {
    let digits = number.checked_ilog10().unwrap_or(0);
    let unit = 10u64.pow(digits.saturating_sub(1));
    (number / unit * unit).max(1)
}

#[cfg(test)]
mod tests {
    use tidegate_model::Policy;

    use super::*;

    #[test]
    fn a_capacity_has_two_digits_and_is_never_more_than_was_measured() {
        assert_eq!([0, 1, 9, 10, 99].map(rounded), [1, 1, 9, 10, 99]);
        assert_eq!([100, 199, 52_199, 123_456].map(rounded), [100, 190, 52_000, 120_000]);
        assert_eq!([800, 52_000].map(iops), ["800 iops", "52k iops"]);
        assert_eq!(rounded(u64::MAX), 18_000_000_000_000_000_000);
    }

    #[test]
    fn a_bound_of_latency_has_two_digits_and_is_never_less_than_six_times() {
        assert_eq!([0, 1, 150_000, 1_000_000].map(|ns| bound_us(Span(ns))), [200, 200, 900, 6_000]);
        assert_eq!([170_000, 2_151_000].map(|ns| bound_us(Span(ns))), [1_100, 13_000]);
    }

    #[test]
    fn a_policy_takes_the_shortest_bound_and_no_shorter_one() {
        let policy = |bound_us: u64| {
            Policy::parse(&format!(
                r#"resource = [{{ name = "disk", path = "/srv/**", capacity = "measured",
                                latency = "p99 < {bound_us}us" }}]
                   tenant = [{{ name = "oltp" }}]"#
            ))
        };
        policy(bound_us(Span(0))).unwrap();
        policy(BOUND_LEAST_US - 1).unwrap_err();
    }
}
