//! Looks up the network addresses of a cluster file.

use std::net::ToSocketAddrs;
use std::path::Path;

use tidegate_fabric::stream::Address;
use tidegate_model::cluster;

use crate::failure::{Code, Failure};

/// An address to listen on or connect to. Relative paths of Unix sockets are below `base`; of a
/// host's addresses the first is used.
///
/// # Errors
/// If this machine cannot look up the host's name.
pub fn resolved(address: &cluster::Address, base: &Path) -> Result<Address, Failure> {
    match address {
        cluster::Address::Unix(path) => Ok(Address::Unix(base.join(path))),
        cluster::Address::Tcp { host, port } => {
            let found = (host.as_str(), *port).to_socket_addrs();
            let first = found.map(|mut found| found.next());
            let unknown = |cause: String| {
                Failure::new(Code::Failure, format!("the address {address} is not known"))
                    .cause(cause)
                    .help("write a number, like 127.0.0.1, or a name that this machine can look up")
            };
            match first {
                Ok(Some(found)) => Ok(Address::Tcp(found)),
                Ok(None) => Err(unknown("the name has no address".into())),
                Err(error) => Err(unknown(error.to_string())),
            }
        }
    }
}
