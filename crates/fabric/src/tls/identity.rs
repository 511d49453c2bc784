//! The identity of a process, and the authority that it trusts: the files, read and checked.
//!
//! One folder has the authority's certificate, `ca-cert.pem`, and for each process `NAME-cert.pem`
//! and `NAME-key.pem`: the names that QEMU and libnbd look for, so that one folder serves clients
//! too. Faults of the files are found when a process starts, and not when the first peer refuses
//! the connection.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};
use webpki::EndEntityCert;

use super::words;
use crate::clock;
use crate::trusted::{self, Secrecy, TrustError, TrustProblem};

/// The file of the authority's certificate.
pub const AUTHORITY: &str = "ca-cert.pem";

/// The file of a process's certificate.
pub fn certificate_file(name: &str) -> String {
    format!("{name}-cert.pem")
}

/// The file of a process's key.
pub fn key_file(name: &str) -> String {
    format!("{name}-key.pem")
}

/// Why a process has no identity. Each says what is wrong, where, and how to mend it.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read.
    #[error(
        "cannot read {path}: {error}; make it with `tidegate certify`, or copy it from where it \
         was made"
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Another user could have changed a file, or read a key.
    #[error("cannot trust {path}: {error}")]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// The fault of the file, or of a folder on the way to it.
        error: TrustError,
    },
    /// A file is not what its name says.
    #[error(
        "{path} holds no {what}; put one there in PEM, or remove it and run `tidegate certify`"
    )]
    Empty {
        /// The file.
        path: PathBuf,
        /// The missing content.
        what: &'static str,
    },
    /// A certificate and a key that do not belong together.
    #[error("{key} is not the key of {certificate}; copy both from where they were made")]
    Mismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// A certificate that no peer would accept.
    #[error(
        "the certificate {path} {flaw}; remove it with its key and run `tidegate certify`, or put \
         another one there"
    )]
    Flaw {
        /// Its file.
        path: PathBuf,
        /// The fault of the certificate, as a sentence goes on behind "the certificate".
        flaw: String,
    },
}

/// A process's certificate with its key, and the authority whose certificates it accepts.
#[derive(Clone, Debug)]
pub struct Identity {
    name: String,
    key: Arc<CertifiedKey>,
    authority: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    /// Where the certificate is.
    path: PathBuf,
    /// Whether it is a client's and no component's.
    is_client: bool,
}

impl Identity {
    /// Reads the files of the component `name`, and checks that its peers will accept them.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn read(directory: &Path, name: &str) -> Result<Self, IdentityError> {
        Self::load(directory, name)?.checked()
    }

    /// The same for a client, whose certificate need not be valid for servers.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn read_client(directory: &Path, name: &str) -> Result<Self, IdentityError> {
        Self { is_client: true, ..Self::load(directory, name)? }.checked()
    }

    fn checked(self) -> Result<Self, IdentityError> {
        let checked = self.check(clock::date());
        checked.map_err(|error| flawed(&self.path, &error))?;
        Ok(self)
    }

    /// Reads the files of `name`.
    pub(super) fn load(directory: &Path, name: &str) -> Result<Self, IdentityError> {
        let (path, key_path) =
            (directory.join(certificate_file(name)), directory.join(key_file(name)));
        let provider = Arc::new(ring::default_provider());
        let authority = authority(&directory.join(AUTHORITY))?;
        let chain = certificates(&path)?;
        let text = trusted::read(&key_path, Secrecy::Secret)
            .map_err(|error| untrusted(&key_path, error))?;
        let what = "private key";
        let key = PrivateKeyDer::from_pem_slice(&text)
            .map_err(|_| IdentityError::Empty { path: key_path.clone(), what })?;
        let key = CertifiedKey::from_der(chain, key, &provider).map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                IdentityError::Mismatch { certificate: path.clone(), key: key_path.clone() }
            }
            Error::InvalidCertificate(error) => flawed(&path, &Error::InvalidCertificate(error)),
            _ => {
                IdentityError::Empty { path: key_path.clone(), what: "key of a kind that is known" }
            }
        })?;
        let (name, key, is_client) = (name.to_owned(), Arc::new(key), false);
        Ok(Self { name, key, authority, provider, path, is_client })
    }

    /// Whether its peers will still accept it after so long.
    pub fn lasts(&self, span: Duration) -> bool {
        let then = clock::date().as_secs().saturating_add(span.as_secs());
        self.check(UnixTime::since_unix_epoch(Duration::from_secs(then))).is_ok()
    }

    /// Where the certificate is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether peers accept it. Components are clients and servers, so it has to be valid for both.
    fn check(&self, now: UnixTime) -> Result<(), Error> {
        let (end, chain) = self.key.cert.split_first().ok_or(Error::NoCertificatesPresented)?;
        self.inbound().verify_client_cert(end, chain, now)?;
        if self.is_client {
            return Ok(());
        }
        let name = ServerName::try_from(self.name.clone())
            .map_err(|_| Error::InvalidCertificate(CertificateError::NotValidForName))?;
        self.hosts().verify_server_cert(end, chain, &name, &[], now)?;
        Ok(())
    }

    pub(super) fn hosts(&self) -> Arc<WebPkiServerVerifier> {
        let (authority, provider) = (self.authority.clone(), self.provider.clone());
        WebPkiServerVerifier::builder_with_provider(authority, provider)
            .build()
            .expect("the authority was read: it has a certificate")
    }

    pub(super) fn inbound(&self) -> Arc<dyn ClientCertVerifier> {
        let (authority, provider) = (self.authority.clone(), self.provider.clone());
        WebPkiClientVerifier::builder_with_provider(authority, provider)
            .build()
            .expect("the authority was read: it has a certificate")
    }

    /// The server's side of TLS, and the rule that admits clients.
    pub(super) fn server(&self, admitted: Admitted) -> Arc<ServerConfig> {
        let verifier: Arc<dyn ClientCertVerifier> = match admitted {
            Admitted::All => self.inbound(),
            admitted => {
                Arc::new(Named { inner: self.inbound(), components: self.hosts(), admitted })
            }
        };
        let builder = ServerConfig::builder_with_provider(self.provider.clone());
        let mut config = builder
            .with_protocol_versions(&[&TLS13])
            .expect("the provider speaks TLS 1.3")
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(self.key.clone())));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Arc::new(config)
    }

    /// The client's side of TLS.
    pub(super) fn client(&self) -> Arc<ClientConfig> {
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .expect("the provider speaks TLS 1.3")
            .with_webpki_verifier(self.hosts())
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(self.key.clone())));
        config.resumption = Resumption::disabled();
        Arc::new(config)
    }
}

fn authority(path: &Path) -> Result<Arc<RootCertStore>, IdentityError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store.add(certificate).map_err(|error| flawed(path, &error))?;
    }
    Ok(Arc::new(store))
}

/// The certificates in a file, one at least.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let what = "certificate";
    let empty = || IdentityError::Empty { path: path.into(), what };
    let text = trusted::read(path, Secrecy::Open).map_err(|error| untrusted(path, error))?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|_| empty())?;
    match found.is_empty() {
        true => Err(empty()),
        false => Ok(found),
    }
}

fn untrusted(path: &Path, error: TrustError) -> IdentityError {
    match error.problem {
        TrustProblem::Io(error) => IdentityError::Unreadable { path: path.into(), error },
        _ => IdentityError::Untrusted { path: path.into(), error },
    }
}

fn flawed(path: &Path, error: &Error) -> IdentityError {
    let flaw = match error {
        Error::InvalidCertificate(error) => words::flaw(error),
        error => format!("cannot be used: {error}"),
    };
    IdentityError::Flaw { path: path.into(), flaw }
}

/// The names of hosts in a certificate, which are those of processes.
pub(super) fn names(chain: Option<&[CertificateDer<'_>]>) -> Vec<String> {
    let first = chain.and_then(<[_]>::first);
    let parsed = first.and_then(|certificate| EndEntityCert::try_from(certificate).ok());
    parsed.iter().flat_map(|parsed| parsed.valid_dns_names().map(str::to_owned)).collect()
}

/// The peers that are admitted among those with a certificate of the authority, by its names.
#[derive(Clone, Debug)]
pub(super) enum Admitted {
    /// All of them.
    All,
    /// All of them; with one of these names only components.
    WithComponents(Vec<String>),
    /// Components with one of these names.
    Only(Vec<String>),
    /// Those with a name, and with none of these.
    AllBut(Vec<String>),
}

impl Admitted {
    fn admits(&self, borne: &[String]) -> bool {
        let bears = |name: &String| super::bears(borne, name);
        match self {
            Self::All | Self::WithComponents(_) => true,
            Self::Only(names) => names.iter().any(bears),
            Self::AllBut(names) => !borne.is_empty() && !names.iter().any(bears),
        }
    }

    /// The component as which a peer with these names would pass.
    fn component(&self, borne: &[String]) -> Option<&String> {
        match self {
            Self::WithComponents(names) | Self::Only(names) => {
                names.iter().find(|name| super::bears(borne, name))
            }
            Self::All | Self::AllBut(_) => None,
        }
    }
}

/// Admits processes whose certificate `inner` accepts and whose names are admitted. A peer with the
/// name of a component needs a certificate that is valid for servers too: a user's is not, so that
/// no user becomes a component that is added later and happens to have the same name.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) inner: Arc<dyn ClientCertVerifier>,
    pub(super) components: Arc<WebPkiServerVerifier>,
    pub(super) admitted: Admitted,
}

impl ClientCertVerifier for Named {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end, chain, now)?;
        let borne = names(Some(std::slice::from_ref(end)));
        if !self.admitted.admits(&borne) {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        if let Some(name) = self.admitted.component(&borne) {
            let name = ServerName::try_from(name.as_str())
                .map_err(|_| Error::InvalidCertificate(CertificateError::NotValidForName))?;
            self.components.verify_server_cert(end, chain, &name, &[], now)?;
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
