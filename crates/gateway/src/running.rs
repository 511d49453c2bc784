//! Starting and ending a gateway.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate_fabric::reactor::{Mailbox, Reactor};
use tidegate_fabric::stream::{Address, Listener};

use crate::clock;
use crate::config::{Config, StartError};
use crate::connection::Shop;
use crate::flights::Flights;
use crate::nodes::{Node, Nodes};
use crate::volumes::Volumes;
use crate::worker::{Hall, Letter, Worker};

/// A gateway that serves. Dropped, it ends.
#[derive(Debug)]
pub struct Running {
    addresses: Vec<Address>,
    hall: Arc<Hall>,
    drain: Duration,
    workers: Vec<(Arc<Mailbox<Letter>>, JoinHandle<()>)>,
}

/// Starts a gateway in threads of its own, over `nodes`: the one at each place that volumes name.
/// It holds nothing that could be lost with it: a write that was acknowledged is at its node, and a
/// flush goes to every node of its volume.
///
/// # Errors
/// If an address is taken, a node in this process refuses a part of a volume, or the process lacks
/// something. No socket is left then. A node behind a socket may come later.
pub fn start(config: Config, nodes: &[Node]) -> Result<Running, StartError> {
    let Config { doors, volumes, workers, limits } = config;
    let listeners = doors.iter().map(|(address, door)| Listener::bind(address, *door));
    let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
    let addresses = listeners.iter().map(|listener| listener.address().clone()).collect();
    let hall = Arc::new(Hall { listeners, clients: AtomicUsize::new(0) });
    let mut ready = Vec::new();
    for _ in 0..workers.max(1) {
        let reactor = Reactor::new()?;
        let mailbox = reactor.mailbox();
        let volumes = Volumes::new(volumes.clone());
        let nodes = Nodes::open(nodes, &volumes, &reactor)?;
        let flights = Flights::default();
        let shop = Shop { volumes, nodes, flights, limits, is_ending: false };
        ready.push((mailbox, Worker::new(reactor, hall.clone(), shop)?));
    }
    // From here on dropping it ends those that have been started.
    let mut running = Running { addresses, hall, drain: limits.drain, workers: Vec::new() };
    for (number, (mailbox, worker)) in ready.into_iter().enumerate() {
        let thread = thread::Builder::new().name(format!("gateway-{number}"));
        running.workers.push((mailbox, thread.spawn(move || worker.run())?));
    }
    Ok(running)
}

impl Running {
    /// Where it listens, in the order of the configuration; with the ports that the kernel chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// How many clients are connected.
    pub fn clients(&self) -> usize {
        self.hall.clients.load(Ordering::Relaxed)
    }

    /// Ends: nobody is let in any more, what is under way is finished as far as
    /// [`crate::Limits::drain`] allows, and whatever is asked from here on, or is not finished by
    /// then, fails with the error that says so.
    ///
    /// # Errors
    /// If a worker had panicked.
    pub fn stop(mut self) -> io::Result<()> {
        match self.end() {
            true => Ok(()),
            false => Err(io::Error::other("a worker of the gateway has panicked")),
        }
    }

    fn end(&mut self) -> bool {
        let at = clock::now() + self.drain;
        self.workers.iter().for_each(|(mailbox, _)| mailbox.push(Letter::End(at)));
        let ended: Vec<_> = self.workers.drain(..).map(|(_, thread)| thread.join()).collect();
        ended.iter().all(Result::is_ok)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
