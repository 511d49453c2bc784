//! The address of a data node on a command line: the Unix socket on its machine, or HOST:PORT with
//! a certificate.

use std::path::{Path, PathBuf};

use tidegate_fabric::stream::Way;
use tidegate_fabric::tls::Guard;
use tidegate_model::Cluster;
use tidegate_model::cluster::Address;
use tidegate_stage::memory::{Connection, Error, Settings, Store};

use crate::address::resolved;
use crate::certificate::client_identity;
use crate::failure::{Code, Failure};

/// Where a data node listens, and how to reach it.
#[derive(Clone, Debug, clap::Args)]
pub struct DataNodeAddress {
    /// The socket of the data node, or HOST:PORT of one that is reached by RDMA
    #[arg(long, value_name = "PLACE", env = "TIDEGATE_AT", hide_env_values = true)]
    at: PathBuf,

    /// The folder of certificates, for HOST:PORT
    #[arg(long, value_name = "DIR", env = "TIDEGATE_TLS", hide_env_values = true)]
    tls: Option<PathBuf>,

    /// Show the certificate of this name there, and so be the user of this name
    #[arg(long, value_name = "NAME", env = "TIDEGATE_USER", hide_env_values = true)]
    #[arg(default_value = Cluster::CLIENT)]
    user: String,

    /// The RDMA device of this machine; by default the first that carries packets
    #[arg(long, value_name = "NAME", env = "TIDEGATE_DEVICE", hide_env_values = true)]
    device: Option<String>,
}

/// The way to a data node.
enum Route<'a> {
    Socket(&'a Path),
    Far(Way),
}

impl DataNodeAddress {
    /// Opens the key-value store of the data node.
    ///
    /// # Errors
    /// If there is no way there, or no memory to be had.
    pub fn store(&self, settings: Settings) -> Result<Store, Failure> {
        let settings = self.settings(settings);
        let opened = match self.route()? {
            Route::Socket(path) => Store::open(path, settings),
            Route::Far(way) => Store::open_remote(way, settings),
        };
        opened.map_err(|error| failed(self.name(), error))
    }

    /// Connects to the data node; the inner error is the answer of the peer at this address.
    ///
    /// # Errors
    /// If there is no way there.
    pub fn connection(&self, settings: Settings) -> Result<Result<Connection, Error>, Failure> {
        let settings = self.settings(settings);
        Ok(match self.route()? {
            Route::Socket(path) => Connection::open(path, settings),
            Route::Far(way) => Connection::open_remote(way, settings),
        })
    }

    /// Checks that the address can be resolved and that its certificate can be read.
    ///
    /// # Errors
    /// If there is none.
    pub fn check(&self) -> Result<(), Failure> {
        self.route().map(|_| ())
    }

    /// The address for messages.
    pub fn name(&self) -> &Path {
        &self.at
    }

    fn settings(&self, settings: Settings) -> Settings {
        Settings { device: self.device.clone(), ..settings }
    }

    fn route(&self) -> Result<Route<'_>, Failure> {
        let address = self.at.to_str().and_then(|text| text.parse().ok());
        let Some(address @ Address::Tcp { .. }) = address else {
            return Ok(Route::Socket(&self.at));
        };
        let Some(directory) = &self.tls else {
            let failure = Failure::new(Code::Usage, format!("{address} asks for a certificate"));
            let help = "name the folder of certificates with --tls, or write a socket with a /";
            return Err(failure.help(help));
        };
        let identity = client_identity(directory, &self.user)?;
        let tls = match &address {
            Address::Tcp { host, .. } => Some((Guard::new(&identity), host.clone())),
            Address::Unix(_) => None,
        };
        Ok(Route::Far(Way { address: resolved(&address, Path::new(""))?, tls }))
    }
}

/// An error of the data node that listens at `at`, as a failure of the command.
pub fn failed(at: &Path, error: Error) -> Failure {
    let (code, text) = sentence(at, &error);
    Failure::quoted(code, &text)
}

/// The error in one sentence, with the way to mend it behind a semicolon, and its exit code.
pub fn sentence(at: &Path, error: &Error) -> (Code, String) {
    let (code, named) = match error {
        Error::Unreachable(_) | Error::Version(_) | Error::Gone | Error::Outside(_) => {
            (Code::Unreachable, true)
        }
        Error::Operation(_) => (Code::Usage, false),
        _ => (Code::Failure, true),
    };
    match named {
        true => (code, format!("{}: {error}", at.display())),
        false => (code, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(at: &str, tls: Option<&str>) -> DataNodeAddress {
        let (at, tls) = (at.into(), tls.map(PathBuf::from));
        DataNodeAddress { at, tls, user: Cluster::CLIENT.into(), device: None }
    }

    #[test]
    fn an_address_with_a_port_needs_certificates_and_the_rest_is_a_socket() {
        for path in ["memory.sock", "/run/m.sock", "./host:7400", "7400"] {
            let address = address(path, None);
            let route = address.route().ok();
            assert!(matches!(route, Some(Route::Socket(it)) if it == Path::new(path)));
        }
        let failure = address("host:7400", None).route().err().unwrap();
        let text = format!("{failure:?}");
        assert!(text.contains("host:7400 asks for a certificate"), "{text}");
        let failure = address("host:7400", Some("/nowhere")).route().err().unwrap();
        let text = format!("{failure:?}");
        assert!(text.contains("/nowhere/ca-cert.pem"), "{text}");
    }
}
