//! The versions of two peers: a connection goes on only if both speak the same one.
//!
//! Every protocol of Tidegate has one version number, which each side sends in its first message.
//! There is no negotiation: operators run the same release everywhere, and an update replaces all
//! processes of a machine. So all that a refusal has to report is which side is to be updated.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::Display;

/// The peer speaks another version of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {peer} speaks version {theirs} of the protocol and this {side} version {ours}; {} is the \
     older one: run the same release on both",
    self.older()
)]
pub struct VersionMismatch {
    /// The kind of peer, for people: `node (release 1.2)`.
    pub peer: String,
    /// The version that it speaks.
    pub theirs: u16,
    /// The kind of this process.
    pub side: &'static str,
    /// The version that it speaks.
    pub ours: u16,
}

impl VersionMismatch {
    /// Compares the version of a peer with that of this side.
    ///
    /// # Errors
    /// If they differ.
    ///
    /// ```
    /// use tidegate_proto::session::version::VersionMismatch;
    /// let check = |theirs| VersionMismatch::check(("node", theirs), ("gateway", 6));
    /// assert_eq!(check(6), Ok(()));
    /// assert_eq!(
    ///     check(5).unwrap_err().to_string(),
    ///     "the node speaks version 5 of the protocol and this gateway version 6; the node is the \
    ///      older one: run the same release on both"
    /// );
    /// assert!(check(7).unwrap_err().to_string().contains("; this gateway is the older one"));
    /// ```
    pub fn check(
        (peer, theirs): (impl Display, u16),
        (side, ours): (&'static str, u16),
    ) -> Result<(), Self> {
        if theirs == ours {
            return Ok(());
        }
        Err(Self { peer: peer.to_string(), theirs, side, ours })
    }

    fn older(&self) -> String {
        match self.theirs < self.ours {
            true => format!("the {}", self.peer),
            false => format!("this {}", self.side),
        }
    }
}
