//! Origin of a connection: a user of this machine or a network address.

use core::fmt;
use core::net::IpAddr;

/// The origin by which connections are counted: one user of this machine, or one address.
///
/// ```
/// use tidegate_model::Origin;
///
/// let address = |text: &str| Origin::of_address(text.parse().unwrap());
/// // One machine has as many addresses of a network as it likes.
/// assert_eq!(address("2001:db8::1"), address("2001:db8::2"));
/// assert_eq!(address("::ffff:192.0.2.1"), address("192.0.2.1"));
/// assert_eq!(address("2001:db8::1").to_string(), "address 2001:db8::");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A user of this machine, by number, as a Unix socket reports it.
    User(u32),
    /// An IPv4 address, or the first 64 bits of an IPv6 address.
    Address(IpAddr),
}

impl Origin {
    /// The origin of a connection from this address.
    pub fn of_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::Address(address.into()),
            IpAddr::V6(address) => {
                let network = u128::from(address) & !u128::from(u64::MAX);
                Self::Address(IpAddr::V6(network.into()))
            }
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Address(address) => write!(f, "address {address}"),
        }
    }
}
