//! The network block device protocol (NBD), the server's side without I/O.
//!
//! **Problem.** Stock clients (the Linux kernel, libnbd, QEMU, fio) speak NBD, also from other
//! machines, and not all of them are trusted.
//!
//! **Model.** A connection has two phases. In the handshake the client sends options until it has
//! selected an export. In the transmission phase it sends requests; each has a cookie, and replies
//! may have any order.
//!
//! **Mechanism.** Each step is a function of bytes. [`Handshake`] takes the bytes that arrived and
//! appends replies to an output. [`RequestParser`] returns [`Request`]s, and lets the caller
//! receive the payload of a large write directly into the memory that goes to the device.
//! [`Negotiated::admit`] decides whether an export accepts a request. [`reply`] makes the headers
//! of replies; payloads stay in the caller's memory.
//!
//! **Scope.** Fixed newstyle with all of its options; structured replies without extended headers;
//! the metadata context `base:allocation`. The caller runs TLS around the handshake
//! ([`HandshakeStep::StartTls`]). A client that violates the protocol gets no reply; the error says
//! why the connection is to be closed. An invalid request (outside of the export, a write to a
//! read-only one) gets an error reply, and the connection continues.
//!
//! **Bounds per connection.** 64 KiB of data of an option, 1,024 options, 32 MiB of payload of a
//! request.
//!
//! The specification is `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>. Section names
//! in this folder are its headings.

pub mod admit;
pub mod client;
pub mod constants;
pub mod handshake;
pub mod reply;
pub mod request;

pub use admit::{Action, Command, Refusal};
pub use constants::Errno;
pub use handshake::{
    Export, ExportError, Exports, Handshake, HandshakeError, HandshakeStep, Negotiated, Tls,
};
pub use request::{Request, RequestError, RequestParser};

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod property_tests;
