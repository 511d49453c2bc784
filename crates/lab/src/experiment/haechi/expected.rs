//! Haechi paper: the numbers that it prints, beside ours.

use serde_json::{Value, json};

use super::{tenths, thousandths};
use crate::experiment::verdict::{Check, at_most, near};

/// So near to what the paper prints is the same, in percent. Its own runs differ as much: ten
/// clients have 1,570 in its figure 8a and, by the 4,742 K of its figure 9b, 1,581.
pub(super) const NEAR: f64 = 2.0;

/// A number that the paper prints, beside ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number {
    pub(super) figure: &'static str,
    pub(super) what: &'static str,
    pub(super) unit: &'static str,
    pub(super) paper: f64,
    pub(super) model: f64,
    pub(super) kind: Comparison,
    /// Whether the model was made from it.
    pub(super) is_given: bool,
}

/// How near to each other two numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    /// By their quotient.
    Amount,
    /// By their difference: they are parts of the same whole, in percent.
    Share,
    /// Ours is to be below the paper's.
    Bound,
}

impl Number {
    /// Thousands of reads per second that the model predicts.
    pub(super) const fn rate(
        figure: &'static str,
        what: &'static str,
        paper: f64,
        model: f64,
    ) -> Self {
        Self { figure, what, unit: "K/s", paper, model, kind: Comparison::Amount, is_given: false }
    }

    /// A part of what there is, in percent.
    pub(super) const fn part(
        figure: &'static str,
        what: &'static str,
        paper: f64,
        model: f64,
    ) -> Self {
        Self { unit: "%", kind: Comparison::Share, ..Self::rate(figure, what, paper, model) }
    }

    /// One that the model was made from.
    pub(super) const fn given(self) -> Self {
        Self { is_given: true, ..self }
    }

    /// How far ours is from the paper's: in percent of it, or of what both are parts of.
    pub(super) fn off(&self) -> f64 {
        match self.kind {
            Comparison::Amount => (self.model / self.paper - 1.0) * 100.0,
            Comparison::Share => self.model - self.paper,
            Comparison::Bound => (self.model - self.paper).max(0.0),
        }
    }

    /// Whether it is as near as can be asked.
    pub(super) fn is_near(&self) -> bool {
        match self.kind {
            Comparison::Bound => self.model < self.paper,
            _ => self.off().abs() <= NEAR,
        }
    }

    /// Whether it is within so many percent of the paper's.
    pub(super) fn check(&self, percent: f64) -> Check {
        let Self { what, unit, paper, model, kind, .. } = *self;
        match kind {
            Comparison::Amount => {
                near(what, unit, paper, thousandths(paper * percent / 100.0), model)
            }
            Comparison::Share => near(what, unit, paper, percent, model),
            Comparison::Bound => at_most(what, unit, paper, model),
        }
    }

    /// For programs.
    pub(super) fn as_json(&self) -> Value {
        let Self { figure, what, unit, paper, model, is_given, .. } = self;
        json!({
            "figure": figure,
            "what": what,
            "unit": unit,
            "paper": paper,
            "model": tenths(*model),
            "given": is_given,
        })
    }
}

/// Numbers of one claim: each with the paper's, and the checks that they are within so many percent
/// of it.
pub(super) fn beside(numbers: &[Number], percent: f64) -> (Value, Vec<Check>) {
    let measured = json!({ "numbers": numbers.iter().map(Number::as_json).collect::<Vec<_>>() });
    (measured, numbers.iter().map(|number| number.check(percent)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::{Verdict, judge};

    #[test]
    fn near_is_within_two_percent() {
        let number = |model| Number::rate("8b", "all together", 1000.0, model);
        let judged = |model| judge(&[number(model).check(NEAR)]);
        assert_eq!(judged(1019.0).verdict, Verdict::Reproduced);
        let differs = judged(979.0);
        assert_eq!(differs.verdict, Verdict::Differs);
        assert_eq!(differs.reason.unwrap(), "all together: 979 K/s instead of 1000 ±20 K/s");
        let part = |model| Number::part("14", "lost", 12.9, model).is_near();
        assert!(part(11.0) && part(14.8) && !part(10.8));
        let below =
            |model| Number { kind: Comparison::Bound, ..Number::part("9a", "lost", 0.1, model) };
        assert!(below(0.0).is_near() && below(0.099).is_near() && !below(0.1).is_near());
    }
}
