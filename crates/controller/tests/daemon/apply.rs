//! Policies: from text to stages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use tidegate_controller::{Draft, PolicyStore, PutError, StoreError};
use tidegate_model::gate::{Burst, Throughput};
use tidegate_model::{Discipline, GateSpec, Rate};
use tidegate_proto::controller::status::{Applied, PolicyText};
use tidegate_proto::message::{Enforcement, Housekeeping, OperatorRequest, Reply, Rule, ToStage};

use crate::harness::{POLICY, Running, config};

#[test]
fn a_policy_reaches_a_stage_that_was_there_before_it() {
    let daemon = Running::new();
    let mut stage = daemon.stage("oltp");
    assert!(matches!(stage.receive(), ToStage::Welcome { .. }));
    let applied = daemon.apply(POLICY);
    assert_eq!((applied.revision, applied.is_changed), (1, true));
    let (revision, rules) = stage.rules();
    assert_eq!(revision, 1);
    assert_eq!(rules[0], Rule::Housekeeping(Housekeeping::Clear));
    // Alone, it has everything; without a controller it would have its promise.
    let rate = |bytes| Throughput::Bandwidth(Rate(bytes));
    let (name, gate) = ("oltp:bandwidth".to_owned(), "oltp:bandwidth".to_owned());
    let spec = GateSpec::TokenBucket { rate: rate(60_000_000), burst: Burst::DEFAULT };
    assert_eq!(rules[1], Rule::Housekeeping(Housekeeping::SetGate { name, spec }));
    let now = Enforcement::Rate { gate, rate: rate(100_000_000) };
    assert_eq!(rules[2], Rule::Enforcement(now));
    let status = daemon.status();
    assert_eq!((status.revision, status.stages.len()), (1, 1));
    assert_eq!(status.stages[0].pid, std::process::id());
}

#[test]
fn the_budget_is_shared_between_those_who_want_it() {
    let daemon = Running::under(POLICY);
    let mut stages = [daemon.stage("oltp"), daemon.stage("backup")];
    let joined = daemon.wait_for("both", |status| status.stages.len() == 2);
    assert_eq!(joined.tenants[0].reservation_bytes_per_second, Some(60_000_000));
    for stage in &mut stages {
        stage.rules();
    }
    // Both are taken to want everything until they are measured, so the surplus goes in halves.
    let rates = |status: &tidegate_proto::controller::status::Status| {
        [0, 1].map(|tenant: usize| status.tenants[tenant].allocated_bytes_per_second.unwrap())
    };
    let shared = daemon.wait_for("a share for both", |status| rates(status)[1] > 1_000_000);
    assert!(rates(&shared).iter().sum::<u64>() <= 101_000_000);
}

#[test]
fn errors_of_a_policy_are_reported_and_nothing_changes() {
    let daemon = Running::under(POLICY);
    let (code, message) = daemon.try_apply("budget = \"1000\"", 0).unwrap_err();
    assert_eq!(code, 3);
    assert!(message.starts_with("test.toml: line 1, column 10: budget:"), "{message}");
    let greedy = POLICY.replace("60MB/s", "160MB/s");
    let (code, message) = daemon.try_apply(&greedy, 0).unwrap_err();
    assert_eq!(code, 4);
    assert!(message.contains("160MB/s") && message.contains("100MB/s"), "{message}");
    let other = POLICY.replace("60MB/s", "50MB/s");
    let (code, message) = daemon.try_apply(&other, 7).unwrap_err();
    assert_eq!(code, 1);
    assert!(message.contains("revision 1 is in force, not 7"), "{message}");
    assert_eq!(daemon.status().revision, 1);
    assert_eq!(daemon.try_apply(&other, 1).unwrap().revision, 2);
    // The same text again changes nothing.
    let again = daemon.apply(&other);
    assert_eq!((again.revision, again.is_changed), (2, false));
}

#[test]
fn a_dry_run_shows_the_difference() {
    let daemon = Running::under(POLICY);
    let policy = POLICY.replace("60MB/s", "50MB/s") + "[[tenant]]\nname = \"scratch\"\n";
    let (source, expect) = ("test.toml".into(), 0);
    let request = OperatorRequest::Apply { policy, source, dry_run: true, expect };
    let Reply::Json(text) = daemon.request(&request) else { panic!("refused") };
    let applied: Applied = serde_json::from_str(&text).unwrap();
    assert_eq!((applied.revision, applied.dry_run), (1, true));
    let lines: Vec<&str> = applied.changes.iter().map(|change| change.line.as_str()).collect();
    let golden = [
        "tenant oltp changed: reservation 60MB/s -> 50MB/s",
        "tenant scratch added: class medium, weight 100, burst 10ms",
    ];
    assert_eq!(lines, golden);
    assert_eq!(applied.changes[0].fields[0].from, "60MB/s");
    assert_eq!(daemon.status().revision, 1);
    assert_eq!(daemon.status().tenants.len(), 2);
}

/// A store on a disk that is full from the second policy on.
struct FullDisk(Vec<PolicyText>);

impl PolicyStore for FullDisk {
    fn latest(&self) -> Result<Option<PolicyText>, StoreError> {
        Ok(self.0.last().cloned())
    }

    fn schedulers(&self) -> Result<BTreeMap<String, Discipline>, StoreError> {
        Ok(BTreeMap::new())
    }

    fn choose(&mut self, _: &[String], _: Option<Discipline>) -> Result<(), PutError> {
        Err(PutError::Full { path: "policies.redb".into() })
    }

    fn put(&mut self, _: u64, draft: Draft) -> Result<u64, PutError> {
        if !self.0.is_empty() {
            return Err(PutError::Full { path: "policies.redb".into() });
        }
        let Draft { text, source, applied_at_ms } = draft;
        self.0.push(PolicyText { revision: 1, text, source, applied_at_ms });
        Ok(1)
    }

    fn history(&self, _: usize) -> Result<Vec<PolicyText>, StoreError> {
        let (path, error) = ("policies.redb".into(), io::Error::other("worn out").into());
        Err(StoreError { path, error })
    }
}

#[test]
fn a_full_disk_leaves_the_policy_in_force() {
    let directory = tempfile::tempdir().unwrap();
    let store = Box::new(FullDisk(Vec::new()));
    let daemon = Running::try_start(config(directory.path()), Some(store)).unwrap();
    daemon.apply(POLICY);
    let other = POLICY.replace("60MB/s", "50MB/s");
    let (code, message) = daemon.try_apply(&other, 0).unwrap_err();
    assert_eq!(code, 1);
    assert!(message.contains("no space is left"), "{message}");
    let status = daemon.status();
    assert_eq!(status.revision, 1);
    assert_eq!(status.tenants[0].reservation_bytes_per_second, Some(60_000_000));
    let Reply::Json(text) = daemon.request(&OperatorRequest::Policy) else { panic!("no policy") };
    let policy: PolicyText = serde_json::from_str(&text).unwrap();
    assert_eq!((policy.revision, policy.text.as_str()), (1, POLICY));
}

/// A file system of a few megabytes, if this process may mount one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m,mode=700", "tidegate-test"]).arg(at);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Self(at.into()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_disk_that_is_really_full_is_survived() {
    let directory = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(directory.path()) else {
        println!("skipped: only root may mount a small file system");
        return;
    };
    let daemon = Running::start(directory.path());
    daemon.apply(POLICY);
    let filler = directory.path().join("filler");
    let _ = fs::write(&filler, vec![0; 4 << 20]);
    // A policy that cannot fit into what the store's file has left inside.
    let long = format!("{POLICY}# {}\n", "x".repeat(900 << 10));
    let mut refused = Vec::new();
    for place in 0..4 {
        match daemon.try_apply(&format!("{long}# {place}"), 0) {
            Ok(_) => assert!(refused.is_empty(), "it fits after it did not"),
            Err(error) => refused.push(error),
        }
    }
    let (code, message) = refused.first().expect("four megabytes do not fit in four");
    assert_eq!(*code, 1);
    assert!(message.contains("no space is left") && message.contains("policies.redb"), "{message}");
    let revision = daemon.status().revision;
    assert!(revision >= 1);
    // With space it goes on, without a restart.
    fs::remove_file(&filler).unwrap();
    assert_eq!(
        daemon.try_apply(&format!("{POLICY}# again"), revision).unwrap().revision,
        revision + 1
    );
    drop(daemon);
    let daemon = Running::start(directory.path());
    assert_eq!(daemon.status().revision, revision + 1);
}
