//! Claims of a paper, and whether they hold here.

use serde::Serialize;
use serde_json::{Map, Value, json};
use tidegate_model::Span;

use super::DemoOutcome;
use super::live::format_seconds;
use super::plan::KEPT_PERMILLE;
use super::recording::{Control, seconds};
use super::score::{Score, TenantScore, WindowCounts, percent};
use super::summary::sentence;
use tidegate_console::output::{Paint, Tone};

/// A tenant that has its promise in no more than this share of the time misses it, in thousandths.
const MISSES_PERMILLE: u64 = 100;

/// In this share of the time a level is still reached but for moments, in thousandths.
const NEARLY_PERMILLE: u64 = 970;

/// Whether a claim holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Holds,
    /// Something is otherwise than the paper says; the reason says what.
    Differs,
    Fails,
}

/// One claim, judged. Its fields are read by programs and stay as they are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Claim {
    pub(crate) paper: &'static str,
    pub(crate) figure: &'static str,
    /// `live`: measured on this machine; `simulated`: in virtual time.
    pub(crate) world: &'static str,
    /// The paper's claim, in our words.
    pub(crate) claim: String,
    /// Numbers, each with its unit in its name.
    pub(crate) measured: Map<String, Value>,
    pub(crate) verdict: Verdict,
    pub(crate) reason: Option<String>,
    /// None: nothing here is random.
    pub(crate) seed: Option<u64>,
    pub(crate) seconds: f64,
}

impl Claim {
    /// For people: the verdict, the claim, and the reason if there is one.
    pub(crate) fn formatted(&self, paint: Paint) -> String {
        let (word, tone) = match self.verdict {
            Verdict::Holds => ("holds", Tone::Good),
            Verdict::Differs => ("differs", Tone::Warn),
            Verdict::Fails => ("fails", Tone::Bad),
        };
        let word = paint.tone(tone, &format!("{word:<8}"));
        let reason = self.reason.as_ref().map_or(String::new(), |why| format!("\n        {why}"));
        format!("{word}{}{reason}\n", self.claim)
    }
}

/// A verdict, and why it is not better.
pub(crate) type Judged = (Verdict, Option<String>);

/// The claims of figure 10.
pub(crate) fn figure10(outcome: &DemoOutcome) -> Vec<Claim> {
    let scores = Control::ALL.map(|control| outcome.score(control));
    let [Some(none), Some(fixed), Some(tidegate)] = scores else { return Vec::new() };
    let claim = |text: &str, score: &Score, measured: Value, (verdict, reason): Judged| {
        let mut numbers = Map::new();
        if let Value::Object(measured) = measured {
            numbers.extend(measured);
        }
        numbers.insert("scale_percent".into(), outcome.plan.scale_percent.into());
        Claim {
            paper: "paio",
            figure: "10",
            world: "live",
            claim: text.into(),
            measured: numbers,
            verdict,
            reason,
            seed: None,
            seconds: seconds(score.took.0),
        }
    };
    vec![
        claim(
            "without control all four get the same while all run, so I3 and I4, who are promised \
             most, miss their promises",
            none,
            with_all(none),
            misses(none),
        ),
        claim(
            "with static limits everybody has its promise, and nobody uses what is left over: it \
             takes longest",
            fixed,
            took_all(none, fixed, tidegate),
            static_takes_longest(none, fixed, tidegate),
        ),
        claim(
            "with Tidegate everybody has its promise at all times",
            tidegate,
            promises(tidegate),
            all_promises(tidegate),
        ),
        claim(
            "with Tidegate all that is left over is used: together they have at least 97 % of the \
             budget whenever anybody wants it",
            tidegate,
            budget(tidegate),
            all_used(tidegate.budget_used),
        ),
        claim(
            "with Tidegate I1, I2 and I3 are done earlier than with static limits",
            tidegate,
            ends(fixed, tidegate),
            earlier(fixed, tidegate),
        ),
    ]
}

/// `i1_…` and so on: a number for each tenant.
fn each(score: &Score, name: &str, number: impl Fn(&TenantScore) -> Value) -> Map<String, Value> {
    let named = |tenant: &TenantScore| {
        (format!("{}_{name}", tenant.name.to_ascii_lowercase()), number(tenant))
    };
    score.tenant_scores.iter().map(named).collect()
}

fn kept_percent(windows: WindowCounts) -> Value {
    json!(windows.kept_permille().map(percent))
}

fn with_all(score: &Score) -> Value {
    let mut measured =
        each(score, "promise_kept_percent_with_all_four", |tenant| kept_percent(tenant.with_all));
    measured.extend(each(score, "mean_bytes_per_second_with_all_four", |tenant| {
        json!(tenant.rate_with_all.map(|rate| rate.0))
    }));
    measured.into()
}

fn misses(score: &Score) -> Judged {
    let larger = &score.tenant_scores[2..];
    let shares: Option<Vec<u64>> =
        larger.iter().map(|tenant| tenant.with_all.kept_permille()).collect();
    match shares {
        None => (Verdict::Fails, Some("all four never ran together for long enough".into())),
        Some(shares) if shares.iter().all(|share| *share <= MISSES_PERMILLE) => {
            (Verdict::Holds, None)
        }
        Some(shares) if shares.iter().any(|share| *share < 1000) => {
            let why = "I3 and I4 had their promises for a part of the time in which all four ran";
            (Verdict::Differs, Some(why.into()))
        }
        Some(_) => (Verdict::Fails, Some("I3 and I4 had their promises all the time".into())),
    }
}

fn took_all(none: &Score, fixed: &Score, tidegate: &Score) -> Value {
    let mut measured =
        each(fixed, "promise_kept_percent", |tenant| kept_percent(tenant.promise_kept));
    for (name, score) in [("no_control", none), ("static", fixed), ("tidegate", tidegate)] {
        measured.insert(format!("{name}_seconds"), seconds(score.took.0).into());
        let used = percent(score.used_permille);
        measured.insert(format!("{name}_budget_used_percent"), used.into());
    }
    measured.into()
}

fn static_takes_longest(none: &Score, fixed: &Score, tidegate: &Score) -> Judged {
    if fixed.took <= none.took.max(tidegate.took) {
        let formatted = |score: &Score| format_seconds(score.took);
        let why = format!(
            "static limits took {}, no control {}, Tidegate {}",
            formatted(fixed),
            formatted(none),
            formatted(tidegate)
        );
        return (Verdict::Fails, Some(why));
    }
    // A kernel hands out its limits in slices of a tenth of a second, so that a window may hold one
    // less than its share. Over many windows nothing is missing.
    let is_enough = |tenant: &TenantScore| {
        tenant.rate_with_all.is_none_or(|rate| rate.0 * 1000 >= tenant.promise.0 * KEPT_PERMILLE)
    };
    match (fixed.are_promises_kept(), fixed.tenant_scores.iter().all(is_enough)) {
        (true, _) => (Verdict::Holds, None),
        (false, true) => {
            let why = "over the time in which all four ran, everybody had its promise";
            (Verdict::Differs, Some(format!("{}; {why}", sentence(fixed))))
        }
        (false, false) => (Verdict::Fails, Some(sentence(fixed))),
    }
}

fn promises(score: &Score) -> Value {
    let mut measured =
        each(score, "promise_kept_percent", |tenant| kept_percent(tenant.promise_kept));
    measured.extend(each(score, "lowest_percent_of_promise", |tenant| {
        json!(tenant.promise_kept.lowest_permille.map(percent))
    }));
    measured.extend(each(score, "counted_seconds", |tenant| {
        json!(seconds(tenant.promise_kept.counted * Span::SECOND.0 / 4))
    }));
    measured.into()
}

fn all_promises(score: &Score) -> Judged {
    if score.are_promises_kept() {
        return (Verdict::Holds, None);
    }
    let shares =
        score.tenant_scores.iter().filter_map(|tenant| tenant.promise_kept.kept_permille());
    let worst = shares.min().unwrap_or(0);
    let verdict = if worst >= NEARLY_PERMILLE { Verdict::Differs } else { Verdict::Fails };
    (verdict, Some(sentence(score)))
}

fn budget(score: &Score) -> Value {
    json!({
        "budget_used_percent": percent(score.used_permille),
        "budget_used_percent_of_seconds": kept_percent(score.budget_used),
        "budget_used_lowest_percent": score.budget_used.lowest_permille.map(percent),
    })
}

fn all_used(used: WindowCounts) -> Judged {
    let share = used.kept_permille().unwrap_or(0);
    if used.counted > 0 && used.is_kept() {
        return (Verdict::Holds, None);
    }
    let verdict = if share >= NEARLY_PERMILLE { Verdict::Differs } else { Verdict::Fails };
    let missed = format_seconds(used.missed());
    let lowest = super::summary::lowest(used);
    let why = format!("for {missed} less than 97 % of the budget was used, down to {lowest}");
    (verdict, Some(why))
}

fn ends(fixed: &Score, tidegate: &Score) -> Value {
    let mut measured = each(fixed, "seconds_static", |tenant| seconds(tenant.took.0).into());
    measured.extend(each(tidegate, "seconds_tidegate", |tenant| seconds(tenant.took.0).into()));
    measured.into()
}

fn earlier(fixed: &Score, tidegate: &Score) -> Judged {
    let later: Vec<&str> = fixed
        .tenant_scores
        .iter()
        .zip(&tidegate.tenant_scores)
        .take(3)
        .filter(|(fixed, tidegate)| tidegate.took >= fixed.took)
        .map(|(tenant, _)| tenant.name)
        .collect();
    match later.is_empty() {
        true => (Verdict::Holds, None),
        false => (Verdict::Fails, Some(format!("{} took as long or longer", later.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::machine::Machine;
    use crate::experiment::recording::{Recording, fluid};

    fn outcome(change: impl Fn(&mut Recording)) -> DemoOutcome {
        let plan = fluid::plan();
        let results = Control::ALL.map(|control| {
            let mut recording = fluid::recording(&plan, control);
            change(&mut recording);
            let score = Score::new(&plan, &recording);
            (recording, score)
        });
        let machine = Machine {
            processor: String::new(),
            cores: 2,
            memory_bytes: 0,
            kernel: String::new(),
            disk: String::new(),
            file_system: String::new(),
            fio: String::new(),
            release: "",
        };
        let (report, samples) = Default::default();
        let (notes, results) = (Vec::new(), results.into());
        DemoOutcome { plan, machine, notes, results, report, samples }
    }

    fn verdicts(outcome: &DemoOutcome) -> Vec<Verdict> {
        figure10(outcome).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn the_papers_numbers_hold_all_claims() {
        let outcome = outcome(|_| ());
        assert_eq!(verdicts(&outcome), [Verdict::Holds; 5]);
        assert!(outcome.is_kept());
        let line = serde_json::to_value(&figure10(&outcome)[0]).unwrap();
        let fields = ["claim", "figure", "measured", "paper", "reason", "seconds", "seed"];
        for field in fields.iter().chain(&["verdict", "world"]) {
            assert!(line.get(field).is_some(), "{field}");
        }
        assert_eq!(line["verdict"], "holds");
        assert_eq!(line["measured"]["i4_promise_kept_percent_with_all_four"], 0.0);
    }

    #[test]
    fn a_moment_differs_and_a_while_fails() {
        let slow = |from: usize, until: usize| {
            outcome(move |recording| {
                if recording.control == Control::Tidegate {
                    // The last tenant loses a tenth of its promise for so many samples.
                    let lost = recording.courses[3].promise.0 / 40;
                    for (index, sample) in recording.samples.iter_mut().enumerate() {
                        let lost_samples = index.clamp(from, until) - from;
                        let bytes = &mut sample.seen[3].bytes;
                        *bytes -= (lost * lost_samples as u64).min(*bytes);
                    }
                }
            })
        };
        let moment = verdicts(&slow(70, 71));
        assert_eq!(moment[2], Verdict::Holds, "a single look is less than three per cent");
        assert_eq!(verdicts(&slow(60, 80))[2], Verdict::Fails);
        let reason = figure10(&slow(60, 80))[2].reason.clone().unwrap();
        assert!(reason.starts_with("promises were missed: I4 for "), "{reason}");
    }
}
