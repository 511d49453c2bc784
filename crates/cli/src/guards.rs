//! TLS contexts of the components of a cluster that run in this process, and the addresses that
//! other components reach over TLS.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_fabric::stream::Address;
use tidegate_fabric::stream::Way;
use tidegate_fabric::tls::Guard;
use tidegate_model::Cluster;

use tidegate_console::certificate::identity;
use tidegate_console::failure::Failure;

/// How long before the end of a certificate the log warns.
const NOTICE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The folder of a cluster's certificates.
#[derive(Debug)]
pub(crate) struct Guards {
    directory: PathBuf,
}

impl Guards {
    /// Those of a cluster whose relative paths are below `base`; none if it has no certificates.
    pub(crate) fn of_cluster(cluster: &Cluster, base: &Path) -> Option<Self> {
        directory(cluster, base).map(|directory| Self { directory })
    }

    /// The guard of a component.
    ///
    /// # Errors
    /// If its certificate or its key is not there, or not what peers would believe.
    pub(crate) fn of(&self, name: &str) -> Result<Guard, Failure> {
        let identity = identity(&self.directory, name)?;
        if !identity.lasts(NOTICE) {
            let path = identity.path().display();
            tracing::warn!(
                %path,
                "a certificate expires within 30 days; remove it and run `tidegate certify`"
            );
        }
        Ok(Guard::new(&identity))
    }
}

/// The folder of a cluster's certificates.
pub(crate) fn directory(cluster: &Cluster, base: &Path) -> Option<PathBuf> {
    cluster.tls.as_ref().map(|directory| base.join(directory))
}

/// The way to the component of this name: over TCP, through the guard of the caller.
pub(crate) fn way(address: Address, guard: Option<&Guard>, name: &str) -> Way {
    let tls = match address {
        Address::Tcp(_) => guard.map(|guard| (guard.clone(), name.to_owned())),
        Address::Unix(_) => None,
    };
    Way { address, tls }
}
