//! Programs on other hosts under one controller: `tidegate run --controller` over TLS.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tidegate_stage::Segment;
use tidegate_stage::layout::GateKind;
use tidegate_tests::cluster::Cluster;
use tidegate_tests::{PATIENCE, eventually, process, wait_for};

const POLICY: &str = "budget = \"100MiB/s\"
    [[tenant]]
    name = \"oltp\"
    limit = \"8MiB/s\"
    users = [\"cert:ann\"]
    [[tenant]]
    name = \"backup\"
";

/// A controller for programs alone, and its address.
fn controller() -> (Cluster, String) {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    drop(held);
    let file = format!(
        "[tls]\ndirectory = \"tls\"\n[controller]\nlisten = [\"unix:SOCKET\", {address:?}]\n"
    );
    let mut cluster = Cluster::new(&file, POLICY);
    let mut certify = Command::new(tidegate_tests::built::tidegate());
    certify.arg("certify").arg(cluster.file()).arg("--state").arg(cluster.state());
    process::run(certify.args(["--user", "ann,bob"])).success();
    let mut command = cluster.command(&["--role", "controller"]);
    cluster.bed().up_with(&mut command);
    cluster.bed().apply(POLICY).success();
    (cluster, address)
}

/// `tidegate run` of a script on another host, by this user.
fn run(cluster: &mut Cluster, address: &str, user: &str, script: &str) -> Command {
    run_for(cluster, address, (user, "oltp"), script)
}

/// The same for a tenant.
fn run_for(
    cluster: &mut Cluster,
    address: &str,
    (user, tenant): (&str, &str),
    script: &str,
) -> Command {
    tidegate_tests::built::shim();
    let tls = cluster.path("tls");
    let folder = cluster.bed().folder().to_owned();
    let mut command = Command::new(tidegate_tests::built::tidegate());
    command.args(["run", "--controller", address, "--user", user, "--tenant", tenant]);
    command.arg("--tls").arg(tls).args(["--fail-closed", "--", "sh", "-euc", script]);
    // No controller of this machine is asked.
    command.env("TIDEGATE_SOCKET", Path::new("/nonexistent")).current_dir(folder);
    command
}

#[test]
fn a_program_of_another_host_is_held_to_the_policy_of_its_certificate() {
    let (mut cluster, address) = controller();
    let script = "dd if=/dev/zero of=file bs=64k count=32 2> /dev/null; touch done
                  while [ ! -e stop ]; do sleep 0.05; done";
    let program = process::spawn(&mut run(&mut cluster, &address, "ann", script));
    cluster.bed().wait_for_stages(1);
    let done = cluster.bed().path("done");
    eventually("the writes", || done.exists());
    let bed = cluster.bed();
    eventually("the bytes at the controller", || bed.tenant("oltp")["bytes"] == 32 * (64 << 10));
    let stage = bed.status()["stages"][0].clone();
    assert_eq!((&stage["user"], &stage["tenant"]), (&"cert:ann".into(), &"oltp".into()));
    assert_eq!(stage["allocated_bytes_per_second"], 8 << 20);
    std::fs::write(bed.path("stop"), "").unwrap();
    program.finish().success();
    cluster.bed().wait_for_stages(0);
}

#[test]
fn refusals_have_their_reasons() {
    let (mut cluster, address) = controller();
    let mut refused = |user: &str, address: &str, reason: &str| {
        let failed = process::run(&mut run(&mut cluster, address, user, "touch ran")).failure(5);
        assert!(
            failed.complaint().replace("\n  │ ", " ").contains(reason),
            "{}",
            failed.complaint()
        );
    };
    refused("bob", &address, "certificate \"bob\" may not act for tenant \"oltp\"");
    refused("controller", &address, "controller is for a party of the cluster");
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    refused("ann", &gone, &format!("nothing listens at {gone}"));
    let missing = process::run(&mut run(&mut cluster, &address, "nobody", "touch ran")).failure(1);
    assert!(missing.complaint().contains("tidegate certify"), "{}", missing.complaint());
    assert!(!cluster.bed().path("ran").exists());
}

/// The link of a host to the controller. While it is cut, nothing passes and no connection ends.
struct Link {
    address: String,
    state: Arc<Mutex<LinkState>>,
}

#[derive(Default)]
struct LinkState {
    is_cut: bool,
    /// Both ends of each connection since the last cut.
    connections: Vec<TcpStream>,
}

impl Link {
    fn to(controller: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let link = Self { address, state: Arc::default() };
        let (state, controller) = (link.state.clone(), controller.to_owned());
        thread::spawn(move || {
            for stage in listener.incoming().flatten() {
                let mut guard = lock(&state);
                guard.connections.push(stage.try_clone().unwrap());
                if guard.is_cut {
                    continue;
                }
                let Ok(there) = TcpStream::connect(&controller) else { continue };
                guard.connections.push(there.try_clone().unwrap());
                drop(guard);
                let ends = (stage.try_clone().unwrap(), there.try_clone().unwrap());
                for (from, to) in [ends, (there, stage)] {
                    let state = state.clone();
                    thread::spawn(move || pass(from, to, &state));
                }
            }
        });
        link
    }

    fn cut(&self) {
        lock(&self.state).is_cut = true;
    }

    /// Connections from before are over, and new ones pass.
    fn mend(&self) {
        let mut state = lock(&self.state);
        state.is_cut = false;
        for connection in state.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn lock(state: &Mutex<LinkState>) -> MutexGuard<'_, LinkState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes bytes on until a cut. Then both sides wait for the other in vain.
fn pass(mut from: TcpStream, mut to: TcpStream, state: &Mutex<LinkState>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if lock(state).is_cut || to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

const KIB: u64 = 1 << 10;
const CAPACITY: u64 = 3072 * KIB;

const SHARED: &str = "budget = \"3072KiB/s\"
    [[tenant]]
    name = \"oltp\"
    reservation = \"1536KiB/s\"
    users = [\"cert:ann\"]
    [[tenant]]
    name = \"backup\"
";

/// The rate in force at a host, in bytes per second; zero before there is one.
fn rate(host: &Segment) -> u64 {
    let is_bucket = |kind: u32| kind == GateKind::Bytes as u32;
    let mut gates = host.gates.iter().filter(|gate| is_bucket(gate.kind.load(Ordering::Acquire)));
    gates.next().map_or(0, |gate| gate.bucket.per_second())
}

/// Waits until the rates of all hosts are as they should. At no look there are more than the
/// capacity, and a hundredth for programs that start.
fn wait_for_rates(hosts: &[Segment], what: &str, is_there: impl Fn(&[u64]) -> bool) {
    let rates_now = || hosts.iter().map(rate).collect::<Vec<u64>>();
    wait_for(what, 3 * PATIENCE, || {
        let rates = rates_now();
        // Rates that move between two looks at hosts are no sum of any moment.
        if rates == rates_now() {
            let sum = rates.iter().sum::<u64>();
            assert!(sum <= CAPACITY + CAPACITY / 100 + 3, "{what}: {rates:?}");
        }
        is_there(&rates).then_some(())
    });
}

/// Three hosts, each with a link of its own. The first is cut off, falls back to its safe share
/// when its lease is over, and returns.
#[test]
fn a_host_that_is_cut_off_keeps_its_share_falls_back_and_returns() {
    let (mut cluster, address) = controller();
    cluster.bed().apply(SHARED).success();
    let links: Vec<Link> = (0..3).map(|_| Link::to(&address)).collect();
    let mut programs = Vec::new();
    for (host, link) in links.iter().enumerate() {
        let script = format!(
            "echo $TIDEGATE_SEGMENT > new.{host}; mv new.{host} segment.{host}
             while [ ! -e stop ]; do
                 dd if=/dev/zero of=file.{host} bs=64k count=16 conv=notrunc 2> /dev/null
             done"
        );
        let who = if host == 0 { ("ann", "oltp") } else { ("bob", "backup") };
        let mut command = run_for(&mut cluster, &link.address, who, &script);
        // A state of its own, as on a host of its own.
        command.env("XDG_RUNTIME_DIR", cluster.bed().subfolder(&format!("host.{host}")));
        programs.push(process::spawn(&mut command));
    }
    cluster.bed().wait_for_stages(3);
    let attach = |host: usize| {
        let path = cluster.bed().path(&format!("segment.{host}"));
        eventually("a segment", || path.exists());
        Segment::attach(Path::new(fs::read_to_string(path).unwrap().trim())).unwrap()
    };
    let hosts: Vec<Segment> = (0..3).map(attach).collect();
    let is_shared =
        |rates: &[u64]| rates[0] >= 2200 * KIB && rates[1..].iter().all(|rate| *rate >= 300 * KIB);
    wait_for_rates(&hosts, "shares", is_shared);
    links[0].cut();
    wait_for_rates(&hosts, "the safe share", |rates| rates[0] == 1536 * KIB);
    wait_for_rates(&hosts, "its rest at others", |rates| rates[1] + rates[2] >= 1500 * KIB);
    let silent = |bed: &tidegate_tests::bed::Bed| {
        let status = bed.status();
        let stages = status["stages"].as_array().cloned().unwrap_or_default();
        (stages.len(), stages.iter().filter(|stage| stage["is_silent"] == true).count())
    };
    eventually("one silent stage", || silent(cluster.bed()) == (3, 1));
    links[0].mend();
    wait_for_rates(&hosts, "shares again", is_shared);
    eventually("all stages connected", || silent(cluster.bed()) == (3, 0));
    fs::write(cluster.bed().path("stop"), "").unwrap();
    programs.into_iter().for_each(|program| _ = program.finish().success());
}
