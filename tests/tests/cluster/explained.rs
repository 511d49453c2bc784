//! Why requests were delayed, as `tidegate explain` says: which rule held them, and what would
//! change it.

use std::process::Stdio;

use serde_json::Value;
use tidegate_tests::cluster::{Cluster, volume};
use tidegate_tests::eventually;
use tidegate_tests::process::{self, Running};

/// The node can do 1,000. A quarter of it is oltp's, backup has a limit, and the others are equals.
const POLICY: &str = r#"
    tenant = [
        { name = "oltp", reservation = "250 iops" },
        { name = "backup", limit = "50 iops" },
        { name = "web" },
        { name = "batch" },
        { name = "idle" },
    ]
"#;

const NODE: &str = r#"
    [[node]]
    name = "a"
    memory = true
    capacity = "1k iops"
    depth = 4
    model = { rate = "1k iops", variance = "10%" }
    [[gateway]]
    name = "front"
    nbd = "unix:front.sock"
"#;

const BUSY: [&str; 4] = ["oltp", "backup", "web", "batch"];

/// Asks all the time, with eight requests under way.
fn load(cluster: &mut Cluster, export: &str) -> Running {
    let uri = cluster.uri(export);
    let mut command = cluster.bed().tidegate_lab(&["load", &uri, "--depth", "8", "--size", "4KiB"]);
    process::spawn(command.args(["--duration", "10min"]).stdin(Stdio::null()))
}

fn explained(cluster: &mut Cluster, tenant: &str) -> Value {
    let outcome = process::run(&mut cluster.bed().tidegate(&["explain", tenant, "--json"]));
    serde_json::from_str(&outcome.success().stdout).expect("JSON")
}

/// Returns the lines about a rule, if it held requests long enough to be reported: the reason, and
/// the help.
fn cause(report: &Value, rule: &str) -> Option<[String; 2]> {
    let causes = report["causes"].as_array().expect("a list");
    let cause = causes.iter().find(|cause| cause["rule"] == rule)?;
    Some(["why", "help"].map(|line| cause[line].as_str().expect("a line").to_owned()))
}

#[test]
fn each_tenant_is_shown_which_rule_held_it() {
    let volumes = BUSY.map(|name| volume(name, name, "4MiB", &["a"]));
    let mut cluster = Cluster::new(&format!("{NODE}{}", volumes.concat()), POLICY);
    cluster.up();
    let _loads = BUSY.map(|name| load(&mut cluster, name));

    eventually("backup waits for its limit", || {
        let report = explained(&mut cluster, "backup");
        report["causes"][0]["rule"] == "limit"
    });
    for (name, other) in [("web", "batch"), ("batch", "web")] {
        eventually("an equal waits for its turn and for what is reserved", || {
            let report = explained(&mut cluster, name);
            let [turn, reservation] = ["turn", "reservation"].map(|rule| cause(&report, rule));
            let (Some([why, help]), Some([first, first_help])) = (turn, reservation) else {
                return false;
            };
            assert!(help.starts_with("a weight of 200 would be "), "{report:#}");
            assert!(first_help.starts_with("give it a reservation of its own"), "{report:#}");
            // As soon as the waits are read, both reasons name the tenants that went ahead, too.
            why.contains(&format!("{other} (100)")) && first.contains(": oltp (")
        });
    }
    eventually("oltp has its own part first", || {
        let report = explained(&mut cluster, "oltp");
        let waits = &report["waits"];
        assert_eq!((&waits["limit_ns"], &waits["reservation_ns"]), (&0.into(), &0.into()));
        waits["operations"].as_u64() > Some(250) && cause(&report, "reservation").is_none()
    });

    let screen = process::run(&mut cluster.bed().tidegate(&["explain", "batch"])).success().stdout;
    let lines = ["batch: ", "NODE ", "a ", "turn, ", "  help: a weight of 200"];
    let has = |line: &str| screen.lines().any(|report| report.starts_with(line));
    assert!(lines.into_iter().all(has), "{screen}");
    let screen = process::run(&mut cluster.bed().tidegate(&["explain", "idle"])).success().stdout;
    assert!(screen.starts_with("idle: no requests in the last "), "{screen}");
    let unknown = process::run(&mut cluster.bed().tidegate(&["explain", "bacth"])).failure(1);
    let known = "oltp, backup, web, batch and idle";
    assert!(unknown.complaint().contains(known), "{}", unknown.complaint());
}
