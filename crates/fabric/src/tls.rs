//! TLS for connections that leave the machine, in a proxy thread beside the workers.
//!
//! # Problem
//! Workers own their sockets, read whole pieces, write whole batches and never wait (ADR 7). TLS in
//! each of them would be a second kind of socket everywhere: one that may want to write before it
//! can read, that is readable when the kernel says it is not, and whose end has two meanings. And
//! connections without TLS, which are the fast ones, would carry that along.
//!
//! # Model
//! A TLS connection has an outer side, the socket to the peer, and an inner side, one end of a pair
//! of Unix sockets. The code at the inner side reads and writes plain bytes on an ordinary
//! socket. Both sides show certificates of one authority. A side is known by its *name*: a DNS name
//! in the certificate that is the process's name in the cluster file.
//!
//! # Mechanism
//! A [`Pump`] is one thread that moves the bytes of all TLS connections of a process, with the
//! reactor that workers use. A [`Guard`] has the certificate and the rules of admission:
//! [`Guard::accept`] takes a connection that came, [`Guard::connect`] one that was begun, and both
//! give the inner side at once. It stays silent until the handshake is done, so that code that
//! waits on it waits for nothing new; from then on its [`crate::stream::TlsPeer`] has the peer's
//! names.
//!
//! An orderly end (`close_notify`) becomes an end of file, in each direction for itself. Everything
//! else that ends a connection is an error with a reason when the inner side is read or written: no
//! TLS, no certificate, one of another authority or for another name, an end without
//! `close_notify`, which may be an attacker's cut.
//!
//! # Bound
//! A handshake takes at most ten seconds, and 256 of those who come in are in theirs at a time; one
//! more takes the place of the oldest one from the address with the most
//! ([`tidegate_algo::allocation::connection_quota`]), so that no address keeps out all others. Of
//! each connection at most one piece of 64 KiB waits in each direction, beside what rustls holds of
//! an unfinished record; a side that does not read makes the other wait.
//!
//! TLS 1.3 only: GnuTLS, OpenSSL and rustls have had it since 2018. No session is resumed: links
//! live long, and each new one is verified in full.

mod connection;
mod identity;
mod pump;
#[cfg(test)]
mod tests;
mod words;

use std::io;
use std::mem;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use identity::Admitted;
pub use identity::{AUTHORITY, Identity, IdentityError, certificate_file, key_file};
pub use pump::Pump;

use crate::stream::{Address, Stream, TlsPeer};
use connection::TlsConnection;

/// The certificate of TLS connections, and the peers that are admitted. It keeps its pump, and
/// so its connections, alive; who has some keeps a guard.
#[derive(Clone, Debug)]
pub struct Guard {
    pump: Pump,
    identity: Identity,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Guard {
    /// A guard that admits every process with a certificate of the identity's authority.
    pub fn new(pump: &Pump, identity: &Identity) -> Self {
        let (server, client) = (identity.server(Admitted::All), identity.client());
        Self { pump: pump.clone(), identity: identity.clone(), server, client }
    }

    /// The same, but of those who come only processes with one of these names are let in.
    #[must_use]
    pub fn admitting(&self, names: Vec<String>) -> Self {
        Self { server: self.identity.server(Admitted::Only(names)), ..self.clone() }
    }

    /// The same, but of those who come processes with one of these names, and certificates without
    /// a name, are refused.
    #[must_use]
    pub fn refusing(&self, names: Vec<String>) -> Self {
        Self { server: self.identity.server(Admitted::AllBut(names)), ..self.clone() }
    }

    /// Lets in a connection that came, and gives its inner side.
    ///
    /// # Errors
    /// If there is no descriptor left; kind `PermissionDenied` if too many are in their handshake.
    pub fn accept(&self, mut outer: Stream) -> io::Result<Stream> {
        self.encrypt(&mut outer)?;
        Ok(outer)
    }

    /// Has a connection that came go on with TLS: from here on it is the inner side.
    ///
    /// # Errors
    /// As [`Self::accept`]; the connection may be gone then.
    pub fn encrypt(&self, stream: &mut Stream) -> io::Result<()> {
        let conn = ServerConnection::new(self.server.clone()).map_err(io::Error::other)?;
        self.enter(conn.into(), stream)
    }

    /// Takes a connection that was begun to a process of this name, and gives its inner side.
    ///
    /// # Errors
    /// If there is no descriptor left, or the name cannot be that of a certificate.
    pub fn connect(&self, mut outer: Stream, name: &str) -> io::Result<Stream> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let conn = ClientConnection::new(self.client.clone(), name).map_err(io::Error::other)?;
        self.enter(conn.into(), &mut outer)?;
        Ok(outer)
    }

    fn enter(&self, conn: Connection, stream: &mut Stream) -> io::Result<()> {
        let tls_peer = Arc::new(TlsPeer::default());
        // Of those who are called, none is counted.
        let origin = matches!(conn, Connection::Server(_)).then(|| stream.origin()).transpose()?;
        let (inside, inner) = Stream::pair()?;
        let outer = mem::replace(stream, inside.with_tls_peer(tls_peer.clone()));
        self.pump.enter(TlsConnection::new(conn, outer, inner, tls_peer), origin)
    }
}

/// The way to a process.
#[derive(Clone, Debug)]
pub struct Way {
    /// Where it listens.
    pub address: Address,
    /// The TLS context of the connection, and the name that the process's certificate has to bear;
    /// none for a connection in the clear.
    pub lock: Option<(Guard, String)>,
}

impl Way {
    /// Begins to connect, as [`Stream::connect`].
    ///
    /// # Errors
    /// If no process listens there, or for other reasons that are known at once.
    pub fn connect(&self) -> io::Result<Stream> {
        let stream = Stream::connect(&self.address)?;
        match &self.lock {
            None => Ok(stream),
            Some((guard, name)) => guard.connect(stream, name),
        }
    }
}

impl From<Address> for Way {
    /// In the clear.
    fn from(address: Address) -> Self {
        Self { address, lock: None }
    }
}
