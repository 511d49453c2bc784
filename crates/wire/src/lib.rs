//! The protocols of stock clients, as parsers and state machines without I/O.
//!
//! - [`nbd`]: the network block device protocol: [`nbd::handshake`], [`nbd::request`] and
//!   [`nbd::admit`] (which requests an export accepts), [`nbd::reply`], [`nbd::client`] for a
//!   client's bytes, [`nbd::constants`]
//! - [`memcached`]: the text and meta commands of memcached: [`memcached::request`],
//!   [`memcached::reply`] (where a reply ends), [`memcached::split`] (a request for the keys of
//!   several nodes), [`memcached::pipeline`] (the pending requests of one client)
//!
//! A parser takes bytes and returns plain values; a reply is a header and the payload that the
//! caller sends behind it. The crate knows no node, socket or buffer: gateways, nodes, load
//! generators and fuzz targets use the same code.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod memcached;
pub mod nbd;
