//! Quantities for people: rounded, with a space before the unit, in powers of 1,024 for bytes and
//! of 1,000 for operations.
//!
//! A policy prints exact quantities (`tidegate_model::units`); a screen that changes every second
//! is read faster with three or four digits. Programs get raw numbers. Sentences for people that
//! the pure crates make have the same form as the tables beside them.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

use crate::gate::Unit;

const BINARY: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const DECIMAL: [&str; 4] = ["", "k", "M", "G"];

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// `348.2 MiB`.
pub fn bytes(count: u64) -> String {
    let (number, unit) = scaled(count, 1024.0, &BINARY);
    format!("{number} {unit}")
}

/// `348.2 MiB/s`.
pub fn bandwidth(bytes_per_second: u64) -> String {
    format!("{}/s", bytes(bytes_per_second))
}

/// `22.7k`.
pub fn count(count: u64) -> String {
    let (number, unit) = scaled(count, 1000.0, &DECIMAL);
    format!("{number}{unit}")
}

/// `22.7k iops`.
pub fn iops(operations_per_second: u64) -> String {
    format!("{} iops", count(operations_per_second))
}

/// A rate in this unit: `348.2 MiB/s` or `22.7k iops`.
pub fn rate(unit: Unit, per_second: u64) -> String {
    match unit {
        Unit::Bytes => bandwidth(per_second),
        Unit::Operations => iops(per_second),
    }
}

/// `1.2 ms`, and `3 min 12 s` for what people wait for.
pub fn span(nanoseconds: u64) -> String {
    let short =
        |unit: u64, name: &str| format!("{} {name}", rounded(nanoseconds as f64 / unit as f64));
    let long = |unit: u64, name: &str, below: u64, below_name: &str| {
        let (whole, rest) = (nanoseconds / unit, nanoseconds % unit / below);
        if rest == 0 {
            format!("{whole} {name}")
        } else {
            format!("{whole} {name} {rest} {below_name}")
        }
    };
    match nanoseconds {
        0 => "0".into(),
        1..MICROSECOND => format!("{nanoseconds} ns"),
        MICROSECOND..MILLISECOND => short(MICROSECOND, "us"),
        MILLISECOND..SECOND => short(MILLISECOND, "ms"),
        SECOND..MINUTE => short(SECOND, "s"),
        MINUTE..HOUR => long(MINUTE, "min", SECOND, "s"),
        HOUR..DAY => long(HOUR, "h", MINUTE, "min"),
        _ => long(DAY, "d", HOUR, "h"),
    }
}

/// `12 s`, `3 min 12 s`: for what is known to the second.
pub fn age(nanoseconds: u64) -> String {
    if nanoseconds < SECOND { "0 s".into() } else { span(nanoseconds - nanoseconds % SECOND) }
}

/// `3.4 %` of thousandths.
pub fn permille(thousandths: u64) -> String {
    match thousandths {
        0 => "0 %".into(),
        1..100 => format!("{}.{} %", thousandths / 10, thousandths % 10),
        _ => format!("{} %", (thousandths + 5) / 10),
    }
}

/// `1 stage`, `2 stages`, `9 processes`.
pub fn plural(count: u64, noun: &str) -> String {
    let ending = match count {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{count} {noun}{ending}")
}

fn scaled(value: u64, base: f64, units: &[&'static str]) -> (String, &'static str) {
    let mut scaled = value as f64;
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    // A value that rounds up to the next unit is shown in that unit: 1.00 MiB, not 1024 KiB.
    while scaled >= base - 0.05 {
        let Some(next) = units.next() else { break };
        scaled /= base;
        unit = next;
    }
    (rounded(scaled), unit)
}

/// Whole numbers as they are; others with one digit after the point, or two below ten.
fn rounded(value: f64) -> String {
    if value % 1.0 == 0.0 {
        return format!("{value:.0}");
    }
    let text = if value < 9.995 { format!("{value:.2}") } else { format!("{value:.1}") };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short_and_round() {
        assert_eq!(bandwidth(0), "0 B/s");
        assert_eq!(bandwidth(150 << 20), "150 MiB/s");
        assert_eq!(bandwidth(365_114_163), "348.2 MiB/s");
        assert_eq!(bandwidth((1 << 20) - 1), "1 MiB/s");
        assert_eq!(bandwidth(1_610_612_736), "1.5 GiB/s");
        assert_eq!(bytes(u64::MAX), "16384 PiB");
        assert_eq!(iops(500), "500 iops");
        assert_eq!(iops(22_712), "22.7k iops");
        assert_eq!(count(999_999), "1M");
        assert_eq!(permille(0), "0 %");
        assert_eq!(permille(34), "3.4 %");
        assert_eq!(permille(996), "100 %");
    }

    #[test]
    fn spans_are_in_the_unit_that_people_use() {
        assert_eq!(span(0), "0");
        assert_eq!(span(640), "640 ns");
        assert_eq!(span(1_234_567), "1.23 ms");
        assert_eq!(span(12_345_678), "12.3 ms");
        assert_eq!(span(1_500_000_000), "1.5 s");
        assert_eq!(span(192 * SECOND), "3 min 12 s");
        assert_eq!(span(2 * HOUR), "2 h");
        assert_eq!(span(3 * DAY + 5 * HOUR), "3 d 5 h");
        assert_eq!(age(975_900_000), "0 s");
        assert_eq!(age(12_975_900_000), "12 s");
    }
}
