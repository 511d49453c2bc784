//! Events of descriptors: the ones to wait for, and the ones that a wait reports.

use rustix::event::epoll::EventFlags;

/// Events to wait for on a descriptor. Its end is reported in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Until there are bytes to read.
    pub read: bool,
    /// Until the socket takes bytes.
    pub write: bool,
}

impl Interest {
    /// Bytes to read: the usual state of a connection.
    pub const READ: Self = Self { read: true, write: false };
    /// Only its end: for a connection that the worker does not read.
    pub const NONE: Self = Self { read: false, write: false };

    pub(crate) fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN | EventFlags::RDHUP, self.read);
        flags.set(EventFlags::OUT, self.write);
        flags
    }
}

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number that it was added with.
    pub token: u64,
    /// Reading gives bytes, the end, or an error.
    pub read: bool,
    /// Writing takes bytes or gives an error.
    pub write: bool,
    /// The peer has disconnected: nothing that is written reaches it. Reported whatever the
    /// interest is, so that a connection that is not read from must be closed now.
    pub gone: bool,
}
