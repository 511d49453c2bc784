//! The link of a host to its controller, which can be cut. While it is cut, no byte passes and no
//! connection ends: both ends wait for each other.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A host's messages are some hundred bytes; all rules of a stage are some thousand.
const BUFFER: usize = 16 << 10;

/// A listener in the place of the controller. Dropping it ends all its connections.
pub(super) struct Link {
    address: SocketAddr,
    state: Arc<Mutex<LinkState>>,
}

#[derive(Default)]
struct LinkState {
    is_cut: bool,
    is_over: bool,
    /// Both ends of each connection since the link last carried data again.
    connections: Vec<TcpStream>,
}

impl Link {
    /// A link to the controller at `controller`.
    ///
    /// # Errors
    /// If there is no port to listen at.
    pub(super) fn to(controller: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let link = Self { address: listener.local_addr()?, state: Arc::default() };
        let state = Arc::clone(&link.state);
        thread::Builder::new().name("link".into()).spawn(move || {
            for stage in listener.incoming().flatten() {
                if lock(&state).is_over {
                    return;
                }
                // A stage whose connection cannot be passed on tries again.
                let _ = connect(&stage, controller, &state);
            }
        })?;
        Ok(link)
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn cut(&self) {
        lock(&self.state).is_cut = true;
    }

    /// Ends the connections from before and during the cut; new ones pass.
    pub(super) fn restore(&self) {
        let mut state = lock(&self.state);
        state.is_cut = false;
        for connection in state.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        lock(&self.state).is_over = true;
        self.restore();
        // The listener's thread waits for one more.
        let _ = TcpStream::connect(self.address);
    }
}

fn lock(state: &Mutex<LinkState>) -> MutexGuard<'_, LinkState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes a new connection on, in two threads; while the link is cut, only keeps it.
fn connect(
    stage: &TcpStream,
    controller: SocketAddr,
    state: &Arc<Mutex<LinkState>>,
) -> io::Result<()> {
    let mut guard = lock(state);
    guard.connections.push(stage.try_clone()?);
    if guard.is_cut {
        return Ok(());
    }
    let there = TcpStream::connect(controller)?;
    guard.connections.push(there.try_clone()?);
    drop(guard);
    for stream in [stage, &there] {
        stream.set_nodelay(true)?;
    }
    let ways = [(stage.try_clone()?, there.try_clone()?), (there.try_clone()?, stage.try_clone()?)];
    for (from, to) in ways {
        let state = Arc::clone(state);
        thread::Builder::new().name("way".into()).spawn(move || pass(from, to, &state))?;
    }
    Ok(())
}

/// Passes bytes on until a cut, or until one end closes.
fn pass(mut from: TcpStream, mut to: TcpStream, state: &Mutex<LinkState>) {
    let mut bytes = vec![0; BUFFER];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if lock(state).is_cut || to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_link_passes_nothing_and_ends_no_connection() {
        let controller = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let link = Link::to(controller.local_addr().unwrap()).unwrap();
        let mut stage = TcpStream::connect(link.address()).unwrap();
        let (mut there, _) = controller.accept().unwrap();
        let mut byte = [0];
        stage.write_all(b"a").unwrap();
        there.read_exact(&mut byte).unwrap();
        there.write_all(b"b").unwrap();
        stage.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"b");
        link.cut();
        stage.write_all(b"c").unwrap();
        // A connection during the cut is accepted, and goes nowhere.
        let mut late = TcpStream::connect(link.address()).unwrap();
        while lock(&link.state).connections.len() < 3 {
            thread::yield_now();
        }
        link.restore();
        // The one from before is over without the byte.
        assert_eq!(there.read(&mut byte).unwrap_or(0), 0);
        assert_eq!(late.read(&mut byte).unwrap_or(0), 0);
        let mut stage = TcpStream::connect(link.address()).unwrap();
        let (mut there, _) = controller.accept().unwrap();
        stage.write_all(b"d").unwrap();
        there.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"d");
        drop(link);
        assert_eq!(there.read(&mut byte).unwrap_or(0), 0);
    }
}
