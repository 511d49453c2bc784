//! DSFQ simulation, its load: threads with one request outstanding each.

use tidegate_model::Bytes;

use super::scenario::{DsfqScenario, Threads as WorkloadPlan};
use crate::rng::Stream as Random;
use crate::time::Picoseconds;

/// The number of a thread.
pub(super) type ThreadId = u32;

/// Threads of one stream that are alike.
#[derive(Clone, Debug)]
struct ThreadGroup {
    stream: u16,
    plan: WorkloadPlan,
    coordinators: Vec<u16>,
    /// Its first thread; the others follow.
    first: ThreadId,
    /// Requests that it has made.
    submitted: u64,
}

#[derive(Clone, Debug)]
struct Thread {
    group: u32,
    /// Parts of its request that are not answered; none while it does not ask.
    sub_requests: u16,
    submitted_at: Picoseconds,
    random: Random,
}

/// A request: through which coordinator, whose, and how much on which bricks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClientRequest {
    pub(super) coordinator: u16,
    pub(super) stream: u16,
    pub(super) sub_requests: Vec<(u16, u32)>,
}

/// All of them.
#[derive(Clone, Debug)]
pub(super) struct Threads {
    groups: Vec<ThreadGroup>,
    threads: Vec<Thread>,
    /// Requests of each stream, which take coordinators in turn.
    rotation: Vec<usize>,
}

impl Threads {
    pub(super) fn new(scenario: &DsfqScenario) -> Self {
        let all: Vec<u16> = (0..scenario.coordinators).collect();
        let (mut groups, mut threads) = (Vec::new(), Vec::new());
        for (stream, spec) in (0..).zip(&scenario.stream) {
            for plan in &spec.threads {
                let first = threads.len() as ThreadId;
                let group = groups.len() as u32;
                let through = if plan.through.is_empty() { &all } else { &plan.through };
                let coordinators = through.clone();
                groups.push(ThreadGroup {
                    stream,
                    plan: plan.clone(),
                    coordinators,
                    first,
                    submitted: 0,
                });
                threads.extend((first..).take(plan.count as usize).map(|number| Thread {
                    group,
                    sub_requests: 0,
                    submitted_at: Picoseconds::ZERO,
                    random: Random::new(scenario.seed, "threads", u64::from(number)),
                }));
            }
        }
        Self { groups, threads, rotation: vec![0; scenario.stream.len()] }
    }

    /// Threads that are to ask at `now` and do not: they begin.
    pub(super) fn begin(&mut self, now: Picoseconds) -> Vec<ThreadId> {
        let mut begun = Vec::new();
        for group in &self.groups {
            for id in group.first..group.first + group.active(now) {
                let thread = &mut self.threads[id as usize];
                if thread.sub_requests == 0 {
                    // Until it has made its request.
                    thread.sub_requests = 1;
                    begun.push(id);
                }
            }
        }
        begun
    }

    /// A thread makes a request.
    pub(super) fn submit(&mut self, id: ThreadId, now: Picoseconds) -> ClientRequest {
        let thread = &mut self.threads[id as usize];
        let group = &mut self.groups[thread.group as usize];
        let [Bytes(least), Bytes(most)] = group.plan.size;
        let size = thread.random.within(least, most) as u32;
        let sub_requests = group.sub_requests(size);
        group.submitted += 1;
        thread.sub_requests = sub_requests.len() as u16;
        thread.submitted_at = now;
        let next = &mut self.rotation[usize::from(group.stream)];
        let coordinator = group.coordinators[*next % group.coordinators.len()];
        *next += 1;
        ClientRequest { coordinator, stream: group.stream, sub_requests }
    }

    /// Returns the stream that a thread belongs to.
    pub(super) fn stream(&self, id: ThreadId) -> u16 {
        self.groups[self.threads[id as usize].group as usize].stream
    }

    /// A part of a thread's request is answered. When it was asked for, and whether the thread
    /// asks again.
    pub(super) fn answer(&mut self, id: ThreadId, now: Picoseconds) -> (Picoseconds, bool) {
        let thread = &mut self.threads[id as usize];
        let group = &self.groups[thread.group as usize];
        thread.sub_requests -= 1;
        let submits_next = thread.sub_requests == 0 && id < group.first + group.active(now);
        if submits_next {
            thread.sub_requests = 1;
        }
        (thread.submitted_at, submits_next)
    }

    /// How many threads of a stream ask one brick at `now`, or may next.
    pub(super) fn active(&self, stream: u16, brick: u16, now: Picoseconds) -> u32 {
        let groups = self.groups.iter().filter(|group| group.stream == stream);
        let here = groups.filter(|group| group.plan.on.contains(&brick));
        here.map(|group| group.active(now)).sum()
    }

    /// On how many bricks a stream has data.
    pub(super) fn brick_count(&self, stream: u16) -> u64 {
        let groups = self.groups.iter().filter(|group| group.stream == stream);
        let mut bricks: Vec<u16> = groups.flat_map(|group| group.plan.on.clone()).collect();
        bricks.sort_unstable();
        bricks.dedup();
        bricks.len() as u64
    }
}

impl ThreadGroup {
    /// How many of its threads ask.
    fn active(&self, now: Picoseconds) -> u32 {
        let WorkloadPlan { count, pulse, wave, .. } = &self.plan;
        if let Some(pulse) = pulse {
            let [on, off] = [pulse.on, pulse.off].map(Picoseconds::from);
            return if now.0 % (on.0 + off.0) < off.0 { 0 } else { *count };
        }
        let Some(wave) = wave else { return *count };
        let [period, shift] = [wave.period, wave.shift].map(Picoseconds::from);
        let at = now.after(shift).0 % period.0;
        wave.least + sine(count - wave.least, at, period.0)
    }

    /// Returns the bricks of a request, each with its bytes there.
    fn sub_requests(&self, size: u32) -> Vec<(u16, u32)> {
        let on = &self.plan.on;
        if let Some(burst) = self.plan.burst {
            let phase = self.submitted / u64::from(burst) % on.len() as u64;
            return vec![(on[phase as usize], size)];
        }
        let count = on.len() as u32;
        let bytes_at = |index: u32| size / count + u32::from(index < size % count);
        on.iter().zip(0..).map(|(brick, index)| (*brick, bytes_at(index))).collect()
    }
}

/// A sine between zero and `most`, from half way upwards, `at` of `period` into it, rounded.
///
/// It is Bhaskara's: sin πx = 16x(1-x) / (5 - 4x(1-x)) for x from 0 to 1, at most 0.0017 off, in
/// integers, so that it is the same on every machine.
fn sine(most: u32, at: u64, period: u64) -> u32 {
    /// One, for x and for the sine.
    const UNIT: u64 = 1 << 20;
    let phase = (u128::from(at) * 2 * u128::from(UNIT) / u128::from(period)) as u64;
    let x = phase % UNIT;
    let product = (x * (UNIT - x)) >> 20;
    let sine = 16 * product * UNIT / (5 * UNIT - 4 * product);
    let level = if phase < UNIT { UNIT + sine } else { UNIT - sine };
    ((u64::from(most) * level + UNIT) / (2 * UNIT)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_sine_is_one(most in 0u32..1000, at in 0u64..10_000) {
            let phase = at as f64 / 10_000.0 * core::f64::consts::TAU;
            let exact = f64::from(most) * (1.0 + phase.sin()) / 2.0;
            let off = (f64::from(sine(most, at, 10_000)) - exact).abs();
            prop_assert!(off <= 0.51 + 0.001 * f64::from(most), "{off}");
        }
    }

    fn threads(text: &str) -> Threads {
        let text = format!(
            "name = 'x'\nseed = 1\ndiscipline = 'sfq'\nskip = '0s'\nlength = '1s'\nsample = '1s'\n\
             coordinators = 2\nbricks = {{ count = 3 }}\n[[stream]]\nname = 'f'\n\
             threads = [{{ {text} }}]\n[[stream]]\nname = 'g'\nthreads = []"
        );
        Threads::new(&DsfqScenario::parse(&text).unwrap())
    }

    const START: Picoseconds = Picoseconds::ZERO;

    #[test]
    fn a_thread_submits_again_when_all_sub_requests_are_answered() {
        let mut threads = threads("on = [0, 1, 2], count = 1, size = ['10B', '10B']");
        assert_eq!(threads.begin(START), [0]);
        assert_eq!(threads.begin(START), [0; 0]);
        let request = threads.submit(0, START);
        assert_eq!(request.sub_requests, [(0, 4), (1, 3), (2, 3)]);
        assert_eq!(threads.answer(0, START), (START, false));
        assert_eq!(threads.answer(0, START), (START, false));
        assert_eq!(threads.answer(0, START), (START, true));
        assert_eq!((threads.submit(0, START).coordinator, request.coordinator), (1, 0));
        assert_eq!((threads.brick_count(0), threads.brick_count(1)), (3, 0));
    }

    #[test]
    fn bursts_rotate_over_bricks() {
        let mut threads = threads("on = [0, 2], count = 2, burst = 2");
        threads.begin(START);
        let bricks: Vec<u16> =
            (0..6).map(|n| threads.submit(n % 2, START).sub_requests[0].0).collect();
        assert_eq!(bricks, [0, 0, 2, 2, 0, 0]);
    }

    #[test]
    fn threads_begin_and_end_with_the_pulse() {
        let mut threads = threads("on = [1], count = 3, pulse = { off = '1s', on = '2s' }");
        let at = |seconds| Picoseconds(Picoseconds::SECOND.0 * seconds);
        assert_eq!(threads.begin(START), [0; 0]);
        assert_eq!(threads.begin(at(1)), [0, 1, 2]);
        assert_eq!((threads.active(0, 1, at(2)), threads.active(0, 0, at(2))), (3, 0));
        threads.submit(0, at(1));
        assert!(threads.answer(0, at(2)).1);
        threads.submit(0, at(2));
        assert!(!threads.answer(0, at(3)).1);
        assert_eq!(threads.begin(at(4)), [0]);
    }
}
