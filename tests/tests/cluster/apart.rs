//! A process for each part, and parts that die: what was acknowledged is there afterwards, what
//! fails fails only while something is away, and everything comes back by itself.

use std::collections::HashMap;
use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use rustix::process::Signal;
use tidegate_tests::cluster::{Cluster, GATEWAY, directories, volume};
use tidegate_tests::nbd::{Client, EIO};
use tidegate_tests::process::{self, Running};
use tidegate_tests::{PATIENCE, eventually, tools};

use super::OPEN;

const NODES: [&str; 3] = ["a", "b", "c"];
/// The default stripe.
const STRIPE: u64 = 64 << 10;
const BLOCK: u64 = 4 << 10;
const BLOCKS: u64 = 24 * STRIPE / BLOCK;

fn cluster() -> Cluster {
    let db = volume("db", "oltp", "6MiB", &NODES);
    let mut cluster = Cluster::new(&format!("{}{db}", directories(&NODES)), OPEN);
    cluster.up_apart(&NODES, &["db"]);
    cluster
}

/// A client of a gateway that has found all nodes.
fn enter(cluster: &Cluster) -> Client {
    let mut client = cluster.enter("db");
    eventually("all nodes", || client.read(0, 1 << 20).is_ok());
    client
}

/// The possible contents of each block of a volume: too simple to be wrong. A block is written as a
/// whole, and its content is the number of the write.
#[derive(Default)]
struct Oracle {
    /// By block, the last write that was acknowledged, and those after it with an unknown result.
    possible: HashMap<u64, Vec<u64>>,
    writes: u64,
    /// By cookie, what is under way.
    under_way: HashMap<u64, (u64, u64)>,
}

fn node_of(block: u64) -> usize {
    (block * BLOCK / STRIPE % NODES.len() as u64) as usize
}

impl Oracle {
    /// Asks for `count` writes in blocks that are nowhere near each other, without waiting.
    fn submit(&mut self, client: &mut Client, count: u64) {
        for _ in 0..count {
            self.writes += 1;
            let block = self.writes * 37 % BLOCKS;
            let content = self.writes.to_le_bytes().repeat(BLOCK as usize / 8);
            self.possible.entry(block).or_insert_with(|| vec![0]).push(self.writes);
            let Ok(cookie) = client.submit_write(block * BLOCK, &content) else { return };
            self.under_way.insert(cookie, (block, self.writes));
        }
    }

    /// Hears all answers, until there are none or the connection ends. Gives back at which nodes
    /// something failed.
    fn receive(&mut self, client: &mut Client) -> Vec<usize> {
        let mut failed = Vec::new();
        while !self.under_way.is_empty() {
            let Ok((cookie, outcome)) = client.receive() else { break };
            let (block, write) = self.under_way.remove(&cookie).expect("what was asked");
            match outcome {
                Ok(_) => {
                    let possible = self.possible.get_mut(&block).expect("a block that was written");
                    possible.retain(|possible| *possible >= write);
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(EIO), "{error}");
                    failed.push(node_of(block));
                }
            }
        }
        self.under_way.clear();
        failed.sort_unstable();
        failed.dedup();
        failed
    }

    /// Looks at every block that was written.
    #[track_caller]
    fn check(&self, client: &mut Client) {
        for (block, possible) in &self.possible {
            let content = client.read(block * BLOCK, BLOCK as usize).expect("nothing is away");
            let (words, rest) = content.as_chunks::<8>();
            let found = u64::from_le_bytes(words[0]);
            assert!(rest.is_empty() && words.iter().all(|word| *word == words[0]), "a torn block");
            assert!(possible.contains(&found), "block {block} has {found} and not {possible:?}");
        }
    }
}

#[test]
fn nodes_may_die_again_and_again() {
    let mut cluster = cluster();
    let mut client = cluster.enter("db");
    let mut oracle = Oracle::default();
    for round in 0..6 {
        oracle.submit(&mut client, 64);
        assert_eq!(oracle.receive(&mut client), [0; 0], "round {round}: nothing is away");
        let away = round % NODES.len();
        oracle.submit(&mut client, 32);
        cluster.kill(NODES[away]);
        oracle.submit(&mut client, 32);
        cluster.start("node", NODES[away]);
        let failed = oracle.receive(&mut client);
        assert!(failed.iter().all(|node| *node == away), "round {round}: {failed:?}");
        let here = away as u64 * STRIPE;
        eventually("the node again, for the same client", || client.read(here, 512).is_ok());
        // Writes answered before the node died are in the kernel's hands, and a flush says so.
        client.flush().unwrap();
        oracle.check(&mut client);
    }
}

/// Writes without a pause until the test ends it, and counts what it has done; `started` requests
/// are under way together.
fn write_without_a_pause(
    mut client: Client,
    started: u64,
    (done, is_over): (Arc<AtomicU64>, Arc<AtomicBool>),
) -> (Oracle, Client) {
    let mut oracle = Oracle::default();
    while !is_over.load(Ordering::Relaxed) {
        oracle.submit(&mut client, started);
        assert_eq!(oracle.receive(&mut client), [0; 0], "a stop is no error");
        client.flush().unwrap();
        done.fetch_add(started, Ordering::Relaxed);
    }
    (oracle, client)
}

#[test]
fn a_node_that_is_stopped_and_started_again_costs_its_clients_no_error() {
    let mut cluster = cluster();
    let (done, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (client, shared) = (cluster.enter("db"), (done.clone(), is_over.clone()));
    let writer = thread::spawn(move || write_without_a_pause(client, 64, shared));
    let goes_on = || {
        let before = done.load(Ordering::Relaxed);
        eventually("the client", || {
            writer.is_finished() || done.load(Ordering::Relaxed) >= before + 256
        });
    };
    for name in NODES {
        goes_on();
        cluster.stop(name).success();
        cluster.start("node", name);
    }
    goes_on();
    is_over.store(true, Ordering::Relaxed);
    let (oracle, mut client) = writer.join().unwrap();
    oracle.check(&mut client);
    let log = cluster.component(GATEWAY).stderr();
    assert!(log.contains("reason=it is shutting down") && log.contains("node is back"), "{log}");
}

#[test]
fn while_a_node_is_away_requests_to_it_fail_in_time() {
    let mut cluster = cluster();
    let mut client = cluster.enter("db");
    let mut oracle = Oracle::default();
    cluster.kill("b");
    let started = Instant::now();
    oracle.submit(&mut client, 64);
    assert_eq!(oracle.receive(&mut client), [1], "all that is asked of it, and nothing else");
    // A machine may be slow, but no client waits for an answer that never comes.
    assert!(started.elapsed() < PATIENCE, "after {:?}", started.elapsed());
    assert!(client.read(0, STRIPE as usize).is_ok(), "the others serve");
    cluster.start("node", "b");
    eventually("the node again, for the same client", || client.read(STRIPE, 512).is_ok());
    oracle.check(&mut client);
    oracle.submit(&mut client, 64);
    assert_eq!(oracle.receive(&mut client), [0; 0], "all is well");
}

#[test]
fn a_gateway_may_die_again_and_again() {
    let mut cluster = cluster();
    let mut oracle = Oracle::default();
    for round in 0..4 {
        let mut client = enter(&cluster);
        oracle.check(&mut client);
        oracle.submit(&mut client, 64);
        assert_eq!(oracle.receive(&mut client), [0; 0], "round {round}");
        oracle.submit(&mut client, 32);
        cluster.kill(GATEWAY);
        assert_eq!(oracle.receive(&mut client), [0; 0], "round {round}: no answer is no error");
        cluster.start("gateway", GATEWAY);
    }
    oracle.check(&mut enter(&cluster));
}

#[test]
fn requests_do_not_wait_for_a_dead_controller() {
    let mut cluster = cluster();
    let mut client = cluster.enter("db");
    let mut oracle = Oracle::default();
    for _ in 0..3 {
        oracle.submit(&mut client, 64);
        cluster.bed().kill_controller();
        oracle.submit(&mut client, 64);
        assert_eq!(oracle.receive(&mut client), [0; 0], "without a controller");
        let mut command = cluster.command(&["--role", "controller"]);
        cluster.bed().up_with(&mut command);
        oracle.submit(&mut client, 64);
        assert_eq!(oracle.receive(&mut client), [0; 0], "with another one");
        assert_eq!(cluster.bed().status()["revision"], 1);
    }
    oracle.check(&mut client);
}

/// An address of this machine that was free a moment ago.
fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn over_tcp_nodes_come_back_at_once_too() {
    let db = volume("db", "oltp", "1MiB", &["a"]);
    let [node, gateway] = [free_port(), free_port()];
    let file =
        directories(&["a"]).replace("unix:a.sock", &node).replace("unix:front.sock", &gateway);
    let mut cluster = Cluster::new(&format!("{file}{db}"), OPEN);
    cluster.start("node", "a");
    cluster.start("gateway", GATEWAY);
    let uri = format!("nbd://{gateway}/db");
    let io = |step: &str| {
        let arguments = ["-f", "raw", "-c", step, &uri];
        process::run(Command::new(tools::need("qemu-io")).args(arguments)).code == Some(0)
    };
    assert!(!io("read 0 512"), "over TCP nobody is served before it is known which policy holds");
    eventually("the reason", || {
        cluster.component(GATEWAY).stderr().contains("has not heard yet which")
    });
    let mut command = cluster.command(&["--role", "controller"]);
    cluster.bed().up_with(&mut command);
    eventually("the node", || io("write -f -P 7 0 1M"));
    for name in ["a", GATEWAY, "a", GATEWAY] {
        // Its port remembers connections of the one before.
        cluster.kill(name);
        cluster.start(if name == "a" { "node" } else { "gateway" }, name);
        eventually("both of them", || io("read -P 7 0 1M"));
    }
}

#[test]
fn a_gateway_need_not_come_last() {
    let db = volume("db", "oltp", "6MiB", &NODES);
    let mut cluster = Cluster::new(&format!("{}{db}", directories(&NODES)), OPEN);
    cluster.start("gateway", GATEWAY);
    let mut client = cluster.enter("db");
    let refused = client.read(0, 512).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EIO), "no node is there: {refused}");
    cluster.start("node", "b");
    eventually("one node", || client.read(STRIPE, 512).is_ok());
    cluster.start("node", "a");
    cluster.start("node", "c");
    eventually("all nodes", || client.read(0, 1 << 20).is_ok());
    // The controller is the last of all, and finds them.
    let mut command = cluster.command(&["--role", "controller"]);
    cluster.bed().up_with(&mut command);
    eventually("all nodes with the controller", || {
        let status = cluster.bed().status();
        let nodes = status["cluster"]["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        nodes.len() == 3 && nodes.iter().all(|node| node["is_connected"] == true)
    });
}

/// `fio` over the whole volume, a second or two of it, with what `more` says.
fn fio(cluster: &Cluster, more: &[&str]) -> Command {
    let mut command = Command::new(tools::need("fio"));
    command.args(["--name=job", "--ioengine=nbd", "--rw=randwrite", "--bs=16k", "--size=6M"]);
    command.args(["--iodepth=16", "--randseed=7", "--thread"]);
    command.args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"]);
    command.arg(format!("--uri={}", cluster.uri("db"))).args(more).stdin(Stdio::null());
    command
}

/// Checks that `fio` reports no read that differs from its write.
#[track_caller]
fn verified(outcome: &process::ProgramOutcome) {
    for output in [&outcome.stdout, &outcome.stderr] {
        let words = ["verify:", "bad magic", "err=84"];
        let line = output.lines().find(|line| words.iter().any(|word| line.contains(word)));
        assert_eq!(line, None);
    }
}

#[test]
fn fio_finds_what_it_wrote_while_everything_happens() {
    let mut cluster = cluster();
    // An appended level belongs to the last tenant.
    let policies = ["limit = \"30k iops\"", "reservation = \"1k iops\""]
        .map(|level| format!("{OPEN}{level}\n"));
    // A node dies twice, policies take turns, and fio goes on after each error.
    let paced = ["--rate_iops=500", "--continue_on_error=io", "--loops=3"];
    let running = process::spawn(&mut fio(&cluster, &paced));
    running.wait_for_output("connected to NBD server");
    for (node, policy) in ["b", "c"].into_iter().zip(&policies) {
        cluster.bed().apply(policy).success();
        cluster.kill(node);
        cluster.bed().apply(OPEN).success();
        cluster.start("node", node);
    }
    let outcome = running.finish().success();
    verified(&outcome);
    // The gateway dies under it. Some releases of fio end then, and some ask for ever.
    let mut running = process::spawn(&mut fio(&cluster, &["--rate_iops=100"]));
    running.wait_for_output("connected to NBD server");
    cluster.bed().apply(&policies[0]).success();
    assert!(running.is_running(), "fio takes some seconds");
    cluster.kill(GATEWAY);
    eventually("fio knows", || !running.is_running() || running.stderr().contains("state DEAD"));
    let outcome = running.kill();
    assert_ne!(outcome.code, Some(0), "its connection was lost");
    verified(&outcome);
    cluster.start("gateway", GATEWAY);
    // Whatever it wrote last is there after the next end of the gateway.
    process::run(&mut fio(&cluster, &["--do_verify=0"])).success();
    cluster.kill(GATEWAY);
    cluster.start("gateway", GATEWAY);
    let outcome = process::run(&mut fio(&cluster, &["--verify_only"])).success();
    verified(&outcome);
    assert!(outcome.stdout.contains("err= 0"), "{outcome:?}");
}

/// Stops a part where it stands, which to others looks as if it hung.
pub(super) fn hang(component: &Running) {
    component.signal(Signal::STOP);
    eventually("all of it has stopped", || {
        let threads = fs::read_dir(format!("/proc/{}/task", component.pid())).unwrap();
        threads.flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.contains(") T ")
        })
    });
}

/// Requests to `b`, which hangs, fail in time, and succeed again once it goes on.
#[track_caller]
fn fails_while_it_hangs(cluster: &Cluster, client: &mut Client) {
    let started = Instant::now();
    let error = client.read(STRIPE, 512).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(EIO), "{error}");
    assert!(started.elapsed() < PATIENCE, "after {:?}", started.elapsed());
    assert!(client.read(0, 512).is_ok(), "the others serve");
    cluster.component("b").signal(Signal::CONT);
    eventually("the node, for the same client", || client.read(STRIPE, 512).is_ok());
}

#[test]
fn a_node_that_hangs_delays_no_other_node() {
    let cluster = cluster();
    let mut client = cluster.enter("db");
    hang(cluster.component("b"));
    let stuck = client.submit_read(STRIPE, 512).unwrap();
    for round in 0..20 {
        let cookie = client.submit_read(2 * STRIPE * (round % 2), 512).unwrap();
        let (answered, outcome) = client.receive().unwrap();
        assert!(answered == cookie && outcome.is_ok(), "the others serve");
    }
    cluster.component("b").signal(Signal::CONT);
    let (answered, outcome) = client.receive().unwrap();
    assert!(answered == stuck && outcome.is_ok(), "what was asked of it has waited for it");
}

#[test]
fn requests_to_a_node_that_hangs_fail_in_time() {
    let cluster = cluster();
    let mut client = enter(&cluster);
    hang(cluster.component("b"));
    fails_while_it_hangs(&cluster, &mut client);
}

#[test]
fn queued_requests_are_waited_for() {
    // Its limit lets one of these through in a second, and a node that is silent for five is away.
    let mut cluster = cluster();
    let mut client = cluster.enter("db");
    cluster.bed().apply(&format!("{OPEN}limit = \"1 iops\"\n")).success();
    for _ in 0..8 {
        client.submit_read(0, 512).unwrap();
    }
    for _ in 0..8 {
        assert!(client.receive().unwrap().1.is_ok());
    }
}

#[test]
fn a_node_that_never_sends_its_welcome_is_away() {
    let mut cluster = cluster();
    hang(cluster.component("b"));
    cluster.kill(GATEWAY);
    cluster.start("gateway", GATEWAY);
    let mut client = cluster.enter("db");
    fails_while_it_hangs(&cluster, &mut client);
}
