//! The address of a listener, as people write it: `unix:/run/tidegate/node-a.sock` or `host:7180`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a listener.
///
/// ```
/// use tidegate_fabric::stream::Address;
/// let address: Address = "unix:/run/tidegate/a.sock".parse()?;
/// assert_eq!(address.to_string(), "unix:/run/tidegate/a.sock");
/// let address: Address = "127.0.0.1:7180".parse()?;
/// assert_eq!(address.to_string(), "127.0.0.1:7180");
/// assert!("127.0.0.1".parse::<Address>().is_err());
/// # Ok::<(), tidegate_fabric::stream::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port. A name was looked up when the address was read.
    Tcp(SocketAddr),
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError {
    /// The text.
    pub input: String,
    /// The system's error for it, if it looks like an address.
    pub reason: Option<String>,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no address", self.input)?;
        if let Some(reason) = &self.reason {
            write!(f, " ({reason})")?;
        }
        f.write_str("; write it like unix:/run/tidegate/node.sock or 127.0.0.1:7180")
    }
}

impl std::error::Error for AddressError {}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(input: &str) -> Result<Self, AddressError> {
        let fail = |reason| AddressError { input: input.into(), reason };
        if let Some(path) = input.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err(fail(None)),
                false => Ok(Self::Unix(path.into())),
            };
        }
        if !input.contains(':') {
            return Err(fail(None));
        }
        let mut found = input.to_socket_addrs().map_err(|error| fail(Some(error.to_string())))?;
        found.next().map(Self::Tcp).ok_or_else(|| fail(None))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_addresses_are_refused_with_an_example() {
        for text in ["", "unix:", "/run/a.sock", "7180", "127.0.0.1:http", "127.0.0.1:70000"] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("write it like"), "{error}");
        }
        assert!(matches!("[::1]:80".parse(), Ok(Address::Tcp(address)) if address.is_ipv6()));
        assert!(matches!("localhost:80".parse(), Ok(Address::Tcp(_))));
    }
}
