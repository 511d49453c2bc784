//! The node's agent: one thread that wakes the machine at its deadlines and exchanges messages with
//! the controller.
//!
//! The node never waits for its controller. While there is none, the agent tries to connect, at
//! growing intervals, and the machine continues with its last grant until that expires.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tidegate_fabric::controller::ControllerLink;
use tidegate_fabric::reactor::{Interest, Reactor, Ready};
use tidegate_fabric::stream::Way;
use tidegate_model::{Event, Time};
use tidegate_proto::cluster::message::{FromNode, PartFault, ToNode};
use tidegate_proto::message::{Hello, VERSION};
use tidegate_proto::node::Output;
use tidegate_proto::session::Standing;
use tidegate_proto::stats::latency::Reported;
use tidegate_proto::stats::message::NodeLatency;

use crate::live::Live;

const TIMER: u64 = 0;
const CONTROLLER: u64 = 1;

const STANDINGS: [Standing; 5] =
    [Standing::Alone, Standing::Seeking, Standing::Greeting, Standing::Joined, Standing::Refused];

/// State that the agent shares with the rest of the node.
pub(crate) struct Watch {
    pub(crate) is_ending: AtomicBool,
    standing: AtomicU8,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self { is_ending: AtomicBool::new(false), standing: AtomicU8::new(0) }
    }

    pub(crate) fn standing(&self) -> Standing {
        STANDINGS[usize::from(self.standing.load(Ordering::Relaxed))]
    }
}

pub(crate) struct Agent {
    pub(crate) live: Arc<Live>,
    pub(crate) watch: Arc<Watch>,
    reactor: Reactor<()>,
    timer: OwnedFd,
    armed: Time,
    controller: Option<ControllerLink<ToNode>>,
    /// Whether a connection was reported to the machine.
    is_connected: bool,
    /// The faults of parts that were sent on this link.
    faults: Vec<PartFault>,
    /// The fault of the store as a whole that was reported last.
    store_fault: Option<String>,
    latency: ReportedLatency,
}

/// The times of requests that the controller has.
#[derive(Default)]
struct ReportedLatency {
    requests: Reported,
    queued: Reported,
    /// The node's service in all by then.
    served: Option<u64>,
}

impl Agent {
    /// An agent that waits with `reactor`, whose message queue wakes it.
    pub(crate) fn new(
        live: Arc<Live>,
        watch: Arc<Watch>,
        reactor: Reactor<()>,
        controller: Option<Way>,
    ) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        reactor.add(&timer, TIMER, Interest::READ)?;
        Ok(Self {
            live,
            watch,
            reactor,
            timer,
            armed: Time::MAX,
            controller: controller.map(|way| ControllerLink::new(way, CONTROLLER, "node")),
            is_connected: false,
            faults: Vec::new(),
            store_fault: None,
            latency: ReportedLatency::default(),
        })
    }

    /// Runs until the node ends.
    pub(crate) fn run(mut self) {
        // A timer may otherwise be 50 µs late, to wake several sleepers together.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let (mut ready, mut outputs) = (Vec::new(), Vec::new());
        loop {
            // Read first, so that the machine's last messages are still sent.
            let is_ending = self.watch.is_ending.load(Ordering::Acquire);
            let deadline = self.live.keep(&mut outputs);
            self.act(&mut outputs);
            if is_ending {
                return;
            }
            if self.attempt() <= self.live.clock.now() {
                self.connect();
            }
            self.arm(deadline.min(self.attempt()));
            let patience = (deadline == Time::ZERO).then_some(Duration::ZERO);
            if let Err(error) = self.reactor.wait(patience, &mut ready, &mut Vec::new()) {
                // The descriptors are ours and the arguments too; there is nothing to wait for.
                tracing::error!(%error, "the node's agent cannot wait for events");
                return;
            }
            ready.drain(..).for_each(|ready| self.on_ready(ready));
        }
    }

    /// When to connect; never while there is a link, or without a controller.
    fn attempt(&self) -> Time {
        self.controller.as_ref().map_or(Time::MAX, ControllerLink::next_attempt)
    }

    /// Sets the timer, if it is not set to this already.
    fn arm(&mut self, deadline: Time) {
        if deadline == self.armed {
            return;
        }
        self.armed = deadline;
        let after = match deadline {
            Time::MAX => Timespec { tv_sec: 0, tv_nsec: 0 },
            // All zeros would stop it.
            _ => Timespec::try_from(self.live.clock.until(deadline).max(Duration::from_nanos(1)))
                .unwrap_or(Timespec { tv_sec: 3_600, tv_nsec: 0 }),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: after };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        debug_assert!(set.is_ok(), "{set:?}");
    }

    fn on_ready(&mut self, ready: Ready) {
        match ready.token {
            TIMER => {
                let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
                self.armed = Time::MAX;
            }
            _ => self.receive(),
        }
    }

    /// Carries out the machine's outputs.
    fn act(&mut self, outputs: &mut Vec<Output>) {
        for output in outputs.drain(..) {
            match output {
                Output::Event(Event::PolicyApplied { revision }) => {
                    tracing::info!(revision, "policy applied");
                    // The controller has kept nothing of tenants that the last policy did not have.
                    self.latency = ReportedLatency::default();
                }
                Output::Event(event) => tracing::info!(?event, "event"),
                Output::Send(message) => {
                    let (faults, latency) = (self.new_faults(&message), self.new_latency(&message));
                    let Some(controller) = &mut self.controller else { continue };
                    let now = self.live.clock.now();
                    for message in faults.iter().flatten().chain([&message]).chain(&latency) {
                        controller.send(&self.reactor, now, message);
                    }
                    self.follow_link();
                }
            }
        }
    }

    /// The reports that precede the node's counts, if the health of its parts or of its store has
    /// changed since the last report.
    fn new_faults(&mut self, message: &FromNode) -> [Option<FromNode>; 2] {
        match message {
            FromNode::Counts(_) => [self.new_part_faults(), self.new_store_fault()],
            _ => [None, None],
        }
    }

    fn new_part_faults(&mut self) -> Option<FromNode> {
        let fault = |(volume, index, reason)| PartFault { volume, index, reason };
        let faults: Vec<_> = self.live.faults().into_iter().map(fault).collect();
        if faults == self.faults {
            return None;
        }
        self.faults.clone_from(&faults);
        Some(FromNode::Faults(faults))
    }

    fn new_store_fault(&mut self) -> Option<FromNode> {
        let fault = self.live.store_fault();
        if fault == self.store_fault {
            return None;
        }
        self.store_fault.clone_from(&fault);
        Some(FromNode::StoreFault(fault))
    }

    /// The times that follow the node's counts, of tenants and operations that had requests.
    fn new_latency(&mut self, message: &FromNode) -> Option<FromNode> {
        let FromNode::Counts(counts) = message else { return None };
        let ReportedLatency { requests, queued, served } = &mut self.latency;
        if served.replace(counts.served) == Some(counts.served) {
            return None;
        }
        let all = self.live.node.latency();
        let (requests, queued) = (requests.changed(all.requests), queued.changed(all.queued));
        (!requests.is_empty()).then_some(FromNode::Latency(NodeLatency { requests, queued }))
    }

    fn connect(&mut self) {
        let Some(controller) = &mut self.controller else { return };
        let info = self.live.node.info();
        let hello = Hello::Node { version: VERSION, info };
        if controller.connect(&self.reactor, self.live.clock.now(), &hello) {
            self.is_connected = true;
            self.faults.clear();
            self.store_fault = None;
            self.latency = ReportedLatency::default();
            self.live.node.on_connected(self.live.clock);
        }
        self.follow_link();
    }

    /// Takes in what the controller has sent.
    fn receive(&mut self) {
        let Some(controller) = &mut self.controller else { return };
        while let Some(message) = controller.receive(&self.reactor, self.live.clock.now()) {
            self.live.node.on_message(self.live.clock, message);
        }
        self.follow_link();
    }

    /// Publishes the state of the link, and reports its end to the machine.
    fn follow_link(&mut self) {
        let Some(controller) = &self.controller else { return };
        self.watch.standing.store(controller.standing() as u8, Ordering::Relaxed);
        if !controller.is_open() && std::mem::take(&mut self.is_connected) {
            self.live.node.on_disconnected(self.live.clock);
        }
    }
}
