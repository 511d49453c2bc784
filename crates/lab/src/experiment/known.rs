//! Known results that differ from a paper's claims.

use super::verdict::{Judged, Verdict};

/// A number with a known value where the paper claims another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) what: &'static str,
    pub(super) unit: &'static str,
    /// The value of this run.
    pub(super) value: f64,
    /// The known value, and how far the run may stray from it.
    pub(super) known: f64,
    pub(super) within: f64,
}

impl Known {
    /// Thousands of reads per second, within a hundredth.
    pub(super) fn rate(what: &'static str, value: f64, known: f64) -> Self {
        Self { what, unit: "K/s", value, known, within: known / 100.0 }
    }
}

/// A claim that does not hold in the model. It *differs*, for a reason, as long as what comes out
/// instead is what is known to; if anything else does, even what is claimed, it fails, because then
/// either the code is wrong or the reason.
pub(super) fn differs(numbers: &[Known], why: &str) -> Judged {
    let formatted = |Known { what, unit, value, .. }: &Known| format!("{what} {value:.1} {unit}");
    let strays = |one: &&Known| (one.value - one.known).abs() > one.within;
    match numbers.iter().find(strays) {
        Some(one) => {
            let Known { unit, known, within, .. } = one;
            let why =
                format!("{}, but {known} +-{within:.1} {unit} is known to differ", formatted(one));
            (Verdict::Fails, Some(why))
        }
        None => {
            let all: Vec<String> = numbers.iter().map(formatted).collect();
            (Verdict::Differs, Some(format!("{}: {why}", all.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_to_differ_differs_and_all_else_fails() {
        let verdict = |value| differs(&[Known::rate("C1 has", value, 158.0)], "the text yields");
        let (differs, why) = verdict(157.0);
        assert_eq!(differs, Verdict::Differs);
        assert_eq!(why.unwrap(), "C1 has 157.0 K/s: the text yields");
        let (fails, why) = verdict(236.0);
        assert_eq!(fails, Verdict::Fails, "what the paper claims is no excuse");
        assert_eq!(why.unwrap(), "C1 has 236.0 K/s, but 158 +-1.6 K/s is known to differ");
        assert_eq!(verdict(150.0).0, Verdict::Fails);
    }
}
