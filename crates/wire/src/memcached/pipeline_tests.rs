//! Conversations with nodes that are maps, answering in any order.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use alloc::string::String;
use alloc::vec;

use proptest::prelude::*;

use super::*;

type Client = Pipeline<usize, Vec<u8>>;

/// A sub-request: its ticket, destination and bytes.
type Sent = (Ticket, usize, Vec<u8>);

/// Keys live where their first byte says.
fn destination(key: &[u8], _: Operation) -> usize {
    usize::from(key.first().copied().unwrap_or_default()) % 3
}

fn send(client: &mut Client, input: &[u8]) -> (Vec<Sent>, Progress) {
    let mut sent = Vec::new();
    let progress = client.on_input(input, destination, |request| {
        sent.push((request.ticket, request.destination, request.bytes.to_vec()));
    });
    (sent, progress)
}

fn receive(client: &mut Client) -> String {
    let chunks = core::iter::from_fn(|| client.poll_output());
    let bytes = chunks.flat_map(|chunk| chunk.to_vec()).collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn replies_leave_in_the_order_of_the_requests() {
    let mut client = Client::new(100, Vec::new());
    let (sent, progress) = send(&mut client, b"get a\r\nget b\r\nmn\r\nmg c q\r\nget d");
    assert_eq!(progress, Progress { consumed: 26, needed: 6 });
    let bytes: Vec<_> =
        sent.iter().map(|(_, destination, bytes)| (*destination, &bytes[..])).collect();
    assert_eq!(bytes, [(1, &b"get a\r\n"[..]), (2, b"get b\r\n"), (0, b"mg c q\r\n")]);
    client.on_reply(sent[2].0, Ok(Vec::new()));
    client.on_reply(sent[1].0, Ok(b"END\r\n".to_vec()));
    assert_eq!(receive(&mut client), "");
    client.on_reply(sent[0].0, Err("SERVER_ERROR node is away\r\n"));
    assert_eq!(receive(&mut client), "SERVER_ERROR node is away\r\nEND\r\nMN\r\n");
    assert_eq!(client.pending(), 0);
}

#[test]
fn noreply_hushes_failures_and_q_does_not() {
    let mut client = Client::new(100, Vec::new());
    let (sent, _) = send(&mut client, b"delete a noreply\r\nmd c q\r\nset b 0 0 1\r\n1\r\n");
    sent.iter().for_each(|(ticket, ..)| client.on_reply(*ticket, Err("SERVER_ERROR x\r\n")));
    assert_eq!(receive(&mut client), "SERVER_ERROR x\r\nSERVER_ERROR x\r\n");
}

#[test]
fn keys_of_several_nodes_are_one_reply() {
    let mut client = Client::new(100, Vec::new());
    let (sent, _) = send(&mut client, b"gets a b d a\r\nget a d\r\n");
    let bytes: Vec<_> =
        sent.iter().map(|(_, destination, bytes)| (*destination, &bytes[..])).collect();
    assert_eq!(bytes, [(1, &b"gets a d a\r\n"[..]), (2, b"gets b\r\n"), (1, b"get a d\r\n")]);
    client.on_reply(sent[1].0, Ok(b"VALUE b 0 1 9\r\nB\r\nEND\r\n".to_vec()));
    assert_eq!(receive(&mut client), "");
    let values = b"VALUE a 0 1 8\r\nA\r\nVALUE a 0 1 8\r\nA\r\nEND\r\n".to_vec();
    client.on_reply(sent[0].0, Ok(values));
    assert_eq!(
        receive(&mut client),
        "VALUE a 0 1 8\r\nA\r\nVALUE b 0 1 9\r\nB\r\nVALUE a 0 1 8\r\nA\r\nEND\r\n"
    );
}

#[test]
fn a_request_for_many_keys_is_cut_where_its_reply_could_be_too_long() {
    let mut client = Client::new(1 << 20, Vec::new());
    let keys = |range: core::ops::Range<u32>| -> String {
        range.map(|number| alloc::format!(" a{number}")).collect()
    };
    let (sent, _) = send(&mut client, alloc::format!("get{}\r\n", keys(0..40)).as_bytes());
    let bytes: Vec<_> = sent.iter().map(|(_, _, bytes)| bytes.clone()).collect();
    let expected = [0..16, 16..32, 32..40].map(|range| alloc::format!("get{}\r\n", keys(range)));
    assert_eq!(bytes, expected.map(String::into_bytes));
    let value = |key: &str| alloc::format!("VALUE {key} 0 1\r\n1\r\n");
    for (ticket, _, bytes) in sent.iter().rev() {
        let is_last = bytes.ends_with(b"a39\r\n");
        let reply = if is_last { value("a33") } else { String::new() } + "END\r\n";
        client.on_reply(*ticket, Ok(reply.into_bytes()));
    }
    assert!(client.stored() > 0);
    assert_eq!(receive(&mut client), value("a33") + "END\r\n");
    assert_eq!(client.stored(), 0);
}

#[test]
fn no_request_is_taken_without_credit() {
    let mut client = Client::new(100, Vec::new());
    client.set_credit(1000, 500);
    let input = b"get a\r\nget b\r\nget c\r\n";
    let (sent, progress) = send(&mut client, input);
    assert_eq!((sent.len(), progress), (2, Progress { consumed: 14, needed: 0 }));
    client.set_credit(1, 500);
    assert_eq!(send(&mut client, &input[14..]).1, Progress { consumed: 7, needed: 0 });
    client.on_reply(sent[0].0, Ok(b"END\r\n".to_vec()));
    assert_eq!(client.stored(), 5);
    assert_eq!((receive(&mut client).as_str(), client.stored()), ("END\r\n", 0));
}

/// Ten keys of one node, 500 bytes expected for each, in parts of one key.
fn ten_keys() -> (Client, Vec<Sent>, Progress) {
    let mut client = Client::new(PART_REPLY_MAX, Vec::new());
    client.set_credit(1000, 500);
    let (sent, progress) = send(&mut client, b"get a a a a a a a a a a\r\nget b\r\n");
    (client, sent, progress)
}

#[test]
fn parts_are_sent_as_the_credit_comes_back() {
    let (mut client, sent, progress) = ten_keys();
    assert_eq!((sent.len(), client.unsent()), (2, 8));
    assert_eq!(progress, Progress { consumed: 25, needed: 0 });
    // Later requests wait, and without credit none is sent while a reply is outstanding.
    client.set_credit(0, 500);
    assert_eq!(send(&mut client, b"get b\r\n"), (Vec::new(), Progress { consumed: 0, needed: 0 }));
    for (ticket, ..) in &sent {
        client.on_reply(*ticket, Ok(b"VALUE a 0 1\r\nA\r\nEND\r\n".to_vec()));
    }
    // All credit is in what has come: one part goes, or the request would never end.
    client.set_credit(0, 500);
    let (last, _) = send(&mut client, b"");
    assert_eq!((last.len(), client.unsent()), (1, 7));
    client.set_credit(usize::MAX, 0);
    let (rest, progress) = send(&mut client, b"get b\r\n");
    assert_eq!((rest.len(), progress.consumed), (8, 7));
    for (ticket, _, bytes) in last.iter().chain(&rest) {
        client.on_reply(*ticket, Ok(echo(bytes)));
    }
    assert!(
        receive(&mut client).ends_with("VALUE a 0 1\r\na\r\nEND\r\nVALUE b 0 1\r\nb\r\nEND\r\n")
    );
}

#[test]
fn once_a_part_has_failed_no_other_is_sent() {
    let (mut client, sent, _) = ten_keys();
    client.on_reply(sent[1].0, Err("SERVER_ERROR x\r\n"));
    assert_eq!((client.unsent(), receive(&mut client).as_str()), (0, ""));
    client.on_reply(sent[0].0, Ok(b"END\r\n".to_vec()));
    assert_eq!(receive(&mut client), "SERVER_ERROR x\r\n");
    assert_eq!((client.pending(), client.stored()), (0, 0));
}

#[test]
fn a_part_is_as_long_as_its_reply_may_be() {
    let keys = |value_max, reply_estimate| {
        let mut client = Client::new(value_max, Vec::new());
        client.set_credit(1000, reply_estimate);
        client.part_keys()
    };
    assert_eq!(keys(1 << 20, 0), 16);
    assert_eq!(keys(1 << 20, 16 << 10), 8);
    assert_eq!((keys(1 << 20, 1 << 20), keys(128 << 20, 100)), (1, 1));
    assert_eq!(keys(1000, 100), 256);
}

#[test]
fn flush_all_goes_everywhere_or_nowhere() {
    let mut client = Client::new(100, Vec::new());
    send(&mut client, b"flush_all\r\nflush_all noreply\r\n");
    assert_eq!(receive(&mut client), "CLIENT_ERROR flush_all not allowed\r\n");
    let mut client = Client::new(100, [0, 1].into());
    let (sent, _) = send(&mut client, b"flush_all 5\r\n");
    assert_eq!(sent.len(), 2);
    client.on_reply(sent[0].0, Ok(b"OK\r\n".to_vec()));
    client.on_reply(sent[1].0, Ok(b"OK\r\n".to_vec()));
    assert_eq!(receive(&mut client), "OK\r\n");
    let (sent, _) = send(&mut client, b"flush_all noreply\r\n");
    client.on_reply(sent[0].0, Err("SERVER_ERROR x\r\n"));
    assert_eq!(receive(&mut client), "");
    client.on_reply(sent[1].0, Ok(Vec::new()));
    assert_eq!(receive(&mut client), "");
    assert_eq!(client.pending(), 0);
    client.set_flush_destinations([2].into());
    let (sent, _) = send(&mut client, b"flush_all\r\n");
    assert_eq!(sent.iter().map(|(_, destination, _)| *destination).collect::<Vec<_>>(), [2]);
}

#[test]
fn the_server_is_the_gateway_itself() {
    let mut client = Client::new(7, Vec::new());
    let input = b"version\r\nverbosity 1\r\nverbosity 1 noreply\r\nstats x\r\nstats reset\r\n";
    assert_eq!(send(&mut client, input).0, []);
    assert_eq!(receive(&mut client), [VERSION, "OK\r\nERROR\r\nRESET\r\n"].concat());
    send(&mut client, b"stats\r\n");
    assert_eq!(
        receive(&mut client),
        "STAT version 1.6.18-tidegate\r\nSTAT pointer_size 64\r\nSTAT conn_replies 5\r\n\
         STAT conn_replies_awaited 0\r\nSTAT item_size_max 7\r\nEND\r\n"
    );
}

#[test]
fn after_quit_no_request_is_taken_and_earlier_ones_are_answered() {
    let mut client = Client::new(7, Vec::new());
    let (sent, progress) = send(&mut client, b"get a\r\nquit\r\nget b\r\n");
    assert_eq!((sent.len(), progress.needed), (1, 0));
    assert!(!client.is_over());
    client.on_reply(sent[0].0, Ok(b"END\r\n".to_vec()));
    assert_eq!(receive(&mut client), "END\r\n");
    assert!(client.is_over());
}

#[test]
fn a_client_that_requests_too_far_ahead_waits() {
    let mut client = Client::new(7, Vec::new());
    let input = b"get a\r\n".repeat(PENDING_MAX + 1);
    let (sent, progress) = send(&mut client, &input);
    assert_eq!(progress, Progress { consumed: 7 * PENDING_MAX, needed: 0 });
    client.on_reply(sent[0].0, Ok(b"END\r\n".to_vec()));
    assert_eq!(receive(&mut client), "END\r\n");
    assert_eq!(send(&mut client, &input[progress.consumed..]).1.consumed, 7);
}

#[test]
fn a_refused_value_is_skipped_as_it_comes() {
    let mut client = Client::new(4, Vec::new());
    let (sent, progress) = send(&mut client, b"add a 0 0 50\r\nget b\r\n");
    assert_eq!((sent, progress), (Vec::new(), Progress { consumed: 21, needed: 1 }));
    assert_eq!(receive(&mut client), "SERVER_ERROR object too large for cache\r\n");
    send(&mut client, &[b'x'; 43]);
    let (sent, _) = send(&mut client, b"\r\nget b\r\n");
    assert_eq!(sent.len(), 1);
}

#[test]
fn the_old_value_of_a_set_that_is_too_large_is_deleted_in_its_turn() {
    for (line, wanted, answer) in [
        ("set a 0 0 50", "delete a\r\n", "SERVER_ERROR object too large for cache\r\n"),
        ("set a 0 0 50 noreply", "delete a\r\n", ""),
        ("ms YQ== 50 b q", "md YQ== b\r\n", "SERVER_ERROR object too large for cache\r\n"),
    ] {
        let mut client = Client::new(4, Vec::new());
        let input = format!("get a\r\n{line}\r\n{}\r\nget a\r\n", "x".repeat(50));
        let (read, progress) = send(&mut client, input.as_bytes());
        assert_eq!((read.len(), progress.consumed), (1, 7), "the read goes first");
        client.on_reply(read[0].0, Ok(b"END\r\n".to_vec()));
        assert_eq!(receive(&mut client), "END\r\n");
        let rest = &input.as_bytes()[progress.consumed..];
        let (deletion, progress) = send(&mut client, rest);
        let [(ticket, _, bytes)] = &deletion[..] else { panic!("{deletion:?}") };
        assert_eq!(bytes, wanted.as_bytes());
        client.on_reply(*ticket, Ok(b"DELETED\r\n".to_vec()));
        assert_eq!((receive(&mut client), client.stored()), (answer.into(), 0));
        let (read, _) = send(&mut client, &rest[progress.consumed..]);
        assert_eq!((read.len(), client.pending()), (1, 1), "the next read comes after it");
    }
}

#[test]
fn tickets_that_mean_nothing_are_ignored() {
    let mut client = Client::new(7, Vec::new());
    let (sent, _) = send(&mut client, b"get a b\r\nget a\r\n");
    let reply = || Ok(b"END\r\n".to_vec());
    for ticket in [Ticket(u64::MAX), Ticket::new(0, 9), Ticket::new(7, 0)] {
        client.on_reply(ticket, reply());
    }
    sent.iter().chain(&sent).for_each(|(ticket, ..)| client.on_reply(*ticket, reply()));
    assert_eq!(receive(&mut client), "END\r\nEND\r\n");
    client.on_reply(sent[0].0, reply());
    assert_eq!(receive(&mut client), "");
}

proptest! {
    /// However the input is cut, whatever the credit, and in whichever order nodes serve requests:
    /// each request has the reply that one memcached gives, which serves one after the other.
    #[test]
    fn neither_cuts_nor_the_order_of_nodes_can_be_seen(
        commands in prop::collection::vec(prop::sample::select(&[
            "get a\r\n", "get a b c d\r\n", "gets b c\r\n", "set a 0 0 3\r\nxyz\r\n", "mn\r\n",
            "set b 0 0 99\r\n", "mg c v q\r\n", "touch d 5\r\n", "nonsense\r\n", "version\r\n",
            "append a 0 0 1\r\n1\r\n", "append a 0 0 1\r\n2\r\n", "append b 0 0 1\r\n3\r\n",
            "delete b\r\n", "flush_all\r\n",
        ][..]), 0..20),
        cuts in prop::collection::vec((1usize..30, 0usize..100), 1..20),
        order in any::<u64>(),
    ) {
        let input = commands.concat().into_bytes();
        let flush_destinations = || vec![0, 1, 2];
        let mut expected = String::new();
        let (mut one, mut server) = (Client::new(9, flush_destinations()), Server::default());
        let mut from = 0;
        while from < input.len() {
            let (sent, progress) = send(&mut one, &input[from..]);
            from += progress.consumed;
            for (ticket, _, bytes) in sent {
                one.on_reply(ticket, Ok(server.serve(&bytes)));
            }
            expected += &receive(&mut one);
        }
        let (mut client, mut server) = (Client::new(9, flush_destinations()), Server::default());
        let (mut pending, mut from, mut received) = (Vec::new(), 0, String::new());
        let (mut end, mut random, mut cuts) = (0, order | 1, cuts.iter().cycle());
        while from < input.len() || !pending.is_empty() || client.unsent() > 0 {
            let (length, credit) = cuts.next().unwrap();
            end = input.len().min(end + length);
            client.set_credit(if end == input.len() { usize::MAX } else { *credit }, 20);
            let (sent, progress) = send(&mut client, &input[from..end]);
            from += progress.consumed;
            pending.extend(sent);
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let is_stuck = end == input.len();
            if !pending.is_empty() && (random >> 63 == 1 || is_stuck) {
                let chosen = (random >> 33) as usize % pending.len();
                let (ticket, _, bytes) = pending.swap_remove(chosen);
                client.on_reply(ticket, Ok(server.serve(&bytes)));
            }
            received += &receive(&mut client);
        }
        received += &receive(&mut client);
        prop_assert_eq!(received, expected);
    }
}

/// The values of all nodes.
#[derive(Default)]
struct Server(alloc::collections::BTreeMap<Vec<u8>, Vec<u8>>);

impl Server {
    fn serve(&mut self, bytes: &[u8]) -> Vec<u8> {
        let Parsed::Request(request) = parse(bytes, 100) else { panic!("{bytes:?}") };
        let key = request.keys().next().unwrap_or_default().to_vec();
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap().len() + 1;
        let value = || bytes[line..].trim_ascii_end().to_vec();
        match request.command {
            Command::Set => _ = self.0.insert(key, value()),
            Command::Append => self.0.entry(key).or_default().extend(value()),
            Command::Delete => _ = self.0.remove(&key),
            Command::FlushAll => {
                self.0.clear();
                return b"OK\r\n".to_vec();
            }
            Command::Get | Command::Gets => {
                let mut reply = Vec::new();
                for (key, value) in request.keys().filter_map(|key| self.0.get_key_value(key)) {
                    let (key, value) =
                        [key, value].map(|it| core::str::from_utf8(it).unwrap()).into();
                    let length = value.len();
                    reply.extend(format!("VALUE {key} 0 {length}\r\n{value}\r\n").into_bytes());
                }
                reply.extend(b"END\r\n");
                return reply;
            }
            _ => {}
        }
        bytes.to_vec()
    }
}

#[test]
fn a_request_waits_for_an_earlier_one_about_its_key_and_no_other() {
    let mut client = Client::new(7, vec![0, 1, 2]);
    let input = b"get a\r\nget b\r\nset c 0 0 1\r\n1\r\nget d e\r\nset a 0 0 1\r\n2\r\nget a\r\n";
    let (sent, progress) = send(&mut client, input);
    assert_eq!((sent.len(), progress.needed), (4 + 1, 0), "two nodes for `get d e`");
    let rest = &input[progress.consumed..];
    assert!(rest.starts_with(b"set a"), "it waits for `get a`");
    for index in [0, 3, 4] {
        assert_eq!(send(&mut client, rest).1.consumed, 0, "and for a request about several keys");
        client.on_reply(sent[index].0, Ok(b"END\r\n".to_vec()));
    }
    let (sent, progress) = send(&mut client, rest);
    assert_eq!((sent.len(), &rest[progress.consumed..]), (1, &b"get a\r\n"[..]));
    client.on_reply(sent[0].0, Ok(b"STORED\r\n".to_vec()));
    assert_eq!(send(&mut client, b"get a\r\n").0.len(), 1);
    assert_eq!(send(&mut client, b"flush_all\r\n").1.consumed, 0, "it waits for all");
}

/// A reply that shows what was asked: each key is its own value.
fn echo(bytes: &[u8]) -> Vec<u8> {
    let Parsed::Request(request) = parse(bytes, 100) else { panic!("{bytes:?}") };
    if request.command.shape() != super::super::reply::Shape::Values {
        return bytes.to_vec();
    }
    let mut reply = String::new();
    for key in request.keys() {
        let key = core::str::from_utf8(key).unwrap();
        reply += &format!("VALUE {key} 0 {}\r\n{key}\r\n", key.len());
    }
    (reply + "END\r\n").into_bytes()
}
