//! Where a data node is, as one types it: the socket on its machine, or a host and a port that ask
//! for a certificate.

use std::path::{Path, PathBuf};

use tidegate_fabric::tls::{Guard, Pump, Way};
use tidegate_model::Cluster;
use tidegate_model::cluster::Address;
use tidegate_stage::memory::{Connection, Error, Settings, Store};

use super::failed;
use crate::failure::{Code, Failure};
use crate::guards;
use crate::parts::resolved;

/// Where a data node is, and by what it is reached.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Place {
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

/// How to go there.
enum Entrance<'a> {
    Socket(&'a Path),
    Far(Way),
}

impl Place {
    /// A store there.
    ///
    /// # Errors
    /// If there is no way there, or no memory to be had.
    pub(crate) fn store(&self, settings: Settings) -> Result<Store, Failure> {
        let settings = self.settings(settings);
        let opened = match self.entrance()? {
            Entrance::Socket(path) => Store::open(path, settings),
            Entrance::Far(way) => Store::reach(way, settings),
        };
        opened.map_err(|error| failed(self.name(), error))
    }

    /// A connection there; the inner error is what the data node, or whoever is there, says.
    ///
    /// # Errors
    /// If there is no way there.
    pub(super) fn connection(
        &self,
        settings: Settings,
    ) -> Result<Result<Connection, Error>, Failure> {
        let settings = self.settings(settings);
        Ok(match self.entrance()? {
            Entrance::Socket(path) => Connection::open(path, settings),
            Entrance::Far(way) => Connection::reach(way, settings),
        })
    }

    /// Whether there is a way there at all.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.entrance().map(|_| ())
    }

    /// What to call it.
    pub(crate) fn name(&self) -> &Path {
        &self.at
    }

    fn settings(&self, settings: Settings) -> Settings {
        Settings { device: self.device.clone(), ..settings }
    }

    fn entrance(&self) -> Result<Entrance<'_>, Failure> {
        let address = self.at.to_str().and_then(|text| text.parse().ok());
        let Some(address @ Address::Tcp { .. }) = address else {
            return Ok(Entrance::Socket(&self.at));
        };
        let Some(directory) = &self.tls else {
            let failure = Failure::new(Code::Usage, format!("{address} asks for a certificate"));
            let help = "name the folder of certificates with --tls, or write a socket with a /";
            return Err(failure.help(help));
        };
        let identity = guards::identity(directory, &self.user)?;
        let pump = Pump::start().map_err(|error| {
            Failure::new(Code::Failure, "cannot start a thread for TLS").cause(error)
        })?;
        let lock = match &address {
            Address::Tcp { host, .. } => Some((Guard::new(&pump, &identity), host.clone())),
            Address::Unix(_) => None,
        };
        Ok(Entrance::Far(Way { address: resolved(&address, Path::new(""))?, lock }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(at: &str, tls: Option<&str>) -> Place {
        let (at, tls) = (at.into(), tls.map(PathBuf::from));
        Place { at, tls, user: Cluster::CLIENT.into(), device: None }
    }

    #[test]
    fn what_has_a_port_asks_for_certificates_and_the_rest_is_a_socket() {
        for path in ["memory.sock", "/run/m.sock", "./host:7400", "7400"] {
            let place = place(path, None);
            let entrance = place.entrance().ok();
            assert!(matches!(entrance, Some(Entrance::Socket(it)) if it == Path::new(path)));
        }
        let failure = place("host:7400", None).entrance().err().unwrap();
        let text = format!("{failure:?}");
        assert!(text.contains("host:7400 asks for a certificate"), "{text}");
        let failure = place("host:7400", Some("/nowhere")).entrance().err().unwrap();
        let text = format!("{failure:?}");
        assert!(text.contains("/nowhere/ca-cert.pem"), "{text}");
    }
}
