//! The address of the server under load: its protocol, and a Unix socket or host and port.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A server, and the export or protocol to put under load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// An export of a Network Block Device server.
    Nbd { address: Address, export: String },
    /// A server of the memcached protocol.
    Memcached { address: Address },
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// `HOST:PORT`.
    Tcp(String),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

const FORMS: &str = "write it like nbd://HOST:PORT/EXPORT, nbd+unix:///EXPORT?socket=PATH, \
                     memcached://HOST:PORT or memcached+unix:///?socket=PATH";

impl FromStr for Target {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or(FORMS)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let socket = query.split('&').find_map(|pair| pair.strip_prefix("socket="));
        let address = |port| match socket {
            None if !host.is_empty() => Ok(Address::Tcp(with_port(host, port))),
            _ => Err(FORMS),
        };
        let unix = match socket {
            Some(path) if host.is_empty() && !path.is_empty() => {
                Ok(Address::Unix(decoded(path).into()))
            }
            _ => Err(FORMS),
        };
        let export = decoded(path);
        match scheme {
            "nbd" => Ok(Self::Nbd { address: address(10_809)?, export }),
            "nbd+unix" => Ok(Self::Nbd { address: unix?, export }),
            "memcached" if path.is_empty() => Ok(Self::Memcached { address: address(11_211)? }),
            "memcached+unix" if path.is_empty() => Ok(Self::Memcached { address: unix? }),
            _ => Err(FORMS.into()),
        }
    }
}

/// `host` with a port, its own or this one.
fn with_port(host: &str, port: u16) -> String {
    // The colons within the brackets of an IPv6 address are not before a port.
    let after = host.rfind(']').map_or(0, |end| end + 1);
    if host[after..].contains(':') { host.into() } else { format!("{host}:{port}") }
}

/// `text` with `%2f` and the like as the bytes that they stand for.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        let digits = match rest {
            [b'%', high, low, ..] => [*high, *low].map(|digit| (digit as char).to_digit(16)),
            _ => [None; 2],
        };
        let [byte, next] = match digits {
            [Some(high), Some(low)] => [(high * 16 + low) as u8, 3],
            _ => [*first, 1],
        };
        bytes.push(byte);
        rest = if next == 3 { &rest[3..] } else { others };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_a_server_and_an_export() {
        let tcp = |address: &str| Address::Tcp(address.into());
        let nbd = |address, export: &str| Ok(Target::Nbd { address, export: export.into() });
        assert_eq!("nbd://gate/vol".parse(), nbd(tcp("gate:10809"), "vol"));
        assert_eq!("nbd://gate:7".parse(), nbd(tcp("gate:7"), ""));
        assert_eq!("nbd://[::1]/a%20b%".parse(), nbd(tcp("[::1]:10809"), "a b%"));
        let unix = || Address::Unix("/run/a b".into());
        assert_eq!("nbd+unix:///v/w?socket=/run/a%20b".parse(), nbd(unix(), "v/w"));
        assert_eq!(
            "memcached://gate".parse(),
            Ok(Target::Memcached { address: tcp("gate:11211") })
        );
        assert_eq!(
            "memcached+unix:///?socket=/run/a b".parse(),
            Ok(Target::Memcached { address: unix() })
        );
        for wrong in ["gate:7", "http://gate", "nbd:///v", "nbd+unix:///v", "memcached://gate/x"] {
            let error = wrong.parse::<Target>();
            assert!(error.is_err_and(|error| error.contains("nbd://HOST")), "{wrong}");
        }
    }
}
