//! Laws: where a stream is cut, and how much of it is taken at once, changes nothing.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::client::{context_data, export_data, options};
use super::golden_tests::{Two, parser, request};
use super::*;

/// Something that a client may send in its handshake: sensible options, and others.
fn option() -> impl Strategy<Value = (u32, Vec<u8>)> {
    let name = prop_oneof![Just("disk"), Just("rom"), Just(""), Just("none")];
    let facts = prop::collection::vec(0..5_u16, 0..4);
    let query = prop_oneof![Just("base:allocation"), Just("base:"), Just("x:y"), Just("bad")];
    let queries = prop::collection::vec(query, 0..3);
    prop_oneof![
        (6..8_u32, name.clone(), facts).prop_map(|(o, name, facts)| (o, export_data(name, &facts))),
        (9..11_u32, name.clone(), queries).prop_map(|(o, name, q)| (o, context_data(name, &q))),
        (1..2_u32, name).prop_map(|(option, name)| (option, name.as_bytes().to_vec())),
        (0..14_u32, Just(Vec::new())),
        (0..14_u32, prop::collection::vec(any::<u8>(), 0..40)),
    ]
}

/// The stream in pieces whose lengths go round `cuts`.
fn chunks<'a>(mut stream: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut chunks = Vec::new();
    for cut in cuts.iter().cycle() {
        if stream.is_empty() {
            break;
        }
        let (chunk, rest) = stream.split_at((*cut).min(stream.len()));
        chunks.push(chunk);
        stream = rest;
    }
    chunks
}

type Shaken = (Vec<u8>, Result<HandshakeStep<u32>, HandshakeError>, usize);

/// The bytes that a handshake sends for these pieces, its result, and the number of bytes it
/// leaves.
fn shake(chunks: &[&[u8]]) -> Shaken {
    let mut output = Vec::new();
    let mut handshake = Handshake::begin(Tls::Off, &mut output);
    for (index, chunk) in chunks.iter().enumerate() {
        let mut bytes = *chunk;
        let step = handshake.on_bytes(&mut bytes, &Two, &mut output);
        if step != Ok(HandshakeStep::More) {
            let later: usize = chunks[index + 1..].iter().map(|chunk| chunk.len()).sum();
            return (output, step, bytes.len() + later);
        }
        assert!(bytes.is_empty(), "more was awaited, but something was left");
    }
    (output, Ok(HandshakeStep::More), 0)
}

type Received = (Vec<(u64, u16, u16, u64, u32, Vec<u8>)>, Option<RequestError>);

/// The requests in these pieces; what belongs to a write is read to its place if `direct`.
fn receive(chunks: &[&[u8]], direct: bool) -> Received {
    let mut parser = parser();
    let mut requests = Vec::new();
    for chunk in chunks {
        let mut bytes = *chunk;
        if direct {
            let unfilled = parser.unfilled();
            let count = unfilled.len().min(bytes.len());
            unfilled[..count].copy_from_slice(&bytes[..count]);
            parser.advance(count);
            bytes = &bytes[count..];
        }
        loop {
            match parser.next_admitted(&mut bytes, |_| true) {
                Ok(Some(Request { cookie, command, flags, offset, length, payload })) => {
                    requests.push((cookie, command, flags, offset, length, payload.to_vec()));
                }
                Ok(None) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
        assert!(bytes.is_empty(), "more was awaited, but something was left");
    }
    (requests, None)
}

fn sent() -> impl Strategy<Value = Vec<u8>> {
    let fields = (0..9_u16, any::<u16>(), any::<u64>(), 0..300_u32, any::<bool>());
    fields.prop_map(|(command, flags, offset, length, sound)| {
        let mut bytes = request(command, flags, offset, length);
        if command == constants::command::WRITE {
            bytes.extend((0..length).map(|at| at as u8));
        }
        // One in many streams goes wrong somewhere.
        if !sound && length == 7 {
            bytes[0] = 0;
        }
        bytes
    })
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..80_usize, 1..8)
}

proptest! {
    #[test]
    fn any_cut_of_a_handshake_is_the_same_handshake(
        flags in prop_oneof![Just(3_u32), Just(1), Just(0), 0..6_u32],
        sent in prop::collection::vec(option(), 0..8),
        cuts in cuts(),
    ) {
        let sent: Vec<(u32, &[u8])> = sent.iter().map(|(o, data)| (*o, &data[..])).collect();
        let stream = options(flags, &sent);
        prop_assert_eq!(shake(&chunks(&stream, &cuts)), shake(&[&stream]));
    }

    #[test]
    fn any_cut_of_a_stream_is_the_same_requests(
        sent in prop::collection::vec(sent(), 0..8),
        cuts in cuts(),
    ) {
        let stream = sent.concat();
        let whole = receive(&[&stream], false);
        let chunks = chunks(&stream, &cuts);
        prop_assert_eq!(&receive(&chunks, false), &whole);
        prop_assert_eq!(&receive(&chunks, true), &whole);
        if whole.1.is_none() {
            prop_assert_eq!(whole.0.len(), sent.len());
        }
    }
}
