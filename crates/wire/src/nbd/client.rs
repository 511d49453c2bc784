//! The bytes that a client sends: options ("Option types") and headers of requests ("Request
//! message"), for load generators and tests.

use alloc::vec::Vec;

use super::constants::{OPTION_MAGIC, REQUEST_HEADER_LENGTH, REQUEST_MAGIC};

/// The client flags, and options with their data.
///
/// ```
/// use tidegate_wire::nbd::client::{export_data, options};
/// use tidegate_wire::nbd::constants::option;
/// let bytes = options(3, &[(option::GO, &export_data("disk", &[]))]);
/// assert_eq!(bytes, *b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x0a\0\0\0\x04disk\0\0");
/// ```
pub fn options(flags: u32, options: &[(u32, &[u8])]) -> Vec<u8> {
    let mut bytes = flags.to_be_bytes().to_vec();
    for (option, data) in options {
        bytes.extend(OPTION_MAGIC.to_be_bytes());
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(*data);
    }
    bytes
}

/// The data of `INFO` and `GO`: an export's name, and the requested information types.
pub fn export_data(name: &str, types: &[u16]) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((types.len() as u16).to_be_bytes());
    types.iter().for_each(|kind| bytes.extend(kind.to_be_bytes()));
    bytes
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`: an export's name, and queries.
pub fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| bytes.extend(text(query)));
    bytes
}

/// The header of a request.
///
/// ```
/// use tidegate_wire::nbd::{client::request, constants::command};
/// let bytes = request(command::TRIM, 1, 0x0102_0304_0506_0708, 4096, 512);
/// let golden = b"\x25\x60\x95\x13\0\x01\0\x04\x01\x02\x03\x04\x05\x06\x07\x08\
///     \0\0\0\0\0\0\x10\0\0\0\x02\0";
/// assert_eq!(bytes, *golden);
/// ```
pub fn request(
    command: u16,
    flags: u16,
    cookie: u64,
    offset: u64,
    length: u32,
) -> [u8; REQUEST_HEADER_LENGTH] {
    let mut bytes = [0; REQUEST_HEADER_LENGTH];
    bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&command.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// A text behind its length.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}
