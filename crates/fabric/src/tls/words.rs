//! Why a connection does not go through a lock, in words for people on either side of it.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

use super::passage::Over;

/// The connection is gone, as the kernel says.
pub(super) fn gone(error: &io::Error) -> Over {
    Over::Broken(error.kind(), error.to_string())
}

/// What is inside of rustls does not go on.
pub(super) fn broken(error: &io::Error) -> Over {
    Over::Broken(io::ErrorKind::InvalidData, format!("the TLS connection is broken: {error}"))
}

/// The peer left without a word.
pub(super) fn cut(is_shaking: bool) -> Over {
    let reason = match is_shaking {
        true => "the peer left before the end of its TLS handshake",
        false => "the connection was cut off: its end was not announced",
    };
    Over::Broken(io::ErrorKind::UnexpectedEof, reason.into())
}

/// What the peer sent is not what it should be.
pub(super) fn of(error: &Error) -> Over {
    let reason = match error {
        Error::InvalidCertificate(error) => format!("the peer's certificate {}", flaw(error)),
        Error::NoCertificatesPresented => "the peer shows no certificate".into(),
        Error::AlertReceived(alert) => heard(*alert),
        Error::InvalidMessage(_) => "what the peer sends is no TLS".into(),
        error => format!("no TLS with this peer: {error}"),
    };
    Over::Broken(io::ErrorKind::InvalidData, reason)
}

/// What is wrong with a certificate, behind "the certificate".
pub(super) fn flaw(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is not of our authority".into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "has expired".into(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet; see whether the clocks of both machines are right".into()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let borne = presented.join(", ").replace("DnsName(\"", "").replace("\")", "");
            format!("is for {borne} and not for {}", expected.to_str())
        }
        CertificateError::ApplicationVerificationFailure => {
            "bears no name that is let in here".into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is made for another purpose".into()
        }
        error => format!("is not valid: {error}"),
    }
}

/// What the peer says about us.
fn heard(alert: AlertDescription) -> String {
    let about = match alert {
        // An authority of another cluster may have the same name, but not the same key.
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is not of its authority"
        }
        AlertDescription::CertificateExpired => "it has expired there",
        AlertDescription::AccessDenied => "it bears no name that is let in there",
        AlertDescription::CertificateRequired => "none was shown",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown => "it says no more",
        alert => return format!("the peer ends the TLS connection: {alert:?}"),
    };
    format!("the peer refuses our certificate: {about}")
}
