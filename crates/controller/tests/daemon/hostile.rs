//! Peers that misbehave: one of them is disconnected, and all others are served.

use std::io::Write;
use std::time::{Duration, Instant};

use tidegate_controller::{Config, Limits};
use tidegate_proto::codec::encode;
use tidegate_proto::message::{
    FromStage, Hello, OperatorRequest, Reply, StageInfo, StageReport, ToStage, VERSION,
};

use crate::harness::{PATIENCE, POLICY, Running};

#[test]
fn garbage_closes_one_connection_only() {
    let daemon = Running::under(POLICY);
    let mut good = daemon.stage("oltp");
    good.rules();
    // Instead of a hello; a length that no frame has; and after a good hello.
    let mut noise = daemon.connect::<ToStage>();
    noise.stream.write_all(&[5, 0, 0, 0, 9, 9, 9, 9, 9]).unwrap();
    assert_eq!(noise.receive_or_end(), None);
    let mut long = daemon.connect::<ToStage>();
    long.stream.write_all(&u32::MAX.to_le_bytes()).unwrap();
    assert_eq!(long.receive_or_end(), None);
    let mut late = daemon.stage("backup");
    late.rules();
    late.stream.write_all(&[1, 0, 0, 0, 250]).unwrap();
    while late.receive_or_end().is_some() {}
    let mut operator = daemon.connect::<Reply>();
    operator.send(&Hello::Operator { version: VERSION });
    operator.stream.write_all(&[1, 0, 0, 0, 250]).unwrap();
    assert_eq!(operator.receive_or_end(), None);
    daemon.wait_for("the good one alone", |status| status.stages.len() == 1);
    good.receive_until(|message| matches!(message, ToStage::Collect { .. }).then_some(()));
}

#[test]
fn a_refused_version_names_both() {
    let daemon = Running::new();
    let mut stage = daemon.connect();
    stage.send(&Hello::Stage { version: VERSION + 1, info: StageInfo::default() });
    let ToStage::Refused { version, reason, retry } = stage.receive() else { panic!("welcome") };
    assert_eq!((version, retry), (VERSION, false));
    let both = [VERSION, VERSION + 1].map(|version| format!("version {version}"));
    assert!(both.iter().all(|version| reason.contains(version)), "{reason}");
    assert_eq!(stage.receive_or_end(), None);
    let mut operator = daemon.connect();
    operator.send(&Hello::Operator { version: VERSION + 1 });
    let Reply::Refused { version, reason } = operator.receive() else { panic!("heard") };
    assert_eq!(version, VERSION);
    assert!(both.iter().all(|version| reason.contains(version)), "{reason}");
    assert_eq!(operator.receive_or_end(), None);
}

#[test]
fn an_unknown_tenant_may_retry() {
    let daemon = Running::under(POLICY);
    let mut stage = daemon.stage("nobody");
    let ToStage::Refused { reason, retry, .. } = stage.receive() else { panic!("welcome") };
    assert!(retry && reason.contains("nobody"), "{reason}");
    assert_eq!(stage.receive_or_end(), None);
    assert_eq!(daemon.status().totals.stages_refused, 1);
}

#[test]
fn connections_without_a_hello_are_closed() {
    let hello_max = Duration::from_millis(50);
    let daemon = Running::with(|config| Config { hello_max, ..config }, Limits::default());
    let mut silent = daemon.connect::<ToStage>();
    // A byte at a time is as bad as none.
    let mut slow = daemon.connect::<ToStage>();
    slow.stream.write_all(&[2]).unwrap();
    let start = Instant::now();
    assert_eq!(silent.receive_or_end(), None);
    assert_eq!(slow.receive_or_end(), None);
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn a_stage_that_does_not_answer_is_dropped_and_welcome_back() {
    let daemon = Running::under(POLICY);
    let mut good = daemon.stage("oltp");
    let deaf = daemon.stage("backup");
    daemon.wait_for("both", |status| status.stages.len() == 2);
    // The good one keeps answering on a thread of its own while the other sleeps.
    let answering = std::thread::spawn(move || {
        let mut rounds = 0;
        good.receive_until(|message| {
            rounds += u32::from(matches!(message, ToStage::Collect { .. }));
            (rounds == 40).then_some(())
        });
        good
    });
    daemon.wait_for("the deaf one gone", |status| status.totals.stages == 1);
    let _good = answering.join().unwrap();
    drop(deaf);
    let mut back = daemon.stage("backup");
    back.rules();
}

#[test]
fn a_stage_that_talks_without_reading_is_dropped() {
    let daemon = Running::under(POLICY);
    let mut talker = daemon.stage("backup");
    // Every policy is several messages of a kilobyte, and it reads none of them; but it reports all
    // the time, so it is never silent.
    let channels: String = (0..100)
        .map(|place| format!("[[channel]]\nname = \"c{place}\"\ntenant = \"backup\"\n"))
        .collect();
    let mut frame = Vec::new();
    encode(&FromStage::Report(StageReport { processes: 1, ..StageReport::default() }), &mut frame)
        .unwrap();
    let start = Instant::now();
    for revision in 0.. {
        assert!(start.elapsed() < PATIENCE, "it is never dropped");
        daemon.apply(&format!("{POLICY}{channels}# {revision}"));
        if talker.stream.write_all(&frame).is_err() || daemon.status().stages.is_empty() {
            break;
        }
    }
    daemon.wait_for("nobody", |status| status.stages.is_empty());
    let Reply::Json(_) = daemon.request(&OperatorRequest::Policy) else { panic!("no policy") };
}
