//! The cost of guarantees for one-sided access to shared memory, on one core.
//!
//! Clients read values of 4 KiB of keys at random, [`DEPTH`] at a time, with every value's sum
//! checked. *Without* an engine they post to shared memory directly; *with* one each operation
//! takes a token, reservation tokens come paced, and the data node's monitor runs on the same core.
//! Its periods go by in virtual time, a step per operation, so no clock is read.
//!
//! The time of the engine alone is measured over a connection that carries nothing.

use std::sync::{Arc, Mutex};

use tidegate_algo::onesided::capacity::Profile;
use tidegate_algo::onesided::engine::Promise;
use tidegate_algo::onesided::{COUNT_MAX, Rules};
use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::shm::Shm;
use tidegate_model::{Span, Time};
use tidegate_onesided::haechi::monitor::MonitorSettings;
use tidegate_onesided::haechi::{
    Monitor, MonitorEvent, Port, SessionParameters, port, region_layout,
};
use tidegate_onesided::kv::{self, Answer, Area, Client, HEADER, Layout};
use tidegate_onesided::one_sided::{
    BUFFER, BufferPosition, Done, Lost, Operation, Post, PostError, RemoteMemory,
};

use super::Row;
use super::window::{BUSY, Contestant, Ours, WindowPlan, contest};
use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;

const BENCH: &str = "haechi";
/// Operations that a client keeps under way.
const DEPTH: u32 = 16;
/// Virtual time per operation: 1.57 million a second, as in the paper.
const STEP: Span = Span(637);
/// Buffers of the engine itself.
const OWN: u32 = 2;
/// Why there is nothing.
const NO_MEMORY: &str = "there is no memory for a region";
/// Operations between two polls of the monitor.
const TICK: u64 = 1_570;
/// Bytes of a value.
const VALUE: usize = 4096;
const KEYS: u64 = 1 << 16;
const KEYS_QUICK: u64 = 1 << 8;

/// The most time that the engine adds to each operation.
const ENGINE_NS: f64 = 30.0;
/// How many values a core may at least read, in millions per second.
const GETS: f64 = 1.2;
/// And how many times as many as without an engine.
const SHARE: f64 = 0.95;

/// Measures the gets with and without an engine, and the engine alone.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    interrupt.check()?;
    report(alone(plan));
    interrupt.check()?;
    gets(plan, report);
    Ok(())
}

/// Shared memory that is not copied: only what the engine itself asks for is done.
#[derive(Debug)]
struct Idle {
    memory: Shm,
    done: Vec<Done>,
}

impl Idle {
    fn new(region: &Arc<Region>) -> Self {
        Self { memory: Shm::new(region.clone(), DEPTH + OWN), done: Vec::new() }
    }
}

impl RemoteMemory for Idle {
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        if post.id >= port::OWN {
            return self.memory.post(post);
        }
        post.operation.check(self.region(), self.buffers())?;
        self.done.push(Done { id: post.id, word: 0 });
        Ok(())
    }

    fn flush(&mut self, now: Time) -> Result<(), Lost> {
        self.memory.flush(now)
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Done>) -> Result<(), Lost> {
        done.append(&mut self.done);
        self.memory.poll(now, done)
    }

    fn buffers(&self) -> u32 {
        self.memory.buffers()
    }

    fn buffer(&self, buffer: u32) -> &[u8] {
        self.memory.buffer(buffer)
    }

    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8] {
        self.memory.buffer_mut(buffer)
    }

    fn region(&self) -> u64 {
        self.memory.region()
    }
}

/// Periods in virtual time, and the monitor that opens them.
struct Periods {
    monitor: Option<Monitor<Shm>>,
    events: Vec<MonitorEvent>,
    now: Time,
    since: u64,
}

impl Periods {
    /// Without a monitor.
    fn none() -> Self {
        Self { monitor: None, events: Vec::new(), now: Time::ZERO, since: 0 }
    }

    /// One operation's worth of time goes by.
    fn pass(&mut self) -> Time {
        self.now = self.now.after(STEP);
        self.since += 1;
        if self.since == TICK {
            self.since = 0;
            if let Some(monitor) = &mut self.monitor {
                let _ = monitor.poll(self.now, &mut self.events);
                self.events.clear();
            }
        }
        self.now
    }
}

/// A client's engine and its monitor. The client is promised all that can be counted, so that it
/// always has a token.
fn engine<F: RemoteMemory>(region: &Arc<Region>, remote: F) -> Option<(Port<F>, Periods)> {
    let local = COUNT_MAX;
    let parameters =
        SessionParameters { rules: Rules::SOUND, period: Span::SECOND, local_rate: local };
    let profile = Profile { mean: COUNT_MAX, deviation: 0, local, increment: 1, history: 5 };
    let settings = MonitorSettings { parameters, profile, session_slots: 1, window: DEPTH };
    let mut monitor = Monitor::new(Shm::new(region.clone(), 8), settings, Time::ZERO).ok()?;
    let promise = Promise { reservation: COUNT_MAX, limit: u64::MAX };
    let session_slot = monitor.admit(promise).ok()?;
    let port = Port::new(remote, parameters, session_slot, DEPTH, Time::ZERO).ok()?;
    Some((port, Periods { monitor: Some(monitor), ..Periods::none() }))
}

/// The time that the engine adds to a connection that carries nothing.
fn alone(plan: WindowPlan) -> Row {
    let case = "the engine, per operation";
    let Ok(region) = Region::create(2 * region_layout::DATA) else {
        return Row::nanoseconds(BENCH, case, None).because(NO_MEMORY);
    };
    let region = Arc::new(region);
    let Some((port, periods)) = engine(&region, Idle::new(&region)) else {
        return Row::nanoseconds(BENCH, case, None).because(NO_MEMORY);
    };
    let bare = Mutex::new((Idle::new(&region), Periods::none(), Vec::new()));
    let gated = Mutex::new((port, periods, Vec::new()));
    let mut without = Ours::new(|_, calls| post(&bare, calls));
    let mut with = Ours::new(|_, calls| post(&gated, calls));
    let mut all: [(usize, &mut dyn Contestant); 2] = [(1, &mut without), (1, &mut with)];
    let values = contest(plan, &mut all);
    let cost = values[0].zip(values[1]).map(|(without, with)| with - without);
    let row = Row::nanoseconds(BENCH, case, cost);
    if plan.is_full() { row.promised(ENGINE_NS) } else { row }
}

/// Posts reads, and takes out what is done after every few.
fn post<F: RemoteMemory>(bed: &Mutex<(F, Periods, Vec<Done>)>, calls: u64) {
    let Ok(mut bed) = bed.lock() else { return };
    let (remote, periods, done) = &mut *bed;
    for id in 0..calls {
        let now = periods.pass();
        let into = BufferPosition::start(id as u32 % DEPTH);
        let operation = Operation::Read { from: region_layout::DATA, into, length: VALUE as u32 };
        // Only before its first period an engine has no room.
        let _ = remote.post(Post { id, operation });
        if id % u64::from(DEPTH / 4) == 0 {
            let _ = remote.flush(now);
            let _ = remote.poll(now, done);
            std::hint::black_box(&mut *done).clear();
        }
    }
}

/// Values read per second, without an engine and with one.
fn gets(plan: WindowPlan, report: &mut dyn FnMut(Row)) {
    let keys = if plan.is_full() { KEYS } else { KEYS_QUICK };
    let case = |how| format!("values of 4 KiB read, {how}");
    let Some((region, layout)) = store(keys) else {
        return report(Row::more(BENCH, case("without an engine"), "M/s", None).because(NO_MEMORY));
    };
    let shm = |buffers| Shm::new(region.clone(), buffers).until_left(region_layout::LEFT);
    let memory = shm(DEPTH);
    let with = engine(&region, shm(DEPTH + OWN));
    let Some((port, periods)) = with else {
        return report(Row::more(BENCH, case("with the engine"), "M/s", None).because(NO_MEMORY));
    };
    let readers = (
        KeyReader::new(memory, layout, Periods::none(), keys),
        KeyReader::new(port, layout, periods, keys),
    );
    let (Some(bare), Some(gated)) = readers else {
        return report(Row::more(BENCH, case("with the engine"), "M/s", None).because(NO_MEMORY));
    };
    let (bare, gated) = (Mutex::new(bare), Mutex::new(gated));
    let mut without = Ours::new(|_, calls| read(&bare, calls));
    let mut with = Ours::new(|_, calls| read(&gated, calls));
    let mut all: [(usize, &mut dyn Contestant); 2] = [(1, &mut without), (1, &mut with)];
    let values = contest(plan, &mut all);
    let [without, with] = [0, 1].map(|at: usize| values[at].map(|nanoseconds| 1e3 / nanoseconds));
    let row = Row::more(BENCH, case("without an engine"), "M/s", without);
    report(if plan.is_full() { row.promised(GETS) } else { row });
    let without = without.ok_or_else(|| BUSY.to_owned());
    let row = Row::more(BENCH, case("with the engine"), "M/s", with);
    let row = row.beside("without an engine", without);
    report(if plan.is_full() { row.promised_times(SHARE) } else { row });
}

/// A region with a store of so many values.
fn store(keys: u64) -> Option<(Arc<Region>, Layout)> {
    let area = Area { at: region_layout::DATA, length: 2 * keys * u64::from(BUFFER) + (1 << 20) };
    let region = Arc::new(Region::create(area.at + area.length).ok()?);
    region.populate().ok()?;
    let layout = Layout::fill(area, 1).ok()?;
    let mut memory = Shm::new(region.clone(), 2 * DEPTH);
    memory.buffer_mut(0)[..HEADER].copy_from_slice(&layout.header());
    let (from, length) = (BufferPosition::start(0), HEADER as u32);
    memory.perform(&Operation::Write { from, to: area.at, length }).ok()?;
    let (outstanding, rest) = (DEPTH, Span::ZERO);
    let settings =
        kv::ClientSettings { outstanding, locations: 0, extent: 64, session_slot: None, rest };
    let mut client = Client::new(memory, layout, settings).ok()?;
    let mut outcomes = Vec::new();
    for key in 0..keys {
        client.put(&key.to_le_bytes(), &[key as u8; VALUE], key).ok()?;
        while client.outstanding() > 0 {
            client.poll(Time::ZERO, &mut outcomes).ok()?;
        }
    }
    let is_stored = |outcome: &kv::OperationOutcome| outcome.answer == Answer::Stored;
    outcomes.iter().all(is_stored).then_some((region, layout))
}

/// A client that reads values of keys at random.
struct KeyReader<F> {
    client: Client<F>,
    periods: Periods,
    keys: u64,
    state: u64,
    outcomes: Vec<kv::OperationOutcome>,
}

impl<F: RemoteMemory> KeyReader<F> {
    /// One that has read every key once, so that it knows where they are.
    fn new(remote: F, layout: Layout, periods: Periods, keys: u64) -> Option<Self> {
        let locations = u32::try_from(2 * keys).ok()?;
        let (outstanding, rest) = (DEPTH, Span::ZERO);
        let settings =
            kv::ClientSettings { outstanding, locations, extent: 1, session_slot: None, rest };
        let client = Client::new(remote, layout, settings).ok()?;
        let mut reader = Self { client, periods, keys, state: 1, outcomes: Vec::new() };
        for key in 0..keys {
            while reader.client.get(&key.to_le_bytes(), key).is_err() {
                reader.take_out();
            }
        }
        while reader.client.outstanding() > 0 {
            reader.take_out();
        }
        Some(reader)
    }

    fn take_out(&mut self) {
        let now = self.periods.pass();
        let _ = self.client.poll(now, &mut self.outcomes);
        for outcome in self.outcomes.drain(..) {
            if let Answer::Found(found) = outcome.answer {
                std::hint::black_box(self.client.value(&found).first());
                self.client.release(found);
            }
        }
    }

    fn read(&mut self, calls: u64) {
        for _ in 0..calls {
            // A multiplicative generator is enough to leave no pattern that a processor knows.
            self.state = self.state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let key = (self.state >> 33) % self.keys;
            self.periods.pass();
            while self.client.get(&key.to_le_bytes(), key).is_err() {
                self.take_out();
            }
        }
    }
}

fn read<F: RemoteMemory>(reader: &Mutex<KeyReader<F>>, calls: u64) {
    if let Ok(mut reader) = reader.lock() {
        reader.read(calls);
    }
}
