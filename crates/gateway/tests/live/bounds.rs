//! Bounds on the memory and the connections of hostile clients.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tidegate_fabric::stream::Address;
use tidegate_gateway::Limits;
use tidegate_wire::nbd::client::{self as encode, options};
use tidegate_wire::nbd::constants::{OPTION_MAGIC, PAYLOAD_MAX, command, option};

use crate::client::{self, Client};
use crate::{PATIENCE, Testbed, eventually, pool, volume};

const WORKERS: usize = 2;

/// The memory of each connection in addition to the limit of all, in bytes: 64 KiB under way, and
/// 128 KiB that were read and not parsed.
const EACH: usize = 192 << 10;

/// The bound of the memory of so many clients.
fn bound(clients: usize) -> usize {
    Limits::default().all_bytes + clients * EACH
}

/// How many clients were turned away, by reason, where that is not zero.
fn turned_away(testbed: &Testbed) -> Vec<(String, u64)> {
    let mut reasons = testbed.gateway.pressure().turned_away;
    reasons.retain(|(_, count)| *count > 0);
    reasons
}

#[test]
fn replies_that_are_not_read_take_up_bounded_memory() {
    let limits = Limits { stall: Duration::from_secs(600), ..Limits::default() };
    let testbed = Testbed::with(limits, WORKERS);
    let mut greedy: Vec<_> = (0..24).map(|_| Client::enter(&testbed, "striped", true)).collect();
    for client in &mut greedy {
        client.request_reads(0, 1 << 20, 500);
    }
    let mut honest = Client::enter(&testbed, "plain", true);
    for round in 0..200 {
        assert_eq!(honest.read(0, 64 << 10).map(|data| data.len()), Ok(64 << 10), "{round}");
        let memory = testbed.gateway.memory();
        assert!(memory <= bound(25), "{memory} bytes");
    }
    // Nothing is lost: who reads again has all of it, in whatever order the nodes answered.
    let client = &mut greedy[0];
    let cookies: BTreeSet<_> = (0..500).map(|_| client.receive(1 << 20).cookie).collect();
    assert!(cookies.into_iter().eq(1..=500));
    drop((greedy, honest));
    eventually("all memory is given back", || testbed.gateway.memory() == 0);
}

#[test]
fn a_client_that_holds_memory_and_does_not_read_is_closed_once_others_wait() {
    let limits = Limits { stall: Duration::from_millis(50), ..Limits::default() };
    let testbed = Testbed::with(limits, 1);
    let mut greedy = Client::enter(&testbed, "plain", true);
    greedy.request_reads(0, 1 << 20, 500);
    // It waits itself, for what it would have if it read.
    eventually("it is closed", || testbed.gateway.clients() == 0);
    assert_eq!(testbed.gateway.counts().turned_away, 1);
    assert_eq!(turned_away(&testbed), [("memory_budget".into(), 1)]);
    let pressure = testbed.gateway.pressure();
    assert!(pressure.memory_limit_bytes >= Limits::default().all_bytes as u64, "{pressure:?}");
    eventually("all memory is given back", || testbed.gateway.memory() == 0);
}

#[test]
fn the_largest_requests_of_many_clients_are_all_served() {
    let testbed = Testbed::adapted(|config| {
        config.workers = WORKERS;
        config.volumes.push(volume("big", PAYLOAD_MAX.into(), &[0, 1]));
    });
    let client = |number: usize| {
        let mut client = Client::enter(&testbed, "big", true);
        let bytes = vec![number as u8; PAYLOAD_MAX as usize];
        assert_eq!(client.write(0, &bytes), 0);
        assert_eq!(client.read(0, PAYLOAD_MAX).map(|data| data.len()), Ok(bytes.len()));
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|number| scope.spawn(move || client(number))).collect();
        while !clients.iter().all(|client| client.is_finished()) {
            let memory = testbed.gateway.memory();
            assert!(memory <= bound(8), "{memory} bytes");
            std::thread::yield_now();
        }
    });
    eventually("all memory is given back", || testbed.gateway.memory() == 0);
}

/// Clients with long replies wait for their turn while their sockets have more: bytes that come
/// later are not taken before those that are held because a client has as many requests as it may.
/// The data of writes looks like requests to zero the first blocks, which no client sends.
#[test]
fn data_is_not_taken_for_requests() {
    const ROUNDS: u64 = 50;
    const LENGTH: u32 = 256 << 10;
    const LATER: u64 = 8 << 20;
    let testbed = Testbed::adapted(|config| {
        config.limits.requests = 2;
        config.workers = 1;
        config.volumes.push(volume("big", PAYLOAD_MAX.into(), &[0, 1]));
    });
    let kept = vec![7; 64 << 10];
    let mut honest = Client::enter(&testbed, "big", true);
    assert_eq!(honest.write(0, &kept), 0);
    let zero = encode::request(command::WRITE_ZEROES, 0, 0xdead, 0, kept.len() as u32);
    let load = |number: u64| {
        let mut client = Client::enter(&testbed, "big", false);
        let mut writer = client.writer();
        let sender = std::thread::spawn(move || {
            for round in 0..ROUNDS {
                let read =
                    |at: u64| encode::request(command::READ, 0, 4 * round + at, LATER, 4 * LENGTH);
                let offset = LATER + (1 + number) * (1 << 20);
                let write = encode::request(command::WRITE, 0, 4 * round + 3, offset, LENGTH);
                // Shifted, so that a request begins wherever bytes are taken up again.
                let data = vec![0; (round % 28) as usize].into_iter();
                let data = data.chain(zero.into_iter().cycle()).take(LENGTH as usize);
                let heads = (0..3).flat_map(read).chain(write);
                writer.write_all(&heads.chain(data).collect::<Vec<u8>>()).unwrap();
            }
        });
        for _ in 0..4 * ROUNDS {
            // The fourth of each round is the write, whose answer has no data.
            let answer = client.receive_by(|cookie| if cookie % 4 == 3 { 0 } else { 4 * LENGTH });
            assert_eq!((answer.errno, answer.cookie < 4 * ROUNDS), (0, true));
        }
        sender.join().unwrap();
    };
    std::thread::scope(|scope| {
        (0..8).for_each(|number| drop(scope.spawn(move || load(number))));
    });
    assert_eq!(honest.read(0, kept.len() as u32), Ok(kept));
}

#[test]
fn writes_that_do_not_arrive_take_up_bounded_memory() {
    let testbed = Testbed::with(Limits::default(), WORKERS);
    let mut slow: Vec<_> = (0..24).map(|_| Client::enter(&testbed, "plain", true)).collect();
    for client in &mut slow {
        client.request(command::WRITE, 0, 0, 8 << 20);
        // The socket takes this and no more: the gateway reads admitted clients only.
        client.send(&[1; 64 << 10]);
    }
    let mut honest = Client::enter(&testbed, "plain", true);
    for round in 0..100 {
        assert_eq!(honest.write(0, &[2; 32 << 10]), 0, "{round}");
        let memory = testbed.gateway.memory();
        assert!(memory <= bound(25), "{memory} bytes");
    }
    drop((slow, honest));
    eventually("all memory is given back", || testbed.gateway.memory() == 0);
}

/// A testbed with a pool on its first node.
fn with_pool(limits: Limits) -> Testbed {
    Testbed::adapted(|config| {
        pool::add(config, false);
        (config.limits, config.workers) = (limits, WORKERS);
    })
}

#[test]
fn a_client_with_exactly_its_share_in_flight_is_read_from_again() {
    let testbed = with_pool(Limits { all_requests: 4, ..Limits::default() });
    let mut client = pool::connect(&testbed);
    for _ in 0..3 {
        client.write_all(&b"get k\r\n".repeat(4)).unwrap();
        client.read_exact(&mut [0; 4 * 5]).unwrap();
    }
}

#[test]
fn a_client_is_answered_while_its_replies_become_long_and_short_again() {
    let testbed = with_pool(Limits::default());
    let mut client = pool::connect(&testbed);
    let long = [&b"VALUE k 0 100000\r\n"[..], &[b'x'; 100_000], b"\r\nEND\r\n"].concat();
    for reply in [&b"END\r\n"[..], &long, b"END\r\n", &long] {
        testbed.nodes[0].set_reply(reply.into());
        for _ in 0..20 {
            client.write_all(&b"get k\r\n".repeat(20)).unwrap();
            let mut received = vec![0; 20 * reply.len()];
            client.read_exact(&mut received).unwrap();
            assert!(received == reply.repeat(20));
        }
    }
}

#[test]
fn values_that_are_not_read_or_do_not_arrive_take_up_bounded_memory() {
    let testbed = with_pool(Limits::default());
    let gateway = &testbed.gateway;
    let connect = || pool::connect(&testbed);
    let value = vec![b'x'; 1_000_000];
    let reply = [&b"VALUE k 0 1000000\r\n"[..], &value, b"\r\nEND\r\n"].concat();
    testbed.nodes[0].set_reply(reply);
    let mut greedy: Vec<_> = (0..24).map(|_| connect()).collect();
    for stream in &mut greedy {
        stream.write_all(&b"get k\r\n".repeat(1000)).unwrap();
    }
    let mut slow: Vec<_> = (0..24).map(|_| connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"set k 0 0 1000000\r\n").unwrap();
        stream.write_all(&value[..64 << 10]).unwrap();
    }
    let mut honest = connect();
    for round in 0..200 {
        honest.write_all(b"set k 0 0 1\r\n1\r\nmn\r\n").unwrap();
        let mut received = Vec::new();
        // Its node answers everything with the value.
        while !received.ends_with(b"MN\r\n") {
            let mut some = [0; 64 << 10];
            let count = honest.read(&mut some).unwrap_or_else(|error| {
                panic!(
                    "{error} in round {round} behind {} bytes, {} memory",
                    received.len(),
                    gateway.memory()
                )
            });
            assert_ne!(count, 0, "it is served in round {round}");
            received.extend_from_slice(&some[..count]);
        }
        let memory = gateway.memory();
        assert!(memory <= bound(49), "{memory} bytes");
    }
    drop((greedy, slow, honest));
    eventually("all memory is given back", || gateway.memory() == 0);
}

#[test]
fn silent_connections_do_not_shut_out_others() {
    let testbed = with_pool(Limits::default());
    let Address::Unix(path) = &testbed.gateway.addresses()[0] else {
        panic!("the first is a path")
    };
    let mut silent: Vec<_> = (0..520).map(|_| UnixStream::connect(path).unwrap()).collect();
    // Greeted or not: some have begun their handshake.
    for stream in silent.iter_mut().step_by(3) {
        let _ = stream.write_all(&[0, 0, 0, 3]);
    }
    for _ in 0..20 {
        assert!(Client::enter(&testbed, "plain", true).read(0, 512).is_ok());
    }
    let Address::Unix(path) = &testbed.gateway.pools()[0] else { panic!("it was to be a path") };
    let _silent: Vec<_> = (0..520).map(|_| UnixStream::connect(path).unwrap()).collect();
    for _ in 0..20 {
        let mut client = pool::connect(&testbed);
        client.write_all(b"get k\r\n").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
    }
    let counts = testbed.gateway.counts();
    assert!(counts.turned_away >= 2 * (520 - 2 * WORKERS as u64 * 64), "{counts:?}");
    let reasons = turned_away(&testbed);
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    assert_eq!(reasons[0].0, "pending_quota");
}

#[test]
fn clients_that_drip_their_handshake_have_no_longer_than_others() {
    let limits = Limits { handshake: Duration::from_millis(200), ..Limits::default() };
    let testbed = with_pool(limits);
    let mut stream = client::connect(&testbed);
    // Every byte is on time, and the handshake is not.
    let began = Instant::now();
    let output = [&3_u32.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &[0, 0, 0, 3, 0, 1, 0, 0]];
    let mut drip = output.concat().into_iter().chain(std::iter::repeat(0));
    while stream.write_all(&[drip.next().unwrap()]).is_ok() {
        assert!(began.elapsed() < PATIENCE, "it is still listened to");
        std::thread::yield_now();
    }
    let mut silent = pool::connect(&testbed);
    assert_eq!(silent.read(&mut [0]).unwrap(), 0, "one that never asks is closed");
    assert_eq!(turned_away(&testbed), [("handshake_timeout".into(), 2)]);
}

#[test]
fn one_user_or_address_does_not_have_all_connections() {
    let testbed = Testbed::with(Limits { connections: 16, ..Limits::default() }, 1);
    let user: Vec<_> = (0..12).map(|_| Client::enter(&testbed, "plain", true)).collect();
    let mut thirteenth = client::connect(&testbed);
    let enter = options(3, &[(option::EXPORT_NAME, b"rom")]);
    thirteenth.write_all(&enter).unwrap();
    assert!(client::is_closed(&mut thirteenth));
    assert_eq!(turned_away(&testbed), [("address_quota".into(), 1)]);
    // From elsewhere, and for another tenant, there is room.
    let Address::Tcp(address) = testbed.gateway.addresses()[1] else { panic!("the second is TCP") };
    let mut far = TcpStream::connect(address).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    far.write_all(&enter).unwrap();
    far.read_exact(&mut [0; 18 + 10]).unwrap();
    assert_eq!(testbed.gateway.clients(), 13);
    drop((user, far));
    eventually("nobody is there", || testbed.gateway.clients() == 0);
    Client::enter(&testbed, "plain", true);
}
