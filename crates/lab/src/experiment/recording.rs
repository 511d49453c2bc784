//! Measurements of one set-up: the tenants' starts and ends, and the bytes that the disk had read
//! for each tenant at any time.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use tidegate_model::{Rate, Span, Time};

use super::others::OthersTime;
use super::plan::{BLOCK, JOBS, SETTLING};
use super::witness::Seen;

/// The interval of the witness's samples.
pub(crate) const SAMPLE_INTERVAL: Span = Span(250 * Span::MILLISECOND.0);

/// The time over which a rate is measured, and a promise is counted.
pub(crate) const WINDOW: Span = Span::SECOND;

/// A window may be this much shorter or longer than [`WINDOW`]: its rate is measured over its real
/// length, so all that matters is that it is about a second.
const TOLERANCE: Span = Span(100 * Span::MILLISECOND.0);

/// The control over the tenants' rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Control {
    /// Tenants share one disk without limits of their own.
    None,
    /// Each tenant has its promise, and never more.
    Static,
    /// Tidegate.
    Tidegate,
}

impl Control {
    pub(crate) const ALL: [Self; 3] = [Self::None, Self::Static, Self::Tidegate];

    /// For people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::None => "no control",
            Self::Static => "static limits",
            Self::Tidegate => "Tidegate",
        }
    }

    /// Its letter in tables and pictures.
    pub(crate) fn label(self) -> char {
        match self {
            Self::None => 'a',
            Self::Static => 'b',
            Self::Tidegate => 'c',
        }
    }
}

/// One tenant in one set-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Course {
    pub(crate) name: &'static str,
    pub(crate) promise: Rate,
    /// Bytes that the tenant was to read.
    pub(crate) work: u64,
    /// How it was started.
    pub(crate) command: String,
    pub(crate) started: Time,
    pub(crate) ended: Time,
    /// Bytes that its program reports as read.
    pub(crate) reported_bytes: u64,
}

/// The witness's counts at one time, for each tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at: Time,
    pub(crate) seen: Vec<Seen>,
    /// The longest time of the disk since the sample before, for a small read without a limit.
    pub(crate) pulse: Span,
    /// How long processes that are not the experiment's have had processors.
    pub(crate) others: OthersTime,
}

impl Sample {
    /// Bytes that the disk had read for a tenant.
    pub(crate) fn bytes(&self, tenant: usize) -> u64 {
        self.seen.get(tenant).map_or(0, |seen| seen.bytes)
    }
}

/// A set-up that has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recording {
    pub(crate) control: Control,
    /// The limits of the disk and the tenants, for people.
    pub(crate) means: Vec<String>,
    /// The machine's load when it began, in hundredths.
    pub(crate) load_percent: u64,
    /// The tenants, in the order of the plan.
    pub(crate) courses: Vec<Course>,
    pub(crate) samples: Vec<Sample>,
}

/// About a second between two samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// The index of the sample at its beginning.
    first: usize,
    /// And of that at its end.
    last: usize,
    pub(crate) from: Time,
    pub(crate) to: Time,
}

impl Window {
    /// Its middle, where pictures show its rate.
    pub(crate) fn middle(self) -> Time {
        self.from.after(Span(self.to.since(self.from).0 / 2))
    }

    fn meets(self, from: Time, to: Time) -> bool {
        self.from < to && from < self.to
    }
}

impl Recording {
    /// From the first start to the last end.
    pub(crate) fn took(&self) -> Span {
        let first = self.courses.iter().map(|course| course.started).min().unwrap_or_default();
        let last = self.courses.iter().map(|course| course.ended).max().unwrap_or_default();
        last.since(first)
    }

    /// Every window of about a second, one for each sample.
    pub(crate) fn windows(&self) -> impl Iterator<Item = Window> + '_ {
        let mut last = 0;
        self.samples.iter().enumerate().filter_map(move |(first, sample)| {
            let end = sample.at.after(Span(WINDOW.0 - TOLERANCE.0));
            while self.samples.get(last)?.at < end {
                last += 1;
            }
            let (from, to) = (sample.at, self.samples[last].at);
            let is_fit = to.since(from) <= Span(WINDOW.0 + TOLERANCE.0);
            is_fit.then_some(Window { first, last, from, to })
        })
    }

    /// The rate at which the disk read for a tenant within a window.
    pub(crate) fn rate(&self, tenant: usize, window: Window) -> Rate {
        let [first, last] =
            [window.first, window.last].map(|sample| self.samples[sample].bytes(tenant));
        per_second(last - first, window.to.since(window.from))
    }

    /// How long others kept a tenant's processes from processors within a window, added up.
    pub(crate) fn starved(&self, tenant: usize, window: Window) -> Span {
        let [first, last] = [window.first, window.last].map(|sample| &self.samples[sample]);
        let starved = |sample: &Sample| sample.seen.get(tenant).map_or(0, |seen| seen.starved_ns);
        last.others.share_of(Span(starved(last) - starved(first)), first.others)
    }

    /// The longest time of the disk within a window for a small read without a limit.
    pub(crate) fn pulse(&self, window: Window) -> Span {
        // A sample's pulse is of the time before it.
        let within = &self.samples[window.first + 1..=window.last];
        within.iter().map(|sample| sample.pulse).max().unwrap_or(Span::ZERO)
    }

    /// The rate at which the disk read for all tenants within a window.
    pub(crate) fn sum(&self, window: Window) -> Rate {
        Rate((0..self.courses.len()).map(|tenant| self.rate(tenant, window).0).sum())
    }

    /// Whether a tenant wanted more than it got, all through a window: it had started, and had
    /// requests to make until after the end.
    pub(crate) fn has_demand(&self, tenant: usize, window: Window) -> bool {
        let started = self.courses[tenant].started;
        started <= window.from && window.to < self.satisfied(tenant).1
    }

    /// Whether rates were settled all through a window: no tenant started or ended in it, or so
    /// shortly before that others are still adapting.
    pub(crate) fn is_settled(&self, window: Window) -> bool {
        (0..self.courses.len()).all(|tenant| {
            let Course { started, ended, .. } = self.courses[tenant];
            // A tenant makes its last request some time before its process is gone.
            let ending = self.satisfied(tenant).0.min(ended);
            !window.meets(started, started.after(SETTLING))
                && !window.meets(ending, ended.after(SETTLING))
        })
    }

    /// Between which two samples a tenant made its last requests.
    fn satisfied(&self, tenant: usize) -> (Time, Time) {
        let bytes = |sample: &Sample| sample.bytes(tenant);
        let all = self.samples.last().map_or(0, bytes);
        // The last request of each job may be on its way for a while.
        let enough = all.saturating_sub(2 * JOBS * BLOCK);
        let index = self.samples.iter().position(|sample| bytes(sample) > enough).unwrap_or(0);
        let at = |index: usize| self.samples.get(index).map_or(Time::ZERO, |sample| sample.at);
        (at(index.saturating_sub(1)), at(index))
    }
}

pub(crate) fn per_second(bytes: u64, time: Span) -> Rate {
    let rate = u128::from(bytes) * u128::from(Span::SECOND.0) / u128::from(time.0.max(1));
    Rate(u64::try_from(rate).unwrap_or(u64::MAX))
}

/// Seconds, for programs: to the millisecond.
pub(crate) fn seconds(time: u64) -> f64 {
    (time / Span::MILLISECOND.0) as f64 / 1000.0
}

impl Serialize for Course {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut course = serializer.serialize_struct("Course", 7)?;
        course.serialize_field("name", self.name)?;
        course.serialize_field("promise_bytes_per_second", &self.promise.0)?;
        course.serialize_field("work_bytes", &self.work)?;
        course.serialize_field("read_bytes_by_fio", &self.reported_bytes)?;
        course.serialize_field("command", &self.command)?;
        course.serialize_field("started_seconds", &seconds(self.started.0))?;
        course.serialize_field("ended_seconds", &seconds(self.ended.0))?;
        course.end()
    }
}

impl Serialize for Sample {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let of_each = |value: fn(&Seen) -> u64| self.seen.iter().map(value).collect::<Vec<_>>();
        let mut sample = serializer.serialize_struct("Sample", 5)?;
        sample.serialize_field("at_seconds", &seconds(self.at.0))?;
        sample.serialize_field("read_bytes", &of_each(|seen| seen.bytes))?;
        sample.serialize_field("starved_ns", &of_each(|seen| seen.starved_ns))?;
        sample.serialize_field("pulse_ns", &self.pulse.0)?;
        sample.serialize_field("others_ns", &self.others.ns())?;
        sample.end()
    }
}

impl Serialize for Recording {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut recording = serializer.serialize_struct("Recording", 5)?;
        recording.serialize_field("control", &self.control)?;
        recording.serialize_field("means", &self.means)?;
        recording.serialize_field("load", &(self.load_percent as f64 / 100.0))?;
        recording.serialize_field("tenants", &self.courses)?;
        recording.serialize_field("samples", &self.samples)?;
        recording.end()
    }
}

/// Recordings for tests: tenants with constant rates, as a fluid would flow.
#[cfg(test)]
pub(crate) mod fluid {
    use super::*;
    use crate::experiment::plan::{ExperimentPlan, MIB};

    /// The recording that `control` would give for the plan, had it no flaws.
    pub(crate) fn recording(plan: &ExperimentPlan, control: Control) -> Recording {
        let tenants = &plan.tenants;
        let nothing = vec![Seen::default(); tenants.len()];
        let mut samples = vec![Sample {
            at: Time::ZERO,
            seen: nothing,
            pulse: Span::ZERO,
            others: OthersTime::default(),
        }];
        let mut ended = vec![None; tenants.len()];
        while ended.iter().any(Option::is_none) {
            let now = samples.last().unwrap();
            let running: Vec<usize> = (0..tenants.len())
                .filter(|t| tenants[*t].starts.0 <= now.at.0 && ended[*t].is_none())
                .collect();
            let next = now.at.after(SAMPLE_INTERVAL);
            let promised: u64 = running.iter().map(|t| tenants[*t].promise.0).sum();
            let mut seen = now.seen.clone();
            for tenant in &running {
                let equal = plan.disk.0 / running.len() as u64;
                let promise = tenants[*tenant].promise.0;
                let rate = match control {
                    Control::None => equal,
                    Control::Static => promise,
                    Control::Tidegate => {
                        promise + (plan.budget.0 - promised) / running.len() as u64
                    }
                };
                let most = tenants[*tenant].work;
                let bytes = &mut seen[*tenant].bytes;
                *bytes = (*bytes + rate / 4).min(most);
                if *bytes == most {
                    ended[*tenant] = Some(next);
                }
            }
            samples.push(Sample {
                at: next,
                seen,
                pulse: Span::MILLISECOND,
                others: OthersTime::default(),
            });
        }
        let courses = tenants.iter().zip(&ended).map(|(tenant, ended)| Course {
            name: tenant.name,
            promise: tenant.promise,
            work: tenant.work,
            command: format!("fio --name={}", tenant.name),
            started: Time(tenant.starts.0),
            ended: ended.unwrap(),
            reported_bytes: tenant.work,
        });
        let courses = courses.collect();
        Recording { control, means: vec!["a fluid".into()], load_percent: 25, courses, samples }
    }

    /// The paper's tenants on a disk that is fast enough.
    pub(crate) fn plan() -> ExperimentPlan {
        ExperimentPlan::new(Rate(2_000 * MIB), 25)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::MIB;

    fn steady(seconds: &[(u64, u64)]) -> Recording {
        let samples = seconds.iter().map(|(at, mib)| Sample {
            at: Time(at * Span::MILLISECOND.0),
            seen: vec![Seen { bytes: mib * MIB, starved_ns: 0 }],
            pulse: Span::ZERO,
            others: OthersTime::default(),
        });
        let course = Course {
            name: "I1",
            promise: Rate(100 * MIB),
            work: 1_000 * MIB,
            command: String::new(),
            started: Time::ZERO,
            ended: Time(10 * Span::SECOND.0),
            reported_bytes: 0,
        };
        Recording {
            control: Control::None,
            means: Vec::new(),
            load_percent: 0,
            courses: vec![course],
            samples: samples.collect(),
        }
    }

    #[test]
    fn windows_are_about_a_second_and_measured_over_their_real_length() {
        // The third sample is late, and there is a hole from 2 to 4 seconds.
        let regular =
            [(0, 0), (250, 25), (540, 54), (750, 75), (1_000, 100), (1_250, 125), (1_500, 150)];
        let recording = steady(&[&regular[..], &[(4_000, 400), (5_000, 450)]].concat());
        let found: Vec<_> = recording
            .windows()
            .map(|w| (w.from.0 / 1_000_000, w.to.0 / 1_000_000, recording.rate(0, w).0 / MIB))
            .collect();
        let expected = [(0, 1_000, 100), (250, 1_250, 100), (540, 1_500, 100), (4_000, 5_000, 50)];
        assert_eq!(found, expected);
    }

    #[test]
    fn nothing_counts_around_a_change() {
        let recording = fluid::recording(&fluid::plan(), Control::Static);
        let settled = |at: f64| {
            let window = recording.windows().find(|w| seconds(w.from.0) == at).unwrap();
            recording.is_settled(window)
        };
        // Tenants start at 0, 3, 6 and 9 seconds; the last of them ends first, after 14.3.
        let found = [0.0, 1.75, 2.0, 2.25, 3.0, 4.75, 5.0, 5.25, 10.75, 11.0, 20.0].map(settled);
        let expected = [false, false, true, false, false, false, true, false, false, true, true];
        assert_eq!(found, expected);
        let end = seconds(recording.courses[3].ended.0);
        assert!(!settled(end - 1.0) && !settled(end + 1.0) && settled(end + 2.0));
    }

    #[test]
    fn a_tenant_has_demand_from_its_start_to_its_last_request() {
        let recording = fluid::recording(&fluid::plan(), Control::Tidegate);
        let windows: Vec<_> = recording.windows().filter(|w| recording.has_demand(3, *w)).collect();
        let course = &recording.courses[3];
        assert_eq!(windows[0].from, course.started);
        let last = windows.last().unwrap().to;
        assert!(last < course.ended && last.after(SAMPLE_INTERVAL) >= course.ended, "{last}");
    }

    #[test]
    fn a_tenant_waits_for_others_only_as_far_as_these_had_processors() {
        let others_at = |others_ms: u64| {
            let mut recording = steady(&[(0, 0), (1_000, 1)]);
            let [first, last] = &mut recording.samples[..] else { unreachable!("two samples") };
            first.others = OthersTime::of(Span::ZERO);
            last.others = OthersTime::of(Span(others_ms * Span::MILLISECOND.0));
            last.seen[0].starved_ns = 90 * Span::MILLISECOND.0;
            let window = recording.windows().next().unwrap();
            recording.starved(0, window).0 / Span::MILLISECOND.0
        };
        assert_eq!([0, 30, 200].map(others_at), [0, 30, 90]);
    }
}
