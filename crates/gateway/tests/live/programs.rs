//! Clients that are programs under the policy: the test's own process is one, and its children are.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

use tidegate_fabric::stream::{Stream, peer_process};
use tidegate_proto::message::{ProcessId, Program, ToGateway};
use tidegate_tests::tools;
use tidegate_wire::nbd::client;
use tidegate_wire::nbd::constants::command;

use crate::client::Client;
use crate::owners::{Controller, WRITES, owners, testbed};
use crate::{Testbed, pool};

/// The tenants of the policy. `outside` is none for which volumes are offered.
const TENANTS: [&str; 4] = ["report", "etl", "plain-owner", "outside"];

/// The process of this test; none if the kernel does not name the processes of clients.
fn own(testbed: &Testbed) -> Option<ProcessId> {
    let path = testbed.folder.path().join("own.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let _client = UnixStream::connect(&path).unwrap();
    let found = peer_process::process(&Stream::from(listener.accept().unwrap().0));
    if found.is_none() {
        tools::skipped("the kernel does not name the processes of clients");
    }
    found
}

/// A program of this user.
fn program(process: ProcessId, tenant: &str) -> Program {
    Program { process, uid: rustix::process::geteuid().as_raw(), tenant: tenant.into() }
}

/// Sends the gateway what has changed, and waits until it has taken it.
fn change(controller: &mut Controller, joined: &[Program], left: &[ProcessId]) {
    let (joined, left) = (joined.to_vec(), left.to_vec());
    let space = peer_process::process_space();
    controller.send(&ToGateway::Programs { space, is_first: false, joined, left });
    controller.send(&ToGateway::Count);
    controller.counts();
}

#[test]
fn requests_of_a_program_count_for_its_tenant() {
    let testbed = testbed(|_, _| {});
    let mut controller = Controller::start(testbed.folder.path());
    let Some(own) = own(&testbed) else { return };
    controller.apply(1, &TENANTS, WRITES);
    change(&mut controller, &[], &[]);
    let mut client = Client::enter(&testbed, "plain", true);
    let mut chosen = Client::enter(&testbed, "plain@plain-owner", true);
    let others = ["plain-owner", "etl"];
    assert_eq!(owners(&testbed, &mut client), others);
    // It was connected before, and has its tenant from the next request on.
    change(&mut controller, &[program(own, "report")], &[]);
    assert_eq!(owners(&testbed, &mut client), ["report", "etl"], "rules for the volume are first");
    assert_eq!(owners(&testbed, &mut chosen), others, "it has named its tenant");
    let mut later = Client::enter(&testbed, "plain", true);
    assert_eq!(owners(&testbed, &mut later), ["report", "etl"]);
    // A new policy keeps it, and one without the tenant does not.
    controller.apply(2, &TENANTS, "");
    change(&mut controller, &[], &[]);
    assert_eq!(owners(&testbed, &mut later), ["report"; 2]);
    controller.apply(3, &["plain-owner"], "");
    change(&mut controller, &[], &[]);
    assert_eq!(owners(&testbed, &mut later), ["plain-owner"; 2]);
    controller.apply(4, &TENANTS, "");
    change(&mut controller, &[], &[own]);
    assert_eq!(owners(&testbed, &mut later), ["plain-owner"; 2], "the program has ended");
}

#[test]
fn what_is_not_proved_counts_for_the_tenant_of_the_export() {
    let testbed = testbed(|_, _| {});
    let mut controller = Controller::start(testbed.folder.path());
    let Some(own) = own(&testbed) else { return };
    controller.apply(1, &TENANTS, "");
    let mut client = Client::enter(&testbed, "plain", true);
    let reused = ProcessId { started: own.started + 1, ..own };
    let foreign = Program { uid: program(own, "").uid + 1, ..program(own, "report") };
    for refused in [
        program(reused, "report"),
        foreign,
        program(own, ""),
        program(own, "outside"),
        program(own, "no such tenant"),
    ] {
        change(&mut controller, std::slice::from_ref(&refused), &[]);
        assert_eq!(owners(&testbed, &mut client), ["plain-owner"; 2], "{refused:?}");
        change(&mut controller, &[], &[refused.process]);
    }
    // Numbers of processes of another machine.
    let (space, joined) = ("elsewhere".into(), vec![program(own, "report")]);
    controller.send(&ToGateway::Programs { space, is_first: false, joined, left: vec![] });
    change(&mut controller, &[], &[]);
    assert_eq!(owners(&testbed, &mut client), ["plain-owner"; 2]);
    // This was all that kept it from its tenant.
    change(&mut controller, &[program(own, "report")], &[]);
    assert_eq!(owners(&testbed, &mut client), ["report"; 2]);
}

#[test]
fn a_connection_that_another_process_uses_is_none_of_the_program_s() {
    let testbed = testbed(|_, _| {});
    let mut controller = Controller::start(testbed.folder.path());
    let Some(own) = own(&testbed) else { return };
    controller.apply(1, &TENANTS, "");
    change(&mut controller, &[program(own, "report")], &[]);
    let mut client = Client::enter(&testbed, "plain", true);
    assert_eq!(owners(&testbed, &mut client), ["report"; 2]);
    // A child inherits the connection, and sends a request.
    let output = Stdio::from(OwnedFd::from(client.writer()));
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(output).spawn().unwrap();
    let request = client::request(command::READ, 0, 77, 0, 512);
    child.stdin.take().unwrap().write_all(&request).unwrap();
    assert_eq!(client.receive(512).cookie, 77);
    assert_eq!(testbed.nodes[0].last_owner(), "plain-owner");
    child.wait().unwrap();
    assert_eq!(owners(&testbed, &mut client), ["plain-owner"; 2], "for good");
    let mut other = Client::enter(&testbed, "plain", true);
    assert_eq!(owners(&testbed, &mut other), ["report"; 2]);
}

/// A replay with other rules has to know the tenant of a client's program.
#[test]
fn a_recording_has_the_tenant_of_a_program() {
    let testbed = testbed(|_, _| {});
    let mut controller = Controller::start(testbed.folder.path());
    let Some(own) = own(&testbed) else { return };
    controller.apply(1, &TENANTS, WRITES);
    change(&mut controller, &[], &[]);
    let mut client = Client::enter(&testbed, "plain", true);
    assert_eq!(controller.record(1).requests.len(), 0);
    owners(&testbed, &mut client);
    change(&mut controller, &[program(own, "report")], &[]);
    owners(&testbed, &mut client);
    let batch = controller.record(1);
    let connections = batch.connections.iter();
    let connections: Vec<_> = connections.map(|(number, _, tenant)| (*number, &**tenant)).collect();
    assert_eq!(connections, [(0, "plain-owner"), (1, "report")]);
    let name = |number| &*batch.tenants.iter().find(|(it, _)| *it == number).unwrap().1;
    let requests = batch.requests.iter().map(|it| (it.connection, name(it.tenant)));
    let requests: Vec<_> = requests.collect();
    assert_eq!(requests, [(0, "plain-owner"), (0, "etl"), (1, "report"), (1, "etl")]);
}

#[test]
fn a_stock_client_that_a_program_has_started_has_its_tenant() {
    let testbed = testbed(|_, _| {});
    let mut controller = Controller::start(testbed.folder.path());
    let Some(own) = own(&testbed) else { return };
    controller.apply(1, &TENANTS, "");
    change(&mut controller, &[program(own, "report")], &[]);
    let Some(nbdcopy) = tools::want("nbdcopy") else { return };
    // It is the child of a shell, which is a child of ours.
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\" \"$1\" \"$2\"; true"]).arg(nbdcopy).arg(testbed.uri("plain"));
    let copied = shell.arg(testbed.folder.path().join("copy")).status().unwrap();
    assert!(copied.success());
    assert_eq!(testbed.nodes[0].last_owner(), "report");
}

#[test]
fn keys_of_a_program_are_its_tenant_s() {
    let testbed = testbed(|_, config| pool::add(config, false));
    let mut owner = pool::owner(&testbed);
    let requests = ["get session:1", "get user:1"];
    let mut controller = Controller::start(testbed.folder.path());
    let Some(own) = own(&testbed) else { return };
    let rule = "[[match]]\ntenant = \"web\"\nkey = \"session:\"\n";
    controller.apply(1, &["web", "report", "kv"], rule);
    change(&mut controller, &[], &[]);
    assert_eq!(requests.map(&mut owner), ["web", "kv"]);
    change(&mut controller, &[program(own, "report")], &[]);
    assert_eq!(requests.map(&mut owner), ["web", "report"]);
    change(&mut controller, &[], &[own]);
    assert_eq!(requests.map(&mut owner), ["web", "kv"]);
}
