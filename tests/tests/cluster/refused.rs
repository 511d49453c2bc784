//! Commands that cannot succeed are refused: with a reason that helps, an exit code that scripts
//! can tell apart, and nothing left half-made.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tidegate_tests::cluster::{Cluster, GATEWAY, directories, volume};
use tidegate_tests::nbd::{Client, EIO, ENOSPC, connect};
use tidegate_tests::process::{self, ProgramOutcome};
use tidegate_tests::{eventually, tools};
use tidegate_wire::nbd::client::{export_data, options};
use tidegate_wire::nbd::constants::option;

use super::OPEN;

fn up(cluster: &Cluster, arguments: &[&str]) -> ProgramOutcome {
    process::run(&mut cluster.command(arguments))
}

/// The complaint has these words.
#[track_caller]
fn assert_complaint(complaint: &str, words: &str) {
    assert!(complaint.contains(words), "{complaint}\n  should contain\n{words}");
}

/// A cluster of one directory and one volume, of which nothing runs.
fn small(size: &str) -> String {
    format!("{}{}", directories(&["a"]), volume("db", "oltp", size, &["a"]))
}

#[test]
fn a_volume_that_is_not_there() {
    let mut cluster = Cluster::new(&small("1MiB"), OPEN);
    cluster.up();
    let report = cluster.client("nbdinfo", &[&cluster.uri("nothing")]).failure(1);
    assert_complaint(&report.complaint(), "No such file or directory for export: nothing");
    let report = cluster.client("qemu-img", &["info", &cluster.uri("nothing")]).failure(1);
    assert_complaint(&report.complaint(), "server reported: there is no export \"nothing\"");
    let uri = cluster.uri("nothing");
    let report = process::run(&mut cluster.bed().tidegate_lab(&["load", &uri])).failure(1);
    assert_complaint(
        &report.complaint(),
        "the server refuses the export \"nothing\": there is no export",
    );
    // A client of the old way can only be turned away.
    Client::enter(&cluster.endpoint(), "nothing").unwrap_err();
    cluster.client("nbdinfo", &[&cluster.uri("db")]).success();
}

/// One that was refused an export says that it leaves, and need not wait until that is answered.
#[test]
fn a_client_that_leaves_after_a_refusal_is_no_warning() {
    let mut cluster = Cluster::new(&small("1MiB"), OPEN);
    cluster.up();
    cluster.enter("db").read(0, 512).unwrap();
    let mut stream = connect(&cluster.endpoint()).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    let clients =
        |cluster: &mut Cluster| cluster.bed().status()["cluster"]["gateways"][0]["clients"].clone();
    eventually("the client", || clients(&mut cluster) == 1);
    // It has left before the gateway looks at what it has said.
    let pid = cluster.bed().controller().pid();
    process::send(pid, Signal::STOP);
    eventually("the gateway stands still", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    });
    let sent = options(3, &[(option::GO, &export_data("nothing", &[])), (option::ABORT, b"")]);
    stream.write_all(&sent).unwrap();
    drop(stream);
    process::send(pid, Signal::CONT);
    eventually("its end", || clients(&mut cluster) == 0);
    let ended = cluster.bed().down();
    assert!(!ended.stderr.contains("a client's connection is closed"), "{ended:?}");
}

#[test]
fn layouts_that_overlap() {
    let device = "[[node]]\nname = \"a\"\naddress = \"unix:a.sock\"\ndevice = \"disk\"\n\
                  [[gateway]]\nname = \"front\"\nnbd = \"unix:front.sock\"\n";
    let at =
        |name, offset| format!("{}offsets = [{offset:?}]\n", volume(name, "oltp", "1MiB", &["a"]));
    let file = format!("{device}{}{}", at("one", "0B"), at("two", "1020KiB"));
    let mut cluster = Cluster::new(&file, OPEN);
    let refused = up(&cluster, &[]).failure(3).complaint();
    assert_complaint(
        &refused,
        "offsets: two has 1020KiB to 2044KiB of node a, and one has 0B to 1MiB",
    );
    assert_complaint(&refused, "help: begin at 1MiB or later");
    assert!(!cluster.state().exists(), "it is refused before anything is made");
    // Side by side they are two volumes, on a device that is large enough.
    cluster.write(&format!("{device}{}{}", at("one", "0B"), at("two", "1MiB")));
    fs::create_dir(cluster.state()).unwrap();
    // The last mebibyte is for labels.
    fs::write(cluster.path("disk"), vec![0; 3 << 20]).unwrap();
    cluster.up();
    let (mut one, mut two) = (cluster.enter("one"), cluster.enter("two"));
    one.write((1 << 20) - 4096, &[1; 4096]).unwrap();
    two.write(0, &[2; 4096]).unwrap();
    assert_eq!(one.read((1 << 20) - 4096, 4096).unwrap(), [1; 4096]);
    assert_eq!(two.read(0, 4096).unwrap(), [2; 4096]);
}

#[test]
fn a_device_that_is_not_there_or_too_small() {
    let file = format!(
        "[[node]]\nname = \"a\"\ndevice = \"disk\"\n\
         [[gateway]]\nname = \"front\"\nnbd = \"unix:front.sock\"\n{}offsets = [\"0B\"]\n",
        volume("db", "oltp", "1MiB", &["a"])
    );
    let cluster = Cluster::new(&file, OPEN);
    let made = "help: make it with `truncate -s SIZE`, or use a directory instead";
    for (arguments, words) in [(&[][..], "× a: cannot use "), (&["--create"], "× cannot use ")] {
        let refused = up(&cluster, arguments).failure(1).complaint();
        assert_complaint(&refused, words);
        assert_complaint(&refused, "/disk as ");
        assert_complaint(&refused, "node's store: No such file or directory (os error 2)");
        assert_complaint(&refused, made);
        assert!(!cluster.path("disk").exists(), "a device is never made");
        cluster.expect_nothing_left();
    }
    // Too small for labels, and too small for the part before them.
    for (length, [words, help], [create_words, create_help]) in [
        (
            1 << 19,
            ["volume \"db\" does not fit on ", "help: make the device larger"],
            ["volume db at node a does not fit on ", "help: make the device larger"],
        ),
        (
            3 << 19,
            [
                "volume \"db\" would end at 1MiB, and there is room for 512KiB",
                "help: make the volume smaller or the store larger",
            ],
            ["volume db at node a would end at 1MiB of ", "help: make the device larger by 1MiB"],
        ),
    ] {
        fs::write(cluster.path("disk"), vec![7; length]).unwrap();
        let refused = up(&cluster, &[]).failure(1).complaint();
        assert_complaint(
            &refused,
            &format!("× front: volume db is not served: part 0: part 0 of {words}"),
        );
        assert_complaint(&refused, help);
        let refused = up(&cluster, &["--create"]).failure(1).complaint();
        assert_complaint(&refused, &format!("× part 0 of {create_words}"));
        assert_complaint(&refused, create_help);
        assert_eq!(fs::read(cluster.path("disk")).unwrap(), vec![7; length], "nor changed");
        cluster.expect_nothing_left();
    }
}

#[test]
fn a_store_of_another_size() {
    let with_another = |size: &str| small(size) + &volume("other", "oltp", "1MiB", &["a"]);
    let mut cluster = Cluster::new(&with_another("1MiB"), OPEN);
    cluster.up();
    cluster.enter("db").write_durably(0, &[7; 4096]).unwrap();
    cluster.bed().down();
    let words =
        "part 0 of volume \"db\" belongs to a volume of 1MiB, and the cluster file says 2MiB";
    // Other volumes are served, and this one is named.
    cluster.write(&with_another("2MiB"));
    let mut command = cluster.command(&[]);
    cluster.bed().up_with(&mut command);
    cluster.enter("other").read(0, 512).unwrap();
    expect_eio(&cluster);
    assert_complaint(
        &cluster.bed().controller().stderr(),
        &format!("volume=\"db\" reason=part 0: {words}; run `tidegate volume resize CLUSTER"),
    );
    expect_fault(&mut cluster, words);
    cluster.bed().down();
    // Where there is nothing else to serve, nothing runs.
    cluster.write(&small("2MiB"));
    let refused = up(&cluster, &[]).failure(1).complaint();
    assert_complaint(&refused, &format!("× front: volume db is not served: part 0: {words}"));
    assert_complaint(
        &refused,
        "help: run `tidegate volume resize CLUSTER db 2MiB`, which grows the volume",
    );
    let refused = up(&cluster, &["--create"]).failure(1).complaint();
    assert_complaint(&refused, "× part 0 of volume db at node a was made for a volume of 1MiB");
    assert_complaint(
        &refused,
        "help: run `tidegate volume resize CLUSTER db 2MiB`, which grows the volume",
    );
    cluster.expect_nothing_left();
    // Where the node is elsewhere the gateway serves what there is, and says what there is not.
    let mut command = cluster.command(&["--role", "controller"]);
    cluster.bed().up_with(&mut command);
    cluster.start("node", "a");
    cluster.start("gateway", GATEWAY);
    let log = || cluster.component(GATEWAY).stderr();
    eventually("a reason in the log", || log().contains("volume=\"db\" reason=part 0: "));
    assert_complaint(&log(), words);
    expect_eio(&cluster);
    expect_fault(&mut cluster, words);
    let kept = fs::read(cluster.path("a/db.0")).unwrap();
    assert!(kept.len() == 1 << 20 && kept[..4096] == [7; 4096], "what was written is untouched");
}

/// The volume `db` can be entered, and nothing of it be read.
#[track_caller]
fn expect_eio(cluster: &Cluster) {
    let failed = cluster.enter("db").read(0, 512).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(EIO), "{failed}");
}

/// The status names part 0 of `db`, and why it is not served.
#[track_caller]
fn expect_fault(cluster: &mut Cluster, words: &str) {
    eventually("a fault in the status", || {
        let status = cluster.bed().status();
        let fault = &status["cluster"]["nodes"][0]["faults"][0];
        fault["volume"] == "db" && fault.to_string().replace("\\\"", "\"").contains(words)
    });
}

/// A cluster whose node's directory is a file system of its own, of this kind, that only it sees.
fn on_a_small_disk(cluster: &Cluster, options: &str, arguments: &[&str]) -> Command {
    let script = "mount -t tmpfs -o \"$1\" none \"$2\"; shift 2; exec \"$@\"";
    let inner = cluster.command(arguments);
    fs::create_dir_all(cluster.path("a")).unwrap();
    let mut command = Command::new(tools::need("unshare"));
    command.args(["--mount", "sh", "-euc", script, "sh", options]).arg(cluster.path("a"));
    command.arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
    command
}

#[test]
fn a_full_disk() {
    if !tools::is_root() {
        return tools::skipped("only root can make a disk that is full");
    }
    let mut cluster = Cluster::new(&small("8MiB"), OPEN);
    let mut command = on_a_small_disk(&cluster, "size=4m,mode=0700", &["--create"]);
    cluster.bed().up_with(&mut command);
    let mut client = cluster.enter("db");
    let step = vec![7; 1 << 20];
    let full = (0..8).find_map(|mebibyte| client.write(mebibyte << 20, &step).err());
    let full = full.expect("more than there is room for");
    assert_eq!(full.raw_os_error(), Some(ENOSPC), "{full}");
    assert_eq!(client.read(0, step.len()).unwrap(), step, "what was written is there");
    client.write(0, &[8; 4096]).unwrap();
    let report = cluster.qemu_io("db", &["write 7M 64k"]);
    let report = format!("{}{}", report.stdout, report.stderr);
    assert!(report.contains("No space left on device"), "{report}");
}

#[test]
fn a_disk_without_space_for_a_file() {
    if !tools::is_root() {
        return tools::skipped("only root can make a disk that is full");
    }
    let cluster = Cluster::new(&small("8MiB"), OPEN);
    // One file is the folder itself.
    let script = "\"$@\" && exit 99; code=$?; ls -A \"$TIDEGATE_LEFT\"; exit $code";
    let inner = on_a_small_disk(&cluster, "nr_inodes=1,mode=0700", &["--create"]);
    let mut command = Command::new(inner.get_program());
    let (mount, rest): (Vec<_>, Vec<_>) =
        inner.get_args().map(|word| word.to_owned()).enumerate().partition(|(at, _)| *at < 7);
    command.args(mount.iter().map(|(_, word)| word)).args(["sh", "-uc", script, "sh"]);
    command.args(rest.iter().map(|(_, word)| word)).env("TIDEGATE_LEFT", cluster.path("a"));
    let refused = process::run(&mut command).failure(1);
    assert!(refused.complaint().contains("No space left on device"), "{refused:?}");
    assert_eq!(refused.stdout, "", "something is left in the directory");
    cluster.expect_nothing_left();
}

#[test]
fn a_port_that_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let file = small("1MiB").replace("unix:front.sock", &port);
    let cluster = Cluster::new(&file, OPEN);
    cluster.volume(&["create"]).success();
    let made = names_in(&cluster.path("a"));
    let refused = up(&cluster, &[]).failure(1);
    assert_complaint(&refused.complaint(), &format!("× front: another process listens on {port}"));
    assert_complaint(&refused.complaint(), "help: stop it, or choose another address");
    assert_eq!(refused.stderr.matches('×').count(), 1, "one error: {refused:?}");
    assert_eq!(names_in(&cluster.path("a")), made, "nothing is made beside the volume");
    cluster.expect_nothing_left();
    drop(taken);
    // A node's is no different.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    cluster.write(&small("1MiB").replace("unix:a.sock", &port));
    for arguments in [&[][..], &["--role", "node", "--name", "a"]] {
        let refused = up(&cluster, arguments).failure(1);
        assert_complaint(&refused.complaint(), &format!("× a: another process listens on {port}"));
        cluster.expect_nothing_left();
    }
}

/// The names in a folder, in order.
fn names_in(folder: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn a_node_that_runs_already() {
    let mut cluster = Cluster::new(&small("1MiB"), OPEN);
    cluster.up_apart(&["a"], &["db"]);
    for arguments in [["node", "a"], ["gateway", GATEWAY]] {
        let [role, name] = arguments;
        let refused = up(&cluster, &["--role", role, "--name", name]).failure(1).complaint();
        assert!(refused.contains(&format!("{name}.sock")), "{refused}");
    }
    up(&cluster, &["--role", "controller"]).failure(1);
    assert!(cluster.enter("db").read(0, 4096).is_ok(), "the first ones serve");
    // Files that a killed process left behind keep no other from starting.
    cluster.kill("a");
    cluster.kill(GATEWAY);
    cluster.start("node", "a");
    cluster.start("gateway", GATEWAY);
    let mut client = cluster.enter("db");
    eventually("the node", || client.read(0, 4096).is_ok());
}

#[test]
fn a_policy_that_the_nodes_cannot_keep() {
    let file = small("1MiB").replace("directory =", "capacity = \"1k iops\"\ndirectory =");
    let promise =
        |count: u32| format!("[[tenant]]\nname = \"oltp\"\nreservation = \"{count} iops\"\n");
    let mut cluster = Cluster::new(&file, &promise(1400));
    let refused = up(&cluster, &[]).failure(4).complaint();
    let cut = "node a can do 1k iops; oltp is promised 1400 iops there";
    assert!(refused.contains(cut) && refused.contains("lower reservations"), "{refused}");
    assert!(!cluster.state().exists(), "it is refused before anything is made");
    fs::write(cluster.bed().path("first.toml"), promise(900)).unwrap();
    cluster.up();
    let refused = cluster.bed().apply(&promise(1400)).failure(4).complaint();
    assert!(refused.contains(cut), "{refused}");
    assert_eq!(cluster.bed().status()["revision"], 1, "the one before holds");
    cluster.bed().apply(&promise(1000)).success();
}

#[test]
fn unknown_names_are_refused() {
    let cluster = Cluster::new(&small("1MiB"), OPEN);
    for (arguments, words) in [
        (&["--role", "node", "--name", "b"][..], ["no \"b\" to run", "there are a"]),
        (&["--role", "node", "--name", GATEWAY], ["no \"front\" to run", "there are a"]),
        (&["--role", "gateway", "--name", "a"], ["no \"a\" to run", "there are front"]),
        (&["--name", "a"], ["--role", "required"]),
        (&["--role", "door"], ["door", "controller"]),
    ] {
        let refused = up(&cluster, arguments).failure(2).complaint();
        assert!(words.iter().all(|word| refused.contains(word)), "{words:?}: {refused}");
    }
    let refused = process::run(cluster.command(&[]).arg("--policy").arg("no-such-file.toml"));
    assert!(refused.code != Some(0) && refused.complaint().contains("no-such-file"), "{refused:?}");
    assert!(is_empty_but_for_files(&cluster.state()), "something is left");
}

/// Whether nothing was made of a cluster but, perhaps, the folder of its state.
fn is_empty_but_for_files(state: &Path) -> bool {
    fs::read_dir(state).is_ok_and(|mut entries| entries.next().is_none()) || !state.exists()
}
