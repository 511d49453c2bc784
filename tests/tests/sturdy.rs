//! Faults stay where they arise: controllers, supervisors, programs and strangers may end or
//! misbehave, and no other process notices.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tidegate_proto::codec::encode;
use tidegate_proto::message::{FromStage, Hello, StageInfo, VERSION};
use tidegate_tests::bed::Bed;
use tidegate_tests::process::{self, Running};
use tidegate_tests::{PATIENCE, eventually, tools};

use crate::limits::held;

/// A tenant that is held back enough to be always in the middle of something.
const POLICY: &str =
    "[[tenant]]\nname = \"load\"\nlimit = \"20MiB/s\"\n[[tenant]]\nname = \"other\"\n";

/// A script that does this again and again until there is a file named `stop`.
fn again_and_again(step: &str) -> String {
    format!("while [ ! -e stop ]; do {step}; echo >> rounds; done; echo all is well")
}

fn rounds(bed: &Bed) -> u64 {
    fs::metadata(bed.path("rounds")).map_or(0, |file| file.len())
}

/// Whether the loop of [`again_and_again`] goes on.
#[track_caller]
fn goes_on(bed: &Bed) {
    let before = rounds(bed);
    eventually("the program goes on", || rounds(bed) >= before + 2);
}

#[track_caller]
fn finishes_cleanly(bed: &Bed, running: Running) {
    fs::write(bed.path("stop"), "").unwrap();
    let outcome = running.finish().success();
    assert!(outcome.stdout.ends_with("all is well\n"), "{outcome:?}");
}

/// Something small that is written all the time.
const WRITE: &str = "dd if=/dev/zero of=file bs=16k count=4 2> /dev/null";

#[test]
fn a_controller_may_die_again_and_again_under_load() {
    tools::need("fio");
    let times = if std::env::var_os("TIDEGATE_LONG").is_some() { 100 } else { 20 };
    let mut bed = Bed::new(POLICY);
    let job = "fio --name=job --filename=verified --size=2M --rw=randrw --bs=8k --ioengine=psync \
               --verify=crc32c --do_verify=1 --output=log --numjobs=1 --fsync=16";
    let mut running =
        process::spawn(bed.run_script("load", &again_and_again(job)).stdin(Stdio::null()));
    bed.wait_for_stages(1);
    let first = bed.status()["stages"][0].clone();
    for round in 0..times {
        bed.kill_controller();
        assert!(running.is_running(), "round {round}: {}", running.stderr());
        bed.up();
        assert_eq!(bed.status()["revision"], 1, "round {round}");
        bed.wait_for_stages(1);
        let stage = bed.status()["stages"][0].clone();
        for name in ["id", "pid", "tenant"] {
            assert_eq!(stage[name], first[name], "round {round}: another {name}");
        }
        let allocated = bed.tenant("load")["allocated_bytes_per_second"].clone();
        assert_eq!(allocated, 20 << 20, "round {round}: another rate");
    }
    goes_on(&bed);
    bed.wait_for_count("load", "bytes", 1);
    finishes_cleanly(&bed, running);
}

#[test]
fn a_stage_keeps_its_rates_without_its_controller() {
    let mut bed = Bed::new("[[tenant]]\nname = \"load\"\nlimit = \"2MiB/s\"\nburst = \"64KiB\"\n");
    let running =
        process::spawn(bed.run_script("load", &again_and_again(WRITE)).stdin(Stdio::null()));
    bed.wait_for_stages(1);
    bed.kill_controller();
    holds_two_mebibytes_a_second(&bed);
    finishes_cleanly(&bed, running);
}

/// At most this passes, as seen from outside: each round writes 64 KiB.
#[track_caller]
fn holds_two_mebibytes_a_second(bed: &Bed) {
    let (start, before) = (Instant::now(), rounds(bed));
    eventually("a few rounds", || rounds(bed) >= before + 16);
    let after = rounds(bed);
    let seconds = start.elapsed().as_secs_f64();
    // A burst, and what was under way when the first look was taken.
    let most = (2 << 20) as f64 * seconds + (2 * (64 << 10)) as f64;
    let moved = ((after - before) * (64 << 10)) as f64;
    assert!(moved <= most, "{moved} bytes in {seconds} s");
}

#[test]
fn a_program_runs_on_without_its_supervisor() {
    let bed = Bed::new("[[tenant]]\nname = \"load\"\nlimit = \"2MiB/s\"\nburst = \"64KiB\"\n");
    let running =
        process::spawn(bed.run_script("load", &again_and_again(WRITE)).stdin(Stdio::null()));
    bed.wait_for_stages(1);
    goes_on(&bed);
    running.signal(Signal::KILL);
    // With the rates that it had and then with the safe ones, for the segment needs no agent.
    holds_two_mebibytes_a_second(&bed);
    fs::write(bed.path("stop"), "").unwrap();
    eventually("the program's own end", || running.stdout().contains("all is well"));
    bed.wait_for_stages(0);
}

#[test]
fn a_killed_program_frees_its_share() {
    let bed = Bed::new(POLICY);
    let script = "echo $$ > pid; while :; do dd if=/dev/zero of=file bs=64k count=1; done";
    let running = process::spawn(bed.run_script("load", script).stdin(Stdio::null()));
    bed.wait_for_stages(1);
    let pid = || fs::read_to_string(bed.path("pid")).ok()?.trim().parse::<u32>().ok();
    let pid = tidegate_tests::wait_for("its number", PATIENCE, pid);
    process::send(pid, Signal::KILL);
    let outcome = running.finish();
    assert_eq!(outcome.code, Some(128 + 9), "{outcome:?}");
    bed.wait_for_stages(0);
    let tenant = bed.tenant("load");
    assert_eq!((&tenant["stages"], &tenant["waiting_requests"]), (&0.into(), &0.into()));
}

#[test]
fn signals_reach_the_program() {
    let bed = Bed::new(POLICY);
    let script = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.01; done";
    let running = process::spawn(bed.run_script("load", script).stdin(Stdio::null()));
    running.wait_for_output("ready");
    running.signal(Signal::TERM);
    let outcome = running.finish().failure(7);
    assert_eq!(outcome.stdout, "ready\ncaught\n");
    bed.wait_for_stages(0);
}

#[test]
fn what_a_program_leaves_running_keeps_the_stage() {
    tools::need("setsid");
    let bed = Bed::new(POLICY);
    let loops = again_and_again(WRITE).replace("echo all is well", ":");
    let script = format!("setsid sh -euc '{loops}' < /dev/null > /dev/null 2>&1 & echo started");
    let outcome = process::run(&mut bed.run_script("load", &script)).success();
    assert_eq!(outcome.stdout, "started\n");
    goes_on(&bed);
    eventually("a stage with processes", || {
        let stage = bed.status()["stages"][0].clone();
        stage["tenant"] == "load" && stage["processes"].as_u64() >= Some(1)
    });
    let moved = bed.tenant("load")["bytes"].as_u64().unwrap();
    bed.wait_for_count("load", "bytes", moved + 1);
    fs::write(bed.path("stop"), "").unwrap();
    bed.wait_for_stages(0);
}

#[test]
fn without_a_controller_programs_run_and_report_it() {
    let bed = Bed::empty();
    fs::write(bed.path("a"), vec![7; 4 << 20]).unwrap();
    let mut command = bed.run("load", "cp");
    let outcome = process::run(command.args(["a", "b"])).success();
    let notices = outcome.notices();
    assert!(notices.contains("nothing listens"), "{outcome:?}");
    assert!(notices.contains("running without limits"), "{outcome:?}");
    assert!(!notices.contains("not seen"), "it was seen, and let through: {outcome:?}");
    assert_eq!(fs::read(bed.path("b")).unwrap(), vec![7; 4 << 20]);
    let quiet = process::run(bed.tidegate(&["run", "--quiet", "true"]).stdin(Stdio::null()));
    assert_eq!(quiet.success().stderr, "");
}

#[test]
fn who_wants_limits_or_nothing_gets_nothing() {
    let mut bed = Bed::empty();
    let refused = |bed: &Bed, reason: &str| {
        let script = ["run", "--fail-closed", "--tenant", "load", "--", "sh", "-c", ": > started"];
        let outcome = process::run(bed.tidegate(&script).current_dir(bed.folder())).failure(5);
        assert!(outcome.complaint().contains(reason), "{outcome:?}");
        assert!(!bed.path("started").exists());
    };
    refused(&bed, "nothing listens");
    bed.up();
    refused(&bed, "no policy");
    bed.apply("[[tenant]]\nname = \"other\"\n").success();
    refused(&bed, "no tenant");
    bed.apply(POLICY).success();
    let script = ["run", "--fail-closed", "--tenant", "load", "--", "sh", "-c", ": > started"];
    process::run(bed.tidegate(&script).current_dir(bed.folder())).success();
    assert!(bed.path("started").exists());
}

#[test]
fn a_shim_that_is_not_there_is_named() {
    let bed = Bed::new(POLICY);
    let mut command = bed.run("load", "true");
    let outcome = process::run(command.env("TIDEGATE_SHIM", "/nowhere/shim.so")).failure(1);
    assert!(outcome.complaint().contains("no shim at /nowhere/shim.so"), "{outcome:?}");
}

#[test]
fn programs_that_cannot_be_started_have_the_codes_of_shells() {
    let bed = Bed::new(POLICY);
    let missing = process::run(&mut bed.run("load", "no-such-program")).failure(127);
    assert!(missing.complaint().contains("no-such-program"), "{missing:?}");
    fs::write(bed.path("text"), "no program").unwrap();
    process::run(&mut bed.run("load", bed.path("text"))).failure(126);
    bed.wait_for_stages(0);
}

#[test]
fn programs_without_a_loader_are_reported() {
    let program = tools::compiled("threads", &["-static"]);
    is_reported(&program, &["x"], "static_program");
}

#[test]
fn programs_of_go_are_reported() {
    let Some(go) = tools::want("go") else { return };
    let bed = Bed::empty();
    fs::write(bed.path("hello.go"), "package main\n\nfunc main() { println(\"hello\") }\n")
        .unwrap();
    let mut build = Command::new(go);
    build.args(["build", "-o", "hello", "hello.go"]).current_dir(bed.folder());
    build.env("CGO_ENABLED", "0").env("GO111MODULE", "off").env("GOFLAGS", "");
    process::run(&mut build).success();
    is_reported(&bed.path("hello"), &[], "go_program");
}

#[test]
fn programs_with_more_rights_are_reported() {
    let bed = Bed::empty();
    let program = bed.path("cat");
    let found = tools::need("cat");
    if tools::is_root() {
        fs::copy(found, &program).unwrap();
        // Another user's, for root gains nothing by being root.
        std::os::unix::fs::chown(&program, Some(65_534), None).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
        fs::set_permissions(&program, mode).unwrap();
        return is_reported(&program, &["/dev/null"], "setuid_program");
    }
    match tools::find("su") {
        Some(su) => is_reported(&su, &["--version"], "setuid_program"),
        None => tools::skipped("no program has more rights here"),
    }
}

#[test]
fn programs_for_another_library_run_without_the_shim() {
    let bed = Bed::empty();
    // The loader's name tells the library apart; a link gives glibc's loader another name.
    let loader = bed.path("ld-musl-x86_64.so.1");
    let Some(real) = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"]
        .into_iter()
        .find(|path| fs::exists(path).unwrap_or(false))
    else {
        return tools::skipped("the loader of this platform is not known");
    };
    std::os::unix::fs::symlink(real, &loader).unwrap();
    let flag = format!("-Wl,--dynamic-linker={}", loader.display());
    is_reported(&tools::compiled("threads", &[&flag]), &["x"], "foreign_program");
}

/// A program that the shim cannot be in runs as ever, and the user sees the reason: when it is the
/// program, when a shell starts it, and not at all where only limits are wanted.
#[track_caller]
fn is_reported(program: &std::path::Path, arguments: &[&str], reason: &str) {
    let bed = Bed::new(POLICY);
    let plain = process::run(Command::new(program).args(arguments)).success();
    let direct = process::run(bed.run("load", program).args(arguments)).success();
    assert_eq!(direct.stdout, plain.stdout);
    assert!(direct.notices().contains(reason), "{direct:?}");
    let words = format!("{} {}", program.display(), arguments.join(" "));
    let inside = process::run(&mut bed.run_script("load", &format!("{words}; exit 3"))).failure(3);
    assert_eq!(inside.stdout, plain.stdout);
    assert!(inside.notices().contains(reason), "{inside:?}");
    let mut closed = bed.tidegate(&["run", "--fail-closed", "--tenant", "load", "--"]);
    let closed = process::run(closed.arg(program).args(arguments)).failure(126);
    assert!(closed.complaint().contains("cannot be loaded into"), "{closed:?}");
}

/// A frame of this message.
fn frame(message: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).expect("it fits");
    bytes
}

fn connect(bed: &Bed) -> UnixStream {
    let stream = UnixStream::connect(bed.socket()).expect("the controller listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn hello(tenant: &str) -> Vec<u8> {
    let info = StageInfo { tenant: tenant.into(), ..StageInfo::default() };
    frame(&Hello::Stage { version: VERSION, info })
}

/// A stage that does its work, to be looked at while others do not.
fn good_stage(bed: &Bed) -> Running {
    let script = again_and_again(WRITE);
    let running = process::spawn(bed.run_script("other", &script).stdin(Stdio::null()));
    bed.wait_for_stages(1);
    running
}

/// The good stage works, is counted, and receives a new policy.
#[track_caller]
fn others_keep_working(bed: &Bed, running: &mut Running) {
    assert!(running.is_running(), "{}", running.stderr());
    goes_on(bed);
    let before = bed.tenant("other")["bytes"].as_u64().unwrap();
    bed.wait_for_count("other", "bytes", before + 1);
    let number = rounds(bed);
    let revision = bed.status()["revision"].as_u64().unwrap() + 1;
    bed.apply(&format!("{POLICY}# {number}")).success();
    eventually("the new policy", || {
        let status = bed.status();
        let stages = status["stages"].as_array().cloned().unwrap_or_default();
        let good = stages.iter().find(|stage| stage["tenant"] == "other");
        good.is_some_and(|stage| stage["revision"] == revision)
    });
}

#[test]
fn strangers_who_talk_nonsense_are_closed() {
    let bed = Bed::new(POLICY);
    let mut good = good_stage(&bed);
    let wrong_version = frame(&Hello::Stage { version: VERSION + 1, info: StageInfo::default() });
    let after_hello = [hello("load"), vec![1, 0, 0, 0, 250]].concat();
    let noise: [Vec<u8>; 6] = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 64],
        vec![5, 0, 0, 0, 9, 9, 9, 9, 9],
        wrong_version,
        after_hello,
        [frame(&Hello::Operator { version: VERSION }), vec![0, 0, 0, 0]].concat(),
    ];
    for bytes in noise {
        let mut stream = connect(&bed);
        stream.write_all(&bytes).unwrap();
        let mut received = Vec::new();
        // Until the controller closes it; a reset is an end as well.
        let _ = stream.read_to_end(&mut received);
    }
    // Half a frame, and then nothing more.
    let half = hello("load");
    let mut stream = connect(&bed);
    stream.write_all(&half[..half.len() - 1]).unwrap();
    drop(stream);
    others_keep_working(&bed, &mut good);
    bed.wait_for_stages(1);
    finishes_cleanly(&bed, good);
}

#[test]
fn a_thousand_silent_connections_disturb_no_program() {
    let bed = Bed::new(POLICY);
    let mut good = good_stage(&bed);
    // Each of them is a descriptor here as well.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
    if limit.maximum.is_some_and(|maximum| maximum < 1_200) {
        return tools::skipped("there may not be a thousand descriptors");
    }
    let mut silent = Vec::new();
    let mut half = connect(&bed);
    half.write_all(&[3, 0]).unwrap();
    silent.push(half);
    silent.extend((1..1_000).map(|_| connect(&bed)));
    others_keep_working(&bed, &mut good);
    // Connections without a hello are closed.
    for stream in &mut silent {
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
    }
    others_keep_working(&bed, &mut good);
    finishes_cleanly(&bed, good);
}

#[test]
fn a_stage_that_does_not_read_is_dropped() {
    let bed = Bed::new(POLICY);
    let mut good = good_stage(&bed);
    let mut deaf = connect(&bed);
    deaf.write_all(&hello("load")).unwrap();
    bed.wait_for_stages(2);
    others_keep_working(&bed, &mut good);
    // It does not answer either, so its share is free after a while.
    bed.wait_for_stages(1);
    let mut talker = connect(&bed);
    talker.write_all(&hello("load")).unwrap();
    let lie = frame(&FromStage::Applied { revision: u64::MAX, error: None });
    talker.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    while talker.write_all(&lie.repeat(1_000)).is_ok() && bed.status()["stages"][1].is_object() {}
    others_keep_working(&bed, &mut good);
    finishes_cleanly(&bed, good);
}

#[test]
fn a_full_disk_under_the_store_leaves_the_policy_in_force() {
    let mut bed = Bed::empty();
    let state = bed.subfolder("state");
    let mount = "mount -t tmpfs -o size=4m,mode=0700 none \"$STATE\" && exec \"$@\"";
    let words = ["-m", "sh", "-euc", mount, "sh"];
    let mut inside = process::around(tools::need("unshare"), words, &bed.controller_command());
    let can_mount = ["-m", "sh", "-euc", "mount -t tmpfs none \"$STATE\""];
    let mut attempt = Command::new("unshare");
    if process::run(attempt.args(can_mount).env("STATE", &state)).code != Some(0) {
        return tools::skipped("file systems cannot be mounted here");
    }
    bed.up_with(inside.env("STATE", &state));
    bed.apply(POLICY).success();
    let mut good = good_stage(&bed);
    others_keep_working(&bed, &mut good);
    let before = bed.status();
    // Another user of the disk fills it.
    let disk = format!("/proc/{}/root{}", bed.controller().pid(), state.display());
    let filler = format!("{disk}/filler");
    let _ = fs::write(&filler, vec![0; 8 << 20]);
    let long = |number: u32| format!("{POLICY}# {number} {}\n", "x".repeat(100_000));
    let mut refused = None;
    for number in 0..100 {
        let outcome = bed.apply(&long(number));
        if outcome.code != Some(0) {
            refused = Some((number, outcome.failure(1)));
            break;
        }
    }
    let (number, refused) = refused.expect("the disk is full at last");
    assert!(refused.complaint().contains("no space"), "{refused:?}");
    assert_eq!(bed.status()["tenants"].as_array().map(Vec::len), Some(2));
    let revision = before["revision"].as_u64().unwrap() + u64::from(number);
    assert_eq!(bed.status()["revision"], revision);
    goes_on(&bed);
    // And it recovers when there is room again.
    fs::remove_file(&filler).unwrap();
    others_keep_working(&bed, &mut good);
    finishes_cleanly(&bed, good);
}

#[test]
fn a_hundred_programs_may_start_at_once() {
    let bed = Bed::new(POLICY);
    let runs: Vec<Running> = (0..100)
        .map(|number| {
            let script = format!("dd if=/dev/zero of=n{number} bs=4k count=1 2> /dev/null");
            process::spawn(bed.run_script("other", &script).stdin(Stdio::null()))
        })
        .collect();
    for run in runs {
        let outcome = run.finish().success();
        assert_eq!(outcome.notices(), "", "{outcome:?}");
    }
    assert!((0..100).all(|n| fs::metadata(bed.path(&format!("n{n}"))).unwrap().len() == 4_096));
    bed.wait_for_stages(0);
}

#[test]
fn a_stage_is_seen_while_it_is_held() {
    let bed = Bed::new(POLICY);
    let running = held(&bed, "load", ":");
    bed.wait_for_stages(1);
    let status = bed.status();
    assert_eq!(status["stages"][0]["pid"], running.pid(), "{status:#}");
    running.finish().success();
    bed.wait_for_stages(0);
}

/// Returns the live child processes of a process's threads.
fn below(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|it| fs::read_to_string(it.path().join("children")).ok());
    let children: Vec<String> = children.collect();
    let pids = children.iter().flat_map(|text| text.split_whitespace());
    pids.filter_map(|pid| pid.parse().ok()).filter(|pid| process::is_alive(*pid)).collect()
}

#[test]
fn an_experiment_that_is_killed_leaves_nothing_running() {
    let bed = Bed::empty();
    let arguments = ["repro", "haechi", "7", "--world", "live", "--periods", "1", "--json"];
    let mut command = bed.tidegate_lab(&arguments);
    command.arg("--out").arg(bed.path("out")).env("TMPDIR", bed.folder());
    let running = process::spawn(&mut command);
    // A controller, a data node and a client.
    let started = tidegate_tests::wait_for("all that it starts", PATIENCE, || {
        Some(below(running.pid())).filter(|pids| pids.len() == 3)
    });
    running.signal(Signal::KILL);
    eventually("their end", || !started.iter().any(|pid| process::is_alive(*pid)));
}

/// Its clients' requests would fail if nobody made the volumes.
#[test]
fn a_live_experiment_with_volumes_serves_its_clients() {
    tools::need("fio");
    let bed = Bed::empty();
    let mut command = bed.tidegate_lab(&["repro", "dsfq", "8", "--json"]);
    command.arg("--out").arg(bed.path("out")).env("TMPDIR", bed.folder());
    let running = process::spawn(&mut command);
    let serves = |socket: &Path| {
        let mut status = bed.tidegate(&["status", "--json"]);
        let output = status.env("TIDEGATE_SOCKET", socket).output().unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let tenants = status["cluster"]["tenants"].as_array().cloned().unwrap_or_default();
        tenants.iter().any(|tenant| tenant["total_served_operations"].as_u64() > Some(0))
    };
    // The simulated part comes first.
    tidegate_tests::wait_for("a request that is served", 5 * PATIENCE, || {
        assert!(process::is_alive(running.pid()), "{}", running.stderr());
        let folders = fs::read_dir(bed.folder()).unwrap().flatten();
        folders.map(|it| it.path().join("controller.sock")).any(|it| serves(&it)).then_some(())
    });
    running.signal(Signal::INT);
    running.finish();
}
