#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod network;

use std::cell::RefCell;
use std::fs;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Weak;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer};
use rcgen::{KeyPair, date_time_ymd};
use tempfile::TempDir;

use super::*;
use crate::reactor::{Interest, Reactor};
use crate::stream::Stream;
use crate::trusted::{FILE_MODE, Folder, Purpose};

/// An authority, and what it signs.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "a test's authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        fs::write(folder.path().join(AUTHORITY), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Makes the files of `name`, with a certificate that bears `names` and ends in that year.
    fn issue(&self, name: &str, names: &[&str], year: i32) {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        self.issue_for(name, names, year, vec![ServerAuth, ClientAuth]);
    }

    /// The same for these purposes.
    fn issue_for(
        &self,
        name: &str,
        names: &[&str],
        year: i32,
        purposes: Vec<ExtendedKeyUsagePurpose>,
    ) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = purposes;
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path().join(certificate_file(name)), certificate.pem()).unwrap();
        let folder = Folder::open(self.path(), Purpose::Private).unwrap();
        folder.replace(key_file(name), key.serialize_pem().as_bytes(), FILE_MODE).unwrap();
    }

    fn identity(&self, name: &str) -> Identity {
        self.issue(name, &[name], 4000);
        Identity::read(self.path(), name).unwrap()
    }
}

/// Two sockets over TCP; the second is the one that came.
fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

fn nonblocking(stream: TcpStream) -> Stream {
    stream.set_nonblocking(true).unwrap();
    Stream::try_from(stream).unwrap()
}

thread_local! {
    /// The streams of a test. One thread has both ends, so whoever waits for one advances all.
    static STREAMS: RefCell<Vec<Weak<TlsStream>>> = const { RefCell::new(Vec::new()) };
}

fn tracked(stream: Stream) -> Stream {
    STREAMS.with_borrow_mut(|streams| streams.extend(stream.tls().map(Arc::downgrade)));
    stream
}

fn accept(guard: &Guard, socket: Stream) -> Stream {
    tracked(socket.accept_tls(guard).unwrap())
}

fn connect(guard: &Guard, socket: Stream, name: &str) -> Stream {
    tracked(socket.connect_tls(guard, name).unwrap())
}

/// Advances all handshakes, and waits a moment until the stream can be read from.
fn wait(stream: &Stream, until: Instant) {
    assert!(Instant::now() < until, "nothing came within a minute");
    let streams = STREAMS.with_borrow(|streams| streams.clone());
    for stream in streams.iter().filter_map(Weak::upgrade) {
        let _ = stream.receive(&mut []);
    }
    let mut reactor = Reactor::<()>::new().unwrap();
    reactor.add(stream, 0, Interest::READ).unwrap();
    let moment = Some(Duration::from_millis(1));
    reactor.wait(moment, &mut Vec::new(), &mut Vec::new()).unwrap();
}

/// The next bytes; none at the end.
fn receive(stream: &mut Stream) -> io::Result<Vec<u8>> {
    let until = Instant::now() + Duration::from_secs(60);
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(stream, until),
            read => return read.map(|count| bytes[..count].to_vec()),
        }
    }
}

fn send(stream: &Stream, bytes: &[u8]) {
    assert_eq!(stream.send(&[IoSlice::new(bytes)]).unwrap(), bytes.len());
}

/// Both sides of a connection of `client` to `host` by the name of `name`.
fn joined(client: &Guard, host: &Guard, name: &str) -> (Stream, Stream) {
    let (ours, theirs) = tcp();
    let theirs = accept(host, nonblocking(theirs));
    (connect(client, nonblocking(ours), name), theirs)
}

/// The errors of both sides, the host's first, of a connection that is refused.
fn refused(client: &Guard, host: &Guard, name: &str) -> [String; 2] {
    let (mut ours, mut theirs) = joined(client, host, name);
    // It may know already.
    let _ = ours.send(&[IoSlice::new(b"hello")]);
    let refusals = |stream: &mut Stream| match receive(stream) {
        Err(error) => error.to_string(),
        Ok(bytes) => panic!("it is accepted, and sends {bytes:?}"),
    };
    [refusals(&mut theirs), refusals(&mut ours)]
}

#[test]
fn plain_bytes_inside_and_names_before_the_first() {
    let authority = Authority::new();
    let node = Guard::new(&authority.identity("a")).admitting(vec!["Front".into()]);
    let gateway = Guard::new(&authority.identity("front"));
    let (ours, theirs) = tcp();
    let mut theirs = accept(&node, nonblocking(theirs));
    assert_eq!(theirs.names().unwrap(), [""; 0], "no peer is identified before the handshake");
    let mut ours = connect(&gateway, nonblocking(ours), "a");
    // Data that is sent before the handshake is over is kept.
    send(&ours, b"hello");
    assert_eq!(receive(&mut theirs).unwrap(), b"hello");
    let names = theirs.names().unwrap();
    assert!(bears(names, "front") && bears(names, "FRONT") && !bears(names, "a"));
    send(&theirs, b"welcome");
    assert_eq!(receive(&mut ours).unwrap(), b"welcome");
    // An end is one of its direction only.
    ours.finish().unwrap();
    assert_eq!(receive(&mut theirs).unwrap(), b"");
    send(&theirs, b"bye");
    assert_eq!(receive(&mut ours).unwrap(), b"bye");
    drop(theirs);
    assert_eq!(receive(&mut ours).unwrap(), b"", "all is in good order");
}

#[test]
fn the_last_bytes_arrive_though_the_stream_is_closed() {
    let authority = Authority::new();
    let [a, b] = ["a", "b"].map(|name| Guard::new(&authority.identity(name)));
    let (mut ours, theirs) = joined(&a, &b, "b");
    send(&theirs, b"x");
    assert_eq!(receive(&mut ours).unwrap(), b"x");
    send(&theirs, &[7; 50_000]);
    drop((theirs, b));
    let mut received = 0;
    while let Ok(bytes) = receive(&mut ours)
        && !bytes.is_empty()
    {
        received += bytes.len();
    }
    assert_eq!(received, 50_000);
}

#[test]
fn foreign_certificates_are_refused_on_both_sides() {
    let (authority, other) = (Authority::new(), Authority::new());
    let guard = |authority: &Authority, name| Guard::new(&authority.identity(name));
    let (a, front) = (guard(&authority, "a"), guard(&authority, "front"));
    let closed = a.admitting(vec!["back".into()]);
    assert_eq!(
        refused(&front, &closed, "a"),
        [
            "the peer's certificate has no name that is admitted here",
            "the peer refuses our certificate: it has no name that is admitted there",
        ]
    );
    assert_eq!(
        refused(&front, &a, "b"),
        [
            "the peer refuses our certificate: it gives no other reason",
            "the peer's certificate is for a and not for b",
        ]
    );
    assert_eq!(
        refused(&front, &guard(&other, "a"), "a")[1],
        "the peer's certificate is not of our authority"
    );
    // A peer that trusts us, and that we do not trust.
    fs::copy(authority.path().join(AUTHORITY), other.path().join("both.pem")).unwrap();
    other.issue("mole", &["mole"], 4000);
    let [certificate, key] = [certificate_file("mole"), key_file("mole")];
    for file in [&certificate, &key] {
        fs::copy(other.path().join(file), authority.path().join(file)).unwrap();
    }
    let error = Identity::read(authority.path(), "mole").unwrap_err().to_string();
    assert!(error.contains("mole-cert.pem is not of our authority; remove it"), "{error}");
    let own = fs::read_to_string(other.path().join(AUTHORITY)).unwrap();
    let both = own + &fs::read_to_string(authority.path().join(AUTHORITY)).unwrap();
    fs::write(other.path().join(AUTHORITY), both).unwrap();
    let mole = Guard::new(&Identity::read(other.path(), "mole").unwrap());
    assert_eq!(
        refused(&mole, &a, "a"),
        [
            "the peer's certificate is not of our authority",
            "the peer refuses our certificate: it is not of its authority",
        ]
    );
}

#[test]
fn a_certificate_that_expires_while_its_process_runs() {
    let authority = Authority::new();
    let a = Guard::new(&authority.identity("a"));
    authority.issue("old", &["old"], 2001);
    let error = Identity::read(authority.path(), "old").unwrap_err().to_string();
    assert!(error.contains("old-cert.pem has expired; remove it with its key"), "{error}");
    let old = Guard::new(&Identity::load(authority.path(), "old").unwrap());
    let refusals = refused(&old, &a, "a");
    assert_eq!(refusals[0], "the peer's certificate has expired");
    assert_eq!(refused(&a, &old, "old")[1], "the peer's certificate has expired");
    assert!(authority.identity("b").lasts(Duration::from_secs(86_400)));
    authority.issue("b", &["b"], 2100);
    let b = Identity::read(authority.path(), "b").unwrap();
    assert!(!b.lasts(Duration::from_secs(200 * 366 * 86_400)));
}

#[test]
fn files_that_do_not_fit_are_named_with_the_remedy() {
    let authority = Authority::new();
    let at = |name: &str| authority.path().join(name);
    let read = |name: &str| Identity::read(authority.path(), name).unwrap_err().to_string();
    assert!(read("a").contains("a-cert.pem: No such file or directory (os error 2); make it with"));
    authority.issue("a", &["b"], 4000);
    assert!(read("a").contains("a-cert.pem is for b and not for a; remove it"), "{}", read("a"));
    authority.issue("a", &["a"], 4000);
    authority.issue("b", &["b"], 4000);
    fs::copy(at("b-key.pem"), at("a-key.pem")).unwrap();
    assert!(read("a").contains("a-key.pem is not the key of /"), "{}", read("a"));
    fs::write(at("a-key.pem"), "nothing").unwrap();
    assert!(read("a").contains("a-key.pem holds no private key; put one there"), "{}", read("a"));
    authority.issue("a", &["a"], 4000);
    let nonsense = "-----BEGIN CERTIFICATE-----\nbm9uc2Vuc2U=\n-----END CERTIFICATE-----\n";
    fs::write(at("a-cert.pem"), nonsense).unwrap();
    assert!(read("a").contains("the certificate /"), "{}", read("a"));
    assert!(read("a").contains("a-cert.pem is not valid: "), "{}", read("a"));
    fs::write(at("a-cert.pem"), "").unwrap();
    assert!(read("a").contains("a-cert.pem holds no certificate; put"), "{}", read("a"));
    fs::remove_file(at(AUTHORITY)).unwrap();
    assert!(read("b").contains("ca-cert.pem: No such file"), "{}", read("b"));
}

#[test]
fn connections_without_tls_and_stalled_handshakes_are_closed() {
    let authority = Authority::new();
    let bounds = Bounds { patience: Duration::from_secs(60), inbound: 2 };
    let hasty = Bounds { patience: Duration::from_millis(20), ..bounds };
    let [guard, strict] = [bounds, hasty].map(|it| Guard::within(&authority.identity("a"), it));
    let come_to = |guard: &Guard| {
        let (ours, theirs) = tcp();
        (ours, nonblocking(theirs).accept_tls(guard))
    };
    let (mut ours, theirs) = come_to(&guard);
    ours.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let error = receive(&mut theirs.unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "what the peer sends is no TLS");
    let (ours, theirs) = come_to(&guard);
    drop(ours);
    let error = receive(&mut theirs.unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "the peer left before the end of its TLS handshake");
    let (mut ours, theirs) = come_to(&strict);
    let error = receive(&mut theirs.unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "the peer has not finished its TLS handshake in time");
    assert_eq!(ours.read(&mut [0; 16]).unwrap(), 0, "and the connection is closed");
    // None of those is counted any more, and strangers have two slots.
    let mut all: Vec<_> = (0..8).map(|_| come_to(&guard)).collect();
    let evicted = all.drain(..6).collect::<Vec<_>>();
    for (_ours, theirs) in evicted {
        let error = receive(&mut theirs.unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    }
    for (ours, theirs) in all {
        drop(ours);
        let error = receive(&mut theirs.unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "the peer left before the end of its TLS handshake");
    }
    nonblocking(tcp().1).accept_tls(&guard).unwrap();
}

#[test]
fn one_address_does_not_keep_other_addresses_from_their_handshake() {
    let authority = Authority::new();
    let bounds = Bounds { patience: Duration::from_secs(60), inbound: 2 };
    let host = Guard::within(&authority.identity("a"), bounds);
    let client = Guard::new(&authority.identity("b"));
    let mut silent = Vec::new();
    let mut flood = || {
        let (ours, theirs) = tcp();
        silent.push((ours, nonblocking(theirs).accept_tls(&host).unwrap()));
    };
    (0..2).for_each(|_| flood());
    // A user of this machine is another origin than the address.
    let (ours, theirs) = Stream::pair().unwrap();
    let mut theirs = accept(&host, theirs);
    (0..6).for_each(|_| flood());
    let ours = connect(&client, ours, "a");
    send(&ours, b"served");
    assert_eq!(receive(&mut theirs).unwrap(), b"served");
}

#[test]
fn certificates_of_parties_and_without_a_name_are_no_clients() {
    let authority = Authority::new();
    let node = Guard::new(&authority.identity("node"));
    let node = node.refusing(vec!["Front".into(), "node".into()]);
    let [front, user] = ["front", "ann"].map(|name| Guard::new(&authority.identity(name)));
    let [inside, outside] = refused(&front, &node, "node");
    assert!(inside.contains("has no name that is admitted here"), "{inside}");
    assert!(outside.contains("has no name that is admitted there"), "{outside}");
    authority.issue("nameless", &[], 4000);
    let nameless = Identity::load(authority.path(), "nameless").unwrap();
    let [inside, _] = refused(&Guard::new(&nameless), &node, "node");
    assert!(inside.contains("has no name that is admitted here"), "{inside}");
    let (ours, mut theirs) = joined(&user, &node, "node");
    send(&ours, b"served");
    assert_eq!(receive(&mut theirs).unwrap(), b"served");
}

/// A component may be added that has the name of a user.
#[test]
fn the_certificate_of_a_user_is_none_of_a_component_with_that_name() {
    let authority = Authority::new();
    let node = Guard::new(&authority.identity("node"));
    authority.issue_for("ann", &["ann"], 4000, vec![ExtendedKeyUsagePurpose::ClientAuth]);
    let error = Identity::read(authority.path(), "ann").unwrap_err().to_string();
    assert!(error.contains("ann-cert.pem is made for another purpose"), "{error}");
    let ann = Guard::new(&Identity::read_client(authority.path(), "ann").unwrap());
    for closed in [node.admitting(vec!["ann".into()]), node.with_components(vec!["Ann".into()])] {
        let [inside, _] = refused(&ann, &closed, "node");
        assert!(inside.contains("certificate is made for another purpose"), "{inside}");
    }
    let open = node.with_components(vec!["front".into()]);
    for client in [&ann, &Guard::new(&authority.identity("front"))] {
        let (ours, mut theirs) = joined(client, &open, "node");
        send(&ours, b"served");
        assert_eq!(receive(&mut theirs).unwrap(), b"served");
    }
}

#[test]
fn clients_learn_which_authority_their_certificate_has_to_be_of() {
    let identity = Authority::new().identity("node");
    let inner = identity.inbound();
    let components = identity.hosts();
    let admitted = identity::Admitted::All;
    let named = identity::Named { inner: inner.clone(), components, admitted };
    let hints = rustls::server::danger::ClientCertVerifier::root_hint_subjects(&named);
    assert_eq!(format!("{hints:?}"), format!("{:?}", inner.root_hint_subjects()));
    assert_eq!(hints.len(), 1);
}
