//! The guarantee of a flush that succeeded, whichever process dies.

use std::os::unix::fs::DirBuilderExt;

use tidegate_tests::cluster::{Cluster, GATEWAY, directories, volume};
use tidegate_tests::nbd::{Client, EIO, ENOSPC};
use tidegate_tests::{PATIENCE, eventually, process, tools, wait_for};

use super::OPEN;

/// A node in memory, behind two gateways, each in a process of its own.
fn in_memory() -> Cluster {
    let file = directories(&["a"]).replace("directory = \"a\"", "memory = true");
    let second = "[[gateway]]\nname = \"back\"\nnbd = \"unix:back.sock\"\n";
    let db = volume("db", "oltp", "1MiB", &["a"]);
    let mut cluster = Cluster::new(&format!("{file}{second}{db}"), OPEN);
    cluster.up_apart(&["a"], &["db"]);
    cluster.start("gateway", "back");
    cluster
}

#[track_caller]
fn expect_eio(client: &mut Client, why: &str) {
    let failed = client.flush().unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(EIO), "{why}: {failed}");
}

#[test]
fn after_a_memory_node_died_no_session_gets_its_writes_confirmed() {
    let mut cluster = in_memory();
    let back = cluster.path("back.sock");
    let mut clients: Vec<_> = (0..8).map(|_| cluster.enter("db")).collect();
    clients.push(Client::enter(&back, "db").unwrap());
    for client in &mut clients {
        eventually("the node", || client.read(0, 512).is_ok());
        client.flush().unwrap();
    }
    clients[0].write(0, &[7; 512]).unwrap();
    cluster.kill("a");
    cluster.start("node", "a");
    // A session that opens the volume before the gateway knows of the loss relies on what is lost.
    let mut anew = wait_for("the node again", PATIENCE, || {
        let mut client = cluster.enter("db");
        client.read(0, 512).is_ok().then_some(client)
    });
    assert_eq!(anew.read(0, 512).unwrap(), [0; 512], "the write is lost");
    for client in clients.iter_mut().rev() {
        let errno = client.read(0, 512).unwrap_err().raw_os_error();
        assert_eq!(errno, Some(EIO), "zeros are not what it wrote");
        expect_eio(client, "a write was lost");
        expect_eio(client, "it is not said once only");
    }
    anew.write(0, &[8; 512]).unwrap();
    anew.flush().unwrap();
    // A gateway that knows nothing must not say that all is well either.
    let mut waiting = Client::enter(&back, "db").unwrap();
    cluster.kill(GATEWAY);
    cluster.start("gateway", GATEWAY);
    let mut late = cluster.enter("db");
    for client in [&mut waiting, &mut late] {
        eventually("the node", || client.read(0, 512).is_ok());
        client.flush().unwrap();
    }
}

const NODES: [&str; 2] = ["a", "b"];

/// A volume in stripes over two folders, all in separate processes, with something written.
fn in_folders() -> Cluster {
    let db = volume("db", "oltp", "1MiB", &NODES);
    let mut cluster = Cluster::new(&format!("{}{db}", directories(&NODES)), OPEN);
    cluster.up_apart(&NODES, &["db"]);
    cluster.qemu_io("db", &["write -P 7 0 1M", "flush"]).success();
    cluster
}

/// Ends the nodes and the gateway, changes something, and starts them again.
fn changed(cluster: &mut Cluster, change: impl FnOnce(&Cluster)) {
    for name in [NODES[0], NODES[1], GATEWAY] {
        cluster.kill(name);
    }
    change(cluster);
    cluster.start("node", "a");
    cluster.start("node", "b");
    cluster.start("gateway", GATEWAY);
}

/// Every request fails, and nothing is read that was not written there.
#[track_caller]
fn expect_refused(cluster: &mut Cluster, words: &[&str]) {
    let mut client = cluster.enter("db");
    eventually("the volume is refused", || {
        let errors = [0, 64 << 10].map(|offset| match client.read(offset, 512) {
            Ok(bytes) => {
                assert_eq!(bytes, [7; 512], "other data");
                false
            }
            Err(error) => error.raw_os_error() == Some(EIO),
        });
        errors == [true, true]
    });
    let output =
        ["a", "b", GATEWAY].map(|component| cluster.component(component).stderr()).concat();
    for word in words {
        assert!(output.contains(word), "{word}: {output}");
    }
    eventually("status names the part", || {
        let status = cluster.bed().status();
        let nodes = status["cluster"]["nodes"].as_array().cloned().unwrap_or_default();
        nodes.iter().any(|node| node["faults"][0]["volume"] == "db")
    });
    let shown = cluster.volume(&["show"]);
    assert_ne!(shown.code, Some(0), "{shown:?}");
    assert!(shown.stdout.contains("fault: part"), "{shown:?}");
}

#[track_caller]
fn expect_whole(cluster: &Cluster) {
    let mut client = cluster.enter("db");
    eventually("all nodes", || client.read(0, 1 << 20).is_ok());
    assert!(client.read(0, 1 << 20).unwrap().iter().all(|byte| *byte == 7));
    cluster.volume(&["show"]).success();
}

#[test]
fn a_part_that_was_moved_away_is_named_and_never_read_as_zeros() {
    let mut cluster = in_folders();
    let (part_file, away) = (cluster.path("b/db.1"), cluster.path("away"));
    changed(&mut cluster, |_| std::fs::rename(&part_file, &away).unwrap());
    let words = ["part 1 of volume \"db\" is not in", "volume is not served volume=\"db\""];
    expect_refused(&mut cluster, &words);
    changed(&mut cluster, |_| std::fs::rename(&away, &part_file).unwrap());
    expect_whole(&cluster);
}

#[test]
fn a_folder_that_is_not_mounted_is_named_and_not_made() {
    let mut cluster = in_folders();
    let (folder, away) = (cluster.path("b"), cluster.path("away"));
    changed(&mut cluster, |_| std::fs::rename(&folder, &away).unwrap());
    expect_refused(&mut cluster, &["is it mounted?"]);
    assert!(!folder.exists());
    changed(&mut cluster, |_| std::fs::rename(&away, &folder).unwrap());
    expect_whole(&cluster);
}

#[test]
fn another_order_of_nodes_stripe_or_size_is_refused() {
    let mut cluster = in_folders();
    let file = std::fs::read_to_string(cluster.file()).unwrap();
    let file = file.replace("policy = \"first.toml\"\n", "");
    let write = |from: &str, to: &str| {
        assert!(file.contains(from));
        let file = file.replace(from, to);
        move |cluster: &Cluster| cluster.write(&file)
    };
    changed(&mut cluster, write("nodes = [\"a\", \"b\"]", "nodes = [\"b\", \"a\"]"));
    expect_refused(&mut cluster, &["is not in"]);
    changed(&mut cluster, write("size = \"1MiB\"", "size = \"1MiB\"\nstripe = \"4KiB\""));
    expect_refused(&mut cluster, &["stripes of 64KiB", "stripes of 4KiB"]);
    changed(&mut cluster, write("size = \"1MiB\"", "size = \"2MiB\""));
    expect_refused(&mut cluster, &["tidegate volume resize CLUSTER db 2MiB"]);
    changed(&mut cluster, write("1MiB", "1MiB"));
    expect_whole(&cluster);
}

#[test]
fn a_volume_grows_and_keeps_what_it_has() {
    let mut cluster = in_folders();
    let busy = cluster.volume(&["resize", "db", "2MiB"]);
    assert!(busy.code == Some(1) && busy.stderr.contains("a node uses it (process "), "{busy:?}");
    let file = std::fs::read_to_string(cluster.file()).unwrap();
    let file = file.replace("policy = \"first.toml\"\n", "");
    changed(&mut cluster, |cluster| {
        let output = cluster.volume(&["resize", "db", "2MiB"]).success();
        assert!(output.stdout.contains("size = \"2MiB\""), "{output:?}");
        cluster.write(&file.replace("1MiB", "2MiB"));
    });
    let mut client = cluster.enter("db");
    eventually("all nodes", || client.read(0, 2 << 20).is_ok());
    let bytes = client.read(0, 2 << 20).unwrap();
    let (old, new) = bytes.split_at(1 << 20);
    assert!(old.iter().all(|byte| *byte == 7) && new.iter().all(|byte| *byte == 0));
}

#[test]
fn no_volume_is_created_without_a_command() {
    let db = volume("db", "oltp", "1MiB", &["a"]);
    let cluster = Cluster::new(&format!("{}{db}", directories(&["a"])), OPEN);
    let outcome = tidegate_tests::process::run(&mut cluster.command(&[]));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("--create") && outcome.stderr.contains("part 0 of volume db"));
    assert!(!cluster.path("a").exists());
}

/// A file system of 48 MiB in a file on a disk that has less; none where only root may mount.
struct Thin {
    disk: tempfile::TempDir,
}

impl Thin {
    fn mount() -> Option<Self> {
        let disk = tempfile::tempdir().unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let outcome = std::process::Command::new(program).args(arguments).output();
            outcome.is_ok_and(|outcome| outcome.status.success())
        };
        let thin = Self { disk };
        let (at, image, inner) = (thin.text(""), thin.text("image"), thin.inner());
        let inner = inner.display().to_string();
        let is_mounted =
            run("mount", &["-t", "tmpfs", "-o", "size=24m,mode=0700", "tidegate-test", &at])
                && std::fs::File::create(&image).and_then(|file| file.set_len(48 << 20)).is_ok()
                && run("mkfs.ext4", &["-q", "-O", "^has_journal", &image])
                && std::fs::create_dir(&inner).is_ok()
                && run("mount", &["-o", "loop", &image, &inner]);
        is_mounted.then_some(thin)
    }

    fn text(&self, name: &str) -> String {
        self.disk.path().join(name).display().to_string()
    }

    fn inner(&self) -> std::path::PathBuf {
        self.disk.path().join("inner")
    }

    /// Takes all that is left of the disk.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.disk.path().join("filler")).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.disk.path().join("filler")).unwrap();
    }
}

impl Drop for Thin {
    fn drop(&mut self) {
        for path in [self.inner(), self.disk.path().into()] {
            let _ = std::process::Command::new("umount").arg(path).status();
        }
    }
}

#[test]
fn a_full_disk_behind_the_file_system_fails_every_flush() {
    let Some(thin) = Thin::mount() else {
        eprintln!("skipped: a thin file system can only be mounted by root, with loop devices");
        return;
    };
    let path = thin.inner().join("parts").display().to_string();
    let file = directories(&["a"]).replace("directory = \"a\"", &format!("directory = {path:?}"));
    let db = volume("db", "oltp", "32MiB", &["a"]);
    let mut cluster = Cluster::new(&format!("{file}{db}"), OPEN);
    cluster.up_apart(&["a"], &["db"]);
    let [mut writer, mut other] = [cluster.enter("db"), cluster.enter("db")];
    thin.fill();
    // Past the kernel's cache, so each fails by itself. The file system's own writes are lost.
    for number in 0..40 {
        let error = writer.write(number * (256 << 10) + 100, &[9; 3000]).unwrap_err();
        assert!([EIO, ENOSPC].contains(&error.raw_os_error().unwrap()), "{error}");
    }
    // ENOSPC is what the kernel says of a full disk.
    let failed = |client: &mut Client| client.flush().unwrap_err().raw_os_error().unwrap();
    assert!([EIO, ENOSPC].contains(&failed(&mut other)), "somebody else is told first");
    for client in [&mut writer, &mut other] {
        assert_eq!([failed(client), failed(client)], [EIO; 2], "and everybody after that");
        assert_eq!(client.write_durably(0, &[9; 4096]).unwrap_err().raw_os_error(), Some(EIO));
    }
    assert_eq!(failed(&mut cluster.enter("db")), EIO, "also a new session");
    let output = cluster.component("a").stderr();
    assert!(output.contains("a sync failed") && !output.contains("cannot be stored"), "{output}");
    cluster.kill("a");
    cluster.start("node", "a");
    let mut client = cluster.enter("db");
    eventually("the node again", || client.read(0, 512).is_ok());
    assert_eq!(failed(&mut client), EIO, "and after a restart");
    let shown = cluster.volume(&["show"]);
    assert!(shown.code == Some(1) && shown.stdout.contains("clear-error CLUSTER db"), "{shown:?}");
    cluster.kill("a");
    thin.free();
    cluster.volume(&["clear-error", "db"]).success();
    cluster.start("node", "a");
    eventually("the node once more", || client.read(0, 512).is_ok());
    let mut anew = cluster.enter("db");
    anew.write(0, &[8; 4096]).unwrap();
    anew.flush().unwrap();
    assert_eq!(failed(&mut writer), EIO, "what it wrote is lost, whatever was cleared");
    drop(cluster);
}

#[test]
fn a_part_that_is_moved_or_removed_under_a_running_node_is_named_and_fails() {
    let mut cluster = in_folders();
    let (part_file, away) = (cluster.path("b/db.1"), cluster.path("away"));
    let mut client = cluster.enter("db");
    let mut expect_absent = |cluster: &mut Cluster, words: &str| {
        let is_eio = |client: &mut Client| {
            client.read(64 << 10, 512).is_err_and(|error| error.raw_os_error() == Some(EIO))
        };
        eventually("its requests fail", || is_eio(&mut client));
        expect_eio(&mut client, "a part is away");
        assert_eq!(client.read(0, 512).unwrap(), [7; 512], "the other part is there");
        assert!(cluster.component("b").stderr().contains(words), "{words}");
        eventually("status names the part", || {
            cluster.bed().status()["cluster"]["nodes"][1]["faults"].to_string().contains(words)
        });
    };
    std::fs::rename(&part_file, &away).unwrap();
    expect_absent(&mut cluster, "moved away or is hidden by a mount");
    std::fs::rename(&away, &part_file).unwrap();
    let mut again = cluster.enter("db");
    eventually("it is served again", || again.read(64 << 10, 512).is_ok());
    again.flush().unwrap();
    eventually("status names no part", || {
        cluster.bed().status()["cluster"]["nodes"][1]["faults"] == serde_json::json!([])
    });
    std::fs::remove_file(&part_file).unwrap();
    expect_absent(&mut cluster, "was removed while the node ran");
}

#[test]
fn of_simultaneous_commands_one_creates_the_volume_and_the_others_report_it() {
    let db = volume("db", "oltp", "1MiB", &NODES);
    let cluster = Cluster::new(&format!("{}{db}", directories(&NODES)), OPEN);
    // One that has only just begun.
    let folder = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(cluster.path("a"));
    folder.unwrap();
    let script = "import fcntl, os, sys\n\
                  fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)\n\
                  print('ready', flush=True)\nsys.stdin.read()";
    let mut holder = std::process::Command::new(tools::need("python3"));
    holder.arg("-c").arg(script).arg(cluster.path("a"));
    holder.args(["volume", "create", "cluster.toml"]).stdin(std::process::Stdio::piped());
    let holder = process::spawn(&mut holder);
    holder.wait_for_output("ready");
    let output = cluster.volume(&["create"]).failure(1).complaint();
    let wanted = format!("another tidegate command is at work on it (process {}: ", holder.pid());
    assert!(output.contains(&wanted) && output.contains("wait until it has ended"), "{output}");
    assert!(std::fs::read_dir(cluster.path("a")).unwrap().next().is_none(), "nothing is made");
    holder.kill();
    for _ in 0..10 {
        let command = |_| process::spawn(&mut cluster.volume_command(&["create"]));
        let commands: Vec<_> = (0..4).map(command).collect();
        let outcomes = commands.into_iter().map(process::Running::finish);
        let (made, refused): (Vec<_>, Vec<_>) =
            outcomes.partition(|outcome| outcome.code == Some(0));
        assert!(!made.is_empty(), "{refused:?}");
        assert!(made.iter().all(|outcome| outcome.stdout == made[0].stdout), "{made:?}");
        for outcome in refused {
            let output = outcome.complaint();
            assert!(output.contains("tidegate command"), "{output}");
        }
        cluster.volume(&["show"]).success();
        for node in NODES {
            std::fs::remove_dir_all(cluster.path(node)).unwrap();
        }
    }
}

#[test]
fn generations_that_only_the_gateway_compares_are_in_the_status_and_the_hint_mends_them() {
    let mut cluster = in_folders();
    let file = std::fs::read_to_string(cluster.file()).unwrap();
    let file = file.replace("policy = \"first.toml\"\n", "");
    changed(&mut cluster, |cluster| {
        for (node, size) in [("a", "2MiB"), ("a", "4MiB"), ("b", "4MiB")] {
            cluster.volume(&["resize", "db", size, "--node", node]).success();
        }
        cluster.write(&file.replace("1MiB", "4MiB"));
    });
    let hint = "tidegate volume resize CLUSTER db 4MiB --generation 3";
    eventually("the gateway's fault", || {
        let status = cluster.bed().status();
        let fault = &status["cluster"]["gateways"][0]["volume_faults"][0];
        fault["volume"] == "db" && fault.to_string().contains(hint)
    });
    let mut check = cluster.bed().tidegate(&["check", "--cluster"]);
    check.arg(cluster.file()).arg("--state").arg(cluster.state());
    let output = process::run(&mut check).failure(1).stdout;
    assert!(output.contains("fault: part 0 of volume db"), "{output}");
    changed(&mut cluster, |cluster| {
        let rest: Vec<_> = hint.split(' ').skip(4).collect();
        cluster.volume(&[&["resize"], &rest[..], &["--node", "b"]].concat()).success();
    });
    let mut client = cluster.enter("db");
    eventually("all nodes", || client.read(0, 1 << 20).is_ok());
    eventually("no fault", || {
        cluster.bed().status()["cluster"]["gateways"][0]["volume_faults"] == serde_json::json!([])
    });
    // Nodes run, and are not disturbed.
    process::run(&mut check).success();
    std::fs::rename(cluster.path("b/db.1"), cluster.path("away")).unwrap();
    let output = process::run(&mut check).failure(1).stdout;
    assert!(output.contains("fault: part 1 of volume db at node b lacks its data"), "{output}");
}

/// A write beyond the limit of file sizes (`ulimit -f`) is an error of this request alone.
#[test]
fn a_limit_of_file_sizes_ends_no_node() {
    let file = directories(&["a"]) + &volume("db", "oltp", "4MiB", &["a"]);
    let mut cluster = Cluster::new(&file, OPEN);
    cluster.volume(&["create"]).success();
    // In KiB.
    let words = ["-c", "ulimit -f 2048; exec \"$0\" \"$@\""];
    let mut shell = process::around(tools::need("bash"), words, &cluster.command(&[]));
    cluster.bed().up_with(shell.stdin(std::process::Stdio::null()));
    let mut client = cluster.enter("db");
    for length in [4096, 512] {
        for write in [Client::write, Client::write_durably] {
            let error = write(&mut client, 3 << 20, &vec![1; length]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(ENOSPC), "{length} bytes");
            write(&mut client, 1 << 20, &vec![2; length]).unwrap();
        }
    }
    client.flush().unwrap();
    assert_eq!(client.read(1 << 20, 4096).unwrap(), [2; 4096]);
    assert_eq!(client.read(3 << 20, 4096).unwrap(), [0; 4096]);
}
