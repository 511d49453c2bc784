//! End-to-end demo, its result: a table, sentences about the effect of each gate, and rows for
//! programs.

use serde_json::{Value, json};
use tidegate_console::amounts;
use tidegate_console::output::{Paint, Tone};
use tidegate_console::table::{Cell, Table};

use super::plan::{Gate, Resource, TenantPromise, Unit};
use super::score::{ActRecording, ActScore, PromiseScore};
use crate::experiment::live_verdict::{CountedTime, LiveVerdict};

/// A rate in the promise's unit, for people.
pub(super) fn rate(promise: &TenantPromise, per_second: f64) -> String {
    match promise.unit {
        Unit::Operations => amounts::iops(per_second.round() as u64),
        Unit::Bytes(_) => amounts::bandwidth(per_second.round() as u64),
    }
}

/// One rate, or that before the change and that after it.
fn rates(promise: &TenantPromise, rates: impl IntoIterator<Item = f64>) -> String {
    let rates: Vec<String> = rates.into_iter().map(|one| rate(promise, one)).collect();
    if rates.is_empty() { "-".into() } else { rates.join(", ") }
}

/// The promise in the phases that an act has.
pub(super) fn promised(recording: &ActRecording, promise: &TenantPromise) -> String {
    let phases = 1 + usize::from(recording.act.changes);
    rates(promise, promise.rates[..phases].iter().map(|rate| *rate as f64))
}

pub(super) fn had(score: &PromiseScore) -> String {
    rates(score.promise, score.had.into_iter().flatten())
}

pub(super) fn tone(verdict: LiveVerdict) -> Tone {
    match verdict {
        LiveVerdict::Kept => Tone::Good,
        LiveVerdict::Missed => Tone::Bad,
        LiveVerdict::Disturbed => Tone::Warn,
    }
}

fn percent(permille: u64) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

/// The time within which 99 of 100 requests had their reply.
pub(super) fn p99(score: &PromiseScore) -> String {
    score.p99_ms.map_or("-".into(), |ms| amounts::span((ms * 1e6) as u64))
}

/// How much of each resource was used.
pub(super) fn used(score: &ActScore) -> String {
    let used = Resource::ALL.iter().zip(&score.used_permille);
    let one =
        |(resource, used): (&Resource, &u64)| format!("{} {}", resource.name(), percent(*used));
    used.map(one).collect::<Vec<_>>().join(", ")
}

/// The verdict of an act in a line.
pub(super) fn line(recording: &ActRecording, score: &ActScore) -> String {
    let title = recording.act.title;
    match (&score.disturbance, missed(score)) {
        (Some(why), _) => format!("{title}: no verdict: {why}"),
        (None, _) if score.verdict() == LiveVerdict::Disturbed => {
            format!("{title}: no verdict: a promise had no second that counts")
        }
        (None, missed) if missed.is_empty() => {
            format!("{title}: every promise was {}", score.time)
        }
        (None, missed) => format!("{title}: missed: {missed}"),
    }
}

/// The promises that an act missed.
fn missed(score: &ActScore) -> String {
    let one = |score: &PromiseScore| {
        let PromiseScore { promise, time, .. } = score;
        let unit = if promise.unit == Unit::Operations { "" } else { " (bytes)" };
        format!("{} on {}{unit} {time}", promise.tenant, promise.resource.name())
    };
    score.missed().map(one).collect::<Vec<_>>().join(", ")
}

/// A table of all acts.
pub(super) fn table(results: &[(ActRecording, ActScore)], paint: Paint) -> String {
    let mut table = Table::new().left("ACT").left("TENANT").left("OF").right("PROMISED");
    table = table.right("HAD").right("LOWEST").right("KEPT").right("DISTURBED").right("P99");
    table = table.left("VERDICT");
    for (recording, score) in results {
        for (number, promise_score) in score.promises.iter().enumerate() {
            let PromiseScore { promise, time, .. } = promise_score;
            let CountedTime { kept, counted, disturbed, .. } = time;
            let verdict = match score.disturbance {
                Some(_) => LiveVerdict::Disturbed,
                None => promise_score.verdict(),
            };
            let title = if number == 0 { recording.act.title } else { "" };
            table.row([
                title.into(),
                promise.tenant.into(),
                promise.resource.name().into(),
                promised(recording, promise).into(),
                had(promise_score).into(),
                promise_score.lowest_permille.map_or("-".into(), percent).into(),
                format!("{kept} of {counted} s").into(),
                format!("{disturbed} s").into(),
                p99(promise_score).into(),
                Cell::toned(tone(verdict), verdict.name()),
            ]);
        }
        let used = format!("used: {}", used(score));
        let empty = || Cell::from("");
        table.row([
            empty(),
            used.into(),
            empty(),
            empty(),
            empty(),
            empty(),
            empty(),
            empty(),
            empty(),
            empty(),
        ]);
    }
    table.render(paint, usize::MAX)
}

/// The contribution of each gate: the promises that were missed with this gate alone off.
pub(super) fn sentences(results: &[(ActRecording, ActScore)]) -> Vec<String> {
    let everything = results.iter().find(|(recording, _)| recording.act.changes);
    let of = |(recording, score): &(ActRecording, ActScore)| {
        let gate: Gate = recording.act.without?;
        let name = gate.name();
        Some(match score.verdict() {
            LiveVerdict::Disturbed => format!("{name} off: this machine was too busy to tell."),
            LiveVerdict::Missed => format!("{name} off: missed {}.", missed(score)),
            LiveVerdict::Kept => {
                let slower = everything.and_then(|(_, with)| slower(with, score));
                let slower = slower.unwrap_or_default();
                format!("{name} off: no promise is missed here{slower}; {}.", gate.purpose())
            }
        })
    };
    results.iter().filter_map(of).collect()
}

/// A time counts as longer from this factor on.
const SLOWER: f64 = 1.25;

/// The tenant whose requests take longest without a gate, compared with those with everything on.
fn slower(with: &ActScore, without: &ActScore) -> Option<String> {
    let pairs = with.promises.iter().zip(&without.promises);
    let times = pairs.filter_map(|(with, without)| {
        Some((with.promise.tenant, with.p99_ms?, without.p99_ms.filter(|ms| *ms > 0.0)?))
    });
    let worst = times.max_by(|one, other| (one.2 / one.1).total_cmp(&(other.2 / other.1)));
    let (tenant, with, without) = worst.filter(|(_, with, without)| *without > with * SLOWER)?;
    let [with, without] = [with, without].map(|ms| amounts::span((ms * 1e6) as u64));
    Some(format!(", but 99 of 100 requests of {tenant} take up to {without} instead of {with}"))
}

/// An object for each promise of an act, for programs.
pub(super) fn rows(recording: &ActRecording, score: &ActScore) -> Vec<Value> {
    let gates: Vec<&str> = recording.act.gates.iter().map(|gate| gate.name()).collect();
    let row = |one: &PromiseScore| {
        let promise = one.promise;
        let (unit, key) = match promise.unit {
            Unit::Operations => ("operations", "operations_per_second"),
            Unit::Bytes(_) => ("bytes", "bytes_per_second"),
        };
        let phases = 1 + usize::from(recording.act.changes);
        let index = Resource::ALL.iter().position(|resource| *resource == promise.resource);
        let used = index.and_then(|index| score.used_permille.get(index));
        let verdict =
            if score.disturbance.is_some() { LiveVerdict::Disturbed } else { one.verdict() };
        let had: Vec<f64> = one.had.into_iter().flatten().map(f64::round).collect();
        json!({
            "demo": "end-to-end",
            "act": recording.act.title,
            "gates_on": gates,
            "tenant": promise.tenant,
            "resource": promise.resource.name(),
            "unit": unit,
            format!("promised_{key}"): promise.rates[..phases],
            format!("had_{key}"): had,
            "lowest_percent_of_promise": one.lowest_permille.map(|low| low as f64 / 10.0),
            "counted_seconds": one.time.counted,
            "kept_seconds": one.time.kept,
            "disturbed_seconds": one.time.disturbed,
            "p99_ms": one.p99_ms,
            "resource_used_percent": used.map(|used| *used as f64 / 10.0),
            "verdict": verdict.name(),
            "reason": score.disturbance,
        })
    };
    score.promises.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::{ACTS, EVERYTHING};
    use super::super::score::tests::steady;
    use super::*;

    fn result(index: usize) -> (ActRecording, ActScore) {
        let recording = steady(&ACTS[index], 10);
        let score = ActScore::new(&recording);
        (recording, score)
    }

    #[test]
    fn a_gate_that_breaks_nothing_is_named_with_its_purpose() {
        let (recording, mut score) = result(5);
        let text = sentences(&[(recording.clone(), score.clone())]).concat();
        assert!(text.starts_with("stage off: no promise is missed here; it tells"), "{text}");
        let (with, mut everything) = result(EVERYTHING);
        (everything.promises[3].p99_ms, score.promises[3].p99_ms) = (Some(10.0), Some(30.0));
        let both = [(with, everything), (recording.clone(), score.clone())];
        let text = sentences(&both).concat();
        let slower = "but 99 of 100 requests of web take up to 30 ms instead of 10 ms; it tells";
        assert!(text.contains(slower), "{text}");
        score.promises[0].time.kept -= 2;
        let text = sentences(&[(recording, score)]).concat();
        assert_eq!(
            text,
            "stage off: missed db on files kept in 6 of 8 seconds that count, 0 disturbed."
        );
        assert_eq!(sentences(&[result(EVERYTHING)]), Vec::<String>::new());
    }

    #[test]
    fn programs_get_both_rates_of_an_act_with_a_change() {
        let (recording, score) = result(EVERYTHING);
        let rows = rows(&recording, &score);
        assert_eq!(rows.len(), 5);
        assert_eq!(rows[0]["promised_operations_per_second"], json!([180, 240]));
        assert_eq!(rows[0]["had_operations_per_second"], json!([180.0, 240.0]));
        assert_eq!(rows[2]["promised_bytes_per_second"], json!([9 << 20, 7 << 20]));
        assert_eq!(rows[0]["verdict"], "kept");
    }
}
