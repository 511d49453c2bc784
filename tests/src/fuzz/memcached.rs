//! The memcached protocol: any bytes of a client, cut anywhere, are the same conversation; what is
//! passed on is one request to whoever reads it again; and any bytes of a server are a reply or are
//! refused.

use tidegate_model::Operation;
use tidegate_wire::memcached::pipeline::{PENDING_MAX, Pipeline};
use tidegate_wire::memcached::reply::{Boundary, Shape};
use tidegate_wire::memcached::request::{Parsed, parse};

use super::tape::Tape;

/// Words that make requests.
pub const WORDS: &[&str] = &[
    "get ",
    "gets ",
    "gat 0 ",
    "set a 0 0 3\r\nxyz\r\n",
    "cas a 0 0 1 7\r\n1\r\n",
    "noreply",
    "mg a v q\r\n",
    "ms a 3 T0 q b\r\nxyz\r\n",
    "mn\r\n",
    "flush_all",
    "quit\r\n",
    "\r\n",
    " ",
    "a b c",
    "4294967296",
    "VALUE a 0 3\r\nxyz\r\n",
    "END\r\n",
    "VA 3\r\nxyz\r\n",
    "VERSION 1\r\n",
];

/// The largest value.
const VALUE_MAX: u32 = 100;

/// The first byte says how large the pieces are; the rest is what a client says, and then what a
/// server does.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let chunk = 1 + tape.below(64);
    let stream = tape.bytes(usize::MAX);
    // Requests too far ahead wait for replies, and here each reply comes at once.
    let whole = converse(stream, stream.len().max(1));
    assert_eq!(converse(stream, chunk), whole, "the cut changes the conversation");
    for shape in [Shape::Line, Shape::Values, Shape::Meta, Shape::Quiet] {
        let (mut boundary, mut length) = (Boundary::new(shape), 0);
        let mut grown = Ok(None);
        while length < stream.len() && grown == Ok(None) {
            length = stream.len().min(length + chunk);
            grown = boundary.find(&stream[..length]);
        }
        let found = Boundary::new(shape).find(&stream[..length]);
        assert_eq!(grown, found, "the cut changes the reply");
        if let Ok(Some(whole)) = found {
            assert!(whole.length <= whole.with_barrier && whole.with_barrier <= length);
        }
    }
}

/// Returns the requests to two nodes that answer each with an empty reply, and the bytes that the
/// client receives.
fn converse(stream: &[u8], chunk: usize) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut client: Pipeline<usize, Vec<u8>> = Pipeline::new(VALUE_MAX, vec![0, 1]);
    let node_of = |key: &[u8], _: Operation| key.len() % 2;
    let (mut submitted_bytes, mut replies) = (Vec::new(), Vec::new());
    let (mut from, mut arrived) = (0, 0);
    while arrived < stream.len() && !client.is_over() {
        arrived = stream.len().min(arrived + chunk);
        loop {
            let mut tickets = Vec::new();
            let progress = client.on_input(&stream[from..arrived], node_of, |submitted| {
                let again = parse(submitted.bytes, VALUE_MAX);
                let Parsed::Request(request) = again else { panic!("{again:?} was passed on") };
                assert_eq!(request.bytes, submitted.bytes, "more than one request was passed on");
                assert!(submitted.keys >= 1);
                tickets.push((submitted.ticket, reply(request.command.shape())));
                submitted_bytes.push(submitted.bytes.to_vec());
            });
            from += progress.consumed;
            tickets.into_iter().for_each(|(ticket, reply)| client.on_reply(ticket, Ok(reply)));
            assert!(client.pending() <= PENDING_MAX);
            while let Some(chunk) = client.poll_output() {
                // How far a connection is shows in its statistics, and that depends on the cut.
                if !chunk.starts_with(b"STAT ") {
                    replies.extend_from_slice(&chunk);
                }
            }
            if progress.needed > 0 || client.is_over() {
                break;
            }
        }
    }
    assert_eq!(client.pending(), 0, "every request was answered");
    (submitted_bytes, replies)
}

fn reply(shape: Shape) -> Vec<u8> {
    match shape {
        Shape::Values => b"END\r\n".to_vec(),
        Shape::Meta => b"EN\r\n".to_vec(),
        Shape::Line | Shape::Quiet => b"OK\r\n".to_vec(),
    }
}

/// A conversation with one of everything, and one with much that is wrong.
pub fn seeds() -> Vec<Vec<u8>> {
    let right = "get a\r\ngets a bb c\r\ngat 5 a bb\r\nset a 1 2 3 noreply\r\nxyz\r\n\
        add a 0 0 0\r\n\r\ndelete a\r\nincr a 5\r\ntouch a 9\r\nmg YQ== b v q\r\n\
        ms a 3 T9\r\nxyz\r\nmd a\r\nma a N0\r\nme a\r\nmn\r\nflush_all\r\nversion\r\n\
        verbosity 1\r\nstats\r\nquit\r\n";
    let wrong = "get\r\nset a 0 0 3\r\nxyzzy\r\nset a 0 0 999\r\nx\r\nset a 0 0 -1\r\nms a x\r\n\
        \r\nGET a\r\nmg\r\nget a\tb\r\ndelete a 5\r\n";
    let reply = "VALUE a 0 3\r\nxyz\r\nVALUE b 0 0 7\r\n\r\nEND\r\n";
    let meta = "VA 3 f1\r\nxyz\r\nHD\r\nVERSION 1.6.18\r\n";
    [right, wrong, reply, meta].iter().map(|text| [b"\x07", text.as_bytes()].concat()).collect()
}
