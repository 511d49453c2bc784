//! A request for several keys, split into one request for each node, and the replies joined
//! ("Retrieval command").
//!
//! memcached returns values in the order of the request's keys, and nothing for a key that it does
//! not have. So a key's value is next in its node's reply, or nowhere in it.

use alloc::vec::Vec;

use super::reply::{MalformedReply, Shape, block};
use super::request::Request;

/// Begins a request for some of the keys of `request`: writes all words before the keys.
pub fn begin(request: &Request<'_>, out: &mut Vec<u8>) {
    let name = request.bytes.iter().position(|byte| *byte != b' ').unwrap_or(0);
    let name = &request.bytes[name..];
    let end = name.iter().position(|byte| *byte == b' ').unwrap_or(name.len());
    out.extend_from_slice(&name[..end]);
    out.extend_from_slice(request.exptime);
}

/// Writes one of the keys of a request.
pub fn add(key: &[u8], out: &mut Vec<u8>) {
    out.push(b' ');
    out.extend_from_slice(key);
}

/// Writes the end of a request.
pub fn end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// Joins the replies of `parts` to one reply. `keys` are the request's keys in their order, each
/// with the number of its part. If a part is no list of values, it is an error line, and is the
/// reply.
///
/// # Errors
/// If a part is not a reply of memcached, or has values of other keys.
pub fn join<'a>(
    keys: impl Iterator<Item = (&'a [u8], usize)>,
    parts: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<(), MalformedReply> {
    let is_list = |part: &[u8]| part.starts_with(b"VALUE ") || part.starts_with(b"END");
    if let Some(complaint) = parts.iter().find(|part| !is_list(part)) {
        out.extend_from_slice(complaint);
        return Ok(());
    }
    let start = out.len();
    let mut rests = parts.to_vec();
    for (key, part) in keys {
        let rest = &mut rests[part];
        if let Some(length) = value_of(key, rest)? {
            let (value, others) = rest.split_at(length);
            out.extend_from_slice(value);
            *rest = others;
        }
    }
    if rests.iter().any(|rest| *rest != b"END\r\n") {
        out.truncate(start);
        return Err(MalformedReply);
    }
    out.extend_from_slice(b"END\r\n");
    Ok(())
}

/// The length of the block at the beginning of `rest`, if it is the value of `key`.
fn value_of(key: &[u8], rest: &[u8]) -> Result<Option<usize>, MalformedReply> {
    let named = rest.strip_prefix(b"VALUE ").and_then(|rest| rest.strip_prefix(key));
    if !named.is_some_and(|rest| rest.starts_with(b" ")) {
        return Ok(None);
    }
    block(Shape::Values, rest)?.ok_or(MalformedReply).map(Some)
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
