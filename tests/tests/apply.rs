//! A policy takes effect while programs run, as a whole or not at all, and outlives the controller.

use std::fs;
use std::process::Stdio;

use serde_json::Value;
use tidegate_tests::bed::Bed;
use tidegate_tests::eventually;
use tidegate_tests::process::{self, ProgramOutcome, Running};

const POLICY: &str =
    "budget = \"100MiB/s\"\n[[tenant]]\nname = \"kv\"\nreservation = \"60MiB/s\"\n";

/// At this rate the second of two requests waits for hours.
fn stalled(rate: &str) -> String {
    format!("[[tenant]]\nname = \"kv\"\nlimit = \"{rate}\"\nburst = \"1B\"\n")
}

/// A program that has made one request and waits with the next.
fn sleeper(bed: &Bed, tenant: &str) -> Running {
    let mut command = bed.run(tenant, "dd");
    command.args(["if=/dev/zero", "of=file", "bs=64k", "count=2"]).stdin(Stdio::null());
    let running = process::spawn(&mut command);
    eventually("a request that waits", || bed.tenant("kv")["waiting_requests"] == 1);
    running
}

/// Whether two requests of 64 KiB were made.
fn is_done(bed: &Bed) -> bool {
    fs::metadata(bed.path("file")).is_ok_and(|file| file.len() == 128 << 10)
}

fn policy_in_force(bed: &Bed) -> (u64, usize) {
    let status = bed.status();
    (status["revision"].as_u64().unwrap_or(0), status["tenants"].as_array().map_or(0, Vec::len))
}

#[test]
fn a_new_limit_releases_a_sleeper() {
    let bed = Bed::new(&stalled("1B/s"));
    let mut running = sleeper(&bed, "kv");
    assert!(running.is_running() && !is_done(&bed));
    bed.apply(&stalled("1GiB/s")).success();
    running.finish().success();
    assert!(is_done(&bed));
}

#[test]
fn a_limit_that_is_taken_away_releases_a_sleeper() {
    let bed = Bed::new(&stalled("1B/s"));
    let running = sleeper(&bed, "kv");
    bed.apply("[[tenant]]\nname = \"kv\"\n").success();
    running.finish().success();
}

#[test]
fn a_tenant_that_is_taken_away_releases_its_sleepers() {
    let bed = Bed::new(&format!("{}[[match]]\ntenant = \"kv\"\n", stalled("1B/s")));
    let running = sleeper(&bed, "");
    bed.apply("[[tenant]]\nname = \"other\"\n").success();
    running.finish().success();
}

#[test]
fn a_policy_reaches_programs_that_run_already() {
    let mut bed = Bed::empty();
    bed.up();
    let script = "while [ ! -e stop ]; do
                      dd if=/dev/zero of=file bs=4k count=8 2> /dev/null; : > started
                  done";
    let running = process::spawn(bed.run_script("kv", script).stdin(Stdio::null()));
    eventually("a program that runs without a policy", || bed.path("started").exists());
    bed.apply(&stalled("1GiB/s")).success();
    bed.wait_for_count("kv", "bytes", 1 << 20);
    bed.apply(&stalled("1B/s")).success();
    eventually("a request that waits", || bed.tenant("kv")["waiting_requests"] == 1);
    bed.apply(&stalled("1GiB/s")).success();
    fs::write(bed.path("stop"), "").unwrap();
    let outcome = running.finish().success();
    assert!(outcome.notices().contains("has no policy yet"), "{outcome:?}");
}

#[test]
fn a_dry_run_shows_the_changes_and_changes_nothing() {
    let bed = Bed::new(POLICY);
    let other = POLICY.replace("60MiB/s", "50MiB/s") + "[[tenant]]\nname = \"new\"\n";
    let report = bed.apply_with(&other, &["--dry-run"]).success();
    assert!(report.stdout.contains("reservation 60MiB/s -> 50MiB/s"), "{report:?}");
    assert!(report.stdout.contains("tenant new added"), "{report:?}");
    assert_eq!(policy_in_force(&bed), (1, 1));
    let report = bed.apply_with(&other, &["--json"]).success();
    let report: Value = serde_json::from_str(&report.stdout).expect("JSON");
    assert_eq!((&report["revision"], &report["is_changed"]), (&2.into(), &true.into()));
    assert_eq!(policy_in_force(&bed), (2, 2));
}

#[test]
fn no_change_is_overwritten_unseen() {
    let bed = Bed::new(POLICY);
    let [one, other] = ["50MiB/s", "40MiB/s"].map(|rate| POLICY.replace("60MiB/s", rate));
    bed.apply_with(&one, &["--expect", "1"]).success();
    let refused = bed.apply_with(&other, &["--expect", "1"]).failure(1);
    assert!(refused.complaint().contains("revision 2 is in force, not 1"), "{refused:?}");
    assert_eq!(policy_in_force(&bed), (2, 1));
}

/// Every way in which a policy is refused, with the code and a word of the reason.
#[test]
fn what_is_refused_changes_nothing() {
    let bed = Bed::new(POLICY);
    let before = bed.status();
    let cases = [
        (3, "budget = \"100\"".to_owned(), "no unit"),
        (3, format!("{POLICY}limt = \"1MiB/s\""), "limt"),
        (3, "[[tenant".to_owned(), ":1:9]"),
        (3, POLICY.replace("kv", "k v"), "no name"),
        (3, format!("{POLICY}[[match]]\ntenant = \"kw\"\n"), "did you mean"),
        (3, String::from_utf8_lossy(&[0xef, 0xbf, 0xbd, 0]).into_owned(), ""),
        (4, POLICY.replace("60MiB/s", "101MiB/s"), "do not fit the budget"),
    ];
    for (code, policy, reason) in cases {
        let refused = bed.apply(&policy).failure(code);
        assert!(refused.complaint().contains(reason), "{reason}: {refused:?}");
    }
    let missing = process::run(&mut bed.tidegate(&["apply", "no-such-file.toml"]));
    assert!(missing.code != Some(0) && missing.complaint().contains("no-such-file"), "{missing:?}");
    let after = bed.status();
    assert_eq!((&after["revision"], &after["tenants"]), (&before["revision"], &before["tenants"]));
}

#[test]
fn without_a_controller_nothing_can_be_applied() {
    let bed = Bed::empty();
    let report = |outcome: ProgramOutcome| {
        let complaint = outcome.failure(5).complaint();
        assert!(complaint.contains("no controller listens"), "{complaint}");
    };
    report(bed.apply(POLICY));
    report(process::run(&mut bed.tidegate(&["status"])));
    // A socket file without a listener is no controller either.
    drop(std::os::unix::net::UnixListener::bind(bed.socket()).unwrap());
    report(bed.apply(POLICY));
    // A command that needs no controller works without one.
    fs::write(bed.path("policy.toml"), POLICY).unwrap();
    process::run(bed.tidegate(&["check"]).arg(bed.path("policy.toml"))).success();
}

#[test]
fn a_policy_outlives_its_controller() {
    let mut bed = Bed::new(POLICY);
    let other = POLICY.replace("60MiB/s", "50MiB/s");
    bed.apply(&other).success();
    let before = bed.tenant("kv");
    bed.kill_controller();
    bed.up();
    assert_eq!(policy_in_force(&bed), (2, 1));
    let name = "reservation_bytes_per_second";
    assert_eq!(bed.tenant("kv")[name], before[name]);
    bed.apply_with(POLICY, &["--expect", "2"]).success();
    assert_eq!(policy_in_force(&bed), (3, 1));
}

/// The controller is killed while policies are applied: what was confirmed is there afterwards, and
/// what was not is there as a whole or not at all.
#[test]
fn an_apply_is_whole_or_nothing_when_the_controller_dies() {
    let mut bed = Bed::new(POLICY);
    let policy = |number: u32| {
        let more: String =
            (0..number).map(|name| format!("[[tenant]]\nname = \"t{name}\"\n")).collect();
        format!("{POLICY}{more}")
    };
    let mut confirmed = 1;
    for round in 0..6 {
        let number = confirmed + 1;
        fs::write(bed.path("next.toml"), policy(number as u32 - 1)).unwrap();
        let mut command = bed.tidegate(&["apply"]);
        let applying = process::spawn(command.arg(bed.path("next.toml")).stdin(Stdio::null()));
        // Every time a little later: before it is asked, while it is busy, after it is done.
        let start = std::time::Instant::now();
        eventually("its moment", || start.elapsed().as_millis() >= u128::from(round * 4u32));
        bed.kill_controller();
        let outcome = applying.finish();
        bed.up();
        let (revision, tenants) = policy_in_force(&bed);
        let was_confirmed = outcome.code == Some(0);
        assert!(revision == number || (!was_confirmed && revision == confirmed), "{outcome:?}");
        assert_eq!(tenants as u64, revision, "a revision has the tenants of its own text");
        confirmed = revision;
    }
}

/// Two policies take turns while a program writes: every stage has the whole of the last one, and
/// every byte is counted once.
#[test]
fn policies_can_alternate_under_load() {
    let policy = |depth: usize| {
        format!(
            "[[tenant]]\nname = \"kv\"\nlimit = \"{depth}000MiB/s\"\n\
             [[channel]]\nname = \"c{depth}\"\ntenant = \"kv\"\n\
             gates = [{{ kind = \"concurrency\", depth = {depth} }}]\n\
             [[match]]\nchannel = \"c{depth}\"\noperation = \"metadata\"\n"
        )
    };
    let bed = Bed::new(&policy(1));
    let script = "n=0; while [ ! -e stop ]; do
                      dd if=/dev/zero of=file bs=64k count=4 2> /dev/null; n=$((n + 4))
                  done; echo $n; echo done; read nothing || true";
    let running = process::spawn(bed.run_script("kv", script).stdin(Stdio::piped()));
    bed.wait_for_stages(1);
    for round in 0..20 {
        bed.apply(&policy(2 - round % 2)).success();
    }
    fs::write(bed.path("stop"), "").unwrap();
    running.wait_for_output("done");
    let blocks: u64 = running.stdout().lines().next().unwrap().parse().unwrap();
    bed.wait_for_count("kv", "bytes", blocks * (64 << 10));
    assert_eq!(bed.tenant("kv")["bytes"], blocks * (64 << 10));
    let status = bed.status();
    let stage = &status["stages"][0];
    assert_eq!((&stage["revision"], &stage["error"]), (&21.into(), &Value::Null));
    running.finish().success();
}

#[test]
fn a_controller_can_start_with_a_policy() {
    let mut bed = Bed::empty();
    fs::write(bed.path("first.toml"), POLICY).unwrap();
    let mut command = bed.controller_command();
    bed.up_with(command.arg("--policy").arg(bed.path("first.toml")));
    assert_eq!(policy_in_force(&bed), (1, 1));
    // Another one does not take its place.
    let second = process::run(&mut bed.controller_command()).failure(1);
    assert!(second.complaint().contains("another controller"), "{second:?}");
    assert_eq!(policy_in_force(&bed), (1, 1));
}
