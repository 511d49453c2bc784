//! Replies, appended to what waits to be written to a client.

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::stream::Outgoing;

use super::admit::Refusal;
use super::wire::{ALLOCATION_ID, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk};

/// A request that has nothing to return has succeeded. A simple reply also says so to clients
/// that want reads answered in chunks.
pub fn done(out: &mut Outgoing, cookie: u64) {
    simple(out, 0, cookie);
}

/// A read of `length` bytes from `offset` has succeeded: of all that is in `body`, one buffer
/// behind the other.
pub fn data(
    out: &mut Outgoing,
    structured: bool,
    cookie: u64,
    (offset, length): (u64, usize),
    body: impl Iterator<Item = Buffer>,
) {
    match (structured, length) {
        (false, _) => simple(out, 0, cookie),
        (true, 0) => out.push(&head(chunk::NONE, cookie, 0)),
        (true, _) => {
            let mut bytes = [0; 28];
            bytes[..20].copy_from_slice(&head(chunk::OFFSET_DATA, cookie, 8 + length));
            bytes[20..].copy_from_slice(&offset.to_be_bytes());
            out.push(&bytes);
        }
    }
    body.for_each(|buffer| out.push_buffer(buffer));
}

/// A request has failed.
pub fn fail(out: &mut Outgoing, structured: bool, cookie: u64, refusal: Refusal) {
    let Refusal { errno, message } = refusal;
    if !structured {
        return simple(out, errno as u32, cookie);
    }
    out.push(&head(chunk::ERROR, cookie, 6 + message.len()));
    out.push(&(errno as u32).to_be_bytes());
    out.push(&(message.len() as u16).to_be_bytes());
    out.push(message.as_bytes());
}

/// Block status: extents of a length in bytes and flags each, at least one.
pub fn extents(out: &mut Outgoing, cookie: u64, extents: &[(u32, u32)]) {
    out.push(&head(chunk::BLOCK_STATUS, cookie, 4 + 8 * extents.len()));
    out.push(&ALLOCATION_ID.to_be_bytes());
    for (length, flags) in extents {
        out.push(&length.to_be_bytes());
        out.push(&flags.to_be_bytes());
    }
}

fn simple(out: &mut Outgoing, errno: u32, cookie: u64) {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&errno.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    out.push(&bytes);
}

/// The head of the only chunk of a structured reply.
fn head(kind: u16, cookie: u64, length: usize) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&chunk::DONE.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&(length as u32).to_be_bytes());
    bytes
}
