//! A client of a network block device: any bytes, cut anywhere, are the same handshake and the same
//! requests, and nothing is admitted that is not in the export.

use tidegate_wire::nbd::client::{self, context_data, export_data, options};
use tidegate_wire::nbd::constants::{BASE_ALLOCATION, PAYLOAD_MAX, command, option};
use tidegate_wire::nbd::{
    Action, Export, ExportError, Exports, Handshake, HandshakeError, HandshakeStep, Negotiated,
    Request, RequestError, RequestParser, Tls,
};

use super::tape::Tape;

const SIZE: u64 = 1 << 20;

struct Disks;

impl Exports for Disks {
    /// The index of the disk, and the tenant.
    type Target = (usize, String);

    fn find(&self, name: &str) -> Result<Export<Self::Target>, ExportError> {
        let (volume, tenant) = name.split_once('@').unwrap_or((name, ""));
        if tenant == "b" {
            return Err(ExportError::Denied("it is not for you".into()));
        }
        let known = ["disk", "rom"].iter().position(|known| *known == volume);
        known.ok_or(ExportError::Unknown).map(|index| Export {
            name: name.into(),
            description: "a disk".into(),
            size: SIZE,
            read_only: index == 1,
            target: (index, tenant.into()),
        })
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        each("disk", "a disk");
        each("rom", "");
    }
}

/// The transcript of a client: the bytes sent to it, the end of its handshake, and its requests.
#[derive(Debug, PartialEq)]
struct Conversation {
    replies: Vec<u8>,
    end: Result<HandshakeStep<(usize, String)>, HandshakeError>,
    submitted: Vec<(u64, u16, u16, u64, u32, Vec<u8>)>,
    broken: Option<RequestError>,
}

/// The first byte says how large the pieces are; the rest arrives.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let chunk = 1 + tape.below(64);
    let stream = tape.bytes(usize::MAX);
    let whole = converse(stream, stream.len().max(1));
    assert_eq!(converse(stream, chunk), whole, "the cut changes what is heard");
    // Sixteen bytes ask for a list of two.
    assert!(whole.replies.len() <= 4096 + 64 * stream.len(), "much is said to little");
}

fn converse(stream: &[u8], chunk: usize) -> Conversation {
    let mut replies = Vec::new();
    let mut handshake = Handshake::begin(Tls::Selective, &mut replies);
    let mut conversation = Conversation {
        replies: Vec::new(),
        end: Ok(HandshakeStep::More),
        submitted: Vec::new(),
        broken: None,
    };
    let mut parser = RequestParser::new(|length| vec![0; length]);
    for mut bytes in stream.chunks(chunk) {
        if conversation.end == Ok(HandshakeStep::More) {
            conversation.end = handshake.on_bytes(&mut bytes, &Disks, &mut replies);
        }
        // Whether something came behind it at once is the one thing that a cut may change.
        if let Err(HandshakeError::Plaintext(_)) = conversation.end {
            conversation.end = Ok(HandshakeStep::StartTls);
        }
        let Ok(HandshakeStep::Negotiated(negotiated)) = &conversation.end else { continue };
        while conversation.broken.is_none() {
            match parser.next_admitted(&mut bytes, |_| true) {
                Ok(Some(request)) => conversation.submitted.push(submitted(negotiated, request)),
                Ok(None) => break,
                Err(error) => conversation.broken = Some(error),
            }
        }
    }
    conversation.replies = replies;
    conversation
}

fn submitted<T>(
    negotiated: &Negotiated<T>,
    request: Request<Vec<u8>>,
) -> (u64, u16, u16, u64, u32, Vec<u8>) {
    let Request { cookie, command, flags, offset, length, .. } = request;
    if let Ok(Action::Submit(submitted)) = negotiated.admit(&request) {
        let end = offset.checked_add(length.into()).expect("the range has an end");
        assert!(end <= SIZE, "{submitted:?} beyond the end");
        let writes = [command::WRITE, command::TRIM, command::WRITE_ZEROES];
        assert!(
            !negotiated.export.read_only || !writes.contains(&command),
            "{submitted:?} is a write"
        );
    }
    assert!(request.payload.len() <= PAYLOAD_MAX as usize);
    (cookie, command, flags, offset, length, request.payload)
}

/// Whole conversations: each option, and each command behind an export's choice.
pub fn seeds() -> Vec<Vec<u8>> {
    let (go, context) = (export_data("disk", &[1, 2, 3]), context_data("disk", &[BASE_ALLOCATION]));
    let seed = |flags, sent: &[(u32, &[u8])]| [&[7], &options(flags, sent)[..]].concat();
    let request = |command, offset, length| client::request(command, 0, 7, offset, length);
    let enter = seed(
        3,
        &[(option::STRUCTURED_REPLY, &[]), (option::SET_META_CONTEXT, &context), (option::GO, &go)],
    );
    let enter_old = seed(1, &[(option::EXPORT_NAME, b"rom@a")]);
    let about = seed(
        3,
        &[
            (option::LIST, &[]),
            (option::INFO, &go),
            (option::LIST_META_CONTEXT, &context),
            (option::STARTTLS, &[]),
            (option::ABORT, &[]),
        ],
    );
    let mut seeds = vec![about, [&enter_old[..], &request(0, 0, 512)].concat()];
    for command in 0..9 {
        let data = vec![command as u8; if command == command::WRITE { 512 } else { 0 }];
        let requests = [&request(command, 4096, 512)[..], &data, &request(command::DISC, 0, 0)];
        seeds.push([&enter[..], &requests.concat()].concat());
    }
    seeds
}
