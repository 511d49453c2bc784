//! `tidegate certify`: makes the certificates of a cluster that do not exist yet, and shows all of
//! them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use serde::Serialize;
use tidegate_fabric::default_paths::default_state;
use tidegate_fabric::tls::{AUTHORITY, certificate_file, key_file};
use tidegate_fabric::trusted::{FILE_MODE, Folder, Purpose, Secrecy, TrustError, TrustProblem};
use tidegate_model::Cluster;
use tidegate_model::cluster::{Address, is_certificate_name};

use tidegate_console::certificate::{client_identity, identity};
use tidegate_console::clock;
use tidegate_console::cluster_file::ClusterFile;
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::output;
use tidegate_console::text_file::Reader;

/// Make the missing certificates of a cluster
///
/// The folder is the one that the cluster's [tls] names. It gets an authority, and a certificate
/// and a key for the controller, each node, each data node, each gateway and clients. Existing
/// files are never changed; to renew a certificate, remove its file and run this again. The output
/// says which files belong on which machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate certify cluster.toml --state /srv/tidegate
  tidegate certify cluster.toml --host storage.example.com --host 192.0.2.7")]
pub(crate) struct Args {
    /// The cluster: its nodes, volumes and gateways
    #[arg(value_name = "CLUSTER", env = "TIDEGATE_CLUSTER", hide_env_values = true)]
    cluster: PathBuf,

    /// The directory that relative paths of the cluster are below; by default as for `up`
    #[arg(long, value_name = "DIR", env = "TIDEGATE_STATE", hide_env_values = true)]
    state: Option<PathBuf>,

    /// A name or number, besides those of their addresses, by which clients reach gateways and data
    /// nodes
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    #[arg(env = "TIDEGATE_HOST", hide_env_values = true)]
    host: Vec<String>,

    /// Make a certificate for a client that is this user of the policy; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    #[arg(env = "TIDEGATE_USER", hide_env_values = true)]
    user: Vec<String>,

    /// How long certificates are valid, in days
    #[arg(long, value_name = "DAYS", default_value_t = 825)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=36_500))]
    #[arg(env = "TIDEGATE_DAYS", hide_env_values = true)]
    days: u32,
}

/// How long an authority is valid at least, in days: ten years, because a new one means new
/// certificates everywhere at once.
const AUTHORITY_DAYS: u32 = 3_650;

/// Seconds by which clocks of the machines may differ before a new certificate is refused.
const SKEW: u64 = 24 * 60 * 60;

/// The name of every authority that is made here. Authorities differ by their keys.
const COMMON_NAME: &str = "Tidegate cluster authority";

/// A certificate, and whether it was made or kept.
#[derive(Debug, Serialize)]
struct CertificateRow {
    certificate: PathBuf,
    key: PathBuf,
    /// The component that the certificate is for.
    holder: String,
    /// The names that it is to bear.
    names: Vec<String>,
    /// Whether it was made now, and not there before.
    made: bool,
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let file = ClusterFile::read(&args.cluster, Reader::Daemon)?;
    let base = args.state.clone().unwrap_or_else(default_state);
    let Some(directory) = crate::guards::directory(&file.cluster, &base) else {
        let failure = Failure::new(Code::Invalid, format!("{} has no [tls]", file.name));
        return Err(failure.help("add it, with directory = \"tls\" for example"));
    };
    let holders = holders(&file.cluster, &args.host, &args.user)?;
    let folder =
        Folder::make(&directory, Purpose::Private).map_err(|error| unwritten(&directory, error))?;
    let ca = CertificateAuthority { directory, folder, days: args.days };
    let mut lines = vec![ca.authority()?];
    for holder in holders {
        lines.push(ca.certify(holder)?);
    }
    match common.json {
        true => output::print_json(&lines)?,
        false => output::print(&lines.iter().map(render).collect::<String>())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// One who gets a certificate.
#[derive(Debug)]
struct Holder {
    /// The name of its files.
    name: String,
    /// The component or user, as shown.
    text: String,
    /// The names that the certificate bears.
    names: Vec<String>,
    side: Side,
}

/// The purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// A component, which is a server and a client of others.
    Component,
    /// A client, or a user of the policy. It is valid for no server, by which components tell that
    /// it is none of them.
    Client,
}

fn holders(cluster: &Cluster, more: &[String], users: &[String]) -> Result<Vec<Holder>, Failure> {
    let with = |name: &str, text: String, side| Holder {
        name: name.to_owned(),
        text,
        names: vec![name.to_owned()],
        side,
    };
    let of = |name: &str, text: String| with(name, text, Side::Component);
    let mut holders = vec![of(Cluster::CONTROLLER, "the controller".into())];
    holders.extend(cluster.nodes.iter().map(|node| of(&node.name, format!("node {}", node.name))));
    for node in &cluster.data_nodes {
        let mut holder = of(&node.name, format!("data node {}", node.name));
        holder
            .names
            .extend(hosts(Some(&node.listen).filter(|it| matches!(it, Address::Tcp { .. })), more));
        holders.push(holder);
    }
    for gateway in &cluster.gateways {
        let mut holder = of(&gateway.name, format!("gateway {}", gateway.name));
        holder.names.extend(hosts(gateway.nbd.as_ref(), more));
        holders.push(holder);
    }
    holders.push(with(Cluster::CLIENT, "clients".into(), Side::Client));
    for user in users {
        // Checked before anything is written: the name becomes that of files, too.
        if !is_certificate_name(user) {
            let failure =
                Failure::new(Code::Usage, format!("{user:?} cannot be a certificate's name"));
            return Err(failure
                .help("use letters, digits, and '-' or '.' in between, and no number at the end"));
        }
        let is_taken = |name: &str| name.eq_ignore_ascii_case(user);
        if is_taken(Cluster::AUTHORITY) || holders.iter().any(|it| is_taken(&it.name)) {
            let what = format!("user {user} would have the certificate of another");
            let failure = Failure::new(Code::Usage, what);
            return Err(failure.help("choose another name: it identifies the holder"));
        }
        holders.push(with(user, format!("user {user}"), Side::Client));
    }
    // A host with the name of another component would pass for that component.
    for Holder { name, text, names, .. } in &holders {
        let clash = |host: &&String| {
            let is_own = host.eq_ignore_ascii_case(name);
            !is_own && holders.iter().any(|other| other.name.eq_ignore_ascii_case(host))
        };
        if let Some(host) = names.iter().find(clash) {
            let what = format!("{text} is at host {host}, and {host} is a party of the cluster");
            let failure = Failure::new(Code::Invalid, what);
            return Err(failure.help("give the party another name: it identifies the holder"));
        }
    }
    Ok(holders)
}

/// The names by which clients reach the component that listens there.
fn hosts(address: Option<&Address>, more: &[String]) -> Vec<String> {
    let mut hosts = more.to_vec();
    match address {
        Some(address) if address.is_local() => {
            hosts.extend(["localhost", "127.0.0.1", "::1"].map(String::from));
        }
        Some(Address::Tcp { host, .. }) => hosts.push(host.clone()),
        _ => {}
    }
    // Everywhere is nowhere that one could go to.
    hosts.retain(|host| !["0.0.0.0", "::"].contains(&host.as_str()));
    hosts.sort();
    hosts.dedup();
    hosts
}

/// Where certificates are made.
struct CertificateAuthority {
    directory: PathBuf,
    /// The same, opened.
    folder: Folder,
    days: u32,
}

impl CertificateAuthority {
    /// The authority; made if neither its certificate nor its key is there.
    fn authority(&self) -> Result<CertificateRow, Failure> {
        let certificate = self.directory.join(AUTHORITY);
        let key = self.directory.join(key_file(Cluster::AUTHORITY));
        let made = !certificate.exists();
        if made {
            let signer = self.key_pair(&key_file(Cluster::AUTHORITY))?;
            let params = authority_params(self.days);
            let signed = params.self_signed(&signer).map_err(unsigned)?;
            self.write(AUTHORITY, 0o644, &signed.pem())?;
        }
        let (holder, names) = ("the authority".into(), Vec::new());
        Ok(CertificateRow { certificate, key, holder, names, made })
    }

    /// The certificate of a party or user; made if it is not there, with its key if that is not
    /// there either.
    fn certify(&self, holder: Holder) -> Result<CertificateRow, Failure> {
        let Holder { name, text, names, side } = holder;
        let name = name.as_str();
        let certificate = self.directory.join(certificate_file(name));
        let key = self.directory.join(key_file(name));
        let made = !certificate.exists();
        if made {
            let signer = self.read_key(&key_file(Cluster::AUTHORITY)).map_err(|error| {
                let path = self.directory.join(key_file(Cluster::AUTHORITY));
                let what = format!("cannot sign without {}", path.display());
                let failure = Failure::new(Code::Failure, what).cause(error);
                failure.help("run this where the authority was made, and copy what it makes")
            })?;
            let mut params = CertificateParams::new(names.clone()).map_err(unsigned)?;
            params.distinguished_name.push(DnType::CommonName, name);
            params.use_authority_key_identifier_extension = true;
            // QEMU wants the second of clients too.
            params.key_usages =
                vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            if side == Side::Component {
                params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
            }
            valid(&mut params, self.days);
            let issuer = Issuer::new(authority_params(self.days), signer);
            let key = self.key_pair(&key_file(name))?;
            let signed = params.signed_by(&key, &issuer).map_err(unsigned)?;
            self.write(&certificate_file(name), 0o644, &signed.pem())?;
        }
        match side {
            Side::Component => identity(&self.directory, name)?,
            Side::Client => client_identity(&self.directory, name)?,
        };
        Ok(CertificateRow { certificate, key, holder: text, names, made })
    }

    /// The key in a file, or a new one that is in it from now on.
    fn key_pair(&self, name: &str) -> Result<KeyPair, Failure> {
        if self.folder.has(name) {
            return self.read_key(name).map_err(|error| {
                let what = format!("cannot use {}", self.directory.join(name).display());
                let failure = Failure::new(Code::Failure, what).cause(error);
                failure.help("remove it, and run this again")
            });
        }
        let key = KeyPair::generate().map_err(unsigned)?;
        self.write(name, FILE_MODE, &key.serialize_pem())?;
        Ok(key)
    }

    fn read_key(&self, name: &str) -> io::Result<KeyPair> {
        let bytes = self.folder.read(name, Secrecy::Secret)?;
        KeyPair::from_pem(&String::from_utf8_lossy(&bytes)).map_err(io::Error::other)
    }

    /// Writes a file that is not there yet.
    fn write(&self, name: &str, mode: u32, text: &str) -> Result<(), Failure> {
        let written = self.folder.create(name, text.as_bytes(), mode);
        written.map_err(|error| unwritten(&self.directory.join(name), error))
    }
}

fn authority_params(days: u32) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, COMMON_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, days.max(AUTHORITY_DAYS));
    params
}

/// From a day ago for so many days.
fn valid(params: &mut CertificateParams, days: u32) {
    let now = clock::unix_ms() / 1000;
    let at = |seconds: u64| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    params.not_before = at(now.saturating_sub(SKEW));
    params.not_after = at(now + u64::from(days) * 24 * 60 * 60);
}

fn unwritten(path: &Path, error: TrustError) -> Failure {
    let render = format!("cannot make {}", path.display());
    match error.problem {
        TrustProblem::Io(error) => Failure::new(Code::Failure, render)
            .cause(error)
            .help("choose another directory with --state, or in the cluster's [tls]"),
        _ => Failure::quoted(Code::Failure, &format!("{render}: {error}")),
    }
}

fn unsigned(error: rcgen::Error) -> Failure {
    let failure = Failure::new(Code::Failure, "cannot make a certificate").cause(error);
    failure.help("see whether what --host says is the name or number of a host")
}

/// The line about a certificate: whether it was made or kept, and where it belongs.
fn render(line: &CertificateRow) -> String {
    let CertificateRow { certificate, key, holder, names, made } = line;
    let (certificate, key) = (certificate.display(), key.display());
    let verb = if *made { "made" } else { "kept" };
    match &names[..] {
        [] => format!(
            "{verb} {certificate}: {holder}, for every machine and for clients\n     {key}: to \
             sign with; its owner can admit any client, so it stays here\n"
        ),
        [_, hosts @ ..] => {
            let at = match hosts {
                [] => String::new(),
                hosts => format!(", at {}", hosts.join(", ")),
            };
            format!("{verb} {certificate}\n     {key}: for {holder}{at}\n")
        }
    }
}
