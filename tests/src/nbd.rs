//! A client of network block devices that sends given requests, and blocks until they are answered.
//!
//! The clients that people have are used where they can say what a scenario needs. This one is for
//! the rest: to know of every single request whether it was acknowledged, and to be rude.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;

use tidegate_wire::nbd::client;
use tidegate_wire::nbd::constants::{self, chunk, command, command_flag, option};

use crate::PATIENCE;

/// The error that a client sees where a node is away.
pub const EIO: i32 = 5;
/// The error that a client sees where a store is full.
pub const ENOSPC: i32 = 28;

/// A connection to an export.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    is_structured: bool,
    cookie: u64,
    /// By cookie, how many bytes a good answer brings.
    expected: HashMap<u64, usize>,
    /// The size of the export.
    pub size: u64,
    /// Its flags.
    pub flags: u16,
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
        Self::enter_with(socket, export, false)
    }

    /// Enters an export, with or without structured replies and the allocation of blocks.
    ///
    /// # Errors
    /// If no server listens there, or the server closes the connection.
    pub fn enter_with(socket: &Path, export: &str, is_structured: bool) -> io::Result<Self> {
        let mut stream = connect(socket)?;
        let _greeting: [u8; 18] = array(&mut stream)?;
        let context = client::context_data(export, &[constants::BASE_ALLOCATION]);
        let options: [(u32, &[u8]); 3] = [
            (option::STRUCTURED_REPLY, &[]),
            (option::SET_META_CONTEXT, &context),
            (option::EXPORT_NAME, export.as_bytes()),
        ];
        let options = if is_structured { &options[..] } else { &options[2..] };
        stream.write_all(&client::options(3, options))?;
        if is_structured {
            let answers = [0, constants::BASE_ALLOCATION.len() + 4, 0];
            let length: usize = answers.iter().map(|data| 20 + data).sum();
            stream.read_exact(&mut vec![0; length])?;
        }
        let size = u64::from_be_bytes(array(&mut stream)?);
        let flags = u16::from_be_bytes(array(&mut stream)?);
        Ok(Self { stream, is_structured, cookie: 0, expected: HashMap::new(), size, flags })
    }

    /// Asks to read; gives back the cookie that the answer will have.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn submit_read(&mut self, offset: u64, length: usize) -> io::Result<u64> {
        self.submit(command::READ, 0, offset, length, &[])
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

    /// Asks anything; gives back the cookie that the answer will have.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn submit(
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
        if command == command::READ {
            self.expected.insert(self.cookie, length);
        }
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
        let mut expected = std::mem::take(&mut self.expected);
        let answer = self.receive_by(|cookie| expected.remove(&cookie).unwrap_or(0));
        self.expected = expected;
        answer
    }

    /// The next answer, if the length of its data follows from its cookie.
    ///
    /// # Errors
    /// If the connection is gone.
    ///
    /// # Panics
    /// If it is none.
    pub fn receive_by(&mut self, length: impl FnOnce(u64) -> usize) -> io::Result<Answer> {
        let failed = |errno: u32| Err(io::Error::from_raw_os_error(errno as i32));
        let magic = u32::from_be_bytes(array(&mut self.stream)?);
        if magic == constants::SIMPLE_REPLY_MAGIC {
            let errno = u32::from_be_bytes(array(&mut self.stream)?);
            let cookie = u64::from_be_bytes(array(&mut self.stream)?);
            let length = length(cookie);
            let has_data = errno == 0 && !self.is_structured;
            let mut bytes = vec![0; if has_data { length } else { 0 }];
            self.stream.read_exact(&mut bytes)?;
            return Ok((cookie, if errno == 0 { Ok(bytes) } else { failed(errno) }));
        }
        assert_eq!(magic, constants::STRUCTURED_REPLY_MAGIC, "an answer");
        let [flag0, flag1, kind0, kind1] = array(&mut self.stream)?;
        assert_eq!(u16::from_be_bytes([flag0, flag1]), chunk::DONE);
        let cookie = u64::from_be_bytes(array(&mut self.stream)?);
        let mut payload = vec![0; u32::from_be_bytes(array(&mut self.stream)?) as usize];
        self.stream.read_exact(&mut payload)?;
        let outcome = match u16::from_be_bytes([kind0, kind1]) {
            chunk::OFFSET_DATA => Ok(payload[8..].to_vec()),
            chunk::BLOCK_STATUS => Ok(payload[4..].to_vec()),
            chunk::NONE => Ok(Vec::new()),
            chunk::ERROR => {
                failed(u32::from_be_bytes(*payload.first_chunk().expect("an error number")))
            }
            kind => panic!("chunk {kind}"),
        };
        Ok((cookie, outcome))
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

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends nothing more.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn finish(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// The connection, to say on it what no client would.
    pub fn stream(&mut self) -> &mut UnixStream {
        &mut self.stream
    }

    /// The same, for good.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }
}

fn array<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Waits for the other side to close the connection, whatever it still says. Returns whether it
/// does.
pub fn is_closed(stream: &mut impl Read) -> bool {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        // The kernel reports bytes that were sent and not read at the close as a reset.
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}
