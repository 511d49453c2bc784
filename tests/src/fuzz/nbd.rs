//! A client of a network block device: any bytes, cut anywhere, are the same handshake and the same
//! requests, and nothing is admitted that is not in the export.

use tidegate_wire::nbd::constants::{self, PAYLOAD_MAX, option};
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
        if let Err(HandshakeError::Clear(_)) = conversation.end {
            conversation.end = Ok(HandshakeStep::StartTls);
        }
        let Ok(HandshakeStep::Negotiated(negotiated)) = &conversation.end else { continue };
        while conversation.broken.is_none() {
            match parser.next_request(&mut bytes) {
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
        let writes =
            [constants::command::WRITE, constants::command::TRIM, constants::command::WRITE_ZEROES];
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
    let go = b"\0\0\0\x04disk\0\x03\0\x01\0\x02\0\x03";
    let context = b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation";
    let way_in = [
        vec![7, 0, 0, 0, 3],
        replies(option::STRUCTURED_REPLY, &[]),
        replies(option::SET_META_CONTEXT, context),
        replies(option::GO, go),
    ];
    let way_in = way_in.concat();
    let old = [vec![7, 0, 0, 0, 1], replies(option::EXPORT_NAME, b"rom@a")].concat();
    let about = [
        vec![7, 0, 0, 0, 3],
        replies(option::LIST, &[]),
        replies(option::INFO, go),
        replies(option::LIST_META_CONTEXT, context),
        replies(option::STARTTLS, &[]),
        replies(option::ABORT, &[]),
    ];
    let mut seeds = vec![about.concat(), [&old[..], &request(0, 0, 512)].concat()];
    for command in 0..9 {
        let data = if command == constants::command::WRITE { 512 } else { 0 };
        let submitted = [request(command, 4096, 512), vec![command as u8; data]].concat();
        seeds.push([&way_in[..], &submitted, &request(constants::command::DISC, 0, 0)].concat());
    }
    seeds
}

fn replies(option: u32, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u32).to_be_bytes();
    [&constants::OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &length, data].concat()
}

fn request(command: u16, offset: u64, length: u32) -> Vec<u8> {
    let magic = constants::REQUEST_MAGIC.to_be_bytes();
    let (command, cookie) = (command.to_be_bytes(), 7_u64.to_be_bytes());
    let (offset, length) = (offset.to_be_bytes(), length.to_be_bytes());
    [&magic[..], &[0, 0], &command, &cookie, &offset, &length].concat()
}
