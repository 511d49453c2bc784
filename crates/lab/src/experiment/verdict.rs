//! The claims of the papers and our own, and the one function that judges them.
//!
//! A claim is data: a sentence, and for each measured value a [`Check`] with the range, order or
//! trend that the paper states. The claim's text prints every check, and [`judge`] decides by the
//! same numbers. So no claim prints one range and accepts another.
//!
//! ```text
//!  near("high", "Gbit/s", 48.0, 2.0, 51.2) ─▶ text:   "… (high 48 ±2 Gbit/s)"
//!                                          └▶ judge:  differs, 1.07 times off,
//!                                                     "high: 51.2 instead of 48 ±2 Gbit/s"
//! ```
//!
//! | measured | verdict |
//! |---|---|
//! | nothing | `skipped` |
//! | within the range, in the order, or with the trend | `reproduced` |
//! | in another order, or more than a factor of two from the range | `not-reproduced` |
//! | otherwise | `differs` |

use core::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use tidegate_console::output::{Paint, Tone};

/// A measured number farther than this factor from the paper's does not reproduce it.
const FACTOR_MAX: f64 = 2.0;

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// A paper's number or order, within the printed range.
    Reproduced,
    /// Outside of the range by at most [`FACTOR_MAX`].
    Differs,
    /// Farther away than that, or in another order.
    NotReproduced,
    /// Our own claim, within its range.
    Holds,
    /// Our own claim, outside of its range.
    Fails,
    /// Nothing was measured; the reason says what is missing.
    Skipped,
    /// A live run on a machine that was too busy to tell.
    Disturbed,
}

impl Verdict {
    /// As JSON has it.
    pub(crate) const fn name(self) -> &'static str {
        self.word().0
    }

    /// For people, in its tone.
    pub(crate) const fn word(self) -> (&'static str, Tone) {
        match self {
            Self::Reproduced => ("reproduced", Tone::Good),
            Self::Differs => ("differs", Tone::Warn),
            Self::NotReproduced => ("not-reproduced", Tone::Bad),
            Self::Holds => ("holds", Tone::Good),
            Self::Fails => ("fails", Tone::Bad),
            Self::Skipped => ("skipped", Tone::Warn),
            Self::Disturbed => ("disturbed", Tone::Warn),
        }
    }
}

/// Measured values of a check: one, or several that all have to be in its range.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Measured(Vec<f64>);

impl From<f64> for Measured {
    fn from(value: f64) -> Self {
        Self(vec![value])
    }
}

/// A missing value: nothing was measured.
impl From<Option<f64>> for Measured {
    fn from(value: Option<f64>) -> Self {
        Self(value.into_iter().collect())
    }
}

impl From<Vec<f64>> for Measured {
    fn from(values: Vec<f64>) -> Self {
        Self(values)
    }
}

impl From<&[f64]> for Measured {
    fn from(values: &[f64]) -> Self {
        Self(values.to_vec())
    }
}

impl<const N: usize> From<[f64; N]> for Measured {
    fn from(values: [f64; N]) -> Self {
        Self(values.to_vec())
    }
}

/// The statement of a paper, or of a claim of our own, about measured values.
#[derive(Clone, Debug, PartialEq)]
enum Expected {
    /// A number, and how far from it the paper's precision and ours allow.
    Near { paper: f64, within: f64 },
    /// From a least to a most; either may be infinite.
    Between { least: f64, most: f64 },
    /// Values of these names ascend, each at least `factor` times the one before.
    Order { names: Vec<String>, factor: f64 },
    /// Each value of a series is at least `factor` times the one before.
    Rises { factor: f64 },
    /// Each value is at most the one before divided by `factor`.
    Falls { factor: f64 },
}

/// One expectation of a claim, and the values measured for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Check {
    what: String,
    unit: &'static str,
    expected: Expected,
    measured: Measured,
}

fn check(
    what: impl Into<String>,
    unit: &'static str,
    expected: Expected,
    measured: impl Into<Measured>,
) -> Check {
    Check { what: what.into(), unit, expected, measured: measured.into() }
}

/// A number that a paper prints, or that is read off its figure.
pub(crate) fn near(
    what: impl Into<String>,
    unit: &'static str,
    paper: f64,
    within: f64,
    measured: impl Into<Measured>,
) -> Check {
    check(what, unit, Expected::Near { paper, within }, measured)
}

/// [`near`] for each name, with its own number and the same tolerance.
pub(crate) fn each_near(
    names: &[&str],
    unit: &'static str,
    papers: &[f64],
    within: f64,
    measured: &[f64],
) -> Vec<Check> {
    let pairs = names.iter().zip(papers).enumerate();
    let of = |(index, (name, paper)): (usize, (&&str, &f64))| {
        near(*name, unit, *paper, within, measured.get(index).copied())
    };
    pairs.map(of).collect()
}

/// A range that a paper prints.
pub(crate) fn between(
    what: impl Into<String>,
    unit: &'static str,
    [least, most]: [f64; 2],
    measured: impl Into<Measured>,
) -> Check {
    check(what, unit, Expected::Between { least, most }, measured)
}

pub(crate) fn at_least(
    what: impl Into<String>,
    unit: &'static str,
    least: f64,
    measured: impl Into<Measured>,
) -> Check {
    between(what, unit, [least, f64::INFINITY], measured)
}

pub(crate) fn at_most(
    what: impl Into<String>,
    unit: &'static str,
    most: f64,
    measured: impl Into<Measured>,
) -> Check {
    between(what, unit, [f64::NEG_INFINITY, most], measured)
}

/// Values that ascend in the order of their names.
pub(crate) fn order(what: impl Into<String>, unit: &'static str, values: &[(&str, f64)]) -> Check {
    order_by(1.0, what, unit, values)
}

/// The same, each at least `factor` times the one before.
pub(crate) fn order_by(
    factor: f64,
    what: impl Into<String>,
    unit: &'static str,
    values: &[(&str, f64)],
) -> Check {
    let names = values.iter().map(|(name, _)| (*name).to_owned()).collect();
    let measured: Vec<f64> = values.iter().map(|(_, value)| *value).collect();
    check(what, unit, Expected::Order { names, factor }, measured)
}

/// A series in which each value is at least `factor` times the one before; with a factor of one it
/// is greater.
pub(crate) fn rises(
    factor: f64,
    what: impl Into<String>,
    unit: &'static str,
    measured: impl Into<Measured>,
) -> Check {
    check(what, unit, Expected::Rises { factor }, measured)
}

/// A series in which each value is at most the one before divided by `factor`; with a factor of one
/// it is less.
pub(crate) fn falls(
    factor: f64,
    what: impl Into<String>,
    unit: &'static str,
    measured: impl Into<Measured>,
) -> Check {
    check(what, unit, Expected::Falls { factor }, measured)
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, expected, .. } = self;
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        if !what.is_empty() {
            write!(f, "{what} ")?;
        }
        let by = |factor: f64, direction| match factor {
            1.0 => String::new(),
            _ => format!(" {factor} times {direction}"),
        };
        match expected {
            Expected::Near { paper, within } => write!(f, "{paper} ±{within}{unit}"),
            Expected::Between { least, most } if most.is_infinite() => {
                write!(f, "at least {least}{unit}")
            }
            Expected::Between { least, most } if least.is_infinite() => {
                write!(f, "at most {most}{unit}")
            }
            Expected::Between { least, most } => write!(f, "{least} to {most}{unit}"),
            Expected::Order { names, factor } => {
                let each = by(*factor, "the one before, or more");
                write!(f, "{}{}", names.join(" < "), each.replacen(' ', ", each ", 1))
            }
            Expected::Rises { factor } => write!(f, "rises{}", by(*factor, "or more in each step")),
            Expected::Falls { factor } => write!(f, "falls{}", by(*factor, "or more in each step")),
        }
    }
}

/// The judgement of one check or of a claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    /// How far from the expected value, as a factor; none if no factor says it.
    pub(crate) distance: Option<f64>,
    pub(crate) reason: Option<String>,
}

impl Judgement {
    const REPRODUCED: Self = Self { verdict: Verdict::Reproduced, distance: None, reason: None };

    fn skipped(reason: String) -> Self {
        Self { verdict: Verdict::Skipped, distance: None, reason: Some(reason) }
    }

    /// The worst comes first.
    const fn rank(&self) -> u8 {
        match self.verdict {
            Verdict::NotReproduced | Verdict::Fails => 0,
            Verdict::Skipped | Verdict::Disturbed => 1,
            Verdict::Differs => 2,
            Verdict::Reproduced | Verdict::Holds => 3,
        }
    }
}

/// How far a value is from a number, as a factor of at least one; infinite across zero.
fn factor(value: f64, from: f64) -> f64 {
    let quotient = value / from;
    match quotient > 0.0 {
        true => quotient.max(1.0 / quotient),
        false => f64::INFINITY,
    }
}

/// The worst step of a series that is to rise by `step`: how many times it falls short.
fn shortfall(values: &[f64], step: f64) -> Option<f64> {
    let short = |two: &[f64]| {
        let rises = if step == 1.0 { two[1] > two[0] } else { two[1] >= two[0] * step };
        (!rises).then(|| factor(two[0] * step, two[1]))
    };
    values.windows(2).filter_map(short).max_by(f64::total_cmp)
}

impl Check {
    /// The judgement of this check alone.
    fn judge(&self) -> Judgement {
        let values = &self.measured.0;
        let least_count = match &self.expected {
            Expected::Near { .. } | Expected::Between { .. } => 1,
            Expected::Order { names, .. } => names.len().max(2),
            Expected::Rises { .. } | Expected::Falls { .. } => 2,
        };
        if values.len() < least_count || values.iter().any(|value| value.is_nan()) {
            return Judgement::skipped(format!("nothing was measured: {self}"));
        }
        let (distance, is_opposite) = match &self.expected {
            Expected::Near { paper, within } => (
                self.farthest([paper - within, paper + within], |value| factor(value, *paper)),
                false,
            ),
            Expected::Between { least, most } => {
                let nearest = |value: f64| if value < *least { *least } else { *most };
                (self.farthest([*least, *most], |value| factor(value, nearest(value))), false)
            }
            Expected::Order { factor, .. } => {
                (shortfall(values, *factor), values.windows(2).any(|two| two[1] < two[0]))
            }
            Expected::Rises { factor } => {
                (shortfall(values, *factor), values[values.len() - 1] < values[0])
            }
            Expected::Falls { factor } => {
                let reversed: Vec<f64> = values.iter().rev().copied().collect();
                (shortfall(&reversed, *factor), values[values.len() - 1] > values[0])
            }
        };
        let distance = distance.or(is_opposite.then_some(f64::INFINITY));
        let Some(distance) = distance else { return Judgement::REPRODUCED };
        let verdict = match is_opposite || distance > FACTOR_MAX {
            true => Verdict::NotReproduced,
            false => Verdict::Differs,
        };
        let distance = distance.is_finite().then(|| (distance * 100.0).round() / 100.0);
        Judgement { verdict, distance, reason: Some(self.reason()) }
    }

    /// The greatest distance of a value outside of a range; none if all are inside.
    fn farthest(&self, [least, most]: [f64; 2], of: impl Fn(f64) -> f64) -> Option<f64> {
        let outside = |value: &&f64| !value.is_finite() || **value < least || **value > most;
        self.measured.0.iter().filter(outside).map(|value| of(*value)).max_by(f64::total_cmp)
    }

    fn reason(&self) -> String {
        let values: Vec<String> = self.measured.0.iter().map(|value| rounded(*value)).collect();
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        match &self.expected {
            Expected::Order { names, .. } => {
                let pairs = names.iter().zip(&values);
                let pairs: Vec<String> =
                    pairs.map(|(name, value)| format!("{name} {value}{unit}")).collect();
                format!("{}{}", self.title(), pairs.join(", "))
            }
            _ => {
                let expected = Self { what: String::new(), ..self.clone() };
                let values = values.join(", ");
                format!("{}{values}{unit} instead of {expected}", self.title())
            }
        }
    }

    fn title(&self) -> String {
        if self.what.is_empty() { String::new() } else { format!("{}: ", self.what) }
    }
}

/// With three digits, for people.
fn rounded(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// The judgement of a claim: that of its worst check. Without checks nothing was measured.
pub(crate) fn judge(checks: &[Check]) -> Judgement {
    let worst = |one: &Judgement, other: &Judgement| {
        let distance = |one: &Judgement| one.distance.unwrap_or(f64::INFINITY);
        let farther = distance(other).total_cmp(&distance(one));
        one.rank().cmp(&other.rank()).then(farther)
    };
    let judged = checks.iter().map(Check::judge);
    judged.min_by(worst).unwrap_or_else(|| Judgement::skipped("nothing was measured".into()))
}

/// Whether our own number is what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Regression {
    Ok,
    Drifted,
}

/// A name in this program, or one that was read from a file.
type StaticName = &'static str;

/// Reads a name. The few that a command reads are kept until it ends.
fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StaticName, D::Error> {
    String::deserialize(deserializer).map(|name| &*name.leak())
}

/// One claim, judged. Its fields are read by programs and stay as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claim {
    #[serde(deserialize_with = "name")]
    pub(crate) paper: StaticName,
    #[serde(deserialize_with = "name")]
    pub(crate) figure: StaticName,
    /// `live`: measured on this machine; `simulated`: in virtual time.
    #[serde(deserialize_with = "name")]
    pub(crate) world: StaticName,
    /// The claim in our words, and what is expected of each measured value.
    pub(crate) claim: String,
    /// Whether it is ours and no paper's.
    pub(crate) ours: bool,
    /// Numbers, each with its unit in its name.
    pub(crate) measured: Map<String, Value>,
    pub(crate) verdict: Verdict,
    pub(crate) reason: Option<String>,
    /// How far from the paper, as a factor.
    pub(crate) distance: Option<f64>,
    /// None where no number is recorded: of live runs, and of other seeds.
    pub(crate) regression: Option<Regression>,
    /// None: nothing here is random.
    pub(crate) seed: Option<u64>,
    pub(crate) seconds: f64,
    /// Whether the reason of a known difference is recorded beside the claim.
    #[serde(skip)]
    pub(crate) is_explained: bool,
}

impl Claim {
    /// Makes the claim ours: it holds or fails.
    pub(crate) fn ours(mut self) -> Self {
        self.ours = true;
        self.distance = None;
        self.verdict = match self.verdict {
            Verdict::Reproduced => Verdict::Holds,
            Verdict::Differs | Verdict::NotReproduced => Verdict::Fails,
            other => other,
        };
        self
    }

    /// Records why the claim is known not to be reproduced.
    pub(crate) fn because(mut self, why: &str) -> Self {
        if matches!(self.verdict, Verdict::Differs | Verdict::NotReproduced) {
            let measured = self.reason.take().unwrap_or_default();
            self.reason = Some(format!("{measured}: {why}"));
            self.is_explained = true;
        }
        self
    }

    /// If there is a reason, the claim was not tested.
    pub(crate) fn skipped(self, missing: Option<&str>) -> Self {
        self.untested(Verdict::Skipped, missing)
    }

    /// If there is a reason, the machine was too busy to tell.
    pub(crate) fn disturbed(self, by: Option<&str>) -> Self {
        match self.verdict {
            Verdict::Skipped => self,
            _ => self.untested(Verdict::Disturbed, by),
        }
    }

    fn untested(self, verdict: Verdict, reason: Option<&str>) -> Self {
        match reason {
            None => self,
            Some(reason) => Self { verdict, reason: Some(reason.into()), distance: None, ..self },
        }
    }

    /// Whether the claim makes the command fail.
    pub(crate) fn is_bad(&self) -> bool {
        let is_bad = match self.verdict {
            Verdict::Fails => true,
            Verdict::NotReproduced => !self.is_explained,
            _ => false,
        };
        is_bad || self.regression == Some(Regression::Drifted)
    }

    /// For people: the verdict, the claim, and the reason if there is one.
    pub(crate) fn formatted(&self, paint: Paint) -> String {
        let (word, tone) = self.verdict.word();
        let word = paint.tone(tone, &format!("{word:<15}"));
        let ours = if self.ours { " [ours]" } else { "" };
        let mut text = format!("{word}{}{ours}\n", self.claim);
        let distance = self.distance.map(|distance| format!("{distance} times off"));
        let drifted = (self.regression == Some(Regression::Drifted))
            .then(|| "our numbers are not those that are recorded".to_owned());
        for line in [self.reason.clone(), distance, drifted].into_iter().flatten() {
            text.push_str(&format!("{:15}{line}\n", ""));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::experiment::paper::{ClaimSource, LIVE};

    fn verdict(check: &Check) -> Verdict {
        judge(std::slice::from_ref(check)).verdict
    }

    /// The bounds that the text of a check prints.
    fn printed(check: &Check) -> [f64; 2] {
        let text = check.to_string();
        let number = |word: &str| word.parse::<f64>().unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["it", "at", "least", least, _] => [number(least), f64::INFINITY],
            ["it", "at", "most", most, _] => [f64::NEG_INFINITY, number(most)],
            ["it", least, "to", most, _] => [number(least), number(most)],
            ["it", paper, within, _] => {
                let (paper, within) = (number(paper), number(within.trim_start_matches('±')));
                [paper - within, paper + within]
            }
            _ => panic!("{text}"),
        }
    }

    proptest! {
        #[test]
        fn exactly_values_of_the_printed_range_are_reproduced(
            kind in 0..4, one in -1e3..1e3, other in 0.0..1e3, value in -3e3..3e3,
        ) {
            let check = match kind {
                0 => near("it", "ms", one, other, value),
                1 => between("it", "ms", [one, one + other], value),
                2 => at_least("it", "ms", one, value),
                _ => at_most("it", "ms", one, value),
            };
            let [least, most] = printed(&check);
            let is_inside = least <= value && value <= most;
            prop_assert_eq!(verdict(&check) == Verdict::Reproduced, is_inside);
        }

        #[test]
        fn an_opposite_order_is_never_near(values in prop::collection::vec(0.1..9.0, 2..5)) {
            let names = ["a", "b", "c", "d"];
            let pairs: Vec<_> = names.into_iter().zip(values.iter().copied()).collect();
            let falls = values.windows(2).any(|two| two[1] < two[0]);
            let expected = if falls { Verdict::NotReproduced } else { Verdict::Reproduced };
            if values.windows(2).all(|two| two[0] != two[1]) {
                prop_assert_eq!(verdict(&order("", "", &pairs)), expected);
            }
            let ends = values[values.len() - 1] - values[0];
            let opposite = |check: Check, ends: f64| {
                ends >= 0.0 || verdict(&check) == Verdict::NotReproduced
            };
            prop_assert!(opposite(rises(1.0, "", "", values.clone()), ends));
            prop_assert!(opposite(self::falls(1.0, "", "", values.clone()), -ends));
        }

        #[test]
        fn differences_are_less_than_a_factor_of_two(paper in 1.0..1e3, times in 0.01..9.0) {
            let check = near("it", "", paper, 0.0, paper * times);
            let distance = factor(paper * times, paper);
            let expected = match distance {
                1.0 => Verdict::Reproduced,
                distance if distance <= FACTOR_MAX => Verdict::Differs,
                _ => Verdict::NotReproduced,
            };
            prop_assert_eq!(verdict(&check), expected);
        }
    }

    #[test]
    fn nothing_measured_is_never_reproduced() {
        let none = Vec::<f64>::new;
        let checks = [
            near("it", "", 1.0, 9.0, none()),
            between("it", "", [0.0, 9.0], None),
            at_least("it", "", 0.0, f64::NAN),
            at_most("it", "", 0.0, none()),
            order("it", "", &[("a", 1.0)]),
            rises(1.0, "it", "", none()),
            falls(1.0, "it", "", 1.0),
        ];
        for check in &checks {
            assert_eq!(verdict(check), Verdict::Skipped, "{check}");
        }
        assert_eq!(judge(&[]).verdict, Verdict::Skipped);
        let good = near("it", "", 1.0, 0.0, 1.0);
        assert_eq!(judge(&[good, near("it", "", 1.0, 9.0, none())]).verdict, Verdict::Skipped);
        assert_eq!(verdict(&at_least("it", "", 0.0, f64::INFINITY)), Verdict::NotReproduced);
    }

    #[test]
    fn a_claim_is_as_good_as_its_worst_check() {
        let of = |value: f64| near("high", "Gbit/s", 48.0, 2.0, value);
        assert_eq!(judge(&[of(48.0), of(50.0)]), Judgement::REPRODUCED);
        let judged = judge(&[of(48.0), of(60.0), of(51.0)]);
        assert_eq!((judged.verdict, judged.distance), (Verdict::Differs, Some(1.25)));
        assert_eq!(judged.reason.unwrap(), "high: 60.0 Gbit/s instead of 48 ±2 Gbit/s");
        assert_eq!(judge(&[of(60.0), of(10.0), of(51.0)]).distance, Some(4.8));
        assert_eq!(verdict(&at_most("lost", "", 0.0, 1.0)), Verdict::NotReproduced);
    }

    #[test]
    fn only_what_is_known_or_skipped_is_no_failure() {
        let source = ClaimSource { paper: "p", figure: "1", world: LIVE, seed: None, seconds: 0.0 };
        let claim = |value: f64| source.claim("it", json!({}), [near("", "", 1.0, 0.1, value)]);
        let seen = |claim: Claim| (claim.verdict, claim.distance, claim.is_bad());
        assert_eq!(seen(claim(1.0)), (Verdict::Reproduced, None, false));
        assert_eq!(seen(claim(1.5)), (Verdict::Differs, Some(1.5), false));
        assert_eq!(seen(claim(3.0)), (Verdict::NotReproduced, Some(3.0), true));
        let known = claim(3.0).because("the paper does not say");
        assert_eq!(known.reason.as_deref(), Some("3.00 instead of 1 ±0.1: the paper does not say"));
        assert_eq!(seen(known.clone()), (Verdict::NotReproduced, Some(3.0), false));
        let drifted = Claim { regression: Some(Regression::Drifted), ..known };
        assert_eq!(seen(drifted), (Verdict::NotReproduced, Some(3.0), true));
        assert_eq!(seen(claim(1.0).ours()), (Verdict::Holds, None, false));
        assert_eq!(seen(claim(1.5).ours()), (Verdict::Fails, None, true));
        let disturbed = claim(3.0).disturbed(Some("busy"));
        assert_eq!(seen(disturbed), (Verdict::Disturbed, None, false));
        let skipped = claim(3.0).skipped(Some("no fio")).disturbed(Some("busy")).ours();
        assert_eq!(skipped.reason.as_deref(), Some("no fio"));
        assert_eq!(seen(skipped), (Verdict::Skipped, None, false));
    }

    #[test]
    fn checks_are_printed_and_so_are_their_reasons() {
        let texts = |check: Check| (check.to_string(), judge(&[check]).reason);
        let (text, reason) = texts(order_by(1.5, "p50", "ms", &[("high", 2.0), ("low", 2.5)]));
        assert_eq!(text, "p50 high < low, each 1.5 times the one before, or more");
        assert_eq!(reason.unwrap(), "p50: high 2.00 ms, low 2.50 ms");
        assert_eq!(texts(order("", "", &[("a", 1.0), ("b", 2.0)])), ("a < b".into(), None));
        let (text, reason) = texts(falls(1.05, "it", "MB", [3.0, 4.0]));
        assert_eq!(text, "it falls 1.05 times or more in each step");
        assert_eq!(
            reason.unwrap(),
            "it: 3.00, 4.00 MB instead of falls 1.05 times or more in each step"
        );
    }
}
