//! Certificates: stock clients and components of several machines use TLS, and no other
//! client does. A refused client, or the log, gets the reason.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::de::DeserializeOwned;
use tidegate_fabric::stream::Address;
use tidegate_fabric::stream::Way;
use tidegate_fabric::tls::{Guard, Identity};
use tidegate_fabric::unix::MessageLink;
use tidegate_proto::cluster::message::{NodeInfo, ToNode};
use tidegate_proto::message::{Hello, Reply, StageInfo, ToGateway, ToStage, VERSION};
use tidegate_tests::cluster::{Cluster, GATEWAY, volume};
use tidegate_tests::process::{self, ProgramOutcome, Running};
use tidegate_tests::{PATIENCE, eventually, tools};

use super::{OPEN, noise};

const SIZE: usize = 6 << 20;

/// A cluster of which everything listens on TCP, and its addresses.
struct Guarded {
    cluster: Cluster,
    controller: String,
    node: String,
    gateway: String,
}

/// Three addresses of this machine that were free a moment ago.
fn free() -> [String; 3] {
    let held = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    held.map(|listener| listener.local_addr().unwrap().to_string())
}

impl Guarded {
    /// With its certificates, and nothing that runs.
    fn new() -> Self {
        let [controller, node, gateway] = free();
        let file = format!(
            "[tls]\ndirectory = \"tls\"\n[controller]\nlisten = [\"unix:SOCKET\", {controller:?}]\n\
             [[node]]\nname = \"a\"\naddress = {node:?}\ndirectory = \"a\"\n\
             [[node]]\nname = \"b\"\naddress = \"unix:b.sock\"\ndirectory = \"b\"\n\
             [[gateway]]\nname = \"front\"\nnbd = {gateway:?}\ntls = \"required\"\n{}",
            volume("db", "oltp", "6MiB", &["a", "b"])
        );
        let cluster = Cluster::new(&file, OPEN);
        let made = Self { cluster, controller, node, gateway };
        made.certify(&[]).success();
        made
    }

    fn up(mut self) -> Self {
        let mut command = self.cluster.command(&["--role", "controller"]);
        self.cluster.bed().up_with(&mut command);
        ["a", "b"].iter().for_each(|name| self.cluster.start("node", name));
        self.cluster.start("gateway", GATEWAY);
        eventually("all nodes", || self.reads());
        self
    }

    /// Whether a client reads all of the volume.
    fn reads(&self) -> bool {
        self.nbdinfo(&self.uri()).code == Some(0)
            && self.nbdcopy(&[&self.uri(), "null:"]).code == Some(0)
    }

    fn certify(&self, arguments: &[&str]) -> ProgramOutcome {
        let mut command = Command::new(tidegate_tests::built::tidegate());
        command.arg("certify").arg(self.cluster.file()).arg("--state").arg(self.cluster.state());
        process::run(command.args(arguments))
    }

    fn tls(&self) -> PathBuf {
        self.cluster.path("tls")
    }

    fn uri(&self) -> String {
        self.uri_with(&self.tls())
    }

    fn uri_with(&self, certificates: &Path) -> String {
        format!("nbds://{}/db?tls-certificates={}", self.gateway, certificates.display())
    }

    fn nbdinfo(&self, uri: &str) -> ProgramOutcome {
        self.cluster.client("nbdinfo", &["--size", uri])
    }

    fn nbdcopy(&self, arguments: &[&str]) -> ProgramOutcome {
        self.cluster.client("nbdcopy", arguments)
    }

    /// The TLS identity with the certificate of `name`.
    fn guard(&self, name: &str) -> Guard {
        let identity = Identity::read_client(&self.tls(), name).unwrap();
        Guard::new(&identity)
    }

    /// Returns the controller's answer to `hello` from a peer with this certificate.
    fn receive_reply<In: DeserializeOwned>(&self, certificate: &str, hello: &Hello) -> In {
        self.try_hello(&self.controller, certificate, "controller", hello).unwrap()
    }

    /// Returns the answer of the server that listens at `address` by that name.
    fn try_hello<In: DeserializeOwned>(
        &self,
        address: &str,
        certificate: &str,
        name: &str,
        hello: &Hello,
    ) -> io::Result<In> {
        let address: Address = address.parse().unwrap();
        let way = Way { address, tls: Some((self.guard(certificate), name.to_owned())) };
        let mut link = MessageLink::from(way.connect()?);
        link.send(hello)?;
        link.wait(PATIENCE)
    }
}

#[test]
fn certificates_are_made_once() {
    let guarded = Guarded::new();
    let tls = guarded.tls();
    let files = ["ca", "controller", "a", "b", "front", "client"];
    let read = || files.map(|name| fs::read(tls.join(format!("{name}-cert.pem"))).unwrap());
    for name in files {
        let mode = |kind: &str| fs::metadata(tls.join(format!("{name}-{kind}.pem"))).unwrap();
        assert_eq!(mode("key").permissions().mode() & 0o777, 0o600, "{name}");
        assert_eq!(mode("cert").permissions().mode() & 0o777, 0o644, "{name}");
    }
    let before = read();
    let again = guarded.certify(&["--host", "storage.example.com"]).success();
    assert!(!again.stdout.contains("made ") && read() == before, "{again:?}");
    // A removed certificate is made anew, for the same key; and clients go by another name as well.
    fs::remove_file(tls.join("front-cert.pem")).unwrap();
    let output = guarded.certify(&["--host", "storage.example.com"]).success().stdout;
    let line = "key.pem: for gateway front, at 127.0.0.1, ::1, localhost, storage.example.com";
    assert!(output.contains(line) && output.matches("made ").count() == 1, "{output}");
    // No certificate is signed without the authority's key, and no key is made in its place.
    fs::remove_file(tls.join("b-cert.pem")).unwrap();
    fs::rename(tls.join("ca-key.pem"), tls.join("elsewhere")).unwrap();
    let refused = guarded.certify(&[]).failure(1).complaint();
    assert!(refused.contains("cannot sign without") && refused.contains("ca-key.pem"), "{refused}");
    assert!(!tls.join("ca-key.pem").exists() && !tls.join("b-cert.pem").exists());
    // A host with the name of a component would pass for that component.
    let refused = guarded.certify(&["--host", "B"]).failure(3).complaint();
    assert!(refused.contains("gateway front is at host B, and B is a party"), "{refused}");
    guarded.cluster.write("[[node]]\nname = \"a\"\nmemory = true\n");
    let refused = guarded.certify(&[]).failure(3).complaint();
    assert!(refused.contains("has no [tls]") && refused.contains("add it"), "{refused}");
}

#[test]
fn a_node_does_not_start_without_the_certificates_of_its_peers() {
    let guarded = Guarded::new();
    let file = |name: &str| guarded.tls().join(name);
    let up = |arguments: &[&str]| process::run(&mut guarded.cluster.command(arguments)).failure(1);
    let node = ["--role", "node", "--name", "a"];
    fs::rename(file("a-cert.pem"), file("kept")).unwrap();
    let refused = up(&node).complaint();
    assert!(refused.contains("a-cert.pem: No such file"), "{refused}");
    assert!(refused.contains("make it with `tidegate certify`"), "{refused}");
    fs::copy(file("b-cert.pem"), file("a-cert.pem")).unwrap();
    assert!(up(&node).complaint().contains("a-key.pem is not the key of"));
    fs::copy(file("b-key.pem"), file("a-key.pem")).unwrap();
    assert!(up(&node).complaint().contains("a-cert.pem is for b and not for a"));
    fs::write(file("controller-key.pem"), "").unwrap();
    for arguments in [&["--role", "controller"][..], &[]] {
        let refused = up(arguments).complaint();
        assert!(refused.contains("controller-key.pem holds no private key"), "{refused}");
    }
    guarded.cluster.expect_nothing_left();
}

#[test]
fn stock_clients_go_through() {
    let mut guarded = Guarded::new().up();
    let bytes = noise(&guarded.cluster.bed().path("original"), SIZE);
    let info = guarded.cluster.client("nbdinfo", &[&guarded.uri()]).success();
    assert!(info.stdout.contains("newstyle-fixed with TLS, using structured packets"), "{info:?}");
    let uri = guarded.uri();
    guarded.nbdcopy(&["--flush", "original", &uri]).success();
    guarded.nbdcopy(&[&uri, "copy"]).success();
    let copy = |guarded: &mut Guarded| fs::read(guarded.cluster.bed().path("copy")).unwrap();
    assert!(copy(&mut guarded) == bytes, "nbdcopy reads what it did not write");
    // QEMU has its own way to say where certificates are.
    let (host, port) = guarded.gateway.split_once(':').unwrap();
    let dir = guarded.tls();
    let object = format!("tls-creds-x509,id=tls,dir={},endpoint=client", dir.display());
    let image = format!("driver=nbd,host={host},port={port},export=db,tls-creds=tls");
    let convert = ["convert", "--object", &object, "--image-opts", &image, "-O", "raw", "copy"];
    guarded.cluster.client("qemu-img", &convert).success();
    assert!(copy(&mut guarded) == bytes, "qemu-img reads what nbdcopy did not write");
    // The address that is shown to clients works.
    let output = guarded.cluster.component(GATEWAY).stdout();
    let report = output.split_whitespace().find(|word| word.starts_with("nbds://")).unwrap();
    guarded.nbdinfo(report).success();
}

#[test]
fn clients_that_do_not_belong() {
    let guarded = Guarded::new().up();
    let log = || guarded.cluster.component(GATEWAY).stderr();
    let logged = |what: &str| eventually(what, || log().contains(what));
    // In the clear nothing is said, not even what there is.
    let plain = format!("nbd://{}/db", guarded.gateway);
    guarded.nbdinfo(&plain).failure(1);
    guarded.cluster.client("nbdinfo", &["--list", &plain]).failure(1);
    // One that trusts us, and has no certificate.
    let folder = guarded.cluster.path("stranger");
    fs::create_dir(&folder).unwrap();
    fs::copy(guarded.tls().join("ca-cert.pem"), folder.join("ca-cert.pem")).unwrap();
    guarded.nbdinfo(&guarded.uri_with(&folder)).failure(1);
    logged("the peer shows no certificate");
    // One of another cluster, who trusts us.
    let other = Guarded::new();
    for file in ["client-cert.pem", "client-key.pem"] {
        fs::copy(other.tls().join(file), folder.join(file)).unwrap();
    }
    guarded.nbdinfo(&guarded.uri_with(&folder)).failure(1);
    logged("the peer's certificate is not of our authority");
    // One who does not trust us.
    guarded.nbdinfo(&guarded.uri_with(&other.tls())).failure(1);
    assert!(guarded.reads(), "whoever belongs is served");
}

#[test]
fn a_user_that_no_certificate_can_name_is_refused_before_anything_is_written() {
    let guarded = Guarded::new();
    fs::remove_dir_all(guarded.tls()).unwrap();
    for user in ["../../evil", "a/b", "", "10.0.0.1", "two words", "under_score", "-x"] {
        let refused = guarded.certify(&[&format!("--user={user}")]).failure(2).complaint();
        assert!(refused.contains("cannot be a certificate's name"), "{user:?}: {refused}");
        assert!(!guarded.tls().exists(), "{user:?}");
    }
}

/// She would read and write every volume.
#[test]
fn a_user_does_not_become_a_component_that_is_added_under_her_name() {
    let guarded = Guarded::new();
    guarded.certify(&["--user", "ann"]).success();
    guarded.certify(&["--user", "ann"]).success();
    let file = fs::read_to_string(guarded.cluster.file()).unwrap();
    let file = file.replace("name = \"front\"", "name = \"ann\"");
    fs::write(guarded.cluster.file(), file).unwrap();
    let refused = guarded.certify(&[]).failure(1).complaint();
    assert!(refused.contains("ann-cert.pem is made for another purpose"), "{refused}");
    assert!(refused.contains("remove it with its key"), "{refused}");
    let arguments = ["--role", "gateway", "--name", "ann"];
    let refused = process::run(&mut guarded.cluster.command(&arguments)).failure(1).complaint();
    assert!(refused.contains("ann-cert.pem is made for another purpose"), "{refused}");
    for name in ["ann-cert.pem", "ann-key.pem"] {
        fs::remove_file(guarded.tls().join(name)).unwrap();
    }
    assert!(guarded.certify(&[]).success().stdout.contains("for gateway ann"));
}

#[test]
fn an_export_is_for_the_users_of_its_tenant() {
    let mut guarded = Guarded::new().up();
    let certified = guarded.certify(&["--user", "alice,bob"]).success();
    assert!(certified.stdout.contains("for user alice"), "{certified:?}");
    // The holder of this component's or user's certificate presents it as a client does.
    let as_client = |name: &str| {
        let folder = guarded.cluster.path(&format!("of-{name}"));
        fs::create_dir(&folder).unwrap();
        fs::copy(guarded.tls().join("ca-cert.pem"), folder.join("ca-cert.pem")).unwrap();
        for kind in ["cert", "key"] {
            let from = guarded.tls().join(format!("{name}-{kind}.pem"));
            fs::copy(from, folder.join(format!("client-{kind}.pem"))).unwrap();
        }
        guarded.uri_with(&folder)
    };
    let [alice, bob, node, front] = ["alice", "bob", "a", "front"].map(as_client);
    guarded.nbdinfo(&bob).success();
    let policy = "[[tenant]]\nname = \"oltp\"\nusers = [\"cert:alice\"]\n";
    guarded.cluster.bed().apply(policy).success();
    eventually("the policy at the gateway", || guarded.nbdinfo(&bob).code != Some(0));
    let log = || guarded.cluster.component(GATEWAY).stderr();
    let denied = "certificate \"bob\" may not act for tenant \"oltp\"";
    eventually("the reason in the log", || log().contains(denied));
    guarded.nbdinfo(&alice).success();
    // The log has a line a second at most about clients that are turned away.
    let is_refused = |uri: &str, reason: &str| {
        eventually(reason, || {
            guarded.nbdinfo(uri).failure(1);
            log().contains(reason)
        });
    };
    // Components are not clients, and the certificate `client` names no user.
    for (uri, reason) in [
        (&node, "the certificate of a is for a party of the cluster"),
        (&front, "the certificate of front is for a party of the cluster"),
        (&guarded.uri(), "certificate \"client\" may not act for tenant \"oltp\""),
    ] {
        is_refused(uri, reason);
    }
    let unknown = alice.replace("/db?", "/db@nosuch?");
    is_refused(&unknown, "the policy has no tenant \"nosuch\"");
}

/// Sends bytes that are no TLS, and reads the end of the connection.
fn rude(address: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
}

#[test]
fn peers_are_identified_by_their_certificates() {
    let mut guarded = Guarded::new().up();
    let node = |name: &str| {
        let info = NodeInfo { name: name.into(), ..NodeInfo::default() };
        Hello::Node { version: VERSION, info }
    };
    let ToNode::Refused { reason, retry, .. } = guarded.receive_reply("a", &node("b")) else {
        panic!()
    };
    assert_eq!((reason.as_str(), retry), ("your certificate is for a and not for \"b\"", false));
    let ToNode::Refused { reason, .. } = guarded.receive_reply("front", &node("front")) else {
        panic!()
    };
    assert!(reason.contains("\"front\""), "a gateway is no node: {reason}");
    let gateway = Hello::Gateway { version: VERSION, name: "a".into() };
    let ToGateway::Refused { reason, .. } = guarded.receive_reply("a", &gateway) else { panic!() };
    assert_eq!(reason, "the cluster has no gateway \"a\"");
    let socket = "operators use the controller's Unix socket";
    let operator = Hello::Operator { version: VERSION };
    let Reply::Refused { reason, .. } = guarded.receive_reply("front", &operator) else { panic!() };
    assert_eq!(reason, socket);
    let stage = Hello::Stage { version: VERSION, info: StageInfo::default() };
    let ToStage::Refused { reason, .. } = guarded.receive_reply("front", &stage) else { panic!() };
    assert!(
        reason.contains("front is for a party of the cluster and not for programs"),
        "{reason}"
    );
    // A client's certificate is good for programs. It is no component's, and opens no node.
    let ToStage::Welcome { .. } = guarded.receive_reply("client", &stage) else { panic!() };
    let ToNode::Refused { reason, .. } = guarded.receive_reply("client", &node("a")) else {
        panic!()
    };
    assert_eq!(reason, "your certificate is for client and not for \"a\"");
    let Reply::Refused { reason, .. } = guarded.receive_reply("client", &operator) else {
        panic!()
    };
    assert_eq!(reason, socket);
    let report = |address: &str, certificate: &str, name: &str| {
        let answer = guarded.try_hello::<ToNode>(address, certificate, name, &operator);
        answer.unwrap_err().to_string()
    };
    let unknown = "the peer refuses our certificate: it has no name that is admitted there";
    assert_eq!(report(&guarded.node, "client", "a"), unknown);
    assert_eq!(report(&guarded.node, "b", "a"), unknown);
    // And no peer believes a host to be another than it is.
    assert_eq!(
        report(&guarded.node, "front", "b"),
        "the peer's certificate is for a and not for b"
    );
    [&guarded.controller, &guarded.node].into_iter().for_each(|address| rude(address));
    let log = || guarded.cluster.component("a").stderr();
    eventually("a reason in the log", || log().contains("what the peer sends is no TLS"));
    guarded.cluster.bed().apply(OPEN).success();
    assert!(guarded.reads(), "all others are served");
}

#[test]
fn nodes_come_back_over_tls() {
    let mut guarded = Guarded::new().up();
    let joined = |cluster: &mut Cluster| {
        eventually("all nodes with the controller", || {
            let status = cluster.bed().status();
            let nodes = status["cluster"]["nodes"].as_array().map_or(&[][..], Vec::as_slice);
            nodes.len() == 2 && nodes.iter().all(|node| node["is_connected"] == true)
        });
    };
    joined(&mut guarded.cluster);
    for (role, name) in [("node", "a"), ("gateway", GATEWAY), ("node", "a")] {
        guarded.cluster.kill(name);
        guarded.cluster.start(role, name);
        eventually("all of the volume", || guarded.reads());
    }
    guarded.cluster.bed().kill_controller();
    assert!(guarded.reads(), "nobody waits for a controller");
    let mut command = guarded.cluster.command(&["--role", "controller"]);
    guarded.cluster.bed().up_with(&mut command);
    joined(&mut guarded.cluster);
}

/// A machine: a name space of the network, gone with its processes.
struct Machine(String);

impl Machine {
    fn ip(arguments: &str) {
        let mut command = Command::new(tools::need("ip"));
        process::run(command.args(arguments.split(' '))).success();
    }

    /// Two machines and a cable between them.
    fn pair(addresses: [&str; 2]) -> [Self; 2] {
        let names = ["a", "b"].map(|side| format!("tg{}{side}", std::process::id()));
        let machines = names.clone().map(|name| {
            Self::ip(&format!("netns add {name}"));
            Self(name)
        });
        let [a, b] = &names;
        Self::ip(&format!("link add {a} netns {a} type veth peer name {b} netns {b}"));
        for (name, address) in names.iter().zip(addresses) {
            Self::ip(&format!("-n {name} address add {address}/24 dev {name}"));
            Self::ip(&format!("-n {name} link set {name} up"));
            Self::ip(&format!("-n {name} link set lo up"));
        }
        machines
    }

    /// The command, on this machine.
    fn command(&self, inner: &Command) -> Command {
        let mut command = Command::new(tools::need("ip"));
        command.args(["netns", "exec", &self.0]).arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

#[test]
fn two_machines() {
    if !tools::is_root() {
        return tools::skipped("only root can make name spaces of the network");
    }
    let [one, two] = Machine::pair(["192.0.2.1", "192.0.2.2"]);
    let file = format!(
        "[tls]\ndirectory = \"tls\"\n[controller]\nlisten = [\"unix:SOCKET\", \"192.0.2.1:7300\"]\n\
         [[node]]\nname = \"a\"\naddress = \"192.0.2.1:7301\"\ndirectory = \"a\"\n\
         [[gateway]]\nname = \"front\"\nnbd = \"192.0.2.2:10809\"\n{}",
        volume("db", "oltp", "6MiB", &["a"])
    );
    let mut cluster = Cluster::new(&file, OPEN);
    let mut certify = Command::new(tidegate_tests::built::tidegate());
    certify.arg("certify").arg(cluster.file()).arg("--state").arg(cluster.state());
    process::run(&mut certify).success();
    cluster.volume(&["create"]).success();
    // Each machine, and the client's, gets what is said to belong there.
    let folders = ["two", "client"].map(|name| cluster.path(name).join("tls"));
    for (folder, name) in folders.iter().zip([GATEWAY, "client"]) {
        fs::create_dir_all(folder).unwrap();
        for file in ["ca-cert.pem", &format!("{name}-cert.pem"), &format!("{name}-key.pem")] {
            fs::copy(cluster.path("tls").join(file), folder.join(file)).unwrap();
        }
    }
    let up = |cluster: &Cluster, machine: &Machine, role: &str, state: PathBuf| {
        let mut inner = Command::new(tidegate_tests::built::tidegate());
        inner.args(["up", "--no-http", "--log", "info", "--role", role]);
        inner.arg(cluster.file()).arg("--state").arg(state).env_remove("TIDEGATE_SOCKET");
        machine.command(&inner)
    };
    let mut command = up(&cluster, &one, "controller", cluster.state());
    cluster.bed().up_with(&mut command);
    let start = |machine: &Machine, role: &str, name: &str, state: PathBuf| -> Running {
        let component = process::spawn(&mut up(&cluster, machine, role, state));
        component.wait_for_output(&format!(": {name} of the cluster at 192.0.2.1:7300"));
        component
    };
    let _node = start(&one, "node", "a", cluster.state());
    let _gateway = start(&two, "gateway", GATEWAY, cluster.path("two"));
    let uri = format!("nbds://192.0.2.2/db?tls-certificates={}", folders[1].display());
    let bytes = noise(&cluster.path("original"), SIZE);
    let copy = |source: &str, target: &str| {
        let mut nbdcopy = Command::new(tools::need("nbdcopy"));
        nbdcopy.args([source, target]).current_dir(cluster.state());
        process::run(one.command(&nbdcopy).current_dir(cluster.state()))
    };
    eventually("the node", || copy("original", &uri).code == Some(0));
    copy(&uri, "copy").success();
    assert!(fs::read(cluster.path("copy")).unwrap() == bytes);
    assert_ne!(copy("original", "nbd://192.0.2.2/db").code, Some(0), "in the clear");
}
