//! A client of network block devices that sends given requests, and blocks until they are answered.
//!
//! The clients that people have are used where they can say what a scenario needs. This one is for
//! the rest: to know of every single request whether it was acknowledged, and to be rude.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use tidegate_wire::nbd::client;
use tidegate_wire::nbd::constants::{SIMPLE_REPLY_MAGIC, command, command_flag, option};

use crate::PATIENCE;

/// The error that a client sees where a node is away.
pub const EIO: i32 = 5;
/// The error that a client sees where a store is full.
pub const ENOSPC: i32 = 28;

/// A connection to an export.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    cookie: u64,
    /// By cookie, how many bytes a good answer brings.
    expected: HashMap<u64, usize>,
}

/// An answer: to which request, and what came of it. An error of the server has its number.
pub type Answer = (u64, io::Result<Vec<u8>>);

/// A connection on which nothing is said yet.
///
/// # Errors
/// If no server listens there.
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

impl Client {
    /// Enters an export.
    ///
    /// # Errors
    /// If no server listens there, or the server closes the connection.
    pub fn enter(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = connect(socket)?;
        let _greeting: [u8; 18] = array(&mut stream)?;
        stream.write_all(&client::options(3, &[(option::EXPORT_NAME, export.as_bytes())]))?;
        let _size_and_flags: [u8; 10] = array(&mut stream)?;
        Ok(Self { stream, cookie: 0, expected: HashMap::new() })
    }

    /// Asks to read; gives back the cookie that the answer will have.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn submit_read(&mut self, offset: u64, length: usize) -> io::Result<u64> {
        self.submit(command::READ, 0, offset, length, &[])?;
        self.expected.insert(self.cookie, length);
        Ok(self.cookie)
    }

    /// Asks to read the same so many times, in one breath: what a socket holds of it is not much
    /// more than its bytes.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn submit_reads(&mut self, offset: u64, length: usize, count: usize) -> io::Result<()> {
        let mut bytes = Vec::new();
        for _ in 0..count {
            bytes.extend(self.head(command::READ, 0, offset, length));
            self.expected.insert(self.cookie, length);
        }
        self.stream.write_all(&bytes)
    }

    /// Asks to write; gives back the cookie that the answer will have.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn submit_write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<u64> {
        self.submit(command::WRITE, 0, offset, bytes.len(), bytes)
    }

    fn submit(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: usize,
        bytes: &[u8],
    ) -> io::Result<u64> {
        let head = self.head(command, flags, offset, length);
        self.stream.write_all(&[&head[..], bytes].concat())?;
        Ok(self.cookie)
    }

    /// The next request's head.
    fn head(&mut self, command: u16, flags: u16, offset: u64, length: usize) -> [u8; 28] {
        self.cookie += 1;
        client::request(command, flags, self.cookie, offset, length as u32)
    }

    /// The next answer.
    ///
    /// # Errors
    /// If the connection is gone.
    ///
    /// # Panics
    /// If it is none.
    pub fn receive(&mut self) -> io::Result<Answer> {
        let magic = u32::from_be_bytes(array(&mut self.stream)?);
        assert_eq!(magic, SIMPLE_REPLY_MAGIC, "an answer");
        let errno = u32::from_be_bytes(array(&mut self.stream)?);
        let cookie = u64::from_be_bytes(array(&mut self.stream)?);
        let length = self.expected.remove(&cookie).unwrap_or(0);
        if errno != 0 {
            return Ok((cookie, Err(io::Error::from_raw_os_error(errno as i32))));
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok((cookie, Ok(bytes)))
    }

    /// Reads, with nothing else under way.
    ///
    /// # Errors
    /// The server's error, or that the connection is gone.
    pub fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.submit_read(offset, length)?;
        self.receive()?.1
    }

    /// Writes, with nothing else under way.
    ///
    /// # Errors
    /// The server's error, or the loss of the connection.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.submit_write(offset, bytes)?;
        self.receive()?.1.map(drop)
    }

    /// Writes what is to be durable once it is answered, with nothing else under way.
    ///
    /// # Errors
    /// The server's error, or the loss of the connection.
    pub fn write_durably(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.submit(command::WRITE, command_flag::FUA, offset, bytes.len(), bytes)?;
        self.receive()?.1.map(drop)
    }

    /// Gives a range back, durably or not, with nothing else under way.
    ///
    /// # Errors
    /// The server's error, or the loss of the connection.
    pub fn trim(&mut self, offset: u64, length: usize, is_durable: bool) -> io::Result<()> {
        let flags = if is_durable { command_flag::FUA } else { 0 };
        self.submit(command::TRIM, flags, offset, length, &[])?;
        self.receive()?.1.map(drop)
    }

    /// Writes zeros over a range, with nothing else under way.
    ///
    /// # Errors
    /// The server's error, or the loss of the connection.
    pub fn zero(&mut self, offset: u64, length: usize) -> io::Result<()> {
        self.submit(command::WRITE_ZEROES, 0, offset, length, &[])?;
        self.receive()?.1.map(drop)
    }

    /// Flushes, with nothing else under way.
    ///
    /// # Errors
    /// The server's error, or the loss of the connection.
    pub fn flush(&mut self) -> io::Result<()> {
        self.submit(command::FLUSH, 0, 0, 0, &[])?;
        self.receive()?.1.map(drop)
    }

    /// The connection, to say on it what no client would.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }
}

fn array<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Waits for the other side to close the connection, whatever it still says.
///
/// # Panics
/// If it does not.
#[track_caller]
pub fn expect_closed(stream: &mut impl Read) {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        // The kernel reports bytes that were sent and not read at the close as a reset.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the connection stays open: {error}"),
    }
}
