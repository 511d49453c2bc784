//! The agent that writes a segment. It talks to the controller, writes rules and rates into the
//! segment, reads the segment's counters, and clears up after processes that died. The
//! machine of a stage ([`tidegate_proto::stage`]) decides, and this module carries it out.
//!
//! [`Driver`] is the loop, without a thread of its own: a supervisor runs it as its main loop, and
//! [`StageAgent`] runs it on a thread for a program that uses the library.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use tidegate_algo::classify::channel::WORDS_MAX;
use tidegate_algo::concurrent::published::{VERSIONS, about_to_write};
use tidegate_algo::scheduling::queue::QueueState;
use tidegate_algo::shaping::token_bucket::{RATE_UNLIMITED, RateLease};
use tidegate_fabric::unix::MessageLink;
use tidegate_model::gate::{Burst, Unit};
use tidegate_model::{Span, Time};
use tidegate_proto::message::{Held, Rule, RuleError, StageInfo, ToStage};
use tidegate_proto::stage::plan::{Change, GateSetup, Plan, SetChannel, SetGate};
use tidegate_proto::stage::{Machine, Output};

use crate::census::Census;
use crate::clock::{self, kernel_time};
use crate::gate;
use crate::layout::{GateKind, Header, SLOT_WORDS, TOKENS_PER_OPERATION};
use crate::lease;
use crate::segment::Segment;
use crate::settings::{ControllerAddress, Settings};
use crate::stage::Stage;
#[cfg(feature = "transform")]
use crate::transform::{Keys, Layered, Transforms};
use crate::wait;
use crate::waiters;
use crate::{report, users};

/// How often the agent scans for processes that it has not noticed. Noticed processes wake it when
/// they end.
const CHECK_INTERVAL: Span = Span(250 * Span::MILLISECOND.0);
/// How often ticks and nanoseconds are brought together again.
const SET_CLOCK: Span = Span::SECOND;
/// The least time by which the rates in the segment are renewed: a tenth of the shortest lease.
const RENEWAL_MIN: Span = Span(100 * Span::MILLISECOND.0);
/// How many notices are kept at most. A supervisor reads them in every round of its loop; the agent
/// of a library has no reader.
const NOTICES_MAX: usize = 16;

/// How long a controller on another machine may take to read the good-bye of a stage.
#[cfg(feature = "tls")]
const LEAVE_PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// The loop of an agent.
#[derive(Debug)]
pub(crate) struct Driver {
    segment: Arc<Segment>,
    machine: Machine,
    address: ControllerAddress,
    link: Option<MessageLink<ToStage>>,
    census: Census,
    last_check: Time,
    clock_set: Time,
    /// Until when the rates in the segment hold.
    kept_until: Time,
    /// Notices of the machine for the user, oldest first; at most the last `NOTICES_MAX`.
    pub(crate) notices: Vec<String>,
    #[cfg(feature = "transform")]
    transforms: Transforms,
}

impl Driver {
    pub(crate) fn new(segment: Arc<Segment>, settings: &Settings) -> Self {
        let info = StageInfo {
            tenant: settings.tenant.clone(),
            pid: std::process::id(),
            command: settings.command.chars().take(200).collect(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            release: env!("CARGO_PKG_VERSION").into(),
            held: Held { segment: segment.name().into(), ..Held::default() },
            ..StageInfo::default()
        };
        let now = kernel_time();
        Self {
            machine: Machine::new(now, info, settings.layered),
            segment,
            address: ControllerAddress::of(settings),
            link: None,
            census: Census::default(),
            last_check: Time::ZERO,
            clock_set: now,
            kept_until: Time::MAX,
            notices: Vec::new(),
            #[cfg(feature = "transform")]
            transforms: Transforms::default(),
        }
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    pub(crate) fn census(&self) -> &Census {
        &self.census
    }

    /// The rules of the stage.
    pub(crate) fn plan(&self) -> &Plan {
        self.machine.plan()
    }

    /// Whether a controller has sent rules, or has reported that it will send none.
    pub(crate) fn is_ready(&self) -> bool {
        self.machine.is_connected() && self.machine.info().revision > 0
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.machine.is_connected()
    }

    /// Why there are no rules of a controller; none if there are.
    fn no_rules(&self) -> Option<NoRules> {
        if self.is_ready() {
            return None;
        }
        let reason = match (self.machine.last_notice(), self.is_connected()) {
            (Some(notice), _) => notice,
            (None, true) => "the controller has no policy yet; apply one with `tidegate apply`",
            (None, false) => NoRules::NO_ANSWER,
        };
        // A notice while the connection goes on is about the rules.
        let is_refused = self.machine.is_refused()
            || self.is_connected() && self.machine.last_notice().is_some();
        Some(NoRules { reason: reason.into(), is_refused })
    }

    /// Does what is due, then waits until something happens: on the link, to a process, on one of
    /// the descriptors of `others`, or until the next thing is due, at the latest after `patience`.
    pub(crate) fn run_once(&mut self, others: &[BorrowedFd<'_>], patience: Span) -> io::Result<()> {
        let now = kernel_time();
        // If this process was stopped or had no processor.
        if self.kept_until <= now {
            self.listen();
            self.machine.on_lapsed();
        }
        self.machine.on_deadline(now);
        self.act();
        self.renew(now);
        if now.since(self.last_check) >= CHECK_INTERVAL {
            self.last_check = now;
            self.check_processes();
        }
        if now.since(self.clock_set) >= SET_CLOCK {
            self.clock_set = now;
            clock::set(&self.segment.header.clock);
        }
        let deadline = self.machine.next_deadline().unwrap_or(Time::MAX);
        let deadline = deadline.min(self.last_check.after(CHECK_INTERVAL)).min(now.after(patience));
        if self.wait(others, deadline)? {
            // A process has ended. Check at once: until it is buried its descriptor stays readable,
            // and waiting would not wait.
            self.last_check = kernel_time();
            self.check_processes();
        }
        self.listen();
        self.act();
        Ok(())
    }

    /// Renews the rates in the segment: this process lives.
    fn renew(&mut self, now: Time) {
        let until = self.machine.kept_until(now);
        if until >= self.kept_until && until.since(self.kept_until) < RENEWAL_MIN {
            return;
        }
        self.kept_until = until;
        let now = clock::now(&self.segment.header.clock);
        let numbers = self.machine.plan().gates().map(|(_, gate)| usize::from(gate.number));
        let cells = numbers.filter_map(|number| self.segment.gates.get(number));
        cells.for_each(|cell| cell.bucket.renew(until, now));
    }

    /// Waits until `deadline` or an event, and returns whether a process ended.
    fn wait(&self, others: &[BorrowedFd<'_>], deadline: Time) -> io::Result<bool> {
        let mut polled = Vec::from_iter(self.census.watched().map(watch));
        let processes = polled.len();
        polled.extend(others.iter().map(watch));
        if let Some(link) = &self.link {
            polled.push(PollFd::from_borrowed_fd(link.as_fd(), link.interest()));
        }
        let left = deadline.since(kernel_time());
        let timeout = Timespec {
            tv_sec: (left.0 / 1_000_000_000) as i64,
            tv_nsec: (left.0 % 1_000_000_000) as i64,
        };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) => Ok(polled[..processes].iter().any(|process| !process.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes in the controller's messages.
    fn listen(&mut self) {
        while let Some(link) = &mut self.link {
            let received = link.flush().and_then(|()| link.receive());
            match received {
                Ok(Some(message)) => {
                    self.machine.on_message(kernel_time(), users::resolved(message));
                    self.act();
                }
                Ok(None) => return,
                Err(error) => self.lose(&error),
            }
        }
    }

    fn lose(&mut self, error: &io::Error) {
        self.link = None;
        let is_absent =
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        let reason = match error.kind() {
            io::ErrorKind::UnexpectedEof => "it closed the connection".into(),
            _ if is_absent => self.address.absence(),
            _ => error.to_string(),
        };
        match self.address {
            ControllerAddress::Socket(_) if is_absent => {
                self.machine.on_absent(kernel_time(), &reason)
            }
            _ => self.machine.on_closed(kernel_time(), &reason),
        }
    }

    /// Carries out the outputs of the state machine.
    fn act(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            let sent = match output {
                Output::Connect => match self.address.connect() {
                    Ok(link) => {
                        self.link = Some(link);
                        self.machine.on_connected(kernel_time());
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
                Output::Close => {
                    self.close();
                    Ok(())
                }
                Output::Hello(hello) => self.link.as_mut().map_or(Ok(()), |link| link.send(&hello)),
                Output::Send(message) => {
                    self.link.as_mut().map_or(Ok(()), |link| link.send(&message))
                }
                Output::Report { round, detail } => {
                    self.check_processes();
                    let (plan, census) = (self.machine.plan(), &self.census);
                    let report = report::read(&self.segment, plan, census, round, detail);
                    let mut messages = report::storage(&self.segment).into_iter().chain([report]);
                    let mut link = self.link.as_mut();
                    messages.try_for_each(|it| link.as_mut().map_or(Ok(()), |link| link.send(&it)))
                }
                Output::Install(change) => {
                    #[cfg(feature = "transform")]
                    self.note_transforms(&change);
                    install(&self.segment, &change, self.kept_until);
                    Ok(())
                }
                Output::Notice(text) => {
                    let excess = (self.notices.len() + 1).saturating_sub(NOTICES_MAX);
                    self.notices.drain(..excess);
                    self.notices.push(text);
                    Ok(())
                }
            };
            if let Err(error) = sent {
                self.lose(&error);
            }
        }
    }

    /// Notifies the layered interface what the gates of a new table do to content, before requests
    /// reach them.
    #[cfg(feature = "transform")]
    fn note_transforms(&self, change: &Change) {
        // Without a table the gates are those of the last one.
        if change.words.is_some() {
            let gates = self.machine.plan().gates().map(|(_, gate)| (gate.number, &gate.spec));
            self.transforms.note(next_generation(&self.segment.header), gates);
        }
    }

    /// Checks the processes a last time, when everything has ended.
    pub(crate) fn final_check(&mut self) {
        self.check_processes();
    }

    /// Notices processes that came and went, and frees what the dead held.
    fn check_processes(&mut self) {
        self.census.take(&self.segment, kernel_time());
        for (_, gate) in self.machine.plan().gates() {
            gate::forget_the_dead(&self.segment, gate.number);
        }
    }

    /// Says good-bye.
    pub(crate) fn end(&mut self) {
        if !self.machine.is_connected() {
            // No controller counts it.
            self.link = None;
        }
        self.machine.on_end();
        self.act();
        self.renew(kernel_time());
    }

    /// Closes the link. At the end a controller on another machine gets the time to read the
    /// good-bye: without it the stage counts as cut off, and its share is kept for it.
    fn close(&mut self) {
        #[cfg(feature = "tls")]
        if self.machine.has_ended()
            && matches!(self.address, ControllerAddress::Remote(_))
            && let Some(link) = self.link.take()
        {
            link.leave(LEAVE_PATIENCE);
        }
        self.link = None;
    }
}

fn watch<Fd: AsFd>(descriptor: &Fd) -> PollFd<'_> {
    PollFd::new(descriptor, PollFlags::IN)
}

/// The generation of the table that is published next. Only the agent publishes.
fn next_generation(header: &Header) -> u32 {
    let next = match header.generation.load(Ordering::Relaxed) {
        0 => header.first.load(Ordering::Relaxed),
        last => last.wrapping_add(1),
    };
    next.max(1)
}

/// Puts a change into the segment: first the gates, then the table that names them, last what no
/// table names any more. Rates hold until `kept_until`.
fn install(segment: &Segment, change: &Change, kept_until: Time) {
    change.gates.iter().for_each(|gate| set_gate(segment, gate, kept_until));
    change.holds.iter().for_each(|it| gate::hold(segment, *it, kept_until));
    change.channels.iter().for_each(|channel| set_channel(segment, *channel));
    if let Some(words) = &change.words {
        let header = &segment.header;
        let next = next_generation(header);
        let table = &segment.tables[next as usize % VERSIONS];
        about_to_write();
        for (cell, word) in table.iter().zip(words.iter().take(WORDS_MAX)) {
            cell.store(*word, Ordering::Relaxed);
        }
        header.generation.store(next, Ordering::Release);
        wait::wake(&header.generation, u32::MAX);
    }
    for number in &change.retired {
        if let Some(cell) = segment.gates.get(usize::from(*number)) {
            // Requests that an older table has sorted may still have content to transform. Those
            // that wait here find the new table, for it is published.
            if cell.kind.load(Ordering::Relaxed) != GateKind::Transform as u32 {
                cell.kind.store(GateKind::Retired as u32, Ordering::Release);
            }
            cell.changed();
        }
    }
}

fn set_gate(segment: &Segment, set: &SetGate, kept_until: Time) {
    let Some(cell) = segment.gates.get(usize::from(set.number)) else { return };
    let now = clock::now(&segment.header.clock);
    if set.fresh {
        cell.delayed.store(0, Ordering::Relaxed);
        cell.waited.store(0, Ordering::Relaxed);
        cell.waiting.clear();
        // Their tokens were those of the bucket that the gate was before.
        waiters::forget(segment, set.number);
        // Without a limit first: a limit set after that begins with a full bucket and no debt.
        cell.bucket.configure(RATE_UNLIMITED, 1, now);
    }
    let kind = match &set.setup {
        GateSetup::Open => GateKind::Open,
        GateSetup::Transform => GateKind::Transform,
        GateSetup::Bucket { unit, rate, burst, safe } => {
            let (kind, tokens) = match unit {
                Unit::Bytes => (GateKind::Bytes, 1),
                Unit::Operations => (GateKind::Operations, TOKENS_PER_OPERATION),
            };
            // Programs of a run begin with the default at most, and may have more after a pause: a
            // tenant that starts programs one after the other would have a whole burst for each.
            let start = Burst::DEFAULT.tokens(*rate).min(*burst);
            let counts = [*rate, *burst, *safe, start];
            let [rate, burst, then, start] = counts.map(|count| count.saturating_mul(tokens));
            let lease = RateLease { until: kept_until, then };
            if set.fresh && !segment.name().is_empty() {
                cell.bucket.configure_leased(rate, start, lease, now);
            }
            cell.bucket.configure_leased(rate, burst, lease, now);
            kind
        }
        GateSetup::Queue { queue, order, depth, weights } => {
            cell.queue.store(u32::from(*queue), Ordering::Relaxed);
            let configure = |queue: &mut QueueState<SLOT_WORDS>| {
                queue.configure(*order, *depth, weights);
            };
            lease::configure(segment, usize::from(*queue), configure);
            GateKind::Queue
        }
    };
    cell.kind.store(kind as u32, Ordering::Release);
    cell.changed();
}

fn set_channel(segment: &Segment, set: SetChannel) {
    let Some(cell) = segment.channels.get(usize::from(set.number)) else { return };
    segment.header.channels.fetch_max(u32::from(set.number) + 1, Ordering::Relaxed);
    if set.fresh {
        cell.passed.clear();
        cell.waited.store(0, Ordering::Relaxed);
        cell.waiting.clear();
        cell.service.clear();
    }
    cell.probed.store(u32::from(set.probed), Ordering::Relaxed);
}

/// Why a stage has no rules of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRules {
    /// The reason, for people.
    pub reason: String,
    /// Whether the controller refuses the stage, or the stage its rules. Otherwise the controller
    /// is not there, has not answered yet, or has no policy yet.
    pub is_refused: bool,
}

impl NoRules {
    const NO_ANSWER: &str = "the controller has not answered yet";
}

/// The agent of a stage inside a program: a segment of its own and a thread. Dropping it
/// disconnects from the controller; what its stage enforced last stays in force for clones of the
/// stage.
///
/// In a child of `fork` the stage is the parent's and its gates hold, but the thread is not there:
/// rules cannot be applied there, and dropping the handle leaves the parent's agent as it is.
#[derive(Debug)]
pub struct StageAgent {
    stage: Stage,
    waker: Arc<OwnedFd>,
    /// Always there until the end.
    worker: Option<AgentThread>,
    no_rules: Arc<Mutex<Option<NoRules>>>,
    /// The process that has the thread.
    pid: u32,
    #[cfg(feature = "transform")]
    transforms: Transforms,
}

/// The agent's thread, and the way to it.
#[derive(Debug)]
struct AgentThread {
    commands: std::sync::mpsc::Sender<AgentCommand>,
    thread: JoinHandle<()>,
}

/// Request of the program to its agent.
enum AgentCommand {
    Apply(Vec<Rule>, std::sync::mpsc::Sender<Result<(), RuleError>>),
    End,
}

impl StageAgent {
    /// Makes a stage and connects it; returns at once, whether or not a controller is there (PAIO's
    /// `paio_init`).
    ///
    /// # Errors
    /// If there is no memory for the segment or no thread to be had.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let segment = Arc::new(Segment::private()?);
        let stage = Stage::new(Arc::clone(&segment));
        stage.join();
        let waker = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | NONBLOCK)?);
        let (commands, inbox) = std::sync::mpsc::channel();
        let wakeup = Arc::clone(&waker);
        let mut driver = Driver::new(segment, &settings);
        #[cfg(feature = "transform")]
        let transforms = driver.transforms.clone();
        let no_rules = Arc::new(Mutex::new(driver.no_rules()));
        let found = Arc::clone(&no_rules);
        let thread = std::thread::Builder::new().name("tidegate".into()).spawn(move || {
            while driver.run_once(&[wakeup.as_fd()], Span::SECOND).is_ok() {
                *found.lock().unwrap_or_else(PoisonError::into_inner) = driver.no_rules();
                let mut count = [0; 8];
                let _ = rustix::io::read(&*wakeup, &mut count);
                while let Ok(command) = inbox.try_recv() {
                    match command {
                        AgentCommand::Apply(rules, answer) => {
                            let result = driver.machine.apply_own(&rules);
                            driver.act();
                            let _ = answer.send(result);
                        }
                        AgentCommand::End => return driver.end(),
                    }
                }
            }
        })?;
        Ok(Self {
            stage,
            waker,
            worker: Some(AgentThread { commands, thread }),
            no_rules,
            pid: std::process::id(),
            #[cfg(feature = "transform")]
            transforms,
        })
    }

    /// The stage for requests that carry content, with the keys that the policy's gates name.
    #[cfg(feature = "transform")]
    pub fn layered(&self, keys: Keys) -> Layered {
        Layered::new(self.stage.clone(), self.transforms.clone(), keys)
    }

    /// The stage that this agent keeps.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Why there are no rules of a controller at this moment; none if there are.
    pub fn no_rules(&self) -> Option<NoRules> {
        if self.is_elsewhere() {
            // The thread may have held the lock as this process was forked.
            let pid = self.pid;
            let reason = format!("process {pid}, from which this one was forked, keeps the stage");
            return Some(NoRules { reason, is_refused: false });
        }
        self.no_rules.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Applies rules of the program's own: all of them or none. A controller that connects later
    /// replaces them.
    ///
    /// # Errors
    /// Which rule is wrong and why; or that this process was forked from the one with the agent.
    pub fn apply(&self, rules: Vec<Rule>) -> Result<(), RuleError> {
        let error = |reason| RuleError { rule: 0, reason };
        if self.is_elsewhere() {
            let reason = format!(
                "this process was forked from process {}, which keeps the stage; rules can be \
                 changed only there, or in a stage that this process opens itself",
                self.pid
            );
            return Err(error(reason));
        }
        let (answer, answered) = std::sync::mpsc::channel();
        self.send(AgentCommand::Apply(rules, answer));
        answered.recv().map_err(|_| error("the stage's agent has ended".into()))?
    }

    /// Whether the thread is another process's.
    fn is_elsewhere(&self) -> bool {
        std::process::id() != self.pid
    }

    fn send(&self, command: AgentCommand) {
        // If the thread has ended there is no receiver.
        if let Some(worker) = &self.worker {
            let _ = worker.commands.send(command);
        }
        let _ = rustix::io::write(&*self.waker, &1u64.to_ne_bytes());
    }
}

const NONBLOCK: EventfdFlags = EventfdFlags::NONBLOCK;

impl Drop for StageAgent {
    fn drop(&mut self) {
        if self.is_elsewhere() {
            // There is no thread to join, and the channel to it may be locked for good. The waker
            // is the parent's as well: ringing it would wake the parent's thread.
            std::mem::forget(self.worker.take());
            return;
        }
        self.send(AgentCommand::End);
        if let Some(worker) = self.worker.take() {
            let _ = worker.thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenant whose programs are short has no more than its limit.
    #[test]
    fn a_run_begins_with_the_default_burst_and_a_library_with_all_of_it() {
        const RATE: u64 = 1 << 20;
        let level = |segment: &Segment| {
            let setup =
                GateSetup::Bucket { unit: Unit::Bytes, rate: RATE, burst: 4 * RATE, safe: RATE };
            let set = |fresh| SetGate { number: 3, fresh, setup: setup.clone() };
            [true, false].map(|fresh| {
                set_gate(segment, &set(fresh), Time::MAX);
                segment.gates[3].bucket.level(clock::now(&segment.header.clock))
            })
        };
        let before = std::time::Instant::now();
        let (segment, path) = Segment::create().unwrap();
        let levels = level(&segment);
        std::fs::remove_file(path).unwrap();
        let earned = before.elapsed().as_secs_f64() * RATE as f64;
        assert!(
            levels.iter().all(|level| (*level as f64) < RATE as f64 / 99.0 + earned),
            "{levels:?}"
        );
        // Shards keep the rest of what is full.
        let levels = level(&Segment::private().unwrap());
        assert!(levels.iter().all(|level| *level >= 4 * RATE as i64 / 64 * 63), "{levels:?}");
    }

    #[test]
    fn unread_notices_are_bounded() {
        let segment = Arc::new(Segment::private().unwrap());
        let mut driver = Driver::new(segment, &Settings::default());
        for round in 0..1_000 {
            // As a controller does that goes and comes back: each time is news.
            driver.machine.on_closed(Time::ZERO, &format!("gone {round}"));
            driver.act();
        }
        assert_eq!(driver.notices.len(), NOTICES_MAX);
        assert!(driver.notices.last().is_some_and(|last| last.contains("gone 999")));
    }
}
