//! Starting, ending, and starting again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use tidegate_model::StageId;
use tidegate_proto::controller::status::PolicyText;
use tidegate_proto::message::{
    FromStage, Hello, OperatorRequest, Reply, StageInfo, ToStage, VERSION,
};

use crate::harness::{Client, POLICY, Running, config};

fn welcome(stage: &mut Client<ToStage>) -> StageId {
    stage.receive_until(|message| match message {
        ToStage::Welcome { stage, .. } => Some(*stage),
        _ => None,
    })
}

#[test]
fn a_policy_outlives_the_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Running::start(directory.path());
    assert!(matches!(daemon.request(&OperatorRequest::Policy), Reply::Error { code: 1, .. }));
    daemon.apply(POLICY);
    let mut stage = daemon.stage("backup");
    let id = welcome(&mut stage);
    daemon.stop();
    while stage.receive_or_end().is_some() {}

    let daemon = Running::start(directory.path());
    let Reply::Json(text) = daemon.request(&OperatorRequest::Policy) else { panic!("no policy") };
    let policy: PolicyText = serde_json::from_str(&text).unwrap();
    assert_eq!((policy.revision, policy.text.as_str()), (1, POLICY));
    assert_eq!(policy.source, "test.toml");
    // The stage comes back under its number, and receives everything.
    let info = StageInfo { stage: id, tenant: "backup".into(), ..StageInfo::default() };
    let mut stage = daemon.connect();
    stage.send(&Hello::Stage { version: VERSION, info });
    assert_eq!(welcome(&mut stage), id);
    assert_eq!(stage.rules().0, 1);
}

#[test]
fn a_store_that_was_never_closed_opens_again() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Running::start(directory.path());
    daemon.apply(POLICY);
    // A kill leaves the file behind as it is while the daemon has it open.
    let other = tempfile::tempdir().unwrap();
    let [from, to] = [directory.path(), other.path()].map(|path| path.join("policies.redb"));
    fs::copy(from, to).unwrap();
    let revived = Running::start(other.path());
    assert_eq!(revived.status().revision, 1);
    assert_eq!(revived.apply(&format!("{POLICY}# more")).revision, 2);
}

#[test]
fn the_socket_of_a_dead_controller_is_replaced_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("controller.sock");
    // Dropping a listener leaves its file, as a killed controller does.
    drop(UnixListener::bind(&path).unwrap());
    let daemon = Running::start(directory.path());
    let is_root =
        fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, if is_root { 0o666 } else { 0o600 });
    daemon.stop();
    assert!(!path.exists());
}

#[test]
fn a_living_controller_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Running::start(directory.path());
    let pid = std::process::id().to_string();
    // The same state directory.
    let error = Running::try_start(config(directory.path()), None).err().unwrap().to_string();
    assert!(error.contains("uses") && error.contains(&pid), "{error}");
    // Another one, but the same socket.
    let other = tempfile::tempdir().unwrap();
    let mut both = config(other.path());
    both.socket = daemon.socket();
    let error = Running::try_start(both, None).err().unwrap().to_string();
    assert!(error.contains("listens on") && error.contains(&pid), "{error}");
    // Something else in the way.
    let mut odd = config(other.path());
    odd.socket = other.path().join("file");
    fs::write(&odd.socket, "precious").unwrap();
    let error = Running::try_start(odd.clone(), None).err().unwrap().to_string();
    assert!(error.contains("is no socket"), "{error}");
    assert_eq!(fs::read_to_string(&odd.socket).unwrap(), "precious");
    assert_eq!(daemon.status().revision, 0);
}

#[test]
fn http_stays_on_this_machine() {
    let directory = tempfile::tempdir().unwrap();
    let mut everywhere = config(directory.path());
    everywhere.http = Some("0.0.0.0:0".parse().unwrap());
    let error = Running::try_start(everywhere, None).err().unwrap().to_string();
    assert!(error.contains("not a loopback address"), "{error}");
}

#[test]
fn a_stage_that_leaves_frees_its_share() {
    let daemon = Running::under(POLICY);
    let mut first = daemon.stage("oltp");
    let mut second = daemon.stage("backup");
    daemon.wait_for("both", |status| status.stages.len() == 2);
    first.rules();
    second.rules();
    second.send(&FromStage::Disconnect);
    while second.receive_or_end().is_some() {}
    let status = daemon.wait_for("one", |status| status.stages.len() == 1);
    assert_eq!(status.tenants[1].stages, 0);
    drop(first);
    daemon.wait_for("none", |status| status.stages.is_empty());
}
