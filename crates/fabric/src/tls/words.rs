//! Reasons of failed TLS connections, for people on either side.

use std::fmt::Debug;
use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// Why a connection has ended other than in good order.
#[derive(Clone, Debug)]
pub(super) struct Break(pub(super) io::ErrorKind, pub(super) String);

impl From<io::Error> for Break {
    fn from(error: io::Error) -> Self {
        Self(error.kind(), error.to_string())
    }
}

impl From<&Break> for io::Error {
    fn from(Break(kind, reason): &Break) -> Self {
        Self::new(*kind, reason.clone())
    }
}

/// The end of a connection in which rustls itself fails.
pub(super) fn broken(error: &io::Error) -> Break {
    Break(io::ErrorKind::InvalidData, format!("the TLS connection is broken: {error}"))
}

/// The peer has closed the connection without `close_notify`.
pub(super) fn cut(is_handshaking: bool) -> Break {
    let reason = match is_handshaking {
        true => "the peer left before the end of its TLS handshake",
        false => "the connection was cut off: its end was not announced",
    };
    Break(io::ErrorKind::UnexpectedEof, reason.into())
}

/// The end of a connection after an error of TLS, with the reason in words.
pub(super) fn of(error: &Error) -> Break {
    let reason = match error {
        Error::InvalidCertificate(error) => format!("the peer's certificate {}", flaw(error)),
        Error::NoCertificatesPresented => "the peer shows no certificate".into(),
        Error::AlertReceived(alert) => alert_text(*alert),
        Error::InvalidMessage(_) => "what the peer sends is no TLS".into(),
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            "the peer sends a message that has no place in the TLS handshake".into()
        }
        Error::PeerIncompatible(why) => format!("no TLS with this peer: {}", plain(why)),
        Error::PeerMisbehaved(why) => format!("the peer breaks the rules of TLS: {}", plain(why)),
        Error::InconsistentKeys(why) => format!("certificate and key do not fit: {}", plain(why)),
        error => format!("no TLS with this peer: {error}"),
    };
    Break(io::ErrorKind::InvalidData, reason)
}

/// The fault of a certificate, as a sentence goes on behind "the certificate".
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
            let borne = presented.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", ");
            format!("is for {borne} and not for {}", expected.to_str())
        }
        CertificateError::ApplicationVerificationFailure => {
            "has no name that is admitted here".into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is made for another purpose".into()
        }
        error => format!("is not valid: {}", plain(error)),
    }
}

/// The words of a variant's name, as `no cipher suites in common`. Most errors of the library have
/// nothing but that name to say, and what some have in brackets is about its own code.
fn plain(error: &impl Debug) -> String {
    let name = format!("{error:?}");
    let end = name.find(|character: char| !character.is_ascii_alphanumeric()).unwrap_or(name.len());
    let mut words = String::new();
    let mut was_lower = false;
    for character in name[..end].chars() {
        if character.is_ascii_uppercase() && was_lower {
            words.push(' ');
        }
        was_lower = !character.is_ascii_uppercase();
        words.push(character.to_ascii_lowercase());
    }
    words
}

/// A certificate's name without what the library writes around it: `DnsName("a")`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
    inner.map_or(name, |(inner, _)| inner).trim_matches('"')
}

/// The end of a connection by the peer's alert, in words.
fn alert_text(alert: AlertDescription) -> String {
    let about = match alert {
        // An authority of another cluster may have the same name, but not the same key.
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is not of its authority"
        }
        AlertDescription::CertificateExpired => "it has expired there",
        AlertDescription::AccessDenied => "it has no name that is admitted there",
        AlertDescription::CertificateRequired => "none was shown",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown => "it gives no other reason",
        AlertDescription::Unknown(number) => {
            return format!("the peer ends the TLS connection with alert {number}");
        }
        alert => return format!("the peer ends the TLS connection: {}", plain(&alert)),
    };
    format!("the peer refuses our certificate: {about}")
}

#[cfg(test)]
mod tests {
    use rustls::{InconsistentKeys, PeerIncompatible, PeerMisbehaved};

    use super::*;

    fn text(error: &Error) -> String {
        of(error).1
    }

    #[test]
    fn errors_are_worded_without_the_names_of_a_library() {
        let incompatible = PeerIncompatible::NoCipherSuitesInCommon;
        let errors = [
            (Error::PeerIncompatible(incompatible), "no cipher suites in common"),
            (
                Error::PeerMisbehaved(PeerMisbehaved::TooMuchEarlyDataReceived),
                "too much early data",
            ),
            (Error::AlertReceived(AlertDescription::HandshakeFailure), "handshake failure"),
            (Error::AlertReceived(AlertDescription::Unknown(77)), "with alert 77"),
            (Error::InvalidCertificate(CertificateError::BadEncoding), "bad encoding"),
            (Error::InvalidCertificate(CertificateError::Revoked), "revoked"),
            (Error::InconsistentKeys(InconsistentKeys::KeyMismatch), "key mismatch"),
        ];
        for (error, words) in errors {
            let text = text(&error);
            assert!(text.ends_with(words) || text.contains(&format!("{words} ")), "{text}");
            assert!(!text.contains(['(', '"', '{']), "{text}");
        }
        assert_eq!(bare(r#"DnsName("a.example")"#), "a.example");
        assert_eq!(bare("IpAddress(10.0.0.1)"), "10.0.0.1");
        assert_eq!(bare("plain"), "plain");
    }
}
