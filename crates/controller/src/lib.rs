//! The control plane of Tidegate: a daemon around the controller's machine.
//!
//! One task owns the machine ([`tidegate_proto::controller::Controller`]) and nothing else does;
//! every other task turns something outside into an input of it. It *selects* the next input or
//! deadline, which may take long, and *applies* it, which never waits: outputs are written to
//! sockets as far as these take them, and what they do not take waits in a bounded queue of that
//! connection alone.
//!
//! ```text
//!  stages ──┐                                           ┌── policy store (redb)
//!  operator ┴─ Unix socket ── link ──┐         ┌── register: parse, compare, store, apply
//!                                    ├─ inputs ─┴─ the machine ── outputs ── links
//!  people ──── HTTP on loopback ─────┘                  └── events ── watchers, log
//! ```
//!
//! Messages of stages go through `peer_receiver`, which reads from all stages at once.
//!
//! [`serve_with`] runs a daemon until `SIGTERM`; [`Daemon`] is the same for programs that
//! have a runtime of their own, such as tests.
#![forbid(unsafe_code)]

mod config;
mod daemon;
mod difference;
mod error;
mod http;
mod http_connections;
mod http_stream;
mod identity;
mod input;
mod limits;
mod link;
mod log;
mod logging;
mod machine;
mod metrics;
mod nodes;
mod operator;
mod orphans;
mod outstanding;
mod peer_link;
mod peer_receiver;
mod permits;
mod probe;
mod readiness;
mod register;
mod shared;
mod socket;
mod state;
mod store;
mod token;
mod users;

pub use config::Config;
pub use daemon::{Daemon, raise_descriptor_limit, serve, serve_with};
pub use error::ServeError;
pub use http::openapi;
pub use limits::Limits;
pub use logging::{LogFormat, Logging};
pub use probe::{Probe, Reasons};
pub use socket::SocketError;
pub use state::StateError;
pub use store::{Draft, PolicyStore, PutError, Redb, StoreError};
