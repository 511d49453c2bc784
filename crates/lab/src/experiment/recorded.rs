//! Regression check: compares our own numbers with those of earlier runs.
//!
//! `recorded.jsonl` has the measured numbers of every simulated claim, with the seeds of the
//! scenarios. A simulation gives the same numbers again, so a number that differs shows that the
//! code now does something else: then either the change is wrong, or it is meant, and the table is
//! written anew.
//!
//! ```text
//! for paper in e2e dsfq pshift haechi; do
//!     tidegate-lab repro $paper --world simulated --json
//! done | jq -c 'select(.world == "simulated") | {paper, figure, claim, verdict, measured}'
//! ```

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::paper::SIMULATED;
use super::verdict::{Claim, Regression};

const TABLE: &str = include_str!("recorded.jsonl");

/// Numbers may stray by so much of them: libraries round functions like the logarithm differently.
const TOLERANCE: f64 = 0.001;

/// A line of the table.
#[derive(Debug, Deserialize)]
struct RecordedRow {
    paper: String,
    figure: String,
    claim: String,
    verdict: Value,
    measured: Map<String, Value>,
}

/// Claims of a figure of a paper, by their text.
type RecordedClaims = BTreeMap<(String, String, String), RecordedRow>;

fn table() -> &'static RecordedClaims {
    static ALL: OnceLock<RecordedClaims> = OnceLock::new();
    ALL.get_or_init(|| {
        let read =
            |line| serde_json::from_str::<RecordedRow>(line).expect("a test reads every line");
        let key = |one: &RecordedRow| (one.paper.clone(), one.figure.clone(), one.claim.clone());
        TABLE.lines().map(read).map(|one| (key(&one), one)).collect()
    })
}

/// Compares a simulated claim with what is recorded of it. Without a record of its own, in a figure
/// that has records, it has drifted, too: its text or its expectations are others.
pub(crate) fn regression(claim: &Claim) -> Option<Regression> {
    let key = (claim.paper.to_owned(), claim.figure.to_owned(), claim.claim.clone());
    let is_recorded = table().keys().any(|(paper, figure, _)| (paper, figure) == (&key.0, &key.1));
    if claim.world != SIMULATED || !is_recorded {
        return None;
    }
    let is_same = table().get(&key).is_some_and(|recorded| {
        serde_json::to_value(claim.verdict).is_ok_and(|verdict| verdict == recorded.verdict)
            && is_near(&claim.measured.clone().into(), &recorded.measured.clone().into())
    });
    Some(if is_same { Regression::Ok } else { Regression::Drifted })
}

/// The figure and the verdict of each recorded claim of a paper.
pub(crate) fn verdicts(paper: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let of_paper = table().values().filter(move |one| one.paper == paper);
    of_paper.map(|one| (one.figure.as_str(), one.verdict.as_str().unwrap_or_default()))
}

/// Whether two values are the same, but for numbers that are near to each other.
fn is_near(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            let [one, other] = [one, other].map(|number| number.as_f64().unwrap_or(f64::NAN));
            (one - other).abs() <= TOLERANCE * one.abs().max(other.abs())
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| is_near(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let same = |(name, value)| other.get(name).is_some_and(|other| is_near(value, other));
            one.len() == other.len() && one.iter().all(same)
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::experiment::paper::{ClaimSource, LIVE};

    #[test]
    fn every_line_is_read_and_is_of_another_claim() {
        assert_eq!(table().len(), TABLE.lines().count());
    }

    #[test]
    fn claims_that_are_not_recorded_have_drifted_where_others_are() {
        let claim = |figure, world| {
            let source = ClaimSource { paper: "dsfq", figure, world, seed: None, seconds: 0.0 };
            source.claim("it is so", json!({ "ms": 1.0 }), [])
        };
        assert_eq!(regression(&claim("burst", SIMULATED)), Some(Regression::Drifted));
        assert_eq!(regression(&claim("burst", LIVE)), None);
        assert_eq!(regression(&claim("1", SIMULATED)), None, "nothing is recorded of it");
    }

    #[test]
    fn near_is_within_a_thousandth() {
        let one = json!({ "ms": [1000, 2.0, "all"], "none": null });
        assert!(is_near(&one, &json!({ "ms": [1001, 2.0, "all"], "none": null })));
        assert!(!is_near(&one, &json!({ "ms": [1002, 2.0, "all"], "none": null })));
        assert!(!is_near(&one, &json!({ "ms": [1000, 2.0], "none": null })));
        assert!(!is_near(&one, &json!({ "ms": [1000, 2.0, "all"] })));
    }
}
