//! Limits hold for real programs, and requests are distinguished by all that is known about them.
//!
//! Times are bounded from below only: a slow machine may take longer, none may take less. The owner
//! of a request is read from the controller's counters, while the program stays to be asked.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tidegate_tests::bed::Bed;
use tidegate_tests::process::{self, Running};
use tidegate_tests::{built, tools};

const MIB: u64 = 1 << 20;

/// A tenant with a limit of 4 MiB/s that may send 64 KiB at once.
const SLOW: &str = "[[tenant]]\nname = \"slow\"\nlimit = \"4MiB/s\"\nburst = \"64KiB\"\n";

/// The least time in which `bytes` can pass [`SLOW`].
fn least(bytes: u64) -> Duration {
    Duration::from_secs_f64((bytes - (64 << 10)) as f64 / (4 * MIB) as f64)
}

/// Runs a script whose last process stays until the test ends it, so that its counters can be read.
pub(crate) fn held(bed: &Bed, tenant: &str, script: &str) -> Running {
    let mut command = bed.run_script(tenant, &format!("{script}\necho done; read nothing || true"));
    let running = process::spawn(command.stdin(Stdio::piped()));
    running.wait_for_output("done");
    running
}

/// Checks what each tenant moved: exactly this many bytes.
#[track_caller]
pub(crate) fn bytes_are(bed: &Bed, expected: &[(&str, u64)]) {
    for (tenant, bytes) in expected {
        bed.wait_for_count(tenant, "bytes", *bytes);
    }
    let counted = expected.iter().map(|(name, _)| (*name, bed.tenant(name)["bytes"].as_u64()));
    let expected = expected.iter().map(|(name, bytes)| (*name, Some(*bytes)));
    assert_eq!(counted.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[test]
fn what_is_written_and_read_takes_its_time() {
    let bed = Bed::new(SLOW);
    let script = "dd if=/dev/zero of=file bs=64k count=64 2> /dev/null
                  dd if=file of=/dev/null bs=1M 2> /dev/null";
    let outcome = process::run(&mut bed.run_script("slow", script)).success();
    assert!(outcome.time >= least(8 * MIB), "{:?}", outcome.time);
}

/// Returns what `tidegate explain` has of a tenant, once its stage has moved so many bytes.
fn explained(bed: &Bed, tenant: &str, bytes: u64) -> Value {
    bed.wait_for_count(tenant, "bytes", bytes);
    let outcome = process::run(&mut bed.tidegate(&["explain", tenant, "--json"])).success();
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

#[test]
fn a_program_is_shown_the_gate_that_held_it() {
    let policy = r#"
        tenant = [{ name = "slow", limit = "4MiB/s", burst = "64KiB" }, { name = "queue" }]
        [[channel]]
        name = "one-by-one"
        tenant = "queue"
        gates = [{ kind = "token-bucket", rate = "4MiB/s", burst = "64KiB" }]
        [[match]]
        channel = "one-by-one"
        operation = "write"
    "#;
    let bed = Bed::new(policy);
    let script = "dd if=/dev/zero of=file bs=64k count=64 2> /dev/null";
    let before = std::time::Instant::now();
    for (tenant, part, other) in
        [("slow", "bytes_limit_ns", "channel_ns"), ("queue", "channel_ns", "bytes_limit_ns")]
    {
        let _running = held(&bed, tenant, script);
        let report = explained(&bed, tenant, 4 * MIB);
        let (stage, cause) = (&report["stages"][0], &report["stage_causes"][0]);
        let waited = stage["waits"][part].as_u64().expect("a sum");
        // All of the time but for the calls themselves, which is short against it.
        assert!(waited <= before.elapsed().as_nanos() as u64, "{report}");
        assert!(waited as f64 >= 0.5 * least(4 * MIB).as_nanos() as f64, "{report}");
        assert_eq!(stage["waits"][other], 0, "{report}");
        assert_eq!(stage["waits"]["bytes"], 4 * MIB, "{report}");
        assert_eq!(cause["permille"], 1_000, "{report}");
        assert_eq!(bed.tenant(tenant)["waited_ns"], waited, "the account has all of the wait");
        let screen = process::run(&mut bed.tidegate(&["explain", tenant])).success().stdout;
        assert!(screen.contains("each at gates of stages"), "{screen}");
    }
}

#[test]
fn eight_processes_share_one_bucket() {
    let bed = Bed::new(SLOW);
    let script = "for i in 1 2 3 4 5 6 7 8; do
                      dd if=/dev/zero of=file-$i bs=32k count=32 2> /dev/null &
                  done; wait";
    let outcome = process::run(&mut bed.run_script("slow", script)).success();
    assert!(outcome.time >= least(8 * MIB), "{:?}", outcome.time);
}

#[test]
fn two_runs_of_a_tenant_share_its_limit() {
    let bed = Bed::new(SLOW);
    let start = std::time::Instant::now();
    let write = |name: &str| {
        let mut command = bed.run("slow", "dd");
        command.args(["if=/dev/zero", &format!("of={name}"), "bs=32k", "count=128"]);
        process::spawn(command.stdin(Stdio::null()))
    };
    let runs = [write("one"), write("other")];
    for run in runs {
        run.finish().success();
    }
    // Each may begin with a burst, and for the moment until the shares are settled, a hundredth.
    let least = least(8 * MIB).mul_f64(0.97);
    assert!(start.elapsed() >= least, "{:?} is less than {least:?}", start.elapsed());
}

/// Programs of one large request each, one after the other.
#[test]
fn short_programs_have_their_tenants_limit_together() {
    let bed = Bed::new("[[tenant]]\nname = \"short\"\nlimit = \"4MiB/s\"\n");
    let start = std::time::Instant::now();
    for number in 0..6 {
        let mut command = bed.run("short", tools::need("dd"));
        command.args(["if=/dev/zero", &format!("of=file-{number}"), "bs=4M", "count=1"]);
        process::run(command.stdin(Stdio::null())).success();
    }
    // The first may go at once, and one more if a hello comes before the last report of the one
    // before it. So may a burst, and as much as goes in an interval.
    let least = Duration::from_secs_f64(6.0 - 2.0 - 0.01 - 0.1);
    assert!(start.elapsed() >= least, "{:?} is less than {least:?}", start.elapsed());
}

/// Programs of one large request each, side by side, after one that has used the limit in advance.
#[test]
fn short_programs_side_by_side_go_one_after_the_other() {
    let bed = Bed::new("[[tenant]]\nname = \"short\"\nlimit = \"4MiB/s\"\n");
    let start = std::time::Instant::now();
    let write = |number: usize| {
        let mut command = bed.run("short", tools::need("dd"));
        command.args(["if=/dev/zero", &format!("of=file-{number}"), "bs=4M", "count=1"]);
        process::spawn(command.stdin(Stdio::null()))
    };
    write(0).finish().success();
    let runs: Vec<_> = (1..7).map(write).collect();
    runs.into_iter().for_each(|run| drop(run.finish().success()));
    // The first may go at once, and one more if a hello comes before its last report. So may a
    // burst, and as much as goes in an interval. A hundredth of the limit is forgiven.
    let least = Duration::from_secs_f64((7.0 - 2.0) * 0.99 - 0.01 - 0.1);
    assert!(start.elapsed() >= least, "{:?} is less than {least:?}", start.elapsed());
}

#[test]
fn operations_are_limited_as_such() {
    let policy = "
        [[tenant]]
        name = \"busy\"
        [[channel]]
        name = \"names\"
        tenant = \"busy\"
        gates = [{ kind = \"token-bucket\", rate = \"200 iops\", burst = \"10ms\" }]
        [[match]]
        channel = \"names\"
        operation = \"metadata\"";
    let bed = Bed::new(policy);
    let script = "import os, sys\n\
                  for number in range(200): os.mkdir(f'{number}'); os.stat(f'{number}')\n\
                  open('data', 'wb').write(bytes(1 << 20))";
    let mut command = bed.run("busy", tools::need("python3"));
    let outcome = process::run(command.args(["-c", script])).success();
    // Four hundred names, two of which may pass at once.
    assert!(outcome.time >= Duration::from_secs_f64(398.0 / 200.0), "{:?}", outcome.time);
    let created = (0..200).all(|number| bed.path(&number.to_string()).is_dir());
    assert!(created && fs::metadata(bed.path("data")).unwrap().len() == MIB);
}

#[test]
fn programs_are_distinguished_by_name() {
    let policy = "
        tenant = [{ name = \"copies\" }, { name = \"dumps\" }]
        [[match]]
        tenant = \"dumps\"
        process = \"d[d]\"
        [[match]]
        tenant = \"copies\"
        process = [\"nothing\", \"{cat,cp}\"]";
    let bed = Bed::new(policy);
    let script = "dd if=/dev/zero of=a bs=64k count=16 2> /dev/null; head -c 1000 a > b
                  sh -c 'cat a > c; exec dd if=/dev/zero of=d bs=1k count=5' 2> /dev/null";
    let running = held(&bed, "", script);
    bytes_are(&bed, &[("dumps", MIB + 5 * 1024), ("copies", 2 * MIB)]);
    running.finish().success();
}

#[test]
fn unattributed_requests_pass_and_are_counted() {
    let bed =
        Bed::new("tenant = [{ name = \"a\" }]\nmatch = [{ tenant = \"a\", process = \"x\" }]");
    let running = held(&bed, "", "dd if=/dev/zero of=a bs=64k count=16 2> /dev/null");
    tidegate_tests::eventually("a count of what matched nothing", || {
        bed.status()["totals"]["unmatched_bytes"].as_u64() >= Some(MIB)
    });
    assert_eq!(bed.tenant("a")["bytes"], 0);
    let outcome = running.finish().success();
    assert!(!outcome.notices().contains("not seen"), "it was seen: {outcome:?}");
    // The count stays when the program has ended, and its stage says that it was its own.
    tidegate_tests::eventually("the stage to end", || bed.status()["ended_stages"][0].is_object());
    let status = bed.status();
    assert_eq!(status["totals"]["unmatched_bytes"], 0, "{status}");
    for counts in
        [&status["totals"]["unmatched_ever_bytes"], &status["ended_stages"][0]["unmatched_bytes"]]
    {
        assert!(counts.as_u64() >= Some(MIB), "{status}");
    }
}

#[test]
fn what_short_programs_move_is_counted() {
    let bed = Bed::new("[[tenant]]\nname = \"kv\"\n");
    for number in 0..5 {
        let mut command = bed.run("kv", "dd");
        command.args(["if=/dev/zero", &format!("of=file-{number}"), "bs=64k", "count=16"]);
        process::run(&mut command).success();
    }
    bytes_are(&bed, &[("kv", 5 * MIB)]);
}

#[test]
fn files_are_distinguished_by_path() {
    let policy = "
        tenant = [{ name = \"logs\" }, { name = \"deep\" }, { name = \"rest\" }]
        [[match]]
        tenant = \"logs\"
        path = \"**/*.log\"
        [[match]]
        tenant = \"deep\"
        path = \"**/deep/**\"
        [[match]]
        tenant = \"rest\"
        operation = \"write\"";
    let bed = Bed::new(policy);
    bed.subfolder("deep/deeper");
    let script = "w() { dd if=/dev/zero bs=1k count=$2 of=$1 2> /dev/null; }
                  w a.log 1; w deep/b.log 2; w deep/deeper/c 4; w deep/d 8; w e 16; w log 32";
    let running = held(&bed, "", script);
    bytes_are(&bed, &[("logs", 3 << 10), ("deep", 12 << 10), ("rest", 48 << 10)]);
    running.finish().success();
}

#[test]
fn requests_are_distinguished_by_size_and_operation() {
    let policy = "
        tenant = [{ name = \"large\" }, { name = \"reads\" }, { name = \"small\" }]
        [[match]]
        tenant = \"large\"
        size = \">=64KiB\"
        operation = [\"read\", \"write\"]
        [[match]]
        tenant = \"reads\"
        operation = \"read\"
        path = \"**/file\"
        [[match]]
        tenant = \"small\"
        size = \"4KiB..64KiB\"
        operation = \"write\"";
    let bed = Bed::new(policy);
    let script = "w() { dd if=$1 bs=$2 count=$3 of=$4 conv=notrunc 2> /dev/null; }
                  w /dev/zero 64k 1 file; w /dev/zero 65535 1 file; w /dev/zero 4k 1 file
                  w /dev/zero 4095 1 file; w file 4k 3 /dev/null; w file 64k 1 /dev/null";
    let running = held(&bed, "", script);
    let expected = [("large", 128 << 10), ("reads", 12 << 10), ("small", 65_535 + 4_096)];
    bytes_are(&bed, &expected);
    running.finish().success();
}

#[test]
fn threads_are_distinguished_by_name() {
    let policy = "
        tenant = [{ name = \"flush\" }, { name = \"low\" }, { name = \"own\" }]
        [[match]]
        tenant = \"flush\"
        workflow = \"kv:high\"
        [[match]]
        tenant = \"low\"
        workflow = \"kv:low*\"
        [[match]]
        tenant = \"own\"
        workflow = \"threads*\"";
    let bed = Bed::new(policy);
    let mut command = bed.run("", tools::compiled("threads", &[]));
    command.args(["file", "kv:high", "kv:low", "kv:low1", "other"]).stdin(Stdio::piped());
    let running = process::spawn(&mut command);
    running.wait_for_output("done");
    bytes_are(&bed, &[("flush", MIB), ("low", 2 * MIB), ("own", 0)]);
    running.finish().success();
}

/// A tenant for each context, and one for writes in no context.
const CONTEXTS: &str = "
    tenant = [{ name = \"flush\" }, { name = \"compaction\" }, { name = \"rest\" }]
    [[match]]
    tenant = \"flush\"
    context = \"flush\"
    [[match]]
    tenant = \"compaction\"
    context = \"compaction_*\"
    [[match]]
    tenant = \"rest\"
    operation = \"write\"";

/// The writes of a program that makes 13 blocks in one context, 2 in another and 16 in none are
/// counted so.
#[track_caller]
fn contexts_are_counted(bed: &Bed, program: &mut Command) {
    let running = process::spawn(program.stdin(Stdio::piped()));
    running.wait_for_output("done");
    let block = 64 << 10;
    bytes_are(bed, &[("flush", 13 * block), ("compaction", 2 * block), ("rest", 16 * block)]);
    running.finish().success();
}

#[test]
fn contexts_are_distinguished_as_a_python_program_sets_them() {
    let bed = Bed::new(CONTEXTS);
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut python = bed.run("", tools::need("python3"));
    python.env("PYTHONPATH", tests.join("../python")).env("PYTHONDONTWRITEBYTECODE", "1");
    // Scopes are the shim's, and need no library.
    python.env("TIDEGATE_LIBRARY", "/nonexistent").arg(tests.join("programs/contexts.py"));
    contexts_are_counted(&bed, &mut python);
}

#[test]
fn contexts_are_distinguished_as_the_program_sets_them() {
    let bed = Bed::new(CONTEXTS);
    let library = built::library();
    let folder = library.parent().unwrap().display();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let flags =
        [format!("-I{}", include.display()), format!("-L{folder}"), format!("-Wl,-rpath,{folder}")];
    let [include, search, run_path] = &flags;
    let program = tools::compiled("contexts", &[include, search, run_path, "-ltidegate"]);
    contexts_are_counted(&bed, &mut bed.run("", program));
}

#[test]
fn users_are_distinguished_by_name_and_number() {
    let user = rustix::process::geteuid().as_raw();
    let other = user + 1;
    let policy = format!(
        "tenant = [{{ name = \"other\" }}, {{ name = \"mine\" }}]
         [[match]]
         tenant = \"other\"
         user = \"{other}\"
         [[match]]
         tenant = \"mine\"
         user = [\"nobody-at-all\", \"{user}\"]"
    );
    let bed = Bed::new(&policy);
    let running = held(&bed, "", "dd if=/dev/zero of=a bs=64k count=16 2> /dev/null");
    bed.wait_for_count("mine", "bytes", MIB);
    assert_eq!(bed.tenant("other")["bytes"], 0);
    running.finish().success();
}

#[test]
fn a_tenant_is_only_for_its_users() {
    if !tools::is_root() {
        return tools::skipped("only root can be two users");
    }
    let policy = "tenant = [{ name = \"theirs\", users = \"65534\" }, { name = \"all\" }]";
    let bed = Bed::new(policy);
    let refused = process::run(&mut bed.run("theirs", "true")).success();
    let reason = "user root may not act for tenant \"theirs\"";
    assert!(refused.stderr.contains(reason), "{refused:?}");
    let mut closed = bed.tidegate(&["run", "--fail-closed", "--tenant", "theirs", "true"]);
    let closed = process::run(closed.current_dir(bed.folder())).failure(5);
    assert!(closed.complaint().contains(reason), "{closed:?}");
    // The other user needs to reach the command, the shim and the socket.
    let mut unprivileged = Command::new(tools::need("setpriv"));
    unprivileged.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    unprivileged.arg(built::tidegate()).env("TIDEGATE_SOCKET", bed.socket());
    unprivileged.args(["run", "--fail-closed", "--tenant", "theirs", "--", "true"]);
    let reached = fs::metadata("/proc/self/cwd").is_ok();
    let outcome = process::run(&mut unprivileged);
    if outcome.stderr.contains("Permission denied") && reached {
        return tools::skipped("another user cannot reach the folder of the tests");
    }
    outcome.success();
}

#[test]
fn control_groups_are_distinguished() {
    let name = format!("tidegate-tests-{}", std::process::id());
    // The second is where the tree is while a system still has the older ones as well.
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let root = roots.into_iter().find(|root| root.join("cgroup.procs").exists());
    let group = root.unwrap_or(roots[0]).join(&name);
    if root.is_none() || fs::create_dir(&group).is_err() {
        return tools::skipped("control groups cannot be made here");
    }
    let policy = format!(
        "tenant = [{{ name = \"batch\" }}, {{ name = \"rest\" }}]
         [[match]]
         tenant = \"batch\"
         cgroup = \"/{name}\"
         [[match]]
         tenant = \"rest\"
         operation = \"write\""
    );
    let bed = Bed::new(&policy);
    let script = "dd if=/dev/zero of=a bs=64k count=16 2> /dev/null; echo done; read nothing";
    let inner = bed.run_script("", script);
    let join = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", group.display());
    let mut command = process::around("sh", ["-euc", &join, "sh"], &inner);
    let running = process::spawn(command.stdin(Stdio::piped()));
    running.wait_for_output("done");
    bytes_are(&bed, &[("batch", MIB), ("rest", 0)]);
    drop(running);
    tidegate_tests::eventually("an empty control group", || fs::remove_dir(&group).is_ok());
}

#[test]
fn channels_add_gates_of_their_own() {
    let policy = "
        [[tenant]]
        name = \"kv\"
        [[channel]]
        name = \"compaction\"
        tenant = \"kv\"
        gates = [
          { kind = \"token-bucket\", rate = \"4MiB/s\", burst = \"64KiB\" },
          { kind = \"concurrency\", depth = 1 },
          { kind = \"fair-queue\", depth = 2, weights = { \"a\" = 2 } },
          { kind = \"latency-probe\" },
        ]
        [[match]]
        channel = \"compaction\"
        path = \"**/slow-*\"";
    let bed = Bed::new(policy);
    let script = "dd if=/dev/zero of=fast bs=64k count=64 2> /dev/null
                  for i in 1 2 3 4; do
                      dd if=/dev/zero of=slow-$i bs=64k count=32 2> /dev/null &
                  done; wait";
    let outcome = process::run(&mut bed.run_script("kv", script)).success();
    assert!(outcome.time >= least(8 * MIB), "{:?}", outcome.time);
    assert!(
        (1..=4).all(|i| fs::metadata(bed.path(&format!("slow-{i}"))).unwrap().len() == 2 * MIB)
    );
}
