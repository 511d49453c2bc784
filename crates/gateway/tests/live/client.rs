//! A client that says what it is told to say, and blocks until it is answered: that of the
//! end-to-end tests, in the words of these.

use std::os::unix::net::UnixStream;
use std::path::Path;

use tidegate_tests::nbd;
pub(crate) use tidegate_tests::nbd::is_closed;
use tidegate_wire::nbd::constants::command;

use crate::Testbed;

/// One connection, with an export chosen.
pub(crate) struct Client {
    nbd: nbd::Client,
    /// The size of the export, and its flags.
    pub(crate) size: u64,
    pub(crate) flags: u16,
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) cookie: u64,
    pub(crate) errno: u32,
    pub(crate) data: Vec<u8>,
}

/// A connection on which nothing is said yet.
pub(crate) fn connect(testbed: &Testbed) -> UnixStream {
    nbd::connect(Path::new(&testbed.socket())).unwrap()
}

impl Client {
    /// Enters `export`, with or without structured replies.
    pub(crate) fn enter(testbed: &Testbed, export: &str, structured: bool) -> Self {
        let nbd =
            nbd::Client::enter_with(Path::new(&testbed.socket()), export, structured).unwrap();
        Self { size: nbd.size, flags: nbd.flags, nbd }
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.nbd.send(bytes).unwrap();
    }

    /// Another handle of its socket, to send while it receives.
    pub(crate) fn writer(&mut self) -> UnixStream {
        self.nbd.stream().try_clone().unwrap()
    }

    /// Sends nothing more.
    pub(crate) fn finish(&self) {
        self.nbd.finish().unwrap();
    }

    /// Asks something; returns the cookie that the answer will have.
    pub(crate) fn request(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u64 {
        self.nbd.submit(command, flags, offset, length as usize, &[]).unwrap()
    }

    /// Asks to read the same so many times, in one breath: a socket holds much less if it comes in
    /// small pieces.
    pub(crate) fn request_reads(&mut self, offset: u64, length: u32, count: usize) {
        self.nbd.submit_reads(offset, length as usize, count).unwrap();
    }

    /// The next answer. `length` is how much a read was to bring.
    pub(crate) fn receive(&mut self, length: u32) -> Answer {
        self.receive_by(|_| length)
    }

    /// The next answer, if the length of its data follows from its cookie.
    pub(crate) fn receive_by(&mut self, length: impl FnOnce(u64) -> u32) -> Answer {
        let (cookie, outcome) = self.nbd.receive_by(|cookie| length(cookie) as usize).unwrap();
        let (errno, data) = match outcome {
            Ok(data) => (0, data),
            Err(error) => (error.raw_os_error().unwrap() as u32, Vec::new()),
        };
        Answer { cookie, errno, data }
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        let cookie = self.request(command::READ, 0, offset, length);
        let answer = self.receive(length);
        assert_eq!(answer.cookie, cookie);
        if answer.errno == 0 { Ok(answer.data) } else { Err(answer.errno) }
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> u32 {
        self.nbd.submit_write(offset, bytes).unwrap();
        self.receive(0).errno
    }

    /// Asks something that brings no data; its error, zero for none.
    pub(crate) fn command(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u32 {
        self.request(command, flags, offset, length);
        self.receive(0).errno
    }

    /// Whether the gateway has closed the connection, and has said nothing more.
    pub(crate) fn is_closed(&mut self) -> bool {
        is_closed(self.nbd.stream())
    }
}
