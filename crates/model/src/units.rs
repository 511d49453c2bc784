//! Quantities with units: strict to parse, exact to print.
//!
//! Parsing accepts a decimal number, an optional space, and a unit from a closed list; a bare
//! number is an error, and so is a value that is not a whole number of the base unit (`0.3B`).
//! Printing picks the largest unit that divides the value, so that `parse(print(x)) == x` for every
//! value and a log line can be pasted into a policy.
//!
//! | type | base unit | examples |
//! |---|---|---|
//! | [`Bytes`] | byte | `4KiB`, `1.5MiB`, `200MB` |
//! | [`Rate`] | byte per second | `150MiB/s`, `1GB/s`, `100Gbps` |
//! | [`Iops`] | operation per second | `30k iops`, `500 iops` |
//! | [`Span`], [`Time`] | nanosecond | `200ms`, `1.5s`, `50us`, `2d` |
//! | [`Portion`] | millionth of a whole | `8%`, `8.333%` |

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// A quantity of one unit that could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{input:?} {problem}; write it like {example:?}")]
pub struct UnitError {
    /// The text that was given.
    pub input: String,
    /// The defect of the text.
    pub problem: UnitProblem,
    /// How the value is written, if its unit shows what it means, or else a value of this type, for
    /// example `"150MiB/s"`.
    pub example: Cow<'static, str>,
}

/// A defect of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitProblem {
    /// There is no number at the front.
    #[error("does not start with a number")]
    NoNumber,
    /// There is a number and no unit.
    #[error("has no unit")]
    NoUnit,
    /// The unit is not one of this type's.
    #[error("has a unit that is not known here")]
    UnknownUnit,
    /// The value is not a whole number of base units.
    #[error("is not a whole number of base units")]
    NotWhole,
    /// The value does not fit 64 bits.
    #[error("is too large")]
    TooLarge,
}

/// Units of one quantity, largest first within each family, with their size in base units.
type Units = &'static [(&'static str, u64)];

const KI: u64 = 1 << 10;
const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;
const TI: u64 = 1 << 40;
const PI: u64 = 1 << 50;
const K: u64 = 1_000;
const M: u64 = 1_000_000;
const G: u64 = 1_000_000_000;
const T: u64 = 1_000_000_000_000;
const P: u64 = 1_000_000_000_000_000;

const BYTES: Units = &[
    ("PiB", PI),
    ("PB", P),
    ("TiB", TI),
    ("TB", T),
    ("GiB", GI),
    ("GB", G),
    ("MiB", MI),
    ("MB", M),
    ("KiB", KI),
    ("kB", K),
    ("B", 1),
];
const RATE: Units = &[
    ("PiB/s", PI),
    ("PB/s", P),
    ("TiB/s", TI),
    ("TB/s", T),
    ("GiB/s", GI),
    ("GB/s", G),
    ("MiB/s", MI),
    ("MB/s", M),
    ("KiB/s", KI),
    ("kB/s", K),
    ("B/s", 1),
];
/// A network's units, in bits: read and never printed, because a value has one text. A bit per
/// second alone is not a whole number of bytes.
const BIT_RATE: Units = &[("Tbps", T / 8), ("Gbps", G / 8), ("Mbps", M / 8), ("kbps", K / 8)];
const IOPS: Units = &[("G iops", G), ("M iops", M), ("k iops", K), (" iops", 1)];
const PORTION: Units = &[("%", 10_000)];
/// Read and never printed: hours are exact, and easier to compare.
const DAYS: Units = &[("d", 24 * 3_600 * G)];
const SPAN: Units = &[("h", 3_600 * G), ("min", 60 * G), ("s", G), ("ms", M), ("us", K), ("ns", 1)];

/// Parses `input` as a number and a unit of one of these families. Blanks around the number and
/// before the unit are allowed; units are compared without blanks, so `30k iops` and `30 kiops` are
/// the same.
fn parse(input: &str, families: &[Units], example: &'static str) -> Result<u64, UnitError> {
    let fail = |problem| {
        let like = (problem == UnitProblem::UnknownUnit).then(|| respelled(input, families));
        let example = like.flatten().map_or(Cow::Borrowed(example), Cow::Owned);
        UnitError { input: input.into(), problem, example }
    };
    let text = input.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..digits], &text[digits..]);
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(fail(UnitProblem::NoNumber));
    }
    if unit.trim().is_empty() {
        return Err(fail(UnitProblem::NoUnit));
    }
    let unit = without_spaces(unit);
    let mut units = families.iter().copied().flatten();
    let Some((_, scale)) = units.find(|(name, _)| without_spaces(name) == unit) else {
        return Err(fail(UnitProblem::UnknownUnit));
    };
    scaled(number, *scale).map_err(fail)
}

fn without_spaces(text: &str) -> String {
    text.chars().filter(|c| *c != ' ').collect()
}

/// A quantity with the unit of these families that is meant, where the unit that was written leaves
/// one alone: letters in the other case, a size in the place of a rate, a prefix alone.
///
/// ```text
/// 600 IOPS -> 600 iops     300MB -> 300MB/s     600/s -> 600 iops     4K -> 4KiB
/// ```
pub(crate) fn respelled(input: &str, families: &[Units]) -> Option<String> {
    let text = input.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = (&text[..digits], without_spaces(&text[digits..]));
    let lower = unit.to_ascii_lowercase();
    let rate = ["/sec", "/second", "ps"].into_iter().find_map(|end| lower.strip_suffix(end));
    let wanted = [
        Some(unit.clone()),
        rate.map(|unit| format!("{unit}/s")),
        Some(format!("{unit}/s")),
        Some(format!("{lower}iops")),
        lower.strip_suffix("/s").map(String::from),
        lower.strip_suffix("/s").map(|prefix| format!("{prefix}iops")),
        Some(format!("{lower}ib")),
        Some(format!("{lower}ib/s")),
    ];
    let names = || families.iter().copied().flatten().map(|(name, _)| *name);
    let alone = |wanted: String| {
        let mut found = names().filter(|name| without_spaces(name).eq_ignore_ascii_case(&wanted));
        found.next().filter(|_| found.next().is_none())
    };
    let name = wanted.into_iter().flatten().find_map(alone)?;
    (!number.is_empty()).then(|| format!("{number}{name}"))
}

/// The same of a rate in operations or bytes.
pub(crate) fn respelled_rate(input: &str) -> Option<String> {
    respelled(input, &[IOPS, RATE, BIT_RATE])
}

/// `number * scale`, exactly, where `number` is decimal digits with at most one point.
fn scaled(number: &str, scale: u64) -> Result<u64, UnitProblem> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
        return Err(UnitProblem::NoNumber);
    }
    let whole: u64 = whole.parse().map_err(|_| UnitProblem::TooLarge)?;
    let mut total = u128::from(whole) * u128::from(scale);
    // Digit by digit, so that 0.1GiB fails as "not whole" and 0.5GiB does not. Nineteen digits are
    // more than the largest scale (3.6e12) can make whole.
    let trimmed = fraction.trim_end_matches('0');
    if trimmed.len() > 19 {
        return Err(UnitProblem::NotWhole);
    }
    if !trimmed.is_empty() {
        let power = 10u128.pow(trimmed.len() as u32);
        let factor = trimmed.parse::<u128>().map_err(|_| UnitProblem::NoNumber)?;
        let product = factor * u128::from(scale);
        if product % power != 0 {
            return Err(UnitProblem::NotWhole);
        }
        total += product / power;
    }
    u64::try_from(total).map_err(|_| UnitProblem::TooLarge)
}

/// Prints `value` in the unit that needs the smallest whole number: `1536MiB`, never `1.5GiB`,
/// because every printed value is exact.
fn print(f: &mut fmt::Formatter<'_>, value: u64, units: Units) -> fmt::Result {
    let fits = |scale: u64| value.is_multiple_of(scale);
    let best = units.iter().filter(|(_, scale)| fits(*scale)).max_by_key(|(_, scale)| *scale);
    match best {
        Some((name, scale)) if value != 0 => f.pad(&alloc::format!("{}{name}", value / scale)),
        _ => {
            let (name, _) = units[units.len() - 1];
            f.pad(&alloc::format!("{value}{name}"))
        }
    }
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $units:expr $(, or $others:expr)?, $example:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// None of it.
            pub const ZERO: Self = Self(0);
            /// More than there can be; used for "no bound".
            pub const MAX: Self = Self(u64::MAX);

            /// The value in base units.
            pub const fn get(self) -> u64 {
                self.0
            }
            /// The sum, or [`Self::MAX`] where it does not fit.
            #[must_use]
            pub const fn saturating_add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
            /// The difference, or zero where it would be negative.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl FromStr for $name {
            type Err = UnitError;
            fn from_str(input: &str) -> Result<Self, UnitError> {
                parse(input, &[$units $(, $others)?], $example).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                print(f, self.0, $units)
            }
        }
    };
}

quantity!(
    /// An amount of data, in bytes.
    ///
    /// ```
    /// use tidegate_model::Bytes;
    /// assert_eq!("1.5MiB".parse(), Ok(Bytes(1_572_864)));
    /// assert_eq!(Bytes(1_572_864).to_string(), "1536KiB");
    /// assert!("4096".parse::<Bytes>().is_err());
    /// ```
    Bytes, BYTES, "4KiB"
);
quantity!(
    /// A bandwidth, in bytes per second. It can also be written in bits, as networks' are.
    ///
    /// ```
    /// use tidegate_model::Rate;
    /// assert_eq!("150MiB/s".parse(), Ok(Rate(157_286_400)));
    /// assert_eq!(Rate(157_286_400).to_string(), "150MiB/s");
    /// assert_eq!("100Gbps".parse(), Ok(Rate(12_500_000_000)));
    /// ```
    Rate, RATE, or BIT_RATE, "150MiB/s"
);
quantity!(
    /// A number of operations per second.
    ///
    /// ```
    /// use tidegate_model::Iops;
    /// assert_eq!("30k iops".parse(), Ok(Iops(30_000)));
    /// assert_eq!(Iops(30_000).to_string(), "30k iops");
    /// ```
    Iops, IOPS, "30k iops"
);
quantity!(
    /// A length of time, in nanoseconds.
    ///
    /// ```
    /// use tidegate_model::Span;
    /// assert_eq!("1.5ms".parse(), Ok(Span(1_500_000)));
    /// assert_eq!(Span(1_500_000).to_string(), "1500us");
    /// ```
    Span, SPAN, or DAYS, "200ms"
);

impl Span {
    /// One second.
    pub const SECOND: Self = Self(G);
    /// One millisecond.
    pub const MILLISECOND: Self = Self(M);
    /// One microsecond.
    pub const MICROSECOND: Self = Self(K);

    /// The span in seconds, for reports; decisions use the integer.
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / G as f64
    }
}

/// A part of a whole, in millionths of it.
///
/// ```
/// use tidegate_model::Portion;
/// assert_eq!("8.3%".parse(), Ok(Portion(83_000)));
/// assert_eq!(Portion(83_000).to_string(), "8.3%");
/// assert!("0.083".parse::<Portion>().is_err());
/// assert!("101%".parse::<Portion>().is_err());
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Portion(pub u32);

impl Portion {
    /// The whole.
    pub const WHOLE: Self = Self(1_000_000);
}

impl FromStr for Portion {
    type Err = UnitError;
    fn from_str(input: &str) -> Result<Self, UnitError> {
        let example = "8%";
        let millionths = parse(input, &[PORTION], example)?;
        match u32::try_from(millionths).map(Self) {
            Ok(portion) if portion <= Self::WHOLE => Ok(portion),
            _ => Err(UnitError {
                input: input.into(),
                problem: UnitProblem::TooLarge,
                example: example.into(),
            }),
        }
    }
}

impl fmt::Display for Portion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, rest) = (self.0 / 10_000, self.0 % 10_000);
        let decimals = alloc::format!("{rest:04}");
        match decimals.trim_end_matches('0') {
            "" => f.pad(&alloc::format!("{percent}%")),
            decimals => f.pad(&alloc::format!("{percent}.{decimals}%")),
        }
    }
}

/// A point in time: nanoseconds since the start of the run. Each program or simulation defines its
/// own run; a point is only ever compared with points of the same run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// The start of the run.
    pub const ZERO: Self = Self(0);
    /// Later than any point of any run; used for "never".
    pub const MAX: Self = Self(u64::MAX);

    /// The point `span` later, or [`Self::MAX`].
    #[must_use]
    pub const fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// How long ago `earlier` was; zero if it lies ahead.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Span(self.0), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[test]
    fn a_unit_that_shows_what_is_meant_is_spelled_right() {
        let like = |error: UnitError| error.example.into_owned();
        let rate = |input: &str| like(input.parse::<Rate>().unwrap_err());
        let cases = ["300MB", "20 MiB/sec", "20mib/s", "5 mbit", "1 gbps", "50%"];
        let wanted = ["300MB/s", "20MiB/s", "20MiB/s", "150MiB/s", "1Gbps", "150MiB/s"];
        assert_eq!(cases.map(rate), wanted);
        let iops = |input: &str| like(input.parse::<Iops>().unwrap_err());
        let cases = ["600 IOPS", "600/s", "20k", "20K IOPS", "5 ops"];
        assert_eq!(cases.map(iops), ["600 iops", "600 iops", "20k iops", "20k iops", "30k iops"]);
        let bytes = |input: &str| like(input.parse::<Bytes>().unwrap_err());
        assert_eq!(["4K", "4kib", "4KiB/s", "1 gb"].map(bytes), ["4KiB", "4KiB", "4KiB", "1GB"]);
        let span = |input: &str| like(input.parse::<Span>().unwrap_err());
        assert_eq!(["10 MS", "3 days"].map(span), ["10ms", "200ms"]);
        let [of_rate, of_operations] = ["300MB", "600/s"].map(respelled_rate);
        assert_eq!(of_rate.as_deref(), Some("300MB/s"));
        assert_eq!(of_operations.as_deref(), Some("600 iops"));
        assert_eq!("1.5d".parse(), Ok(Span(36 * 3_600 * G)));
        assert_eq!(Span(36 * 3_600 * G).to_string(), "36h");
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_back(value: u64) {
            prop_assert_eq!(Bytes(value).to_string().parse(), Ok(Bytes(value)));
            prop_assert_eq!(Rate(value).to_string().parse(), Ok(Rate(value)));
            prop_assert_eq!(Iops(value).to_string().parse(), Ok(Iops(value)));
            prop_assert_eq!(Span(value).to_string().parse(), Ok(Span(value)));
        }

        #[test]
        fn round_values_print_round(count in 1u64..1023, unit in 0usize..BYTES.len()) {
            let (name, scale) = BYTES[unit];
            let text = alloc::format!("{count}{name}");
            let value: Bytes = text.parse().unwrap();
            prop_assert_eq!(value.get(), count * scale);
        }

        #[test]
        fn parsing_never_panics(text: String) {
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<Rate>();
            let _ = text.parse::<Iops>();
            let _ = text.parse::<Span>();
        }
    }

    #[test]
    fn what_is_refused_and_why() {
        let problem = |text: &str| text.parse::<Bytes>().unwrap_err().problem;
        assert_eq!(problem(""), UnitProblem::NoNumber);
        assert_eq!(problem("MiB"), UnitProblem::NoNumber);
        assert_eq!(problem("-4KiB"), UnitProblem::NoNumber);
        assert_eq!(problem("4."), UnitProblem::NoUnit);
        assert_eq!(problem("4.KiB"), UnitProblem::NoNumber);
        assert_eq!(problem("1.2.3KiB"), UnitProblem::NoNumber);
        assert_eq!(problem("4096"), UnitProblem::NoUnit);
        assert_eq!(problem("4kib"), UnitProblem::UnknownUnit);
        assert_eq!(problem("4KiB/s"), UnitProblem::UnknownUnit);
        assert_eq!(problem("0.1KiB"), UnitProblem::NotWhole);
        assert_eq!(problem("0.00000000000000000001PiB"), UnitProblem::NotWhole);
        assert_eq!(problem("99999999999999999999B"), UnitProblem::TooLarge);
        assert_eq!(problem("20000PiB"), UnitProblem::TooLarge);
    }

    #[test]
    fn bits_are_eighths_of_bytes() {
        assert_eq!("1kbps".parse(), Ok(Rate(125)));
        assert_eq!("2.5 Mbps".parse(), Ok(Rate(312_500)));
        assert_eq!("90Gbps".parse(), Ok(Rate(11_250_000_000)));
        assert_eq!("1Tbps".parse(), Ok(Rate(125_000_000_000)));
        let problem = |text: &str| text.parse::<Rate>().unwrap_err().problem;
        assert_eq!(problem("0.001kbps"), UnitProblem::NotWhole);
        assert_eq!(problem("8bps"), UnitProblem::UnknownUnit);
        assert_eq!(problem("1gbps"), UnitProblem::UnknownUnit);
        assert_eq!(Rate(125_000_000).to_string(), "125MB/s");
        assert!("1Gbps".parse::<Bytes>().is_err());
    }

    #[test]
    fn an_error_names_the_right_form() {
        let error = "150".parse::<Rate>().unwrap_err();
        assert_eq!(error.to_string(), r#""150" has no unit; write it like "150MiB/s""#);
    }

    #[test]
    fn blanks_are_allowed_where_people_write_them() {
        assert_eq!(" 5 kiops ".parse(), Ok(Iops(5_000)));
        assert_eq!("5 k iops".parse(), Ok(Iops(5_000)));
        assert_eq!("500 iops".parse(), Ok(Iops(500)));
        assert_eq!("10 MiB/s".parse(), Ok(Rate(10 << 20)));
    }
}
