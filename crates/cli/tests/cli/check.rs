//! `tidegate check`, with every kind of mistake.

use std::fs;
use std::path::Path;

use crate::{tidegate, transcript};

const CASES: &[(&str, &str)] = &[
    ("syntax.toml", "budget = \"100MiB/s\nperiod = \"1s\"\n"),
    ("unknown-field.toml", "[[tenant]]\nname = \"kv\"\nreserve = \"10MiB/s\"\n"),
    ("wrong-type.toml", "[[tenant]]\nname = \"kv\"\nlimit = 100\n"),
    ("missing-field.toml", "budget = \"100MiB/s\"\n\n[[tenant]]\nclass = \"high\"\n"),
    ("no-unit.toml", "period = \"1s\"\nbudget = \"1000\"\n"),
    ("wrong-unit.toml", "[[tenant]]\nname = \"kv\"\nlimit = \"100 MB\"\n"),
    ("class.toml", "[[tenant]]\nname = \"kv\"\nclass = \"hihg\"\n"),
    ("name-taken.toml", "[[tenant]]\nname = \"kv\"\n[[tenant]]\nname = \"kv\"\n"),
    (
        "contradiction.toml",
        "[[tenant]]\nname = \"kv\"\nlimit = \"1MiB/s\"\nreservation = \"2MiB/s\"\n",
    ),
    (
        "unknown-tenant.toml",
        "[[tenant]]\nname = \"backup\"\n[[match]]\ntenant = \"bakcup\"\nprocess = \"tar\"\n",
    ),
    (
        "unreachable-rule.toml",
        "[[tenant]]\nname = \"kv\"\n[[match]]\ntenant = \"kv\"\n[[match]]\ntenant = \"kv\"\n",
    ),
    (
        "gate.toml",
        "[[tenant]]\nname = \"kv\"\n\n[[channel]]\nname = \"c\"\ntenant = \"kv\"\n\
         gates = [{ kind = \"no-op\" }, { kind = \"token-bucket\" }]\n",
    ),
    (
        "row.toml",
        "budget = [\"1GiB/s\", \"20k iops\"]\n\n[[tenant]]\nname = \"kv\"\n\n\
         [[channel]]\nname = \"log\"\ntenant = \"kv\"\ngates = [\n\
         \x20 { kind = \"no-op\" }, { kind = \"no-op\" }, { kind = \"no-op\" },\n\
         \x20 { kind = \"no-op\" }, { kind = \"no-op\" }, { kind = \"no-op\" },\n\
         \x20 { kind = \"latency-probe\" },\n]\n",
    ),
    (
        "infeasible.toml",
        "budget = \"100MiB/s\"\n\n[[tenant]]\nname = \"oltp\"\nreservation = \"80MiB/s\"\n\n\
         [[tenant]]\nname = \"backup\"\nreservation = [\"40MiB/s\", \"10k iops\"]\n",
    ),
    ("umlaut.toml", "# größer als nötig\n[[tenant]]\nname = \"büro\"\n"),
    ("no-budget.toml", "[[tenant]]\nname = \"kv\"\nreservation = \"10MiB/s\"\n"),
    ("empty.toml", ""),
];

#[test]
fn every_error_is_shown_with_its_location_and_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let mut transcripts = String::new();
    for (name, text) in CASES {
        fs::write(directory.path().join(name), text).unwrap();
        let arguments = ["check", name];
        let output = tidegate(directory.path()).args(arguments).output().unwrap();
        transcripts += &(transcript(&arguments, &output) + "\n");
    }
    insta::assert_snapshot!(transcripts);
}

#[test]
fn programs_get_a_verdict_whatever_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let mut transcripts = String::new();
    for (name, text) in CASES {
        if ["no-unit.toml", "infeasible.toml", "no-budget.toml"].contains(name) {
            fs::write(directory.path().join(name), text).unwrap();
            let arguments = ["check", "--json", name];
            let output = tidegate(directory.path()).args(arguments).output().unwrap();
            serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
            transcripts += &(transcript(&arguments, &output) + "\n");
        }
    }
    insta::assert_snapshot!(transcripts);
}

#[test]
fn a_policy_may_come_through_a_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let policy = "budget = \"1GiB/s\"\n[[tenant]]\nname = \"kv\"\nreservation = \"1000MiB/s\"\n";
    let good = tidegate(directory.path()).args(["check", "-"]).write_stdin(policy).output();
    let bad = tidegate(directory.path()).args(["check", "-"]).write_stdin("budget = 5").output();
    let transcripts =
        transcript(&["check", "-"], &good.unwrap()) + &transcript(&["check", "-"], &bad.unwrap());
    insta::assert_snapshot!(transcripts);
}

#[test]
fn a_terminal_without_unicode_gets_ascii() {
    let directory = tempfile::tempdir().unwrap();
    let mut check = tidegate(directory.path());
    check.env("LC_ALL", "C").args(["check", "-"]).write_stdin("budget = 5");
    let output = check.output().unwrap();
    assert!(output.stderr.is_ascii());
}

/// The example cluster, with what is wrong or different in it.
fn cluster(from: &str, to: &str) -> String {
    let example = include_str!("../../../../examples/cluster.toml");
    let example = example.replace("../policies/cluster.toml", "good.toml");
    assert!(example.contains(from), "{from}");
    example.replacen(from, to, 1)
}

/// A cluster whose nodes and whose data node can do 100 operations each.
const THREE_HUNDRED: &str = r#"policy = "fits.toml"
[[node]]
name = "a"
memory = true
capacity = "100 iops"
[[volume]]
name = "db"
size = "1GiB"
tenant = "oltp"
nodes = "a"
[[data-node]]
name = "m"
listen = "unix:m.sock"
memory = "8MiB"
capacity = "100 iops"
client = "100 iops"
"#;

const RESOURCES: &str = r#"[[resource]]
name = "cluster"
[[resource]]
name = "files"
path = "/usr/**"
capacity = "100 iops"
[[resource]]
name = "memory"
data_nodes = ["m"]
[[group]]
name = "all"
on.files = { reservation = "70 iops" }
[[tenant]]
name = "oltp"
group = "all"
on.cluster = { reservation = "90 iops" }
"#;

/// One promise of 90 beside three capacities of 100 is reported, and refused once it names what it
/// is of and does not fit there.
#[test]
fn a_promise_is_admitted_against_its_own_resource() {
    let directory = tempfile::tempdir().unwrap();
    let on = |resource: &str, rate: u32| {
        format!(
            "{RESOURCES}on.{resource} = {{ reservation = \"{rate} iops\" }}\n[[tenant]]\n\
             name = \"web\"\non.{resource} = {{ reservation = \"35 iops\" }}\n"
        )
    };
    let everything = "budget = \"100 iops\"\n[[tenant]]\nname = \"oltp\"\n\
                      reservation = \"90 iops\"\n";
    let cases = [
        ("everything.toml", everything.to_owned()),
        ("fits.toml", on("memory", 60)),
        ("group.toml", on("files", 71)),
        ("files.toml", on("files", 70)),
        ("memory.toml", on("memory", 66)),
        ("nodes.toml", RESOURCES.replace("90 iops", "101 iops")),
        ("other-memory.toml", RESOURCES.replace("[\"m\"]", "[\"n\"]")),
    ];
    fs::write(directory.path().join("cluster.toml"), THREE_HUNDRED).unwrap();
    let mut transcripts = String::new();
    let mut check = |arguments: &[&str]| {
        let output = tidegate(directory.path()).args(arguments).output().unwrap();
        transcripts += &(transcript(arguments, &output) + "\n");
    };
    for (name, text) in &cases {
        fs::write(directory.path().join(name), text).unwrap();
        check(&["check", name, "--cluster", "cluster.toml"]);
    }
    for name in ["fits.toml", "group.toml", "nodes.toml"] {
        check(&["check", "--json", name, "--cluster", "cluster.toml"]);
    }
    insta::assert_snapshot!(transcripts);
}

/// No machine has the memory, so the numbers of this one do not matter.
#[test]
fn more_memory_than_there_is_is_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    let policy = "[[tenant]]\nname = \"oltp\"\n";
    fs::write(folder.join("fits.toml"), policy).unwrap();
    let large = THREE_HUNDRED.replace("1GiB", "4PiB").replace("8MiB", "8TiB");
    fs::write(folder.join("cluster.toml"), large).unwrap();
    for arguments in [
        &["check", "--cluster", "cluster.toml"][..],
        &["check", "--cluster", "cluster.toml", "--json"],
        &["volume", "create", "cluster.toml", "--state", "state"],
        &["volume", "create", "cluster.toml", "--state", "state", "--json"],
    ] {
        let output = tidegate(folder).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let expected = "node a and data node m may together use 4.01 PiB of memory, and this ";
        assert!(text.contains(expected), "{arguments:?}: {text}");
        assert!(text.contains(" left: the kernel kills processes once none is left"), "{text}");
    }
    fs::write(folder.join("cluster.toml"), THREE_HUNDRED.replace("1GiB", "1MiB")).unwrap();
    let output = tidegate(folder).args(["check", "--cluster", "cluster.toml"]).output().unwrap();
    assert!(!String::from_utf8(output.stdout).unwrap().contains("kernel"), "9 MiB are left");
}

const GREEDY: &str = "[[tenant]]\nname = \"oltp\"\nreservation = \"50k iops\"\n\n\
                      [[tenant]]\nname = \"backup\"\nreservation = \"15k iops\"\n";

#[test]
fn a_policy_is_checked_against_the_nodes_that_are_to_keep_it() {
    let directory = tempfile::tempdir().unwrap();
    let odd = "[[tenant]]\nname = \"oltp\"\nlimit = \"1GiB/s\"\nreservation = \"9k iops\"\n\n\
               [[tenant]]\nname = \"web\"\nreservation = \"90k iops\"\n";
    for (name, text) in [
        ("good.toml", include_str!("../../../../policies/cluster.toml")),
        ("greedy.toml", GREEDY),
        ("odd.toml", odd),
        ("cluster.toml", &cluster("", "")),
        ("silent.toml", &cluster("capacity = \"20k iops\"\n", "")),
        ("no-policy.toml", &cluster("policy = \"good.toml\"\n", "")),
        ("unknown.toml", &cluster("nodes = \"c\"", "nodes = \"d\"")),
        ("busy.toml", &cluster("unix:b.sock", "unix:a.sock")),
    ] {
        fs::write(directory.path().join(name), text).unwrap();
    }
    let mut transcripts = String::new();
    for arguments in [
        &["check", "--cluster", "cluster.toml"][..],
        &["check", "--cluster", "cluster.toml", "--json"],
        &["check", "greedy.toml", "--cluster", "cluster.toml"],
        &["check", "greedy.toml", "--cluster", "cluster.toml", "--json"],
        &["check", "odd.toml", "--cluster", "silent.toml"],
        &["check", "--cluster", "no-policy.toml"],
        &["check", "--cluster", "unknown.toml"],
        &["check", "--cluster", "busy.toml"],
        &["check", "--cluster", "nowhere.toml"],
    ] {
        let output = tidegate(directory.path()).args(arguments).output().unwrap();
        transcripts += &(transcript(arguments, &output) + "\n");
    }
    insta::assert_snapshot!(transcripts);
}

/// Two data nodes, alike.
fn data_nodes() -> String {
    let example = include_str!("../../../../examples/data-node.toml");
    let (head, node) = example.split_once("[[data-node]]").unwrap();
    let other = node.replace("memory\"", "other\"").replace("memory.sock", "other.sock");
    head.replace("../policies/data-node.toml", "kept.toml")
        + &[node, &other].map(|node| format!("[[data-node]]{node}")).concat()
}

#[test]
fn a_policy_is_checked_against_data_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let promises = |web: &str, batch: &str| {
        format!(
            "[[tenant]]\nname = \"web\"\nreservation = \"{web} iops\"\n\
             [[tenant]]\nname = \"batch\"\nreservation = \"{batch} iops\"\n"
        )
    };
    for (name, text) in [
        ("kept.toml", promises("500k", "300k")),
        ("greedy.toml", promises("700k", "200k")),
        ("memory.toml", data_nodes()),
        ("both.toml", cluster("", "") + data_nodes().split_once("\"kept.toml\"\n").unwrap().1),
        ("good.toml", include_str!("../../../../policies/cluster.toml").into()),
    ] {
        fs::write(directory.path().join(name), text).unwrap();
    }
    let mut transcripts = String::new();
    for arguments in [
        &["check", "--cluster", "memory.toml"][..],
        &["check", "greedy.toml", "--cluster", "memory.toml"],
        &["check", "greedy.toml", "--cluster", "memory.toml", "--json"],
        &["check", "--cluster", "both.toml"],
    ] {
        let output = tidegate(directory.path()).args(arguments).output().unwrap();
        transcripts += &(transcript(arguments, &output) + "\n");
    }
    insta::assert_snapshot!(transcripts);
}

#[test]
fn the_manual_shows_the_example_and_its_output() {
    let page = include_str!("../../../../docs/src/cluster.md");
    assert!(page.contains(include_str!("../../../../examples/cluster.toml")));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let directory = tempfile::tempdir().unwrap();
    let greedy = directory.path().join("greedy.toml");
    fs::write(&greedy, GREEDY).unwrap();
    let cluster = ["--cluster", "examples/cluster.toml"];
    let printed = tidegate(&root).arg("check").args(cluster).output().unwrap();
    let commands = include_str!("../../../../docs/src/commands.md");
    assert!(commands.contains(&String::from_utf8(printed.stdout).unwrap()));
    let output = tidegate(&root).arg("check").arg(greedy).args(cluster).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let printed = String::from_utf8(output.stderr).unwrap();
    // The manual has no blanks at the ends of lines.
    let printed: String = printed.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    assert!(page.contains(&printed), "{printed}");
}

#[test]
fn parts_in_the_folder_of_another_node_are_named_and_not_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let node = |name: &str| {
        format!("[[node]]\nname = \"{name}\"\ndirectory = \"{name}\"\ncapacity = \"1k iops\"\n")
    };
    let volume = |name: &str, node: &str| {
        format!(
            "[[volume]]\nname = \"{name}\"\nsize = \"1MiB\"\ntenant = \"t\"\nnodes = \"{node}\"\n"
        )
    };
    let gateway = "[[gateway]]\nname = \"g\"\nnbd = \"unix:g.sock\"\n".into();
    let file = [node("a"), node("b"), gateway, volume("one", "a"), volume("two", "b")].concat();
    fs::write(directory.join("c.toml"), file).unwrap();
    let run = |arguments: &[&str]| {
        let output = tidegate(directory).args(arguments).args(["--state", "st"]).output().unwrap();
        transcript(arguments, &output)
    };
    fs::write(directory.join("p.toml"), "[[tenant]]\nname = \"t\"\n").unwrap();
    let check = || run(&["check", "p.toml", "--cluster", "c.toml"]);
    let created = run(&["volume", "create", "c.toml"]);
    assert!(created.contains("exit 0"), "{created}");
    assert!(check().contains("exit 0"), "{}", check());
    let exchange = || {
        for (from, to) in [("a", "aside"), ("b", "a"), ("aside", "b")] {
            fs::rename(directory.join("st").join(from), directory.join("st").join(to)).unwrap();
        }
    };
    exchange();
    for transcripts in [check(), run(&["volume", "create", "c.toml", "one"])] {
        assert!(
            transcripts
                .contains("part 0 of volume one is not at node a: it lies in st/b of node b")
        );
        assert!(transcripts.contains("exit 1"), "{transcripts}");
    }
    assert!(!directory.join("st/a/one.0").exists(), "an empty volume was made");
    exchange();
    assert!(check().contains("exit 0"), "{}", check());
}

/// A policy accepts the printed lines, and the folder is as empty as before.
#[test]
fn a_capacity_is_measured_for_a_policy() {
    let directory = tempfile::tempdir().unwrap();
    let calibrate = |arguments: &[&str]| {
        let mut command = tidegate(directory.path());
        command.args(["check", "--calibrate", ".", "--size", "64MiB", "--per-pattern", "20ms"]);
        command.args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = calibrate(&[]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "no file is left");
    let capacity = text.lines().find(|line| line.starts_with("capacity = ")).unwrap();
    let policy = format!("[[resource]]\nname = \"disk\"\npath = \"/srv/**\"\n{capacity}\n");
    fs::write(directory.path().join("found.toml"), policy).unwrap();
    let check = tidegate(directory.path()).args(["check", "found.toml"]).output().unwrap();
    assert!(check.status.success(), "{check:?}");

    // No request is as fast as a nanosecond: each pattern ends with one request at a time.
    let json: serde_json::Value =
        serde_json::from_str(&calibrate(&["--latency", "1ns", "--json"])).unwrap();
    let patterns = json["patterns"].as_array().unwrap();
    assert_eq!(patterns.len(), 6);
    for pattern in patterns {
        assert_eq!((&pattern["depth"], &pattern["is_within_bound"]), (&1.into(), &false.into()));
        assert!(pattern["p50_ns"].as_u64() > Some(1), "{pattern}");
    }
    let least = |size: u64, key: &str| {
        let of_size = patterns.iter().filter(|pattern| pattern["request_bytes"] == size);
        of_size.map(|pattern| pattern[key].as_u64().unwrap()).min().unwrap()
    };
    assert_eq!(json["capacity_operations_per_second"], least(4 << 10, "operations_per_second"));
    assert_eq!(json["capacity_bytes_per_second"], least(1 << 20, "bytes_per_second"));
}

#[test]
fn a_folder_that_cannot_be_measured_is_named() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    for (folder, reason) in [("missing", "cannot be examined"), ("/proc", "only 0 B are free")] {
        let mut command = tidegate(directory.path());
        let output = command.args(["check", "--calibrate", folder]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(folder) && error.contains(reason), "{error}");
        assert_eq!(output.status.code(), Some(1));
    }
    let output = tidegate(directory.path()).args(["check", "--calibrate", "file"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1), "a file is no folder");
    let small = ["check", "--calibrate", ".", "--size", "1MiB"];
    assert_eq!(tidegate(directory.path()).args(small).output().unwrap().status.code(), Some(2));
    let both = ["check", "file", "--calibrate", "."];
    assert_eq!(tidegate(directory.path()).args(both).output().unwrap().status.code(), Some(2));
}

#[test]
fn nodes_that_cannot_keep_bytes_are_shown_with_their_bandwidth() {
    let directory = tempfile::tempdir().unwrap();
    let node = "[[node]]\nname = \"x\"\nmemory = true\ncapacity = [\"20k iops\", \"100MiB/s\"]\n";
    let volume = "[[volume]]\nname = \"db\"\nsize = \"1MiB\"\ntenant = \"oltp\"\nnodes = \"x\"\n";
    fs::write(directory.path().join("cluster.toml"), format!("{node}{volume}")).unwrap();
    let check = |rate: &str| {
        let policy = format!(
            "[[resource]]\nname = \"cluster\"\n[[tenant]]\nname = \"oltp\"\n\
             on.cluster.reservation = {rate:?}\n"
        );
        fs::write(directory.path().join("policy.toml"), policy).unwrap();
        let mut command = tidegate(directory.path());
        command.args(["check", "policy.toml", "--cluster", "cluster.toml"]);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text + &String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = check("20MiB/s");
    assert!(code == Some(0) && text.contains("that can do 20k iops and 100 MiB/s"), "{text}");
    let (code, text) = check("101MiB/s");
    assert!(code == Some(4) && text.contains("x can do 100MiB/s"), "{text}");
    assert!(!text.contains("x can do 20k iops"), "{text}");
}
