//! A client that says what it is told to say, and blocks until it is answered.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use tidegate_wire::nbd::client;
use tidegate_wire::nbd::constants::{self, command, option};

use crate::{PATIENCE, Testbed};

/// One connection, with an export chosen.
pub(crate) struct Client {
    stream: UnixStream,
    structured: bool,
    cookie: u64,
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
    let stream = UnixStream::connect(testbed.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn array<const N: usize>(stream: &mut UnixStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn word(stream: &mut UnixStream) -> u32 {
    u32::from_be_bytes(array(stream))
}

impl Client {
    /// Enters `export`, with or without structured replies.
    pub(crate) fn enter(testbed: &Testbed, export: &str, structured: bool) -> Self {
        let mut stream = connect(testbed);
        let _greeting: [u8; 18] = array(&mut stream);
        let context = client::context_data(export, &[constants::BASE_ALLOCATION]);
        let options: [(u32, &[u8]); 3] = [
            (option::STRUCTURED_REPLY, &[]),
            (option::SET_META_CONTEXT, &context),
            (option::EXPORT_NAME, export.as_bytes()),
        ];
        let options = if structured { &options[..] } else { &options[2..] };
        stream.write_all(&client::options(3, options)).unwrap();
        if structured {
            let answers = [0, constants::BASE_ALLOCATION.len() + 4, 0];
            let length: usize = answers.iter().map(|data| 20 + data).sum();
            stream.read_exact(&mut vec![0; length]).unwrap();
        }
        let size = u64::from_be_bytes(array(&mut stream));
        let flags = u16::from_be_bytes(array(&mut stream));
        Self { stream, structured, cookie: 0, size, flags }
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Another handle of its socket, to send while it receives.
    pub(crate) fn writer(&self) -> UnixStream {
        self.stream.try_clone().unwrap()
    }

    /// Sends nothing more.
    pub(crate) fn finish(&self) {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Asks something; returns the cookie that the answer will have.
    pub(crate) fn request(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u64 {
        let head = self.head(command, flags, offset, length);
        self.send(&head);
        self.cookie
    }

    /// Asks to read the same so many times, in one breath: a socket holds much less if it comes in
    /// small pieces.
    pub(crate) fn request_reads(&mut self, offset: u64, length: u32, count: usize) {
        let heads: Vec<_> =
            (0..count).map(|_| self.head(command::READ, 0, offset, length)).collect();
        self.send(&heads.concat());
    }

    fn head(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> [u8; 28] {
        self.cookie += 1;
        client::request(command, flags, self.cookie, offset, length)
    }

    /// The next answer. `length` is how much a read was to bring.
    pub(crate) fn receive(&mut self, length: u32) -> Answer {
        self.receive_by(|_| length)
    }

    /// The next answer, if the length of its data follows from its cookie.
    pub(crate) fn receive_by(&mut self, length: impl FnOnce(u64) -> u32) -> Answer {
        let magic = word(&mut self.stream);
        if magic == constants::SIMPLE_REPLY_MAGIC {
            let errno = word(&mut self.stream);
            let cookie = u64::from_be_bytes(array(&mut self.stream));
            let has_data = errno == 0 && !self.structured;
            let mut data = vec![0; if has_data { length(cookie) } else { 0 } as usize];
            self.stream.read_exact(&mut data).unwrap();
            return Answer { cookie, errno, data };
        }
        assert_eq!(magic, constants::STRUCTURED_REPLY_MAGIC);
        let [flag0, flag1, kind0, kind1] = array(&mut self.stream);
        assert_eq!(u16::from_be_bytes([flag0, flag1]), constants::chunk::DONE);
        let cookie = u64::from_be_bytes(array(&mut self.stream));
        let mut payload = vec![0; word(&mut self.stream) as usize];
        self.stream.read_exact(&mut payload).unwrap();
        let (errno, data) = match u16::from_be_bytes([kind0, kind1]) {
            constants::chunk::OFFSET_DATA => (0, payload[8..].to_vec()),
            constants::chunk::BLOCK_STATUS => (0, payload[4..].to_vec()),
            constants::chunk::NONE => (0, Vec::new()),
            constants::chunk::ERROR => {
                let errno = u32::from_be_bytes(*payload.first_chunk().unwrap());
                (errno, payload[6..].to_vec())
            }
            kind => panic!("chunk {kind}"),
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
        self.request(command::WRITE, 0, offset, bytes.len() as u32);
        self.send(bytes);
        self.receive(0).errno
    }

    /// Asks something that brings no data; its error, zero for none.
    pub(crate) fn command(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u32 {
        self.request(command, flags, offset, length);
        self.receive(0).errno
    }

    /// Whether the gateway has closed the connection, and has said nothing more.
    pub(crate) fn is_closed(&mut self) -> bool {
        is_closed(&mut self.stream)
    }
}

/// Whether the gateway closes the connection, whatever it still says.
pub(crate) fn is_closed(stream: &mut UnixStream) -> bool {
    // The kernel reports a reset if the gateway closed it with bytes that it had not read.
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}
