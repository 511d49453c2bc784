#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::VecDeque;
use std::fs;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer};
use rcgen::{KeyPair, date_time_ymd};
use tempfile::TempDir;

use super::pump::{Bounds, Engine};
use super::*;
use crate::reactor::{Interest, Reactor};
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
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
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

/// Waits until the stream can be read from.
fn wait(stream: &Stream) {
    let mut reactor = Reactor::<()>::new().unwrap();
    reactor.add(stream, 0, Interest::READ).unwrap();
    let (mut ready, mut mail) = (Vec::new(), Vec::new());
    reactor.wait(Some(Duration::from_secs(20)), &mut ready, &mut mail).unwrap();
    assert!(!ready.is_empty(), "nothing came within twenty seconds");
}

/// The next bytes; none at the end.
fn receive(stream: &mut Stream) -> io::Result<Vec<u8>> {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(stream),
            read => return read.map(|count| bytes[..count].to_vec()),
        }
    }
}

fn send(stream: &Stream, bytes: &[u8]) {
    assert_eq!(stream.send(&[IoSlice::new(bytes)]).unwrap(), bytes.len());
}

/// Both inner sides of a connection of `client` to `host` by the name of `name`.
fn joined(client: &Guard, host: &Guard, name: &str) -> (Stream, Stream) {
    let (ours, theirs) = tcp();
    let theirs = host.accept(nonblocking(theirs)).unwrap();
    (client.connect(nonblocking(ours), name).unwrap(), theirs)
}

/// The errors of both sides, the host's first, of a connection that is refused.
fn refused(client: &Guard, host: &Guard, name: &str) -> [String; 2] {
    let (mut ours, mut theirs) = joined(client, host, name);
    // It may know already.
    let _ = ours.send(&[IoSlice::new(b"hello")]);
    let refusals = |stream: &mut Stream| match receive(stream) {
        Err(error) => error.to_string(),
        Ok(bytes) => panic!("it is let in, and says {bytes:?}"),
    };
    [refusals(&mut theirs), refusals(&mut ours)]
}

#[test]
fn plain_bytes_inside_and_names_before_the_first() {
    let (authority, pump) = (Authority::new(), Pump::start().unwrap());
    let node = Guard::new(&pump, &authority.identity("a")).admitting(vec!["Front".into()]);
    let gateway = Guard::new(&pump, &authority.identity("front"));
    let (ours, theirs) = tcp();
    let mut theirs = node.accept(nonblocking(theirs)).unwrap();
    assert_eq!(theirs.tls_peer().unwrap().names(), [""; 0], "nobody is known before the handshake");
    let mut ours = gateway.connect(nonblocking(ours), "a").unwrap();
    // Data that is sent before the handshake is over is kept.
    send(&ours, b"hello");
    assert_eq!(receive(&mut theirs).unwrap(), b"hello");
    let tls_peer = theirs.tls_peer().unwrap();
    assert!(tls_peer.bears("front") && tls_peer.bears("FRONT") && !tls_peer.bears("a"));
    send(&theirs, b"welcome");
    assert_eq!(receive(&mut ours).unwrap(), b"welcome");
    // An end is one of its direction only.
    ours.finish().unwrap();
    assert_eq!(receive(&mut theirs).unwrap(), b"");
    send(&theirs, b"bye");
    assert_eq!(receive(&mut ours).unwrap(), b"bye");
    drop(theirs);
    assert_eq!(receive(&mut ours).unwrap(), b"");
    assert!(ours.tls_peer().unwrap().end().is_none(), "all is in good order");
}

#[test]
fn the_last_bytes_arrive_though_the_pump_ends() {
    let (authority, pump) = (Authority::new(), Pump::start().unwrap());
    let a = Guard::new(&pump, &authority.identity("a"));
    let elsewhere = Pump::start().unwrap();
    let b = Guard::new(&elsewhere, &authority.identity("b"));
    let (mut ours, theirs) = joined(&a, &b, "b");
    send(&theirs, b"x");
    assert_eq!(receive(&mut ours).unwrap(), b"x");
    send(&theirs, &[7; 50_000]);
    drop((theirs, b, elsewhere));
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
    let (authority, other, pump) = (Authority::new(), Authority::new(), Pump::start().unwrap());
    let guard = |authority: &Authority, name| Guard::new(&pump, &authority.identity(name));
    let (a, front) = (guard(&authority, "a"), guard(&authority, "front"));
    let closed = a.admitting(vec!["back".into()]);
    assert_eq!(
        refused(&front, &closed, "a"),
        [
            "the peer's certificate bears no name that is let in here",
            "the peer refuses our certificate: it bears no name that is let in there",
        ]
    );
    assert_eq!(
        refused(&front, &a, "b"),
        [
            "the peer refuses our certificate: it says no more",
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
    let mole = Guard::new(&pump, &Identity::read(other.path(), "mole").unwrap());
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
    let (authority, pump) = (Authority::new(), Pump::start().unwrap());
    let a = Guard::new(&pump, &authority.identity("a"));
    authority.issue("old", &["old"], 2001);
    let error = Identity::read(authority.path(), "old").unwrap_err().to_string();
    assert!(error.contains("old-cert.pem has expired; remove it with its key"), "{error}");
    let old = Guard::new(&pump, &Identity::load(authority.path(), "old").unwrap());
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
    let patient = Pump::within(bounds).unwrap();
    let hasty = Pump::within(Bounds { patience: Duration::from_millis(20), ..bounds }).unwrap();
    let [guard, strict] = [&patient, &hasty].map(|it| Guard::new(it, &authority.identity("a")));
    let come_to = |guard: &Guard| {
        let (ours, theirs) = tcp();
        (ours, guard.accept(nonblocking(theirs)))
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
    assert_eq!(ours.read(&mut [0; 16]).unwrap(), 0, "and the door is closed");
    // None of those is counted any more, and strangers have two slots, with as many more as
    // there are to be ended.
    let (mut outside, mut inside) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        let (ours, theirs) = tcp();
        outside.push(ours);
        match guard.accept(nonblocking(theirs)) {
            Ok(stream) => inside.push(stream),
            // Those before it are not ended yet.
            Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}"),
        }
    }
    drop(outside);
    for mut stream in inside {
        receive(&mut stream).unwrap_err();
    }
    while guard.accept(nonblocking(tcp().1)).is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn one_address_does_not_keep_other_addresses_from_their_handshake() {
    let authority = Authority::new();
    let bounds = Bounds { patience: Duration::from_secs(60), inbound: 2 };
    let (host, client) = (Pump::within(bounds).unwrap(), Pump::start().unwrap());
    let host = Guard::new(&host, &authority.identity("a"));
    let client = Guard::new(&client, &authority.identity("b"));
    let mut silent = Vec::new();
    let mut flood = || {
        let (ours, theirs) = tcp();
        // Where those before it are not ended yet it has to wait.
        while let Err(error) = host.accept(theirs.try_clone().map(nonblocking).unwrap()) {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            std::thread::yield_now();
        }
        silent.push(ours);
    };
    (0..2).for_each(|_| flood());
    // A user of this machine is another origin than the address.
    let (ours, theirs) = Stream::pair().unwrap();
    let mut theirs = host.accept(theirs).unwrap();
    (0..6).for_each(|_| flood());
    let ours = client.connect(ours, "a").unwrap();
    send(&ours, b"served");
    assert_eq!(receive(&mut theirs).unwrap(), b"served");
}

#[test]
fn certificates_of_parties_and_without_a_name_are_no_clients() {
    let (authority, pump) = (Authority::new(), Pump::start().unwrap());
    let node = Guard::new(&pump, &authority.identity("node"));
    let node = node.refusing(vec!["Front".into(), "node".into()]);
    let [front, user] = ["front", "ann"].map(|name| Guard::new(&pump, &authority.identity(name)));
    let [inside, outside] = refused(&front, &node, "node");
    assert!(inside.contains("bears no name that is let in here"), "{inside}");
    assert!(outside.contains("bears no name that is let in there"), "{outside}");
    authority.issue("nameless", &[], 4000);
    let nameless = Identity::load(authority.path(), "nameless").unwrap();
    let [inside, _] = refused(&Guard::new(&pump, &nameless), &node, "node");
    assert!(inside.contains("bears no name that is let in here"), "{inside}");
    let (ours, mut theirs) = joined(&user, &node, "node");
    send(&ours, b"served");
    assert_eq!(receive(&mut theirs).unwrap(), b"served");
}

#[test]
fn clients_learn_which_authority_their_certificate_has_to_be_of() {
    let inner = Authority::new().identity("node").inbound();
    let named = identity::Named { inner: inner.clone(), admitted: identity::Admitted::All };
    let hints = rustls::server::danger::ClientCertVerifier::root_hint_subjects(&named);
    assert_eq!(format!("{hints:?}"), format!("{:?}", inner.root_hint_subjects()));
    assert_eq!(hints.len(), 1);
}

/// An engine without its thread, and two connections in it whose outer sides are connected.
struct PumpTestbed {
    engine: Engine,
    /// The sides within.
    sides: Vec<Stream>,
    connections: u64,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl PumpTestbed {
    fn new() -> Self {
        let authority = Authority::new();
        let [a, b] = ["a", "b"].map(|name| authority.identity(name));
        let engine = Engine::new(Bounds::default()).unwrap();
        let (client, server) = (a.client(), b.server(Admitted::All));
        let mut world = Self { engine, sides: Vec::new(), connections: 0, client, server };
        let name = ServerName::try_from("b").unwrap();
        let (one, other) = Stream::pair().unwrap();
        let client = ClientConnection::new(world.client.clone(), name).unwrap();
        let server = ServerConnection::new(world.server.clone()).unwrap();
        world.sides = vec![world.pass(client.into(), one), world.pass(server.into(), other)];
        world
    }

    /// A connection for this outside; gives the side within.
    fn pass(&mut self, conn: Connection, outer: Stream) -> Stream {
        let (inside, inner) = Stream::pair().unwrap();
        let tls_peer = Arc::new(TlsPeer::default());
        let connection = Box::new(TlsConnection::new(conn, outer, inner, tls_peer.clone()));
        self.connections += 1;
        self.engine.enter(self.connections, connection);
        inside.with_tls_peer(tls_peer)
    }

    /// Lets the engine do what there is to do now. Says whether there was anything.
    fn round(&mut self) -> bool {
        let patience = Some(Duration::ZERO);
        self.engine.round(patience, &mut Vec::new(), &mut Vec::new()).unwrap() > 0
    }

    /// Lets it go on until it says that there is nothing to do.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.round() {
                return;
            }
        }
        panic!("it is busy with nothing");
    }
}

#[derive(Clone, Debug)]
enum Act {
    Send(usize, usize),
    Receive(usize, usize),
    Round,
}

fn act() -> impl Strategy<Value = Act> {
    let length = || prop_oneof![1usize..40, 10_000usize..20_000, 100_000usize..400_000];
    prop_oneof![
        (0usize..2, length()).prop_map(|(side, length)| Act::Send(side, length)),
        (0usize..2, length()).prop_map(|(side, length)| Act::Receive(side, length)),
        Just(Act::Round),
    ]
}

/// Bytes that differ from their neighbours, by how many were said before.
fn bytes(from: u64, length: usize) -> VecDeque<u8> {
    (from..from + length as u64).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn all_bytes_arrive_once_in_order_and_nothing_spins(
        acts in prop::collection::vec(act(), 1..60),
        closes_first in 0usize..2,
    ) {
        let mut world = PumpTestbed::new();
        // By speaker: how much was said, and what was not heard yet.
        let mut sent = [0, 0];
        let mut due = [VecDeque::new(), VecDeque::new()];
        let mut chunk = vec![0; 400_000];
        let mut receive = |world: &mut PumpTestbed,
                           due: &mut [VecDeque<u8>; 2],
                           side: usize,
                           most: usize| {
            let read = world.sides[side].read(&mut chunk[..most]);
            let count = match read {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                read => read.unwrap(),
            };
            let wanted: Vec<u8> = due[1 - side].drain(..count).collect();
            assert!(chunk[..count] == wanted, "other bytes than were said");
            Some(count)
        };
        for act in acts {
            match act {
                Act::Send(side, length) => {
                    let bytes: Vec<u8> = bytes(sent[side], length).into();
                    let taken = world.sides[side].send(&[IoSlice::new(&bytes)]).unwrap_or(0);
                    sent[side] += taken as u64;
                    due[side].extend(&bytes[..taken]);
                }
                Act::Receive(side, most) => drop(receive(&mut world, &mut due, side, most)),
                Act::Round => drop(world.round()),
            }
        }
        // One side ends, and then the other, each when all has been said.
        for side in [closes_first, 1 - closes_first] {
            world.sides[side].finish().unwrap();
            loop {
                world.settle();
                match receive(&mut world, &mut due, 1 - side, 400_000) {
                    Some(0) => break,
                    Some(_) => {}
                    None => panic!("{} bytes do not arrive, and nobody says so", due[side].len()),
                }
            }
            prop_assert!(due[side].is_empty());
        }
        prop_assert!(world.sides.iter().all(|end| end.tls_peer().unwrap().end().is_none()));
        prop_assert!(world.engine.is_empty(), "what is over is gone");
    }

    #[test]
    fn whatever_comes_from_outside_is_an_error_inside_and_no_more(
        garbage in prop::collection::vec(any::<u8>(), 0..300),
        keep in 0usize..2_000,
        is_flipped: bool,
    ) {
        // A true beginning, of which one byte may be another, and then anything.
        let mut world = PumpTestbed::new();
        let name = ServerName::try_from("b").unwrap();
        let mut client = ClientConnection::new(world.client.clone(), name).unwrap();
        let mut sent = Vec::new();
        client.write_tls(&mut sent).unwrap();
        sent.truncate(keep);
        if let (true, Some(byte)) = (is_flipped, sent.last_mut()) {
            *byte ^= 1;
        }
        sent.extend(garbage);
        let (outside, outer) = Stream::pair().unwrap();
        let server = ServerConnection::new(world.server.clone()).unwrap();
        let mut inside = world.pass(server.into(), outer);
        outside.send(&[IoSlice::new(&sent)]).unwrap();
        drop(outside);
        world.settle();
        prop_assert!(inside.read(&mut [0; 8]).is_err(), "it is let in");
    }
}
