//! Conversations with nodes that are maps, answering in any order.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use alloc::string::String;
use alloc::vec;

use proptest::prelude::*;

use super::*;

type Client = Conversation<usize, Vec<u8>>;

/// A sub-request: its ticket, destination and bytes.
type Asked = (Ticket, usize, Vec<u8>);

/// Keys live where their first byte says.
fn place(key: &[u8], _: Operation) -> usize {
    usize::from(key.first().copied().unwrap_or_default()) % 3
}

fn said(client: &mut Client, input: &[u8]) -> (Vec<Asked>, Progress) {
    let mut asked = Vec::new();
    let progress = client.on_input(input, place, |ask| {
        asked.push((ask.ticket, ask.place, ask.bytes.to_vec()));
    });
    (asked, progress)
}

fn heard(client: &mut Client) -> String {
    let pieces = core::iter::from_fn(|| client.poll_output());
    let bytes = pieces.flat_map(|piece| piece.to_vec()).collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn replies_leave_in_the_order_of_the_requests() {
    let mut client = Client::new(100, Vec::new());
    let (asked, progress) = said(&mut client, b"get a\r\nget b\r\nmn\r\nmg c q\r\nget d");
    assert_eq!(progress, Progress { consumed: 26, needed: 6 });
    let bytes: Vec<_> = asked.iter().map(|(_, place, bytes)| (*place, &bytes[..])).collect();
    assert_eq!(bytes, [(1, &b"get a\r\n"[..]), (2, b"get b\r\n"), (0, b"mg c q\r\n")]);
    client.on_reply(asked[2].0, Ok(Vec::new()));
    client.on_reply(asked[1].0, Ok(b"END\r\n".to_vec()));
    assert_eq!(heard(&mut client), "");
    client.on_reply(asked[0].0, Err("SERVER_ERROR node is away\r\n"));
    assert_eq!(heard(&mut client), "SERVER_ERROR node is away\r\nEND\r\nMN\r\n");
    assert_eq!(client.ahead(), 0);
}

#[test]
fn noreply_hushes_failures_and_q_does_not() {
    let mut client = Client::new(100, Vec::new());
    let (asked, _) = said(&mut client, b"delete a noreply\r\nmd c q\r\nset b 0 0 1\r\n1\r\n");
    asked.iter().for_each(|(ticket, ..)| client.on_reply(*ticket, Err("SERVER_ERROR x\r\n")));
    assert_eq!(heard(&mut client), "SERVER_ERROR x\r\nSERVER_ERROR x\r\n");
}

#[test]
fn keys_of_several_nodes_are_one_reply() {
    let mut client = Client::new(100, Vec::new());
    let (asked, _) = said(&mut client, b"gets a b d a\r\nget a d\r\n");
    let bytes: Vec<_> = asked.iter().map(|(_, place, bytes)| (*place, &bytes[..])).collect();
    assert_eq!(bytes, [(1, &b"gets a d a\r\n"[..]), (2, b"gets b\r\n"), (1, b"get a d\r\n")]);
    client.on_reply(asked[1].0, Ok(b"VALUE b 0 1 9\r\nB\r\nEND\r\n".to_vec()));
    assert_eq!(heard(&mut client), "");
    let values = b"VALUE a 0 1 8\r\nA\r\nVALUE a 0 1 8\r\nA\r\nEND\r\n".to_vec();
    client.on_reply(asked[0].0, Ok(values));
    assert_eq!(
        heard(&mut client),
        "VALUE a 0 1 8\r\nA\r\nVALUE b 0 1 9\r\nB\r\nVALUE a 0 1 8\r\nA\r\nEND\r\n"
    );
}

#[test]
fn a_request_for_many_keys_is_cut_where_its_reply_could_be_too_long() {
    let mut client = Client::new(1 << 20, Vec::new());
    let keys = |range: core::ops::Range<u32>| -> String {
        range.map(|number| alloc::format!(" a{number}")).collect()
    };
    let (asked, _) = said(&mut client, alloc::format!("get{}\r\n", keys(0..40)).as_bytes());
    let bytes: Vec<_> = asked.iter().map(|(_, _, bytes)| bytes.clone()).collect();
    let expected = [0..16, 16..32, 32..40].map(|range| alloc::format!("get{}\r\n", keys(range)));
    assert_eq!(bytes, expected.map(String::into_bytes));
    let value = |key: &str| alloc::format!("VALUE {key} 0 1\r\n1\r\n");
    for (ticket, _, bytes) in asked.iter().rev() {
        let is_last = bytes.ends_with(b"a39\r\n");
        let reply = if is_last { value("a33") } else { String::new() } + "END\r\n";
        client.on_reply(*ticket, Ok(reply.into_bytes()));
    }
    assert!(client.stored() > 0);
    assert_eq!(heard(&mut client), value("a33") + "END\r\n");
    assert_eq!(client.stored(), 0);
}

#[test]
fn no_request_is_taken_without_credit() {
    let mut client = Client::new(100, Vec::new());
    client.set_credit(1000, 500);
    let input = b"get a\r\nget b\r\nget c\r\n";
    let (asked, progress) = said(&mut client, input);
    assert_eq!((asked.len(), progress), (2, Progress { consumed: 14, needed: 0 }));
    client.set_credit(1, 500);
    assert_eq!(said(&mut client, &input[14..]).1, Progress { consumed: 7, needed: 0 });
    client.on_reply(asked[0].0, Ok(b"END\r\n".to_vec()));
    assert_eq!(client.stored(), 5);
    assert_eq!((heard(&mut client).as_str(), client.stored()), ("END\r\n", 0));
}

/// Ten keys of one node, 500 bytes expected for each, in parts of one key.
fn ten_keys() -> (Client, Vec<Asked>, Progress) {
    let mut client = Client::new(PART_REPLY_MAX, Vec::new());
    client.set_credit(1000, 500);
    let (asked, progress) = said(&mut client, b"get a a a a a a a a a a\r\nget b\r\n");
    (client, asked, progress)
}

#[test]
fn parts_are_asked_for_as_the_credit_comes_back() {
    let (mut client, asked, progress) = ten_keys();
    assert_eq!((asked.len(), client.unasked()), (2, 8));
    assert_eq!(progress, Progress { consumed: 25, needed: 0 });
    // Later requests wait, and without credit none is sent while a reply is outstanding.
    client.set_credit(0, 500);
    assert_eq!(said(&mut client, b"get b\r\n"), (Vec::new(), Progress { consumed: 0, needed: 0 }));
    for (ticket, ..) in &asked {
        client.on_reply(*ticket, Ok(b"VALUE a 0 1\r\nA\r\nEND\r\n".to_vec()));
    }
    // All credit is in what has come: one part goes, or the request would never end.
    client.set_credit(0, 500);
    let (last, _) = said(&mut client, b"");
    assert_eq!((last.len(), client.unasked()), (1, 7));
    client.set_credit(usize::MAX, 0);
    let (rest, progress) = said(&mut client, b"get b\r\n");
    assert_eq!((rest.len(), progress.consumed), (8, 7));
    for (ticket, _, bytes) in last.iter().chain(&rest) {
        client.on_reply(*ticket, Ok(echo(bytes)));
    }
    assert!(heard(&mut client).ends_with("VALUE a 0 1\r\na\r\nEND\r\nVALUE b 0 1\r\nb\r\nEND\r\n"));
}

#[test]
fn once_a_part_has_failed_no_other_is_asked_for() {
    let (mut client, asked, _) = ten_keys();
    client.on_reply(asked[1].0, Err("SERVER_ERROR x\r\n"));
    assert_eq!((client.unasked(), heard(&mut client).as_str()), (0, ""));
    client.on_reply(asked[0].0, Ok(b"END\r\n".to_vec()));
    assert_eq!(heard(&mut client), "SERVER_ERROR x\r\n");
    assert_eq!((client.ahead(), client.stored()), (0, 0));
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
    said(&mut client, b"flush_all\r\nflush_all noreply\r\n");
    assert_eq!(heard(&mut client), "CLIENT_ERROR flush_all not allowed\r\n");
    let mut client = Client::new(100, [0, 1].into());
    let (asked, _) = said(&mut client, b"flush_all 5\r\n");
    assert_eq!(asked.len(), 2);
    client.on_reply(asked[0].0, Ok(b"OK\r\n".to_vec()));
    client.on_reply(asked[1].0, Ok(b"OK\r\n".to_vec()));
    assert_eq!(heard(&mut client), "OK\r\n");
    let (asked, _) = said(&mut client, b"flush_all noreply\r\n");
    client.on_reply(asked[0].0, Err("SERVER_ERROR x\r\n"));
    assert_eq!(heard(&mut client), "");
    client.on_reply(asked[1].0, Ok(Vec::new()));
    assert_eq!(heard(&mut client), "");
    assert_eq!(client.ahead(), 0);
    client.flush_at([2].into());
    let (asked, _) = said(&mut client, b"flush_all\r\n");
    assert_eq!(asked.iter().map(|(_, place, _)| *place).collect::<Vec<_>>(), [2]);
}

#[test]
fn the_server_is_the_gateway_itself() {
    let mut client = Client::new(7, Vec::new());
    let input = b"version\r\nverbosity 1\r\nverbosity 1 noreply\r\nstats x\r\nstats reset\r\n";
    assert_eq!(said(&mut client, input).0, []);
    assert_eq!(heard(&mut client), [VERSION, "OK\r\nERROR\r\nRESET\r\n"].concat());
    said(&mut client, b"stats\r\n");
    assert_eq!(
        heard(&mut client),
        "STAT version 1.6.18-tidegate\r\nSTAT pointer_size 64\r\nSTAT conn_replies 5\r\n\
         STAT conn_replies_awaited 0\r\nSTAT item_size_max 7\r\nEND\r\n"
    );
}

#[test]
fn after_quit_nothing_is_heard_and_what_was_asked_is_answered() {
    let mut client = Client::new(7, Vec::new());
    let (asked, progress) = said(&mut client, b"get a\r\nquit\r\nget b\r\n");
    assert_eq!((asked.len(), progress.needed), (1, 0));
    assert!(!client.is_over());
    client.on_reply(asked[0].0, Ok(b"END\r\n".to_vec()));
    assert_eq!(heard(&mut client), "END\r\n");
    assert!(client.is_over());
}

#[test]
fn whoever_asks_too_far_ahead_waits() {
    let mut client = Client::new(7, Vec::new());
    let input = b"get a\r\n".repeat(AHEAD_MAX + 1);
    let (asked, progress) = said(&mut client, &input);
    assert_eq!(progress, Progress { consumed: 7 * AHEAD_MAX, needed: 0 });
    client.on_reply(asked[0].0, Ok(b"END\r\n".to_vec()));
    assert_eq!(heard(&mut client), "END\r\n");
    assert_eq!(said(&mut client, &input[progress.consumed..]).1.consumed, 7);
}

#[test]
fn a_refused_value_is_skipped_as_it_comes() {
    let mut client = Client::new(4, Vec::new());
    let (asked, progress) = said(&mut client, b"set a 0 0 50\r\nget b\r\n");
    assert_eq!((asked, progress), (Vec::new(), Progress { consumed: 21, needed: 1 }));
    assert_eq!(heard(&mut client), "SERVER_ERROR object too large for cache\r\n");
    said(&mut client, &[b'x'; 43]);
    let (asked, _) = said(&mut client, b"\r\nget b\r\n");
    assert_eq!(asked.len(), 1);
}

#[test]
fn tickets_that_mean_nothing_are_ignored() {
    let mut client = Client::new(7, Vec::new());
    let (asked, _) = said(&mut client, b"get a b\r\nget a\r\n");
    let reply = || Ok(b"END\r\n".to_vec());
    for ticket in [Ticket(u64::MAX), Ticket::new(0, 9), Ticket::new(7, 0)] {
        client.on_reply(ticket, reply());
    }
    asked.iter().chain(&asked).for_each(|(ticket, ..)| client.on_reply(*ticket, reply()));
    assert_eq!(heard(&mut client), "END\r\nEND\r\n");
    client.on_reply(asked[0].0, reply());
    assert_eq!(heard(&mut client), "");
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
        let everywhere = || vec![0, 1, 2];
        let mut expected = String::new();
        let (mut one, mut server) = (Client::new(9, everywhere()), Server::default());
        let mut from = 0;
        while from < input.len() {
            let (asked, progress) = said(&mut one, &input[from..]);
            from += progress.consumed;
            for (ticket, _, bytes) in asked {
                one.on_reply(ticket, Ok(server.serve(&bytes)));
            }
            expected += &heard(&mut one);
        }
        let (mut client, mut server) = (Client::new(9, everywhere()), Server::default());
        let (mut pending, mut from, mut told) = (Vec::new(), 0, String::new());
        let (mut end, mut random, mut cuts) = (0, order | 1, cuts.iter().cycle());
        while from < input.len() || !pending.is_empty() || client.unasked() > 0 {
            let (length, credit) = cuts.next().unwrap();
            end = input.len().min(end + length);
            client.set_credit(if end == input.len() { usize::MAX } else { *credit }, 20);
            let (asked, progress) = said(&mut client, &input[from..end]);
            from += progress.consumed;
            pending.extend(asked);
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let is_stuck = end == input.len();
            if !pending.is_empty() && (random >> 63 == 1 || is_stuck) {
                let chosen = (random >> 33) as usize % pending.len();
                let (ticket, _, bytes) = pending.swap_remove(chosen);
                client.on_reply(ticket, Ok(server.serve(&bytes)));
            }
            told += &heard(&mut client);
        }
        told += &heard(&mut client);
        prop_assert_eq!(told, expected);
    }
}

/// The values of all nodes.
#[derive(Default)]
struct Server(alloc::collections::BTreeMap<Vec<u8>, Vec<u8>>);

impl Server {
    fn serve(&mut self, bytes: &[u8]) -> Vec<u8> {
        let Step::Request(request) = next(bytes, 100) else { panic!("{bytes:?}") };
        let key = request.keys().next().unwrap_or_default().to_vec();
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap().len() + 1;
        let value = || bytes[line..].trim_ascii_end().to_vec();
        match request.verb {
            Verb::Set => _ = self.0.insert(key, value()),
            Verb::Append => self.0.entry(key).or_default().extend(value()),
            Verb::Delete => _ = self.0.remove(&key),
            Verb::FlushAll => {
                self.0.clear();
                return b"OK\r\n".to_vec();
            }
            Verb::Get | Verb::Gets => {
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
    let (asked, progress) = said(&mut client, input);
    assert_eq!((asked.len(), progress.needed), (4 + 1, 0), "two nodes for `get d e`");
    let rest = &input[progress.consumed..];
    assert!(rest.starts_with(b"set a"), "it waits for `get a`");
    for index in [0, 3, 4] {
        assert_eq!(said(&mut client, rest).1.consumed, 0, "and for a request about several keys");
        client.on_reply(asked[index].0, Ok(b"END\r\n".to_vec()));
    }
    let (asked, progress) = said(&mut client, rest);
    assert_eq!((asked.len(), &rest[progress.consumed..]), (1, &b"get a\r\n"[..]));
    client.on_reply(asked[0].0, Ok(b"STORED\r\n".to_vec()));
    assert_eq!(said(&mut client, b"get a\r\n").0.len(), 1);
    assert_eq!(said(&mut client, b"flush_all\r\n").1.consumed, 0, "it waits for all");
}

/// A reply that shows what was asked: each key is its own value.
fn echo(bytes: &[u8]) -> Vec<u8> {
    let Step::Request(request) = next(bytes, 100) else { panic!("{bytes:?}") };
    if request.verb.shape() != super::super::reply::Shape::Values {
        return bytes.to_vec();
    }
    let mut reply = String::new();
    for key in request.keys() {
        let key = core::str::from_utf8(key).unwrap();
        reply += &format!("VALUE {key} 0 {}\r\n{key}\r\n", key.len());
    }
    (reply + "END\r\n").into_bytes()
}
