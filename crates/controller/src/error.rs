//! Errors that keep a daemon, or the HTTP probe of a process without a controller, from starting.

use std::io;
use std::net::SocketAddr;

use tidegate_fabric::trusted::TrustError;

use crate::socket::SocketError;
use crate::state::StateError;
use crate::store::StoreError;

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The state directory cannot be used.
    #[error(transparent)]
    StateDirectory(#[from] StateError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The socket cannot be listened on.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The listener for nodes and gateways of other machines cannot be opened.
    #[error("cannot listen on {address}: {error}; choose another address in [controller]")]
    Remote {
        /// The address to listen on.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// HTTP is for this machine only.
    #[error(
        "{address} is not a loopback address; HTTP is not encrypted, so put a proxy in front of \
         127.0.0.1 to reach it from elsewhere"
    )]
    NotLoopback {
        /// The address to listen on.
        address: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("cannot serve HTTP on {address}: {error}; choose another --http address")]
    Http {
        /// The address to listen on.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The token cannot be read or made.
    #[error("cannot read or make the token: {0}")]
    Token(TrustError),
    /// The log filter is malformed.
    #[error(
        "{filter:?} is no log filter ({error}); write it like \"info,tidegate_controller=debug\""
    )]
    Log {
        /// The log filter.
        filter: String,
        /// The fault in the filter.
        error: String,
    },
    /// A resource of the operating system is missing.
    #[error("cannot start: {0}")]
    Runtime(#[from] io::Error),
}
