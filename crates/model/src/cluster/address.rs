//! Addresses on which components listen.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// The address of a component, for itself and for its peers.
///
/// ```
/// use tidegate_model::cluster::Address;
/// assert_eq!("unix:run/a.sock".parse(), Ok(Address::Unix("run/a.sock".into())));
/// let address: Address = "[::1]:10809".parse()?;
/// assert_eq!(address, Address::Tcp { host: "::1".into(), port: 10809 });
/// assert_eq!(address.to_string(), "[::1]:10809");
/// assert!("10809".parse::<Address>().is_err());
/// # Ok::<(), tidegate_model::cluster::NoAddress>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// A Unix socket, by its path.
    Unix(String),
    /// A TCP port.
    Tcp {
        /// A name, or a number without brackets.
        host: String,
        /// The port; zero for any that is free.
        port: u16,
    },
}

impl Address {
    /// Whether only this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => {
                host == "localhost" || host == "::1" || host.starts_with("127.")
            }
        }
    }

    /// Whether not both can be listened at.
    pub fn clashes_with(&self, other: &Self) -> bool {
        let numeric = |host: &str| -> String {
            if host == "localhost" { "127.0.0.1".into() } else { host.to_ascii_lowercase() }
        };
        match (self, other) {
            (Self::Unix(path), Self::Unix(other)) => path == other,
            (Self::Tcp { host, port }, Self::Tcp { host: other, port: taken }) => {
                *port != 0 && port == taken && numeric(host) == numeric(other)
            }
            _ => false,
        }
    }
}

/// A text that is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(r#"not an address; write it like "unix:PATH" or "HOST:PORT""#)]
pub struct NoAddress;

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            let good = !path.is_empty() && !path.contains('\0');
            return if good { Ok(Self::Unix(path.into())) } else { Err(NoAddress) };
        }
        let (host, port) = text.rsplit_once(':').ok_or(NoAddress)?;
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits).ok_or(NoAddress)?;
        let numeric = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let good = match numeric {
            Some(host) => host.contains(':') && host.chars().all(|c| plain(c) || c == ':'),
            None => !host.is_empty() && host.chars().all(plain),
        };
        let host = numeric.unwrap_or(host).into();
        if good { Ok(Self::Tcp { host, port }) } else { Err(NoAddress) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{path}"),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[test]
    fn what_clashes_and_what_does_not() {
        let address = |text: &str| text.parse::<Address>().unwrap();
        let clash = |one: &str, other: &str| address(one).clashes_with(&address(other));
        assert!(clash("unix:a", "unix:a") && !clash("unix:a", "unix:b"));
        assert!(clash("localhost:1", "127.0.0.1:1") && clash("Node:1", "node:1"));
        assert!(!clash("a:1", "b:1") && !clash("a:1", "a:2"));
        assert!(!clash("127.0.0.1:0", "127.0.0.1:0"), "any free port is another each time");
    }

    #[test]
    fn what_is_no_address() {
        let cases = [
            "", ":", ":1", "a:", "a:70000", "a:+1", "a:b:1", "[a]:1", "[::1:1", "a b:1", "unix:",
            "a:-1",
        ];
        for text in cases {
            assert_eq!(text.parse::<Address>(), Err(NoAddress), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_address_prints_as_it_parses(text in "(unix:)?[a-z:.0-9\\[\\]]{0,12}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
        }
    }
}
