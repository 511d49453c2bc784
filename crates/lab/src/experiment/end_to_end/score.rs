//! The score of an act: in which seconds each promise was kept, and how much of each resource was
//! used. A promise is kept in a second if the tenant was served 97 % of it.

use super::plan::{Act, PROMISES, Resource, TenantPromise, Unit};
use super::series::{Amount, LoadSeries};
use crate::experiment::live_verdict::{CountedTime, LiveVerdict};
use crate::experiment::plan::KEPT_PERMILLE;

/// Seconds after the beginning, and after a change of the policy, in which nothing counts.
pub(super) const SETTLING_SECONDS: u64 = 2;

/// An act that was run.
#[derive(Clone, Debug)]
pub(super) struct ActRecording {
    pub(super) act: &'static Act,
    /// When all loads were there, in milliseconds since 1970.
    pub(super) from_ms: u64,
    pub(super) seconds: u64,
    /// When the changed policy was in force.
    pub(super) changed_ms: Option<u64>,
    pub(super) series: Vec<LoadSeries>,
    /// Of each second, whether the machine gave us a processor when we wanted one.
    pub(super) quiet: Vec<bool>,
}

/// How a promise fared in an act.
#[derive(Clone, Debug)]
pub(super) struct PromiseScore {
    pub(super) promise: &'static TenantPromise,
    /// Its seconds.
    pub(super) time: CountedTime,
    /// The least that the tenant was served in a second that counts, in thousandths.
    pub(super) lowest_permille: Option<u64>,
    /// Its service per second before and after the change, in the promise's unit.
    pub(super) had: [Option<f64>; 2],
    pub(super) p99_ms: Option<f64>,
}

/// How an act did.
#[derive(Clone, Debug)]
pub(super) struct ActScore {
    pub(super) promises: Vec<PromiseScore>,
    /// Thousandths of each resource's capacity that were used, in the order of [`Resource::ALL`].
    pub(super) used_permille: Vec<u64>,
    /// Why the act has no verdict, if it has none.
    pub(super) disturbance: Option<String>,
    /// The seconds of the act, as they count for the promise of which the fewest count.
    pub(super) time: CountedTime,
}

impl ActRecording {
    /// Whether nothing counts at this time: all is new to the tenants or to the gates.
    fn settles(&self, window: Amount) -> bool {
        let settling_ms = SETTLING_SECONDS * 1_000;
        let near = |ms: u64| window.from_ms < ms + settling_ms && window.to_ms > ms;
        near(self.from_ms) || self.changed_ms.is_some_and(near)
    }

    fn is_quiet(&self, window: Amount) -> bool {
        let second = |ms: u64| ms.saturating_sub(self.from_ms) as usize / 1_000;
        let (first, last) = (second(window.from_ms), second(window.to_ms.saturating_sub(1)));
        (first..=last).all(|second| self.quiet.get(second).copied().unwrap_or(true))
    }

    /// Whether the policy of this time is the changed one.
    fn phase(&self, window: Amount) -> usize {
        usize::from(self.changed_ms.is_some_and(|changed| window.from_ms >= changed))
    }

    pub(super) fn series_of(&self, promise: &TenantPromise) -> Option<&LoadSeries> {
        self.series.iter().find(|series| series.load == promise.load)
    }

    /// The promise at a time.
    pub(super) fn promised(&self, promise: &TenantPromise, window: Amount) -> u64 {
        promise.rates[self.phase(window)]
    }
}

/// A count of requests in the promise's unit.
pub(super) fn in_unit(promise: &TenantPromise, count: f64) -> f64 {
    match promise.unit {
        Unit::Operations => count,
        Unit::Bytes(size) => count * size as f64,
    }
}

impl ActScore {
    pub(super) fn new(recording: &ActRecording) -> Self {
        let settled = recording.quiet.iter().skip(SETTLING_SECONDS as usize);
        let (all, busy) = (settled.clone().count(), settled.filter(|quiet| !**quiet).count());
        let [all, disturbed] = [all, busy].map(|seconds| seconds as u64);
        let time = CountedTime { all, disturbed, counted: 0, kept: 0, per_second: 1 };
        let disturbance = time.disturbance();
        // If too few are left to say anything, all of them are shown.
        let shows_all = disturbance.is_some();
        let promises = PROMISES.iter().map(|promise| promise_score(recording, promise, shows_all));
        let promises: Vec<PromiseScore> = promises.collect();
        let fewest = promises.iter().map(|score| score.time).min_by_key(|time| time.counted);
        let (counted, kept) = fewest.map_or((0, 0), |time| (time.counted, time.kept));
        let time = CountedTime { counted, kept, ..time };
        let (from_ms, to_ms) = (
            recording.from_ms + SETTLING_SECONDS * 1_000,
            recording.from_ms + recording.seconds * 1_000,
        );
        let used = |resource: &Resource| {
            let here = recording.series.iter().filter(|series| series.load.uses(*resource));
            let sum: f64 = here.map(|series| series.sum(from_ms, to_ms)).sum();
            let most = resource.capacity() as f64 * (to_ms - from_ms) as f64 / 1e3;
            (sum * 1e3 / most).round() as u64
        };
        let used_permille = Resource::ALL.iter().map(used).collect();
        Self { promises, used_permille, disturbance, time }
    }

    pub(super) fn verdict(&self) -> LiveVerdict {
        LiveVerdict::of_run(self.time, self.promises.iter().map(PromiseScore::verdict))
    }

    /// Promises that were missed in some second.
    pub(super) fn missed(&self) -> impl Iterator<Item = &PromiseScore> {
        self.promises.iter().filter(|score| score.verdict() == LiveVerdict::Missed)
    }
}

impl PromiseScore {
    pub(super) fn verdict(&self) -> LiveVerdict {
        LiveVerdict::of_promise(self.time.kept, self.time.counted)
    }
}

fn promise_score(
    recording: &ActRecording,
    promise: &'static TenantPromise,
    shows_all: bool,
) -> PromiseScore {
    let series = recording.series_of(promise);
    let mut score = PromiseScore {
        promise,
        time: CountedTime { all: 0, disturbed: 0, counted: 0, kept: 0, per_second: 1 },
        lowest_permille: None,
        had: [None; 2],
        p99_ms: series.and_then(|series| series.p99_ms),
    };
    let mut rates = [Vec::new(), Vec::new()];
    let windows = series.map(|series| series.windows(recording.from_ms, recording.seconds));
    for window in windows.into_iter().flatten() {
        if recording.settles(window) {
            continue;
        }
        score.time.all += 1;
        if !recording.is_quiet(window) {
            score.time.disturbed += 1;
            if !shows_all {
                continue;
            }
        }
        let rate = in_unit(promise, window.per_second());
        let promised = recording.promised(promise, window);
        // Rounded, for fio rounds its rates.
        let permille = (rate * 1e3 / promised as f64).round() as u64;
        score.time.counted += 1;
        score.time.kept += u64::from(permille >= KEPT_PERMILLE);
        score.lowest_permille =
            Some(score.lowest_permille.map_or(permille, |low| low.min(permille)));
        rates[recording.phase(window)].push(rate);
    }
    score.had = rates
        .map(|rates| (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64));
    score
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::plan::{ACTS, DemoLoad, EVERYTHING};
    use super::*;

    /// An act in which every load is served at a steady rate: what its tenant is promised, or 250.
    pub(in super::super) fn steady(act: &'static Act, seconds: u64) -> ActRecording {
        let from_ms = 1_000_000;
        let changed_ms = act.changes.then_some(from_ms + seconds * 500);
        let series = DemoLoad::ALL.map(|load| {
            let promise = PROMISES.iter().find(|promise| promise.load == load);
            let amount = |number: u64| {
                let from_ms = from_ms + number * 200;
                let phase = usize::from(changed_ms.is_some_and(|changed| from_ms >= changed));
                let rate = promise.map_or(250, |promise| promise.rates[phase]);
                Amount { from_ms, to_ms: from_ms + 200, count: rate as f64 / 5.0 }
            };
            let amounts = (0..seconds * 5).map(amount).collect();
            LoadSeries { load, amounts, p99_ms: None, is_by_period: false }
        });
        let quiet = vec![true; seconds as usize];
        ActRecording { act, from_ms, seconds, changed_ms, series: series.into(), quiet }
    }

    fn database(recording: &mut ActRecording) -> &mut LoadSeries {
        recording.series.iter_mut().find(|series| series.load == DemoLoad::Database).unwrap()
    }

    #[test]
    fn a_steady_act_keeps_every_promise_also_across_a_change() {
        let score = ActScore::new(&steady(&ACTS[EVERYTHING], 20));
        assert_eq!(score.verdict(), LiveVerdict::Kept, "{score:?}");
        // Two seconds at the beginning, and two after the change.
        assert!(
            score.promises.iter().all(|score| (score.time.counted, score.time.kept) == (16, 16))
        );
        assert_eq!(score.promises[0].had.map(|rate| rate.unwrap().round()), [180.0, 240.0]);
        // The database and its backup, on files that can do 300: about 210 + 250.
        assert!((1_500..1_560).contains(&score.used_permille[0]), "{:?}", score.used_permille);
    }

    #[test]
    fn one_bad_second_is_enough() {
        let mut recording = steady(&ACTS[0], 10);
        let from_ms = recording.from_ms;
        for amount in &mut database(&mut recording).amounts {
            if (from_ms + 5_000..from_ms + 6_000).contains(&amount.from_ms) {
                amount.count *= 0.96;
            }
        }
        let score = ActScore::new(&recording);
        assert_eq!(score.verdict(), LiveVerdict::Missed);
        let missed: Vec<_> = score.missed().collect();
        assert_eq!(missed.len(), 1);
        let lost = missed[0].time.counted - missed[0].time.kept;
        assert_eq!((lost, missed[0].lowest_permille), (1, Some(960)));
        // Not if the machine had no processor for us then.
        recording.quiet[5] = false;
        let score = ActScore::new(&recording);
        assert_eq!(score.verdict(), LiveVerdict::Kept);
        let time = score.promises[0].time;
        assert_eq!(time.to_string(), "kept in 7 of 7 seconds that count, 1 disturbed");
        assert_eq!(score.time, time);
    }

    #[test]
    fn a_busy_machine_gives_no_verdict() {
        let mut recording = steady(&ACTS[0], 12);
        recording.quiet[4..6].fill(false);
        assert_eq!(ActScore::new(&recording).verdict(), LiveVerdict::Kept, "two of ten");
        recording.quiet[6] = false;
        assert_eq!(ActScore::new(&recording).verdict(), LiveVerdict::Disturbed, "three of ten");
    }

    #[test]
    fn a_load_without_an_account_keeps_nothing() {
        let mut recording = steady(&ACTS[0], 10);
        database(&mut recording).amounts.clear();
        assert_eq!(ActScore::new(&recording).verdict(), LiveVerdict::Missed);
        recording.series.clear();
        assert_eq!(ActScore::new(&recording).verdict(), LiveVerdict::Disturbed);
    }
}
