//! The peer's names and the end of a connection that goes through TLS (`tls`).

use std::io;
use std::sync::OnceLock;

/// The peer's names, and why the connection ended. TLS writes both once: the names before the first
/// byte can be read, the end before the last one has been.
#[derive(Debug, Default)]
pub struct TlsPeer {
    names: OnceLock<Vec<String>>,
    end: OnceLock<(io::ErrorKind, String)>,
}

impl TlsPeer {
    /// The names that the peer's certificate bears; none before it was verified.
    pub fn names(&self) -> &[String] {
        self.names.get().map_or(&[], Vec::as_slice)
    }

    /// Whether the peer's certificate bears this name. Upper and lower case are the same, as in
    /// names of hosts.
    pub fn bears(&self, name: &str) -> bool {
        self.names().iter().any(|borne| borne.eq_ignore_ascii_case(name))
    }

    /// Why the connection ended, if it did and not in good order.
    pub fn end(&self) -> Option<io::Error> {
        self.end.get().map(|(kind, reason)| io::Error::new(*kind, reason.clone()))
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn set_names(&self, names: Vec<String>) {
        let _ = self.names.set(names);
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn set_end(&self, kind: io::ErrorKind, reason: String) {
        let _ = self.end.set((kind, reason));
    }
}
