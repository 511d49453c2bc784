//! Address of a process and, with TLS, the name that its certificate must bear.

use std::io;

use super::{Address, Stream};
use crate::tls::Guard;

/// The connection settings of a process.
#[derive(Clone, Debug)]
pub struct Way {
    /// The address of its listener.
    pub address: Address,
    /// The TLS context of the connection, and the name that the process's certificate has to bear;
    /// none for a connection in the clear.
    pub tls: Option<(Guard, String)>,
}

impl Way {
    /// Begins to connect, as [`Stream::connect`].
    ///
    /// # Errors
    /// If no process listens there, or for other reasons that are reported at once.
    pub fn connect(&self) -> io::Result<Stream> {
        let stream = Stream::connect(&self.address)?;
        match &self.tls {
            None => Ok(stream),
            Some((guard, name)) => stream.connect_tls(guard, name),
        }
    }
}

impl From<Address> for Way {
    /// In the clear.
    fn from(address: Address) -> Self {
        Self { address, tls: None }
    }
}
