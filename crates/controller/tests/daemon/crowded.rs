//! Clients that want more than their part: they are limited, and all other clients are served.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tidegate_controller::Limits;
use tidegate_proto::message::ToStage;

use crate::harness::{PATIENCE, POLICY, Running};

/// Short enough not to wait for, long enough for a client that sends a request.
const SHORT: Duration = Duration::from_millis(300);

fn start(limits: Limits) -> Running {
    Running::with(|config| config, limits)
}

/// A connection to HTTP that has sent `text`.
fn visit(http: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

/// Everything that arrives until the peer closes or resets the connection.
fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("never closed: {error}"),
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn only_connections_beyond_the_limit_are_closed() {
    let daemon = start(Limits { connections: 3, ..Limits::default() });
    daemon.apply(POLICY);
    let mut stages = Vec::from_iter((0..2).map(|_| daemon.stage("oltp")));
    daemon.wait_for("both", |status| status.stages.len() == 2);
    // A client that sends nothing takes the last permit.
    let silent = UnixStream::connect(daemon.socket()).unwrap();
    let mut refused = daemon.connect::<ToStage>();
    assert_eq!(refused.receive_or_end(), None);
    for stage in &mut stages {
        stage.receive_until(|message| matches!(message, ToStage::Collect { .. }).then_some(()));
    }
    drop((silent, stages));
    // A permit is free once the daemon has noticed.
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "no seat became free");
        let mut stage = daemon.connect::<ToStage>();
        if stage.try_send_hello("oltp") && stage.receive_or_end().is_some() {
            break;
        }
    }
}

#[test]
fn a_request_that_does_not_end_is_cut_off() {
    let limits = Limits { http_head: SHORT, http_request: SHORT, ..Limits::default() };
    let daemon = start(limits);
    let start = Instant::now();
    let silent = visit(daemon.http, "");
    let half = visit(daemon.http, "GET /v1/status HTTP/1.1\r\nHost: loc");
    let put = format!("PUT /v1/policy HTTP/1.1\r\nAuthorization: Bearer {}", daemon.token());
    let body =
        visit(daemon.http, &format!("{put}\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nbud"));
    assert_eq!(daemon.http("GET /readyz HTTP/1.1", "").0, 200);
    // A byte at a time is as bad as none.
    let mut slow = visit(daemon.http, "GET /healthz HTTP/1.1\r\nX: ");
    while slow.write_all(b"x").is_ok() {
        assert!(start.elapsed() < PATIENCE, "never cut off");
        std::thread::yield_now();
    }
    for stream in [silent, half, body] {
        let answer = rest(stream);
        assert!(!answer.contains("200 OK"), "{answer}");
    }
    assert!(start.elapsed() >= SHORT);
}

#[test]
fn half_requests_do_not_keep_clients_with_requests_out() {
    // No half request expires while this runs.
    let (http_head, http_request) = (PATIENCE, PATIENCE);
    let limits = Limits { http_connections: 32, http_head, http_request, ..Limits::default() };
    let daemon = start(limits);
    let flood = || visit(daemon.http, "GET /v1/status HTTP/1.1\r\nHost: loc");
    let half = Vec::from_iter((0..64).map(|_| flood()));
    for _ in 0..8 {
        assert_eq!(daemon.http("GET /healthz HTTP/1.1", "").0, 200);
    }
    let refused = half.into_iter().next().map(rest).unwrap();
    assert!(refused.starts_with("HTTP/1.1 503"), "the oldest made room: {refused}");
}

#[test]
fn a_head_has_less_time_than_a_request() {
    let daemon = start(Limits { http_head: SHORT, ..Limits::default() });
    let put = format!("PUT /v1/policy HTTP/1.1\r\nAuthorization: Bearer {}", daemon.token());
    let mut body =
        visit(daemon.http, &format!("{put}\r\nHost: localhost\r\nContent-Length: 18\r\n\r\n"));
    for half in [visit(daemon.http, ""), visit(daemon.http, "GET /healthz HTTP/1.1\r\nHost: loc")] {
        let answer = rest(half);
        assert!(!answer.contains("200 OK"), "{answer}");
    }
    // Those are over, and this has time for its body.
    body.write_all(b"budget = \"100MB/s\"").unwrap();
    let mut head = [0; 12];
    body.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
}

#[test]
fn idle_connections_are_closed() {
    let daemon = start(Limits { http_idle: SHORT, ..Limits::default() });
    let answer = rest(visit(daemon.http, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
}

#[test]
fn clients_beyond_the_limit_get_a_503() {
    let daemon = start(Limits { http_connections: 2, ..Limits::default() });
    let watch = || visit(daemon.http, "GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut watcher = watch();
    let mut head = [0; 12];
    watcher.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    // Half of the connections may watch, and that is one.
    let mut other = watch();
    other.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 503");
    let refused = rest(visit(daemon.http, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("too many"), "{refused}");
}
