//! A network between gateways and a node that delivers late: it holds bytes, ends connections for
//! the gateway alone, and hands over later what it held. TCP does the same with packets that were
//! under way when a gateway gave a connection up.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// A listener that passes connections on to another one.
#[derive(Debug)]
pub struct Proxy {
    listen: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: PathBuf,
    state: Mutex<State>,
    is_delivered: Condvar,
}

#[derive(Debug, Default)]
struct State {
    connections: Vec<Connection>,
    /// So many gateways that connect next find the connection closed.
    refusals: usize,
    is_ending: bool,
}

#[derive(Debug)]
struct Connection {
    gateway: UnixStream,
    /// It has ended, for the gateway at least.
    is_cut: bool,
    /// Bytes for the node wait here.
    is_held: bool,
    /// There are such bytes.
    has_bytes: bool,
}

impl Proxy {
    /// Listens at a path for a node that listens at another one.
    ///
    /// # Errors
    /// If the path is taken.
    pub fn start(listen: PathBuf, target: PathBuf) -> io::Result<Self> {
        let listener = UnixListener::bind(&listen)?;
        let (state, is_delivered) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { target, state, is_delivered });
        let accepts = shared.clone();
        let thread = thread::spawn(move || {
            for gateway in listener.incoming().flatten() {
                let mut state = accepts.state();
                if state.is_ending {
                    return;
                }
                if state.refusals > 0 {
                    state.refusals -= 1;
                    continue;
                }
                drop(state);
                // While the node is away, the gateway finds the connection closed.
                let _ = accepts.clone().pass_on(gateway);
            }
        });
        Ok(Self { listen, shared, thread: Some(thread) })
    }

    /// From here on, nothing that gateways send on the connections that there are is delivered.
    pub fn hold(&self) {
        self.shared.state().connections.iter_mut().for_each(|held| held.is_held = true);
    }

    /// Whether bytes are held.
    pub fn has_bytes(&self) -> bool {
        self.shared.state().connections.iter().any(|held| held.has_bytes && !held.is_cut)
    }

    /// Ends the held connections for their gateways. The node learns nothing of that. How many
    /// [`Self::connections`] there will be when each of these that has bytes is replaced: its
    /// gateway may have ended one without bytes a moment before.
    pub fn cut(&self) -> usize {
        self.cut_those(|_| true)
    }

    /// The same for the held connections that have bytes; the others go on. So many gateways that
    /// connect next find the connection closed.
    pub fn cut_those_with_bytes(&self, refusals: usize) -> usize {
        let count = self.cut_those(|connection| connection.has_bytes);
        let mut state = self.shared.state();
        state.refusals = refusals;
        state.connections.iter_mut().filter(|it| !it.is_cut).for_each(|it| it.is_held = false);
        self.shared.is_delivered.notify_all();
        count
    }

    fn cut_those(&self, is_meant: impl Fn(&Connection) -> bool) -> usize {
        let mut state = self.shared.state();
        let mut count = state.connections.len();
        let held = state.connections.iter_mut().filter(|it| it.is_held && !it.is_cut);
        for connection in held.filter(|connection| is_meant(connection)) {
            connection.is_cut = true;
            let is_cut = connection.gateway.shutdown(Shutdown::Both).is_ok();
            count += usize::from(is_cut && connection.has_bytes);
        }
        count
    }

    /// How many connections there were so far.
    pub fn connections(&self) -> usize {
        self.shared.state().connections.len()
    }

    /// Delivers all that is held.
    pub fn deliver(&self) {
        self.shared.state().connections.iter_mut().for_each(|held| held.is_held = false);
        self.shared.is_delivered.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().is_ending = true;
        self.deliver();
        // If its folder is gone, nobody connects any more, and its thread is left to itself.
        if UnixStream::connect(&self.listen).is_ok() {
            // A panic there has been reported.
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}

impl Shared {
    fn pass_on(self: Arc<Self>, gateway: UnixStream) -> io::Result<()> {
        let node = UnixStream::connect(&self.target)?;
        let connection = Connection {
            gateway: gateway.try_clone()?,
            is_cut: false,
            is_held: false,
            has_bytes: false,
        };
        let number = {
            let mut state = self.state();
            state.connections.push(connection);
            state.connections.len() - 1
        };
        let (mut from_node, mut to_gateway) = (node.try_clone()?, gateway.try_clone()?);
        thread::spawn(move || {
            // Bytes that a gateway does not take while it is cut off are lost.
            let mut bytes = vec![0; 64 << 10];
            while let Ok(count @ 1..) = from_node.read(&mut bytes) {
                let _ = to_gateway.write_all(&bytes[..count]);
            }
            let _ = to_gateway.shutdown(Shutdown::Both);
        });
        thread::spawn(move || self.upwards(gateway, node, number));
        Ok(())
    }

    /// Passes on what the gateway sends, unless it is held.
    fn upwards(&self, mut gateway: UnixStream, mut node: UnixStream, number: usize) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let count = gateway.read(&mut bytes).unwrap_or(0);
            let mut state = self.state();
            state.connections[number].has_bytes = count > 0;
            while state.connections[number].is_held {
                let delivered = self.is_delivered.wait(state);
                state = delivered.unwrap_or_else(PoisonError::into_inner);
            }
            state.connections[number].has_bytes = false;
            drop(state);
            if count == 0 || node.write_all(&bytes[..count]).is_err() {
                self.state().connections[number].is_cut = true;
                let _ = node.shutdown(Shutdown::Write);
                return;
            }
        }
    }

    /// A panic elsewhere leaves the state whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
