//! Readiness of many connections for one reader.
//!
//! A reader that is woken for every message of a thousand peers spends more on being woken than on
//! reading. It polls instead, at times of its own, and gets all peers that have sent since. Only
//! readability is polled: a peer that takes the bytes sent to it wakes no reader.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// Connections that one poll may name. The next poll names the others.
const POLL_MAX: usize = 1024;

/// Connections with a number each. A closed one is removed by itself.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// A poller without connections.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Adds a connection. It is named `number` whenever there is something to read on it or it has
    /// ended, until what arrived is read or it is removed.
    ///
    /// # Errors
    /// If the kernel has no room, or the connection is here already.
    pub fn add(&self, connection: impl AsFd, number: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP;
        Ok(epoll::add(&self.epoll, connection, EventData::new_u64(number), flags)?)
    }

    /// Removes a connection.
    ///
    /// # Errors
    /// If it is not here.
    pub fn remove(&self, connection: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, connection)?)
    }

    /// Appends the numbers of readable connections to `numbers`. Waits for the first,
    /// at most for `patience`; not at all if that is zero.
    ///
    /// # Errors
    /// Any error of the kernel, except an interruption by a signal.
    pub fn poll(&self, patience: Duration, numbers: &mut Vec<u64>) -> io::Result<()> {
        let nothing = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [nothing; POLL_MAX];
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        let count = match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        // The structure is packed, so its fields are copied rather than referred to.
        numbers.extend(events[..count].iter().map(|event| { event.data }.u64()));
        Ok(())
    }
}

/// Readable whenever a poll would name a connection.
impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn poll(poller: &Poller, patience: Duration) -> Vec<u64> {
        let mut numbers = Vec::new();
        poller.poll(patience, &mut numbers).unwrap();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn a_peer_that_sends_is_named_until_its_bytes_are_read() {
        let poller = Poller::new().unwrap();
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let (two, mut another) = UnixStream::pair().unwrap();
        poller.add(&one, 1).unwrap();
        poller.add(&two, 2).unwrap();
        assert!(poll(&poller, Duration::ZERO).is_empty());
        other.write_all(b"x").unwrap();
        assert_eq!(poll(&poller, PATIENCE), [1]);
        another.write_all(b"y").unwrap();
        assert_eq!(poll(&poller, PATIENCE), [1, 2]);
        one.read_exact(&mut [0]).unwrap();
        assert_eq!(poll(&poller, PATIENCE), [2]);
        poller.remove(&two).unwrap();
        assert!(poll(&poller, Duration::ZERO).is_empty());
    }

    #[test]
    fn an_end_is_reported_and_a_closed_connection_has_left() {
        let poller = Poller::new().unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        poller.add(&one, 7).unwrap();
        drop(other);
        assert_eq!(poll(&poller, PATIENCE), [7]);
        drop(one);
        assert!(poll(&poller, Duration::ZERO).is_empty());
    }
}
