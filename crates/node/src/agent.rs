//! The node's agent: one thread that wakes the machine at its deadlines and talks with the
//! controller.
//!
//! The node never waits for its controller. While there is none, the agent tries to connect, at
//! growing intervals, and the machine goes on with what it was granted as long as that holds.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tidegate_fabric::reactor::{Interest, Reactor, Ready};
use tidegate_fabric::retry::Retry;
use tidegate_fabric::tls::Way;
use tidegate_fabric::unix::Link;
use tidegate_model::{Span, Time};
use tidegate_proto::cluster::message::{FromNode, PartFault, ToNode};
use tidegate_proto::message::{Hello, VERSION};
use tidegate_proto::node::Output;

use crate::live::Live;

const TIMER: u64 = 0;
const CONTROLLER: u64 = 1;

/// The first and the longest wait between two attempts to connect. The first is short, because a
/// controller that restarts is back within a second.
const RETRY_MIN: Span = Span(50 * Span::MILLISECOND.0);
const RETRY_MAX: Span = Span(2 * Span::SECOND.0);

/// The wait after a controller said that another attempt cannot help: it may be replaced.
const REFUSED_WAIT: Span = Span(60 * Span::SECOND.0);

/// How the node stands with its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// It has none.
    Alone = 0,
    /// It tries to connect.
    Seeking = 1,
    /// It said hello and was not answered yet.
    Greeting = 2,
    /// It is accepted.
    Joined = 3,
    /// It was turned away, and asks again once in a minute.
    Refused = 4,
}

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

/// The agent.
pub(crate) struct Agent {
    pub(crate) live: Arc<Live>,
    pub(crate) watch: Arc<Watch>,
    reactor: Reactor<()>,
    timer: OwnedFd,
    armed: Time,
    controller: Option<Way>,
    link: Option<Link<ToNode>>,
    /// When to try to connect again, if there is a controller and no link to it.
    retry: Retry,
    /// The faults of parts that the controller of this link was sent.
    faults: Vec<PartFault>,
    /// The fault of the store as a whole that was reported last.
    store_fault: Option<String>,
}

impl Agent {
    /// An agent that waits with `reactor`, whose message queue wakes it.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub(crate) fn new(
        live: Arc<Live>,
        watch: Arc<Watch>,
        reactor: Reactor<()>,
        controller: Option<Way>,
    ) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        reactor.add(&timer, TIMER, Interest::READ)?;
        let (retry, faults) = (Retry::new(RETRY_MIN, RETRY_MAX), Vec::new());
        Ok(Self {
            live,
            watch,
            reactor,
            timer,
            armed: Time::MAX,
            controller,
            link: None,
            retry,
            faults,
            store_fault: None,
        })
    }

    /// Keeps the node until it ends.
    pub(crate) fn run(mut self) {
        // A timer may otherwise be 50 µs late, to wake several sleepers together.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let (mut ready, mut outputs) = (Vec::new(), Vec::new());
        loop {
            // Asked first, so that what the machine says at its end is still sent.
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
                tracing::error!("the node's keeper cannot wait: {error}");
                return;
            }
            ready.drain(..).for_each(|ready| self.on_ready(ready));
        }
    }

    /// When to connect; never while there is a link, or without a controller.
    fn attempt(&self) -> Time {
        match (&self.controller, &self.link) {
            (Some(_), None) => self.retry.at(),
            _ => Time::MAX,
        }
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
            _ => {
                if let Err(error) = self.receive() {
                    self.disconnect(&error);
                }
            }
        }
    }

    /// Does what the machine wants done.
    fn act(&mut self, outputs: &mut Vec<Output>) {
        for output in outputs.drain(..) {
            match output {
                Output::Event(event) => tracing::info!(?event),
                Output::Send(message) => {
                    let faults = self.new_faults(&message);
                    let Some(link) = &mut self.link else { continue };
                    let mut messages = faults.iter().flatten().chain([&message]);
                    let sent = messages.try_for_each(|message| link.send(message));
                    if let Err(error) = sent.and_then(|()| self.watch_link()) {
                        self.disconnect(&error);
                    }
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

    /// Waits for what the link waits for.
    fn watch_link(&self) -> io::Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        let write = link.interest().contains(PollFlags::OUT);
        self.reactor.change(link, CONTROLLER, Interest { read: true, write })
    }

    fn connect(&mut self) {
        let Some(way) = &self.controller else { return };
        let info = self.live.node.info();
        let hello = Hello::Node { version: VERSION, info };
        let connected = way.connect().map(Link::from).and_then(|mut link| {
            link.send(&hello)?;
            self.reactor.add(&link, CONTROLLER, Interest::READ)?;
            Ok(link)
        });
        match connected {
            Ok(link) => {
                self.link = Some(link);
                self.faults.clear();
                self.store_fault = None;
                self.live.node.on_connected(self.live.clock);
                self.set_standing(Standing::Greeting);
            }
            Err(error) => {
                tracing::debug!("no controller at {}: {error}", way.address);
                self.set_standing(Standing::Seeking);
                self.retry.later(self.live.clock.now());
            }
        }
    }

    /// Takes in what the controller has said.
    fn receive(&mut self) -> io::Result<()> {
        loop {
            let Some(link) = &mut self.link else { return Ok(()) };
            link.flush()?;
            let Some(message) = link.receive()? else { return self.watch_link() };
            match &message {
                ToNode::Welcome { .. } => {
                    self.retry.succeed();
                    self.set_standing(Standing::Joined);
                }
                ToNode::Refused { reason, retry, .. } => {
                    tracing::warn!("the controller refuses this node: {reason}");
                    if !retry {
                        self.retry.hold(REFUSED_WAIT);
                    }
                    self.disconnect(&io::Error::other("refused"));
                    self.set_standing(Standing::Refused);
                    return Ok(());
                }
                _ => {}
            }
            self.live.node.on_message(self.live.clock, message);
        }
    }

    fn disconnect(&mut self, reason: &io::Error) {
        if let Some(link) = self.link.take() {
            let _ = self.reactor.remove(&link);
            match reason.kind() {
                // Through TLS, only now is it known that no process listens.
                io::ErrorKind::ConnectionRefused => tracing::debug!("no controller: {reason}"),
                _ => tracing::warn!("the link to the controller ended: {reason}"),
            }
            self.live.node.on_disconnected(self.live.clock);
            self.set_standing(Standing::Seeking);
            self.retry.later(self.live.clock.now());
        }
    }

    fn set_standing(&self, standing: Standing) {
        self.watch.standing.store(standing as u8, Ordering::Relaxed);
    }
}
