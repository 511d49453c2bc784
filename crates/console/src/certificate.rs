//! Certificates of a cluster's components and clients, read from the folder that `tidegate certify`
//! wrote.

use std::path::Path;

use tidegate_fabric::tls::{Identity, IdentityError};

use crate::failure::{Code, Failure};

/// The certificate and key of the component `name` in the folder `directory`.
///
/// # Errors
/// If the certificate or its key is missing, or peers would not accept it.
pub fn identity(directory: &Path, name: &str) -> Result<Identity, Failure> {
    Identity::read(directory, name).map_err(unusable)
}

/// The same of a client, whose certificate need not be valid for servers.
///
/// # Errors
/// As above.
pub fn client_identity(directory: &Path, name: &str) -> Result<Identity, Failure> {
    Identity::read_client(directory, name).map_err(unusable)
}

fn unusable(error: IdentityError) -> Failure {
    Failure::quoted(Code::Failure, &error.to_string())
}
