//! The HTTP interface.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use tidegate_controller::openapi;
use tidegate_proto::controller::status::{Applied, PolicyText, Status, TimedEvent};

use crate::harness::{PATIENCE, POLICY, Running};

#[test]
fn only_the_token_changes_the_policy() {
    let daemon = Running::new();
    let (status, head, body) = daemon.http("PUT /v1/policy HTTP/1.1", POLICY);
    assert_eq!(status, 401);
    assert!(head.to_ascii_lowercase().contains("www-authenticate: bearer"), "{head}");
    assert!(body.contains("token"), "{body}");
    let wrong = "PUT /v1/policy HTTP/1.1\r\nAuthorization: Bearer 00";
    assert_eq!(daemon.http(wrong, POLICY).0, 401);
    assert_eq!(daemon.http("GET /v1/policy HTTP/1.1", "").0, 404);
    let token = daemon.token();
    let put = |query: &str, policy: &str| {
        let request = format!("PUT /v1/policy{query} HTTP/1.1\r\nAuthorization: Bearer {token}");
        daemon.http(&request, policy)
    };
    let (status, _, body) = put("?dry_run=true", POLICY);
    assert_eq!(status, 200, "{body}");
    let applied: Applied = serde_json::from_str(&body).unwrap();
    assert_eq!((applied.revision, applied.dry_run, applied.changes.len()), (0, true, 2));
    assert_eq!(put("", POLICY).0, 200);
    assert_eq!(put("?expect=9", POLICY).0, 409);
    for empty in ["", " \n"] {
        let (status, _, body) = put("", empty);
        assert_eq!(status, 422, "{body}");
        assert!(body.starts_with("{\"code\":3,") && body.contains("is empty"), "{body}");
    }
    assert_eq!(put("", "budget = 7").0, 422);
    for wrong in ["?expect=soon", "?dryrun=true", "?expect=1&force=true"] {
        let (status, _, body) = put(wrong, &POLICY.replace("oltp", "other"));
        assert_eq!(status, 400, "{wrong}");
        assert!(body.starts_with("{\"code\":1,"), "{body}");
    }
    let (status, head, text) = daemon.http("GET /v1/policy HTTP/1.1", "");
    assert_eq!((status, text.as_str()), (200, POLICY));
    assert!(head.contains("tidegate-revision: 1"), "{head}");
    let (_, _, body) = daemon.http("GET /v1/policy/history?count=5 HTTP/1.1", "");
    let history: Vec<PolicyText> = serde_json::from_str(&body).unwrap();
    assert_eq!((history.len(), history[0].source.as_str()), (1, "HTTP"));
}

#[test]
fn a_body_that_is_too_long_is_not_read() {
    let daemon = Running::new();
    let request = format!("PUT /v1/policy HTTP/1.1\r\nAuthorization: Bearer {}", daemon.token());
    let (status, ..) = daemon.http(&request, &"#".repeat((1 << 20) + 1));
    assert_eq!(status, 413);
    assert_eq!(daemon.http("GET /readyz HTTP/1.1", "").0, 200);
}

#[test]
fn status_and_health_are_there() {
    let daemon = Running::under(POLICY);
    let mut stage = daemon.stage("oltp");
    stage.rules();
    let (status, _, body) = daemon.http("GET /v1/status HTTP/1.1", "");
    assert_eq!(status, 200);
    let served: Status = serde_json::from_str(&body).unwrap();
    assert_eq!((served.revision, served.stages.len(), served.tenants.len()), (1, 1, 2));
    assert_eq!(daemon.http("GET /healthz HTTP/1.1", "").0, 200);
    assert_eq!(daemon.http("GET /readyz HTTP/1.1", "").0, 200);
    assert_eq!(daemon.http("GET /v2/status HTTP/1.1", "").0, 404);
}

/// A line of the text format: a name, maybe labels, a number. Returns name and number.
fn sample(line: &str) -> (&str, f64) {
    let (series, number) = line.rsplit_once(' ').unwrap();
    let name = series.split('{').next().unwrap();
    assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{line}");
    assert!(name.len() == series.len() || series.ends_with('}'), "{line}");
    (name, number.parse().unwrap())
}

#[test]
fn metrics_parse_and_have_units_in_their_names() {
    let daemon = Running::under(POLICY);
    let mut stage = daemon.stage("oltp");
    let mut rounds = 0;
    stage.receive_until(|message| {
        let is_collect = matches!(message, tidegate_proto::message::ToStage::Collect { .. });
        rounds += u32::from(is_collect);
        (rounds == 3).then_some(())
    });
    daemon.wait_for("a cycle", |status| status.totals.cycles > 0);
    let (status, head, text) = daemon.http("GET /metrics HTTP/1.1", "");
    assert_eq!(status, 200);
    assert!(head.contains("application/openmetrics-text"), "{head}");
    assert!(text.ends_with("# EOF\n"));
    let lines = || text.lines().filter(|line| !line.starts_with('#'));
    let value = |wanted: &str| {
        let found = lines().find(|line| line.starts_with(wanted));
        found.map(sample).unwrap_or_else(|| panic!("no {wanted} in {text}")).1
    };
    lines().for_each(|line| assert!(!sample(line).1.is_nan()));
    assert_eq!(value("tidegate_policy_revision"), 1.0);
    assert_eq!(value("tidegate_stages "), 1.0);
    assert_eq!(value("tidegate_tenant_reservation_bytes_per_second{tenant=\"oltp\"}"), 6e7);
    assert!(value("tidegate_tenant_rate_bytes_per_second{tenant=\"oltp\"}") > 0.0);
    assert_eq!(value("tidegate_tenant_bytes_total{tenant=\"oltp\"}"), 0.0);
    assert!(value("tidegate_controller_cycle_seconds_count") >= 1.0);
    assert!(text.contains("# TYPE tidegate_gate_wait_seconds histogram"), "{text}");
}

#[test]
fn a_request_for_another_host_is_refused() {
    let daemon = Running::new();
    let code_of = |target: &str, host: &str| {
        let mut stream = TcpStream::connect(daemon.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("GET {target} HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let port = daemon.http.port();
    for own in ["localhost", &format!("127.0.0.1:{port}"), &format!("LocalHost:{port}")] {
        assert_eq!(code_of("/v1/status", &format!("Host: {own}\r\n")), "200", "{own}");
    }
    for foreign in ["evil.example", &format!("evil.example:{port}"), "localhost.evil.example", "a"]
    {
        for target in ["/v1/status", "/v1/policy", "/metrics", "/healthz"] {
            assert_eq!(code_of(target, &format!("Host: {foreign}\r\n")), "421", "{foreign}");
        }
    }
    assert_eq!(code_of("http://evil.example/v1/status", "Host: localhost\r\n"), "421");
    assert_eq!(code_of("/v1/status", "Host: localhost\r\nHost: evil.example\r\n"), "421");
}

#[test]
fn events_are_streamed_as_they_happen() {
    let daemon = Running::new();
    let mut stream = TcpStream::connect(daemon.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    // The answer's head comes once the watch stands.
    while lines.next().unwrap().unwrap() != "" {}
    daemon.apply(POLICY);
    let data = loop {
        let line = lines.next().unwrap().unwrap();
        if let Some(data) = line.strip_prefix("data: ") {
            break data.to_owned();
        }
    };
    let event: TimedEvent = serde_json::from_str(&data).unwrap();
    assert_eq!(event.number, 1);
    assert!(data.contains(r#""event":"policy_applied""#), "{data}");
}

#[test]
fn the_description_in_the_repository_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../api/controller.json");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, openapi()).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        golden == openapi(),
        "api/controller.json is out of date; look at the change and run \
         `UPDATE_GOLDEN=1 cargo test -p tidegate-controller`"
    );
    let (status, _, served) = Running::new().http("GET /openapi.json HTTP/1.1", "");
    assert_eq!((status, served), (200, golden));
}
