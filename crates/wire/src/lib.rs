//! The protocols of stock clients, as parsers and state machines without I/O.
//!
//! [`nbd`] is the server's side of the network block device protocol, [`memcached`] the text and
//! meta commands of memcached. A parser takes bytes and returns requests as plain values; a reply
//! is described by its header bytes and the length of the payload behind them. The crate knows
//! nothing of nodes, sockets or buffers: gateways, nodes, load generators and fuzz targets use the
//! same code.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod memcached;
pub mod nbd;
