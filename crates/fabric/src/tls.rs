//! TLS for connections that leave the machine, inside their [`Stream`].
//!
//! # Problem
//! A worker's socket may have TLS, and the code above must be the same in both cases: read into its
//! own memory, write whole batches, never wait. TLS may want to write before it can read, may hold
//! bytes that the kernel does not see, and its end has two meanings.
//!
//! # Model
//! Both sides show certificates of one authority. A side is identified by its *name*: a DNS name in
//! the certificate that is the process's name in the cluster file. A [`Guard`] has the certificate
//! and the rules of admission: [`Stream::accept_tls`] takes an accepted connection,
//! [`Stream::connect_tls`] one that was begun, and both give the encrypted stream at once. The
//! stream is silent until the handshake is done; from then on it has the peer's names
//! ([`Stream::names`]).
//!
//! # Mechanism
//! Each call on a stream advances its protocol ([`stream`]). A reactor waits for the events that
//! the protocol needs, and reports a stream that holds bytes ([`stream::events`]); so its users are
//! independent of TLS. A caller without a reactor asks [`Stream::holds_input`] after it has read,
//! or reads until nothing is there.
//!
//! An orderly end (`close_notify`) becomes an end of file, in each direction for itself. Everything
//! else that ends a connection is an error with a reason when it is read or written: no TLS, no
//! certificate, one of another authority or for another name, an end without `close_notify`, which
//! may be an attacker's cut.
//!
//! # Bound
//! A handshake takes at most ten seconds, and 256 accepted connections of a guard are in theirs at
//! a time; one more takes the place of the oldest one from the address with the most
//! ([`tidegate_algo::allocation::connection_quota`]), so that no address keeps out all others. Of
//! each connection at most one piece of 64 KiB waits in each direction, beside the part of a record
//! that rustls holds.
//!
//! TLS 1.3 only: GnuTLS, OpenSSL and rustls have had it since 2018. No session is resumed: links
//! live long, and each new one is verified in full.
//!
//! [`Stream`]: crate::stream::Stream
//! [`Stream::accept_tls`]: crate::stream::Stream::accept_tls
//! [`Stream::connect_tls`]: crate::stream::Stream::connect_tls
//! [`Stream::names`]: crate::stream::Stream::names
//! [`Stream::holds_input`]: crate::stream::Stream::holds_input

mod identity;
mod stream;
#[cfg(test)]
mod tests;
mod words;

use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use identity::Admitted;
pub use identity::{AUTHORITY, Identity, IdentityError, certificate_file, key_file};
pub(crate) use stream::TlsStream;
pub(crate) use stream::events::Events;
use stream::handshakes::{Bounds, Handshakes};

use crate::clock;
use crate::socket::Socket;

/// The certificate of TLS connections, and the peers that are admitted.
#[derive(Clone, Debug)]
pub struct Guard {
    identity: Identity,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    /// Of the guards that were made from one, all together.
    handshakes: Arc<Handshakes>,
}

impl Guard {
    /// A guard that admits every process with a certificate of the identity's authority.
    pub fn new(identity: &Identity) -> Self {
        Self::within(identity, Bounds::default())
    }

    fn within(identity: &Identity, bounds: Bounds) -> Self {
        let (server, client) = (identity.server(Admitted::All), identity.client());
        let handshakes = Arc::new(Handshakes::new(bounds));
        Self { identity: identity.clone(), server, client, handshakes }
    }

    /// The same, but peers with one of these names are accepted only with certificates that are
    /// valid for servers, which those of users are not.
    #[must_use]
    pub fn with_components(&self, names: Vec<String>) -> Self {
        Self { server: self.identity.server(Admitted::WithComponents(names)), ..self.clone() }
    }

    /// The same, but only components with one of these names are accepted.
    #[must_use]
    pub fn admitting(&self, names: Vec<String>) -> Self {
        Self { server: self.identity.server(Admitted::Only(names)), ..self.clone() }
    }

    /// The same, but peers with one of these names, and with certificates without a name, are not
    /// accepted.
    #[must_use]
    pub fn refusing(&self, names: Vec<String>) -> Self {
        Self { server: self.identity.server(Admitted::AllBut(names)), ..self.clone() }
    }

    /// As [`crate::stream::Stream::accept_tls`].
    pub(crate) fn accept(&self, socket: Socket) -> io::Result<Arc<TlsStream>> {
        let origin = socket.origin()?;
        let conn = ServerConnection::new(self.server.clone()).map_err(io::Error::other)?;
        let stream = self.encrypted(conn.into(), socket);
        self.handshakes.insert(&stream, origin);
        Ok(stream)
    }

    /// As [`crate::stream::Stream::connect_tls`].
    pub(crate) fn connect(&self, socket: Socket, name: &str) -> io::Result<Arc<TlsStream>> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let conn = ClientConnection::new(self.client.clone(), name).map_err(io::Error::other)?;
        Ok(self.encrypted(conn.into(), socket))
    }

    fn encrypted(&self, conn: Connection, socket: Socket) -> Arc<TlsStream> {
        TlsStream::new(conn, socket, clock::now() + self.handshakes.bounds.patience)
    }
}

/// Whether one of these names of a certificate is `name`. Upper and lower case are the same, as in
/// names of hosts.
pub fn bears(names: &[String], name: &str) -> bool {
    names.iter().any(|it| it.eq_ignore_ascii_case(name))
}
