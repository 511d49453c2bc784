//! Schedulers of nodes: chosen while everything runs, and waiting requests keep no other tenant
//! out.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tidegate_tests::cluster::{Cluster, GATEWAY, directories, volume};
use tidegate_tests::nbd::Client;
use tidegate_tests::{eventually, process, tools};

use super::levels::{load, rate};

/// A machine that stalls for some seconds moves what it measures meanwhile.
const ATTEMPTS: u32 = 4;

const SCHEDULERS: [&str; 7] =
    ["fifo", "round-robin", "token", "sfq", "dsfq-total", "dsfq-hybrid", "unified"];

/// `tidegate scheduler`, and what it says.
#[track_caller]
fn scheduler(cluster: &mut Cluster, arguments: &[&str]) -> Value {
    let mut command = cluster.bed().tidegate(&["scheduler", "--json"]);
    let outcome = process::run(command.args(arguments)).success();
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

fn striped(policy: &str) -> Cluster {
    let db = volume("db", "oltp", "6MiB", &["a", "b"]) + "tenants = \"slow\"\n";
    Cluster::new(&format!("cost = \"bytes\"\n{}{db}", directories(&["a", "b"])), policy)
}

#[test]
fn a_chosen_scheduler_is_reported_and_kept() {
    let file = format!("scheduler = \"sfq\"\n{}", directories(&["a", "b"]));
    let mut cluster = Cluster::new(&file, super::OPEN);
    cluster.up();
    let line = |node, scheduler, is_chosen| -> Value {
        json!({ "node": node, "scheduler": scheduler, "is_chosen": is_chosen })
    };
    let (a, b) = (line("a", "sfq", false), line("b", "unified", true));
    assert_eq!(scheduler(&mut cluster, &["b", "unified"]), json!([a, b]));
    cluster.bed().kill_controller();
    cluster.up();
    assert_eq!(scheduler(&mut cluster, &[]), json!([a, b]));
    eventually("the node says so itself", || {
        cluster.bed().status()["cluster"]["nodes"][1]["scheduler"] == "unified"
    });
    scheduler(&mut cluster, &["--all", "--default"]);
    assert_eq!(scheduler(&mut cluster, &[]), json!([a, line("b", "sfq", false)]));
    for (wrong, code, why) in [
        (&["c", "fifo"][..], 1, "the cluster has no node \"c\""),
        (&["a", "cfq"], 2, "\"cfq\" is not a scheduler"),
        (&["a"], 2, "a node or --all"),
    ] {
        let mut command = cluster.bed().tidegate(&["scheduler"]);
        let outcome = process::run(command.args(wrong)).failure(code);
        assert!(outcome.stderr.contains(why), "{outcome:?}");
    }
}

/// Every scheduler is chosen many times, and policies with other weights between them, under a
/// client that knows what it wrote.
#[test]
fn fio_finds_what_it_wrote_while_schedulers_and_weights_change() {
    let policy = |weight: usize| {
        format!(
            "[[tenant]]\nname = \"oltp\"\nweight = {weight}\nreservation = \"500 iops\"\n\
             [[tenant]]\nname = \"other\"\nlimit = \"50k iops\"\n"
        )
    };
    let mut cluster = striped(&policy(1));
    cluster.up_apart(&["a", "b"], &["db"]);
    let mut changes = 0;
    while changes < 300 {
        let mut command = Command::new(tools::need("fio"));
        command.args(["--name=job", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--size=6M"]);
        command.args(["--iodepth=32", "--thread", "--verify=crc32c", "--verify_fatal=1"]);
        command.args(["--verify_state_save=0", "--loops=4", "--output-format=normal"]);
        command.arg(format!("--uri={}", cluster.uri("db"))).stdin(Stdio::null());
        let mut running = process::spawn(&mut command);
        while running.is_running() {
            scheduler(&mut cluster, &["--all", SCHEDULERS[changes % SCHEDULERS.len()]]);
            cluster.bed().apply(&policy(2 + changes)).success();
            changes += 2;
        }
        let outcome = running.finish().success();
        assert!(outcome.stdout.contains("err= 0"), "{outcome:?}");
    }
    // Nothing is left behind, and each is still there for the next request.
    for name in SCHEDULERS {
        scheduler(&mut cluster, &["--all", name]);
        assert_eq!(cluster.enter("db").read(0, 4096).unwrap().len(), 4096, "{name}");
    }
}

/// Two nodes that do a thousand requests in a second each. `f` lives on the first. `g` asks both,
/// the second through a gateway of its own, so that no request to the first could tell of it. Where
/// each node is shared for itself both have half of the first; where the whole is shared, `g` has
/// enough of the second and leaves the first to `f`.
#[test]
fn service_elsewhere_counts_for_requests_of_every_gateway() {
    let node = |name| {
        format!(
            "[[node]]\nname = {name:?}\nmemory = true\ndepth = 4\n\
             model = {{ rate = \"1k iops\" }}\n"
        )
    };
    let gateway = |name| format!("[[gateway]]\nname = {name:?}\nnbd = \"unix:{name}.sock\"\n");
    let volumes = [("f", "f", "a"), ("near", "g", "a"), ("far", "g", "b")]
        .map(|(name, tenant, node)| volume(name, tenant, "4MiB", &[node]));
    let parts = [node("a"), node("b"), gateway(GATEWAY), gateway("side"), volumes.concat()];
    let policy = "[[tenant]]\nname = \"f\"\n[[tenant]]\nname = \"g\"\n";
    let mut cluster = Cluster::new(&parts.concat(), policy);
    cluster.up();
    let side = cluster.uri("far").replace(&format!("{GATEWAY}.sock"), "side.sock");
    // Shares, not rates: a machine that others use as well reaches no rate for sure.
    let halves = |[f, near, _]: &[f64; 3]| (0.45..=0.55).contains(&(f / (f + near)));
    // Where `g` has less of the second than `f` of the first, the whole is what is shared equally.
    let whole = |[f, near, far]: &[f64; 3]| *f >= 0.85 * (f + near) || *f >= 0.9 * (near + far);
    for (name, is_held) in [("sfq", &halves as &dyn Fn(&_) -> bool), ("dsfq-total", &whole)] {
        scheduler(&mut cluster, &["--all", name]);
        let mut seen = Vec::new();
        let was_held = (0..ATTEMPTS).any(|_| {
            let loads = [cluster.uri("f"), cluster.uri("near"), side.clone()];
            seen.push(loads.map(|uri| load(&uri, 16, "0")).map(rate));
            seen.last().is_some_and(is_held)
        });
        assert!(was_held, "{name}: f at a, g at a, g at b: {seen:?}");
    }
}

/// A client that counts: what was acknowledged is there, nothing is answered twice, and nothing
/// waits at nodes for somebody who is gone.
#[test]
fn a_gateway_dies_under_load_and_nothing_is_answered_twice() {
    let policy = "[[tenant]]\nname = \"oltp\"\nlimit = \"2k iops\"\nreservation = \"1k iops\"\n";
    let mut cluster = striped(policy);
    cluster.up_apart(&["a", "b"], &["db"]);
    for (round, name) in SCHEDULERS.into_iter().enumerate() {
        scheduler(&mut cluster, &["--all", name]);
        let mut client = cluster.enter("db");
        // One block each, so that whatever is acknowledged can be looked for.
        let mut pending = BTreeMap::new();
        for block in 0..512_u64 {
            let content = [round as u8 + 1; 4096];
            pending.insert(client.submit_write(block * 4096, &content).unwrap(), block);
        }
        let mut acknowledged = Vec::new();
        for _ in 0..64 {
            let (cookie, outcome) = client.receive().unwrap();
            outcome.unwrap();
            acknowledged.push(pending.remove(&cookie).expect("one answer to each request"));
        }
        cluster.kill(GATEWAY);
        while let Ok((cookie, outcome)) = client.receive() {
            outcome.unwrap();
            acknowledged.push(pending.remove(&cookie).expect("one answer to each request"));
        }
        eventually("nobody waits", || {
            let status = cluster.bed().status();
            let nodes = status["cluster"]["nodes"].as_array().unwrap();
            nodes.iter().all(|node| node["waiting_operations"] == 0)
        });
        cluster.start("gateway", GATEWAY);
        let mut client = cluster.enter("db");
        for block in acknowledged {
            let content = client.read(block * 4096, 4096).unwrap();
            assert!(content == [round as u8 + 1; 4096], "{name}: block {block} was acknowledged");
        }
    }
}

/// 64 clients with 1,024 requests each for a tenant that may do one in a second.
#[test]
fn waiting_requests_keep_no_other_tenant_out() {
    let policy = "[[tenant]]\nname = \"slow\"\nlimit = \"1 iops\"\n[[tenant]]\nname = \"oltp\"\n";
    let mut cluster = striped(policy);
    cluster.up_apart(&["a", "b"], &["db"]);
    scheduler(&mut cluster, &["--all", "unified"]);
    let endpoint = cluster.endpoint();
    let enter = |_| Client::enter(&endpoint, "db@slow").unwrap();
    let mut clients: Vec<Client> = (0..64).map(enter).collect();
    for (number, client) in (0..).zip(&mut clients) {
        // So short that not their memory is the bound, also if one worker has all clients.
        client.submit_reads(number % 2 * (64 << 10), 512, 1024).unwrap();
    }
    // The most requests that a gateway has in flight, with those that it took before all clients
    // were there.
    let most = 32 << 10;
    let waiting = |cluster: &mut Cluster| -> u64 {
        let status = cluster.bed().status();
        let nodes = status["cluster"]["nodes"].as_array().unwrap();
        nodes.iter().map(|node| node["waiting_operations"].as_u64().unwrap()).sum()
    };
    eventually("as much as may wait", || waiting(&mut cluster) >= most - 64);
    // It would have to wait for hours behind them.
    let mut client = cluster.enter("db");
    (0..200).for_each(|round| drop(client.read(round % 2 * (64 << 10), 4096).unwrap()));
    let waits = waiting(&mut cluster);
    assert!(waits <= most, "{waits} wait");
    drop(clients);
    eventually("nobody", || waiting(&mut cluster) == 0);
}
