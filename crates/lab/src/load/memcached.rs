//! A client of memcached that gets and sets.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::Arc;

use tidegate_wire::memcached::reply::{Boundary, Shape};

use super::pace::{Direction, Ending};
use super::schedule::{Choice, Dice};
use super::wire::{Decoded, Dialect, Stream};
use tidegate_console::failure::{Code, Failure};

/// Keys that are stored ahead of their answers while the server is being filled.
const FILL_BATCH: u64 = 128;

/// Which keys there are, and what they hold.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) prefix: Arc<str>,
    pub(crate) choice: Choice,
    pub(crate) value: Arc<[u8]>,
}

impl Keys {
    fn set(&self, number: u64, out: &mut Vec<u8>) {
        let (prefix, value) = (&self.prefix, &self.value);
        // Writing to a vector does not fail.
        let _ = write!(out, "set {prefix}{number:08} 0 0 {}\r\n", value.len());
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    /// Stores every key.
    ///
    /// # Errors
    /// If the server does not take them.
    pub(crate) fn fill(&self, stream: &mut Stream) -> Result<(), Failure> {
        let count = self.choice.count();
        let mut first = 0;
        while first < count {
            let last = count.min(first + FILL_BATCH);
            self.fill_some(first..last, stream).map_err(|error| {
                Failure::new(Code::Failure, "the keys cannot be stored").cause(error)
            })?;
            first = last;
        }
        Ok(())
    }

    fn fill_some(&self, numbers: std::ops::Range<u64>, stream: &mut Stream) -> io::Result<()> {
        let (mut out, mut expected, mut reply) = (Vec::new(), 0, Vec::new());
        for number in numbers {
            self.set(number, &mut out);
            expected += 1;
        }
        stream.write_all(&out)?;
        while reply.iter().filter(|byte| **byte == b'\n').count() < expected {
            let mut bytes = [0; 4_096];
            let length = stream.read(&mut bytes)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            reply.extend_from_slice(&bytes[..length]);
        }
        let reply = String::from_utf8_lossy(&reply);
        match reply.lines().find(|line| *line != "STORED") {
            Some(complaint) => Err(io::Error::other(complaint.to_owned())),
            None => Ok(()),
        }
    }
}

/// One connection to a memcached.
#[derive(Debug)]
pub(crate) struct Memcached {
    keys: Keys,
    /// Answers come in this order.
    in_flight: VecDeque<(u32, Direction)>,
    boundary: Option<Boundary>,
}

impl Memcached {
    /// A connection that asks for these keys.
    pub(crate) fn new(keys: Keys) -> Self {
        Self { keys, in_flight: VecDeque::new(), boundary: None }
    }
}

impl Dialect for Memcached {
    fn encode(&mut self, slot: u32, kind: Direction, dice: &mut Dice, out: &mut Vec<u8>) {
        let number = self.keys.choice.pick(dice);
        self.in_flight.push_back((slot, kind));
        match kind {
            Direction::Write => self.keys.set(number, out),
            Direction::Read => {
                let _ = write!(out, "get {}{number:08}\r\n", self.keys.prefix);
            }
        }
    }

    fn decode(&mut self, input: &[u8]) -> Result<Decoded, String> {
        let Some(&(slot, kind)) = self.in_flight.front() else {
            return match input.is_empty() {
                true => Ok(Decoded::Nothing),
                false => Err("the server sent a reply without a request".into()),
            };
        };
        let shape = if kind == Direction::Read { Shape::Values } else { Shape::Line };
        let boundary = self.boundary.get_or_insert(Boundary::new(shape));
        let found =
            boundary.find(input).map_err(|error| format!("what the server says is {error}"));
        let Some(whole) = found? else { return Ok(Decoded::Nothing) };
        self.in_flight.pop_front();
        self.boundary = None;
        let ending = match kind {
            Direction::Read if input.starts_with(b"VALUE ") => Ending::Done,
            Direction::Read if input.starts_with(b"END") => Ending::Missed,
            Direction::Write if input.starts_with(b"STORED") => Ending::Done,
            _ => Ending::Failed,
        };
        Ok(Decoded::Answer { length: whole.length, slot, ending })
    }
}
