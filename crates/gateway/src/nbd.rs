//! The network block device protocol, a server's side, without I/O.
//!
//! Problem: stock clients (the Linux kernel, libnbd, QEMU, fio) speak NBD, from far away and not
//! always in good faith. Model: a connection is two phases. In the [`handshake`] the client asks
//! for options until it has chosen an export; from then on it sends requests, numbered by a cookie
//! and answered in any order.
//!
//! Mechanism: each part is a function of bytes. [`Handshake`] takes what arrived and appends what
//! is to be said; [`Receiver`] cuts what arrives into [`Request`]s and lets the payload of a large
//! write be read straight into the buffer that goes to the node; [`Entered::admit`] decides what a
//! request asks of a node, or why it is refused; [`reply`] appends the answers to what waits to be
//! written, the data in the buffers that it came in.
//!
//! Which parts of the protocol: fixed newstyle with all of its options, encryption among them,
//! which happens around the handshake and not in it ([`HandshakeStep::Encrypt`]); structured
//! replies, but no extended headers; the metadata context `base:allocation`. A client that breaks
//! the protocol gets no reply: the connection ends, and the reason is logged for the operator of
//! the gateway. A request that is merely wrong (outside of the export, a write to a read-only one)
//! gets an error and costs nothing else.
//!
//! Bounds per connection: 64 KiB of one option, 1,024 options, 32 MiB of one request's data.
//!
//! The numbers and rules are those of `doc/proto.md` in the repository of the reference
//! implementation, <https://github.com/NetworkBlockDevice/nbd>.

pub mod admit;
pub mod handshake;
pub mod reply;
pub mod request;
pub mod wire;

pub use admit::{Action, Refusal};
pub use handshake::{
    Encryption, Entered, Export, Exports, Handshake, HandshakeError, HandshakeStep, NotOpened,
};
pub use request::{Receiver, Request, RequestError};
pub use wire::Errno;

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod property_tests;
