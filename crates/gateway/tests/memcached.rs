//! One memcached, and a gateway's conversation before three of them: the same requests, the same
//! replies, byte for byte.
//!
//! Where there is no `memcached` (`apt-get install memcached`) there is nothing to compare with,
//! and the tests say so and pass.
#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tidegate_fabric::stream::{Address, ListenerAccess};
use tidegate_gateway::NodeLocation;
use tidegate_gateway::ketama::Server;
use tidegate_model::{CostModel, NodeId};
use tidegate_wire::memcached::pipeline::Pipeline;
use tidegate_wire::memcached::reply::{BARRIER, Boundary, Shape};
use tidegate_wire::memcached::request::{Parsed, VALUE_MAX_DEFAULT, parse};

/// A memcached of this test's own.
struct Memcached {
    child: Child,
    socket: PathBuf,
}

impl Memcached {
    /// Starts one; none if there is no such program.
    fn start(name: &str) -> Option<Self> {
        let file = format!("tidegate-{}-{name}.sock", std::process::id());
        let socket = std::env::temp_dir().join(file);
        let mut command = Command::new("memcached");
        command.arg("-s").arg(&socket).args(["-u", "nobody", "-m", "8", "-t", "1"]);
        match command.stderr(Stdio::null()).spawn() {
            Ok(child) => Some(Self { child, socket }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("nothing is tested: there is no memcached");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn connect(&self) -> UnixStream {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match UnixStream::connect(&self.socket) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                    return stream;
                }
                Err(error) if Instant::now() > deadline => panic!("{error}"),
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The replies of memcached to all of `input`, up to its version, which is asked for at the end.
fn answer_of_one(mut stream: &UnixStream, input: &[u8]) -> Vec<u8> {
    stream.write_all(&[input, BARRIER].concat()).unwrap();
    let mut answer = Vec::new();
    let version = |answer: &[u8]| answer.windows(9).rposition(|words| words == b"VERSION 1");
    while !(answer.ends_with(b"\r\n") && version(&answer).is_some()) {
        let mut bytes = [0; 4_096];
        let count = stream.read(&mut bytes).unwrap();
        assert_ne!(count, 0, "memcached hung up after {answer:?}");
        answer.extend_from_slice(&bytes[..count]);
    }
    answer.truncate(version(&answer).unwrap());
    answer
}

/// The reply of a node's memcached to one request.
fn reply_of(mut stream: &UnixStream, bytes: &[u8]) -> Vec<u8> {
    let Parsed::Request(request) = parse(bytes, u32::MAX) else { panic!("{bytes:?}") };
    assert_eq!(request.bytes, bytes, "node and gateway cut at the same place");
    let (shape, barrier) = match request.quiet {
        true => (Shape::Quiet, BARRIER),
        false => (request.command.shape(), &b""[..]),
    };
    stream.write_all(&[bytes, barrier].concat()).unwrap();
    let (mut boundary, mut reply) = (Boundary::new(shape), Vec::new());
    loop {
        let mut some = [0; 4_096];
        let count = stream.read(&mut some).unwrap();
        assert_ne!(count, 0, "memcached hung up on {:?}", String::from_utf8_lossy(bytes));
        reply.extend_from_slice(&some[..count]);
        if let Some(whole) = boundary.find(&reply).unwrap() {
            assert_eq!(whole.with_barrier, reply.len(), "nothing is said without being asked");
            reply.truncate(whole.length);
            return reply;
        }
    }
}

/// The replies of a gateway before `nodes`, if the client's bytes come in pieces of this size.
fn answer_of_gateway(nodes: &[UnixStream], input: &[u8], chunk: usize) -> Vec<u8> {
    let count = nodes.len();
    let place = |key: &[u8], _| key.iter().map(|byte| usize::from(*byte)).sum::<usize>() % count;
    let mut client = Pipeline::new(VALUE_MAX_DEFAULT, (0..count).collect());
    let (mut from, mut answer) = (0, Vec::new());
    let mut arrived = 0;
    while arrived < input.len() {
        arrived = input.len().min(arrived + chunk);
        loop {
            let mut requests = Vec::new();
            let progress = client.on_input(&input[from..arrived], place, |request| {
                requests.push((request.ticket, request.destination, request.bytes.to_vec()));
            });
            from += progress.consumed;
            for (ticket, node, bytes) in requests {
                client.on_reply(ticket, Ok(reply_of(&nodes[node], &bytes)));
            }
            while let Some(chunk) = client.poll_output() {
                answer.extend_from_slice(&chunk);
            }
            if progress.needed > 0 {
                break;
            }
        }
    }
    answer
}

/// Requests with sense and without. Left out is what must differ: unique numbers of `gets`, what a
/// server says of itself, and what this project refuses on purpose, as storage commands whose value
/// memcached reads as commands.
fn request() -> impl Strategy<Value = String> {
    // Stored as any other; memaslap has such keys.
    let odd = "[\\x01-\\x08\\x0e-\\x1f\\x7f]{1,3}";
    let key_of =
        |longest: &'static str| prop_oneof![8 => "[a-f]", 1 => longest, 1 => "YQ==|Yg==", 1 => odd];
    let (key, key_with_value) = (|| key_of("[a-z]{248,252}"), || key_of("[a-z]{248,250}"));
    let quiet = || prop::sample::select(&["", " noreply"][..]);
    let value = || "[a-z0-9]{0,6}|[0-9]{1,3}";
    let flags = "( (v|k|t|s|f|q|b|N0|T0|O12|z|v)){0,5}";
    prop_oneof![
        (prop::collection::vec(key(), 0..6), "get|gat 0|gat x")
            .prop_map(|(keys, verb)| format!("{verb} {}\r\n", keys.join(" "))),
        ("set|add|replace|append|prepend", key_with_value(), 0..9u8, quiet(), value()).prop_map(
            |(verb, key, flags, quiet, value)| {
                format!("{verb} {key} {flags} 0 {}{quiet}\r\n{value}\r\n", value.len())
            }
        ),
        (key_with_value(), quiet(), value(), 0..3usize).prop_map(|(key, quiet, value, less)| {
            let length = value.len().saturating_sub(less);
            format!("set {key} 0 0 {length}{quiet}\r\n{value}\r\n")
        }),
        ("cas [a-f] 0 0 1 [1-3]", quiet()).prop_map(|(line, quiet)| {
            format!("{line}{quiet}\r\n1\r\n").replace("cas ", "cas missing")
        }),
        ("delete|incr|decr|touch", key(), "| 0| 5| x", quiet())
            .prop_map(|(verb, key, argument, quiet)| format!("{verb} {key}{argument}{quiet}\r\n")),
        ("mg|md|ma", key(), flags)
            .prop_map(|(verb, key, flags)| format!("{verb} {key}{flags}\r\n")),
        (key_with_value(), value(), flags, "| ME| MA| MR| MX").prop_map(
            |(key, value, flags, mode)| {
                format!("ms {key} {}{flags}{mode}\r\n{value}\r\n", value.len())
            }
        ),
        "(flush_all( 0)?( noreply)?|flush_all x|mn|verbosity 1|mn q) *\r\n",
        "(get|mg|gat| x| z){1,4} *\r\n",
    ]
}

#[test]
fn three_servers_behind_a_gateway_are_one() {
    let Some(one) = Memcached::start("one") else { return };
    let nodes: Vec<Memcached> =
        (0..3).filter_map(|node| Memcached::start(&node.to_string())).collect();
    let (one, nodes) = (one.connect(), nodes.iter().map(Memcached::connect).collect::<Vec<_>>());
    let mut runner = TestRunner::new(Config { cases: 300, ..Config::default() });
    let input = (prop::collection::vec(request(), 1..30), 1usize..200);
    let outcome = runner.run(&input, |(requests, chunk)| {
        // Every case begins with nothing stored.
        let requests = [vec!["flush_all\r\n".to_owned()], requests].concat();
        // One by one: where a key is too long, memcached 1.6.18 forgets what it was to say before.
        let expected = requests.iter().map(|request| answer_of_one(&one, request.as_bytes()));
        let expected = expected.collect::<Vec<_>>().concat();
        let input = requests.concat().into_bytes();
        let answer = answer_of_gateway(&nodes, &input, chunk);
        prop_assert_eq!(
            String::from_utf8_lossy(&answer),
            String::from_utf8_lossy(&expected),
            "to {}",
            String::from_utf8_lossy(&input)
        );
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// The whole way: a client's socket, the gateway's worker, a node's queue, its relay, memcached.
#[test]
fn the_daemons_answer_as_one_server_does() {
    let Some(one) = Memcached::start("direct") else { return };
    let servers: Vec<Memcached> =
        (0..2).filter_map(|node| Memcached::start(&format!("behind-{node}"))).collect();
    let nodes: Vec<_> = servers.iter().map(node_before).collect();
    let gateway = gateway_before(&nodes);
    let Address::Unix(path) = &gateway.pools()[0] else { panic!("it was to be a path") };
    let (one, client) = (one.connect(), UnixStream::connect(path).unwrap());
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut runner = TestRunner::new(Config { cases: 40, ..Config::default() });
    let outcome = runner.run(&prop::collection::vec(request(), 1..30), |requests| {
        let requests = [vec!["flush_all\r\n".to_owned()], requests].concat();
        let expected = requests.iter().map(|request| answer_of_one(&one, request.as_bytes()));
        let expected = expected.collect::<Vec<_>>().concat();
        let answer = answer_of_one(&client, requests.concat().as_bytes());
        prop_assert_eq!(String::from_utf8_lossy(&answer), String::from_utf8_lossy(&expected));
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    assert_eq!(gateway.clients(), 1);
    (&client).write_all(b"get a\r\nquit\r\nget a\r\n").unwrap();
    let mut rest = Vec::new();
    (&client).read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(b"END\r\n") && rest.windows(5).filter(|w| w == b"END\r\n").count() == 1);
    gateway.stop().unwrap();
}

fn node_before(server: &Memcached) -> tidegate_node::Running {
    drop(server.connect());
    let address = Address::Unix(server.socket.clone());
    let store = tidegate_node::StoreConfig::Memcached { address };
    let listen = Some(Address::Unix(server.socket.with_extension("node")));
    let config = tidegate_node::Config { listen, ..tidegate_node::Config::new("node", store) };
    tidegate_node::start(config).unwrap()
}

fn gateway_before(nodes: &[tidegate_node::Running]) -> tidegate_gateway::Running {
    let file = format!("tidegate-{}-gateway.sock", std::process::id());
    let place = |number: u16| {
        let host = format!("node-{number}");
        (NodeId(number), Server { host, port: 11_211, weight: 1 })
    };
    let pool = tidegate_gateway::memcached::Pool {
        address: Address::Unix(std::env::temp_dir().join(file)),
        access: ListenerAccess::PRIVATE,
        name: "cache".into(),
        nodes: (0..nodes.len() as u16).map(place).collect(),
        tenant: "web".into(),
        value_max: VALUE_MAX_DEFAULT,
        flush_all: true,
    };
    let config = tidegate_gateway::Config {
        name: "front".into(),
        controller: None,
        binds: Vec::new(),
        tls: None,
        parties: Default::default(),
        volumes: Vec::new(),
        pools: vec![pool],
        workers: 1,
        limits: tidegate_gateway::Limits::default(),
        cost: CostModel::default(),
        dscp: true,
    };
    // One in this process, and all others behind sockets.
    let node = |(number, node): (usize, &tidegate_node::Running)| match number {
        0 => NodeLocation::Here(node.service()),
        _ => {
            NodeLocation::There { name: "far".into(), way: node.address().unwrap().clone().into() }
        }
    };
    let nodes: Vec<_> = nodes.iter().enumerate().map(node).collect();
    tidegate_gateway::start(config, &nodes).unwrap()
}

#[test]
fn large_values_pass_and_larger_ones_are_refused_alike() {
    let Some(one) = Memcached::start("large") else { return };
    let Some(node) = Memcached::start("large-node") else { return };
    let (one, nodes) = (one.connect(), [node.connect()]);
    // memcached counts the key and its own head, so values of almost 1 MiB are its to refuse.
    for length in [1, 65_536, 500_000, (1 << 20) - 512, (1 << 20) - 1, 1 << 20, (1 << 20) + 1] {
        let mut input = format!("set big 0 0 {length}\r\n").into_bytes();
        input.resize(input.len() + length, b'x');
        input.extend_from_slice(b"\r\nget big none\r\nmg big s v\r\n");
        let expected = answer_of_one(&one, &input);
        assert!(answer_of_gateway(&nodes, &input, 100_000) == expected, "{length}");
    }
}

/// memcached deletes the old value of a `set` or `ms` that it refuses, and keeps that of others.
#[test]
fn the_old_value_of_a_refused_one_is_deleted_alike() {
    let Some(one) = Memcached::start("stale") else { return };
    let nodes: Vec<Memcached> =
        (0..2).filter_map(|node| Memcached::start(&format!("stale-{node}"))).collect();
    let (one, nodes) = (one.connect(), nodes.iter().map(Memcached::connect).collect::<Vec<_>>());
    let length = (1 << 20) + 1;
    let lines = ["set", "add", "replace", "append", "prepend"]
        .iter()
        .flat_map(|verb| ["", " noreply"].map(|quiet| format!("{verb} abc 0 0 {length}{quiet}")));
    let odd = [
        format!("cas abc 0 0 {length} 1"),
        format!("ms abc {length}"),
        format!("ms abc {length} q ME"),
        format!("ms YWJj {length} b"),
    ];
    for line in lines.chain(odd) {
        let mut input = format!("set abc 0 0 3\r\nold\r\n{line}\r\n").into_bytes();
        input.resize(input.len() + length, b'x');
        input.extend_from_slice(b"\r\nget abc none\r\nadd abc 0 0 3\r\nnew\r\nget abc\r\n");
        let expected = answer_of_one(&one, &input);
        let answer = answer_of_gateway(&nodes, &input, 100_000);
        assert_eq!(String::from_utf8_lossy(&answer), String::from_utf8_lossy(&expected), "{line}");
    }
}

/// Numbers at their bounds, times in the past, values that are longer than their line says, and
/// words that are not what they should be.
#[test]
fn edge_cases_are_answered_alike() {
    let Some(one) = Memcached::start("edges") else { return };
    let Some(node) = Memcached::start("edges-node") else { return };
    let (one, nodes) = (one.connect(), [node.connect()]);
    let old = "set k 0 0 3\r\nold\r\n";
    let max = u64::MAX;
    for input in [
        format!("set n 0 0 20\r\n{max}\r\nincr n 1\r\nget n\r\nincr n {max}0\r\n"),
        "set n 0 0 2\r\n10\r\ndecr n 1\r\nget n\r\ndecr n 100\r\nget n\r\n".into(),
        "set n 0 0 2\r\n-5\r\nincr n 1\r\nset n 0 0 3\r\n 12\r\nincr n 1\r\n".into(),
        "set n 0 0 0\r\n\r\nincr n 1\r\nincr n -1\r\nincr n abc\r\ndecr none 1\r\n".into(),
        format!("{old}touch k 0\r\ntouch none 0\r\ntouch k x\r\ntouch k -1\r\nget k\r\n"),
        format!("{old}gat 0 k none k\r\ngat x k\r\ngat -1 k\r\nget k\r\ngats 0 none\r\n"),
        format!("{old}flush_all 100\r\nget k\r\nflush_all 0\r\nget k\r\nflush_all -1\r\n"),
        format!("{old}set k 0 -1 1\r\nx\r\nget k\r\nset k 0 -2147483648 1\r\nx\r\nget k\r\n"),
        format!("{old}set k 0 0 3\r\nabcdef\r\nget k\r\n"),
        format!("{old}set k 0 0 3\r\nabcXYget k\r\nget k\r\n"),
        format!("{old}set k 0 0 3 noreply\r\nabcXYget k\r\nget k\r\n"),
        "cas none 0 0 1 5\r\nx\r\ncas none 0 0 1 5 noreply\r\nx\r\nmn\r\n".into(),
        format!("{old}delete k 0\r\ndelete k\r\ndelete k 1\r\ndelete k 0 noreply\r\n"),
        "verbosity\r\nverbosity 0\r\nverbosity x\r\nverbosity 0 1\r\n\r\nGET a\r\n".into(),
        "set a\x01b 0 0 1\r\nx\r\nget a\x01b\r\nset \u{7f} 0 0 1\r\nx\r\nget \u{7f}\r\n".into(),
        format!("delete {0} noreply\r\nincr {0} 1 noreply\r\nmn\r\n", "k".repeat(251)),
        "set k 0 0 1\nx\r\nget k\nmn\nma k MX\r\nms k 1 MQ\r\nx\r\nmg k v v\r\n".into(),
        "ma n N0 J5 v\r\nma n D3 v\r\nma n MD D100 v\r\nmd n q\r\nmg n v\r\n".into(),
    ] {
        let input = format!("flush_all\r\n{input}");
        let expected = answer_of_one(&one, input.as_bytes());
        let answer = answer_of_gateway(&nodes, input.as_bytes(), 7);
        let [answer, expected] = [answer, expected].map(|it| it.escape_ascii().to_string());
        assert_eq!(answer, expected, "{input:?}");
    }
}

/// memcached runs the value behind a refused line as commands; the gateway does not.
#[test]
fn no_value_is_read_as_commands() {
    let Some(one) = Memcached::start("values") else { return };
    let stream = one.connect();
    let long = "k".repeat(251);
    let bad = "CLIENT_ERROR bad command line format\r\n";
    for line in [format!("set {long} 0 0 7"), "set a -1 0 7".into(), format!("ms {long} 7")] {
        let input = format!("{line}\r\nversion\r\n");
        let answer = answer_of_one(&stream, input.as_bytes());
        assert_eq!(String::from_utf8_lossy(&answer).matches("VERSION").count(), 1, "{line}");
        let answer = answer_of_gateway(&[one.connect()], input.as_bytes(), 50);
        assert_eq!(String::from_utf8_lossy(&answer), bad, "{line}");
    }
}
