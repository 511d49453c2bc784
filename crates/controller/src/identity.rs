//! The peer of a connection, and the identities that it may claim.
//!
//! On the Unix socket the kernel names the peer's process. Over TCP a certificate names the peer.

use std::fmt;
use std::io;

use tidegate_fabric::tls::bears;
use tidegate_proto::message::Hello;
use tokio::net::UnixStream;

use crate::permits::PeerKind;

/// The names of a cluster's members, which their certificates bear.
#[derive(Clone, Debug, Default)]
pub(crate) struct Members {
    pub(crate) gateways: Vec<String>,
    /// All of them, with the controller and the authority.
    pub(crate) all: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum PeerIdentity {
    /// A process of this machine.
    Local {
        /// Its user.
        uid: u32,
        /// Its number, or zero if the kernel does not report it.
        pid: u32,
    },
    /// A peer on another machine, by the names in its certificate; none before the certificate is
    /// verified.
    Remote(Vec<String>),
}

impl PeerIdentity {
    /// Reads the peer's user and process from a connection to the controller's socket.
    pub(crate) fn local(stream: &UnixStream) -> io::Result<Self> {
        let peer = stream.peer_cred()?;
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        Ok(Self::Local { uid: peer.uid(), pid })
    }

    /// The kind of peer for which it takes a permit.
    pub(crate) fn kind(&self) -> PeerKind {
        match self {
            Self::Local { uid, .. } if may_operate(*uid) => PeerKind::Operator,
            Self::Local { uid, .. } => PeerKind::User(*uid),
            Self::Remote(names) => match names.first() {
                None => PeerKind::Remote,
                Some(name) => PeerKind::Certificate(name.clone()),
            },
        }
    }

    pub(crate) fn may_operate(&self) -> bool {
        self.kind() == PeerKind::Operator
    }

    /// Whether the peer may claim the identity in `hello`, in a cluster with these members. This
    /// does not check whether the cluster has such a node.
    ///
    /// # Errors
    /// The reason, for both sides.
    pub(crate) fn may_be(&self, hello: &Hello, members: &Members) -> Result<(), String> {
        let name = match (self, hello) {
            (Self::Local { .. }, Hello::Stage { .. } | Hello::Operator { .. }) => return Ok(()),
            (Self::Local { .. }, _) if self.may_operate() => return Ok(()),
            (Self::Local { .. }, _) => {
                return Err("only root and our own user run nodes and gateways".into());
            }
            (Self::Remote(_), Hello::Node { info, .. }) => &info.name,
            (Self::Remote(_), Hello::DataNode { name, .. }) => name,
            (Self::Remote(_), Hello::Gateway { name, .. }) if members.gateways.contains(name) => {
                name
            }
            (Self::Remote(_), Hello::Gateway { name, .. }) => {
                return Err(format!("the cluster has no gateway {name:?}"));
            }
            (Self::Remote(names), Hello::Stage { .. }) => {
                return may_be_program(names, &members.all);
            }
            (Self::Remote(_), Hello::Operator { .. }) => {
                return Err("operators use the controller's Unix socket".into());
            }
        };
        match self {
            Self::Remote(names) if !bears(names, name) => {
                let borne = names.join(", ");
                Err(format!("your certificate is for {borne} and not for {name:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a certificate with these names is that of a user who runs programs. Which tenants this
/// user may act for is the policy's.
fn may_be_program(names: &[String], members: &[String]) -> Result<(), String> {
    let advice = "use one that `tidegate certify --user` has made";
    if names.is_empty() {
        return Err(format!("your certificate bears no name; {advice}"));
    }
    match members.iter().find(|member| bears(names, member)) {
        Some(member) => {
            let party = format!("the certificate of {member} is for a party of the cluster");
            Err(format!("{party} and not for programs; {advice}"))
        }
        None => Ok(()),
    }
}

/// Whether a user may operate the controller: root and the daemon's own user may.
pub(crate) fn may_operate(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { uid, pid } => write!(f, "process {pid} of user {uid}"),
            Self::Remote(names) if names.is_empty() => f.write_str("an unidentified remote peer"),
            Self::Remote(names) => f.write_str(&names.join(", ")),
        }
    }
}
