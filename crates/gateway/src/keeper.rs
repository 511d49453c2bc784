//! The keeper: one thread that hears from the controller which policy holds, and tells it what was
//! counted.
//!
//! The gateway never waits for its controller. Until there is one, requests belong to whom the
//! cluster says; while it is away, the last policy goes on to say whose they are.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use tidegate_fabric::reactor::{Interest, Mailbox, Reactor};
use tidegate_fabric::retry::Retry;
use tidegate_fabric::tls::Way;
use tidegate_fabric::unix::Link;
use tidegate_model::Span;
use tidegate_proto::message::{FromGateway, Hello, ToGateway, VERSION, VolumeFault};

use crate::clock;
use crate::status::Books;
use crate::users;

/// The link's token.
const CONTROLLER: u64 = 0;

/// The first and the longest wait between two attempts to connect. The first is short, because a
/// controller that restarts is back within a second.
const RETRY_MIN: Span = Span(50 * Span::MILLISECOND.0);
const RETRY_MAX: Span = Span(2 * Span::SECOND.0);

/// The wait after a controller refused us: asking again helps only once somebody has replaced it.
const REFUSED_WAIT: Span = Span(60 * Span::SECOND.0);

/// The keeper's thread. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Keeper {
    is_ending: Arc<AtomicBool>,
    bell: Arc<Mailbox<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Keeps the register up to date with the controller on this way, to whom the gateway is
    /// `name`, and tells it what is in the books.
    ///
    /// # Errors
    /// If there is no descriptor or thread left.
    pub(crate) fn start(way: Way, name: String, books: Arc<Books>) -> io::Result<Self> {
        let reactor = Reactor::new()?;
        let (is_ending, bell) = (Arc::new(AtomicBool::new(false)), reactor.mailbox());
        let hello = Hello::Gateway { version: VERSION, name };
        let retry = Retry::new(RETRY_MIN, RETRY_MAX);
        let watch = Watch { way, hello, books, link: None, faults: Vec::new(), retry };
        let ending = is_ending.clone();
        let thread = thread::Builder::new().name("gateway-keeper".into());
        let thread = thread.spawn(move || watch.run(reactor, &ending))?;
        Ok(Self { is_ending, bell, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        self.bell.ring();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the gateway's keeper has panicked");
        }
    }
}

/// The state of the thread.
struct Watch {
    way: Way,
    hello: Hello,
    books: Arc<Books>,
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
                if let Err(error) = self.hear() {
                    match error.kind() {
                        // Through a lock that nobody listens is only known now.
                        io::ErrorKind::ConnectionRefused => {
                            tracing::debug!("no controller at {}: {error}", self.way.address);
                        }
                        _ => tracing::warn!("the link to the controller ended: {error}"),
                    }
                    self.leave();
                }
            }
        }
        self.say_goodbye();
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

    /// Takes in what the controller has said.
    fn hear(&mut self) -> io::Result<()> {
        while let Some(link) = &mut self.link {
            match link.receive()? {
                None => break,
                Some(ToGateway::Policy { revision, policy }) => {
                    tracing::info!(revision, "policy");
                    let (policy, user_names) = users::numbered(policy);
                    self.books.register.apply(policy, user_names);
                    self.retry.succeed();
                }
                Some(ToGateway::Count) => {
                    self.books.register.know();
                    let faults = self.books.volume_faults();
                    if faults != self.faults {
                        self.faults.clone_from(&faults);
                        link.send(&FromGateway::Faults(faults))?;
                    }
                    link.send(&FromGateway::Counts(self.books.counts()))?;
                    link.send(&FromGateway::Pressure(self.books.pressure()))?;
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
    fn say_goodbye(&mut self) {
        let Some(link) = &mut self.link else { return };
        let counts = FromGateway::Counts(self.books.counts());
        let pressure = FromGateway::Pressure(self.books.pressure());
        let said = link.send(&counts).and_then(|()| link.send(&pressure));
        let said = said.and_then(|()| link.send(&FromGateway::Goodbye));
        if let Err(error) = said {
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
