//! Settings of a stage's agent, and the address of its controller: a socket of this machine, or an
//! address on another one.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tidegate_fabric::default_paths::{default_socket, roots_socket_instead_of};
#[cfg(feature = "tls")]
use tidegate_fabric::stream::Way;
use tidegate_fabric::unix::MessageLink;
use tidegate_proto::message::ToStage;

/// Identity of a stage, and the address of its controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The tenant it acts for; empty to go by the policy's rules alone.
    pub tenant: String,
    /// The controller's socket, if the controller is on this machine.
    pub socket: PathBuf,
    /// The way to a controller on another machine, which is used instead of the socket.
    #[cfg(feature = "tls")]
    pub remote: Option<Way>,
    /// The command that the stage runs, for display.
    pub command: String,
    /// Whether it carries content, so that gates may transform it.
    pub layered: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let name = std::env::args_os().next().unwrap_or_default();
        Self {
            tenant: String::new(),
            socket: default_socket(),
            #[cfg(feature = "tls")]
            remote: None,
            command: name.to_string_lossy().into_owned(),
            layered: true,
        }
    }
}

/// Where the controller of a stage listens.
#[derive(Debug)]
pub(crate) enum ControllerAddress {
    Socket(PathBuf),
    #[cfg(feature = "tls")]
    Remote(Way),
}

impl ControllerAddress {
    pub(crate) fn of(settings: &Settings) -> Self {
        #[cfg(feature = "tls")]
        if let Some(way) = &settings.remote {
            return Self::Remote(way.clone());
        }
        Self::Socket(settings.socket.clone())
    }

    /// Connects, or begins to: a controller on another machine may answer later.
    pub(crate) fn connect(&self) -> io::Result<MessageLink<ToStage>> {
        match self {
            Self::Socket(path) => MessageLink::connect(path),
            #[cfg(feature = "tls")]
            Self::Remote(way) => way.connect().map(MessageLink::from),
        }
    }

    /// The reason why there is no controller if nothing listens at this address.
    pub(crate) fn absence(&self) -> String {
        let roots = match self {
            Self::Socket(path) => roots_socket_instead_of(path),
            #[cfg(feature = "tls")]
            Self::Remote(_) => None,
        };
        match roots {
            None => format!("nothing listens at {self}"),
            Some(roots) => format!(
                "nothing listens at {self}, but root's controller does at {}, which --socket or \
                 TIDEGATE_SOCKET names",
                roots.display()
            ),
        }
    }
}

impl fmt::Display for ControllerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            #[cfg(feature = "tls")]
            Self::Remote(way) => way.address.fmt(f),
        }
    }
}
