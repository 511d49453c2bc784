//! Security checks of a cluster: names that certificates can bear, and no listener that other
//! machines reach without a certificate.

use alloc::format;

use super::{Address, Cluster, RawGateway};
use crate::text::{ReadResult, Text, nearest, wrong};

/// Whether a certificate can bear this name: a DNS name that is no IP address.
pub fn is_certificate_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(is_plain)
            && label.trim_matches('-') == label
    };
    let last = name.split('.').next_back().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    name.len() <= 253 && name.split('.').all(is_label) && !is_number
}

/// Refuses a name that a certificate cannot bear, or that another certificate bears: with TLS, a
/// certificate's name identifies a component, whatever its role.
pub(super) fn borne(cluster: &Cluster, text: &Text) -> ReadResult<()> {
    if cluster.tls.is_none() {
        return Ok(());
    }
    let name = text.get_ref();
    if !is_certificate_name(name) {
        let message = format!("name: {name:?} cannot be a certificate's");
        let fix = "use letters, digits, and '-' or '.' in between, and no number at the end";
        return wrong(text.span(), message, fix);
    }
    let peer_names = cluster.nodes.iter().map(|node| node.name.as_str());
    let peer_names = peer_names.chain(cluster.gateways.iter().map(|gateway| gateway.name.as_str()));
    let peer_names = peer_names.chain(cluster.data_nodes.iter().map(|node| node.name.as_str()));
    let others = [Cluster::CONTROLLER, Cluster::CLIENT, Cluster::AUTHORITY];
    match peer_names.chain(others).any(|other| other.eq_ignore_ascii_case(name)) {
        false => Ok(()),
        true => {
            let message = format!("name: {name:?} is the name of another certificate");
            wrong(text.span(), message, "choose another name")
        }
    }
}

/// Refuses an address that other machines reach where no client has to show a certificate.
pub(super) fn guarded(
    field: &str,
    address: Option<&Address>,
    text: Option<&Text>,
    tls: bool,
) -> ReadResult<()> {
    let far = address.filter(|address| !address.is_local() && !tls);
    let Some((far, text)) = far.zip(text) else { return Ok(()) };
    let message = format!("{field}: {far} can be reached from other machines");
    let fix = match field {
        "memcached" => "any host that reaches it may do anything; use 127.0.0.1",
        _ => "any host that reaches it may do anything; add [tls], or use 127.0.0.1",
    };
    wrong(text.span(), message, fix)
}

/// Whether NBD clients must use TLS: where other machines reach the address, or where the file
/// requires it.
pub(super) fn is_tls_required(
    raw: &RawGateway,
    nbd: Option<&Address>,
    tls: bool,
) -> ReadResult<bool> {
    let is_far = nbd.is_some_and(|address| !address.is_local());
    let Some(text) = &raw.tls else { return Ok(is_far) };
    if !tls || nbd.is_none() {
        let without = if tls { "nbd" } else { "[tls]" };
        return wrong(text.span(), format!("tls: there is no {without}"), "add it, or remove this");
    }
    match text.get_ref().as_str() {
        "required" => Ok(true),
        "offered" if is_far => {
            let message = "tls: other machines reach this gateway, so it is required";
            wrong(text.span(), message, "remove this, or listen on 127.0.0.1")
        }
        "offered" => Ok(false),
        other => {
            let fix = nearest(other, ["offered", "required"].into_iter());
            wrong(text.span(), format!("tls: {other:?} is not a choice"), fix)
        }
    }
}
