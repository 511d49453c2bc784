//! The agent: one thread that receives the policy from the controller, and sends it the counters.
//!
//! The gateway never waits for its controller. Until there is one, requests belong to whom the
//! cluster says; while it is away, the last policy goes on to say whose they are.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use tidegate_fabric::reactor::{Interest, MessageQueue, Reactor};
use tidegate_fabric::retry::Retry;
use tidegate_fabric::tls::Way;
use tidegate_fabric::unix::Link;
use tidegate_model::Span;
use tidegate_proto::message::{FromGateway, Hello, ToGateway, VERSION, VolumeFault};

use crate::clock;
use crate::status::Stats;
use crate::users;

/// The link's token.
const CONTROLLER: u64 = 0;

/// The first and the longest wait between two attempts to connect. The first is short, because a
/// controller that restarts is back within a second.
const RETRY_MIN: Span = Span(50 * Span::MILLISECOND.0);
const RETRY_MAX: Span = Span(2 * Span::SECOND.0);

/// The wait after a controller refused us: another attempt helps only once
/// the controller was replaced.
const REFUSED_WAIT: Span = Span(60 * Span::SECOND.0);

/// The agent's thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Agent {
    is_ending: Arc<AtomicBool>,
    waker: Arc<MessageQueue<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Keeps the register up to date with the controller on this way, to whom the gateway is
    /// `name`, and sends it the counters.
    ///
    /// # Errors
    /// If there is no descriptor or thread left.
    pub(crate) fn start(way: Way, name: String, stats: Arc<Stats>) -> io::Result<Self> {
        let reactor = Reactor::new()?;
        let (is_ending, waker) = (Arc::new(AtomicBool::new(false)), reactor.message_queue());
        let hello = Hello::Gateway { version: VERSION, name };
        let retry = Retry::new(RETRY_MIN, RETRY_MAX);
        let watch = Watch { way, hello, stats, link: None, faults: Vec::new(), retry };
        let ending = is_ending.clone();
        let (thread, span) =
            (thread::Builder::new().name("gateway-keeper".into()), tracing::Span::current());
        let run = move || span.in_scope(|| watch.run(reactor, &ending));
        let thread = thread.spawn(run)?;
        Ok(Self { is_ending, waker, thread: Some(thread) })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        self.waker.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the gateway's keeper has panicked");
        }
    }
}

/// The state of the thread.
struct Watch {
    way: Way,
    hello: Hello,
    stats: Arc<Stats>,
    link: Option<Link<ToGateway>>,
    /// The faults of volumes that the controller has been sent on this link.
    faults: Vec<VolumeFault>,
    /// When to try to connect again, if there is no link.
    retry: Retry,
}

impl Watch {
    fn run(mut self, mut reactor: Reactor<()>, is_ending: &AtomicBool) {
        let mut ready = Vec::new();
        while !is_ending.load(Ordering::Acquire) {
            if self.link.is_none() && self.retry.is_due(clock::now()) {
                self.connect(&reactor);
            }
            let patience = if self.link.is_none() { clock::until(self.retry.at()) } else { None };
            if let Err(error) = reactor.wait(patience, &mut ready, &mut Vec::new()) {
                // The descriptors are ours and the arguments too; there is nothing to wait for.
                tracing::error!("the gateway's keeper cannot wait: {error}");
                return;
            }
            for _ in ready.drain(..) {
                if let Err(error) = self.receive() {
                    match error.kind() {
                        // Through TLS, only now is it known that no process listens.
                        io::ErrorKind::ConnectionRefused => {
                            tracing::debug!("no controller at {}: {error}", self.way.address);
                        }
                        _ => tracing::warn!("the link to the controller ended: {error}"),
                    }
                    self.leave();
                }
            }
        }
        self.send_last_counts();
    }

    fn connect(&mut self, reactor: &Reactor<()>) {
        let connected = self.way.connect().map(Link::from).and_then(|mut link| {
            link.send(&self.hello)?;
            reactor.add(&link, CONTROLLER, Interest::READ)?;
            Ok(link)
        });
        match connected {
            Ok(link) => {
                self.link = Some(link);
                self.faults.clear();
            }
            Err(error) => {
                tracing::debug!("no controller at {}: {error}", self.way.address);
                self.leave();
            }
        }
    }

    /// Takes the controller's messages.
    fn receive(&mut self) -> io::Result<()> {
        while let Some(link) = &mut self.link {
            match link.receive()? {
                None => break,
                Some(ToGateway::Policy { revision, policy }) => {
                    tracing::info!(revision, "policy");
                    let (policy, user_names) = users::numbered(policy);
                    self.stats.register.apply(policy, user_names);
                    self.retry.succeed();
                }
                Some(ToGateway::Count) => {
                    self.stats.register.know();
                    let faults = self.stats.volume_faults();
                    if faults != self.faults {
                        self.faults.clone_from(&faults);
                        link.send(&FromGateway::Faults(faults))?;
                    }
                    link.send(&FromGateway::Counts(self.stats.counts()))?;
                    link.send(&FromGateway::Pressure(self.stats.pressure()))?;
                }
                Some(ToGateway::Refused { reason, .. }) => {
                    tracing::warn!("the controller refuses this gateway: {reason}");
                    self.retry.hold(REFUSED_WAIT);
                    self.leave();
                }
            }
        }
        Ok(())
    }

    /// The gateway has ended.
    fn send_last_counts(&mut self) {
        let Some(link) = &mut self.link else { return };
        let counts = FromGateway::Counts(self.stats.counts());
        let pressure = FromGateway::Pressure(self.stats.pressure());
        let sent = link.send(&counts).and_then(|()| link.send(&pressure));
        let sent = sent.and_then(|()| link.send(&FromGateway::Disconnect));
        if let Err(error) = sent {
            tracing::debug!("the controller does not hear of the end: {error}");
        }
    }

    /// There is no link, and there will be another attempt. A link that is closed leaves the
    /// reactor by itself.
    fn leave(&mut self) {
        self.link = None;
        self.retry.later(clock::now());
    }
}
