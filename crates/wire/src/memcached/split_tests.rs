//! Splitting and joining against one server that has all keys.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;

use proptest::prelude::*;

use super::super::request::{Parsed, parse};
use super::*;

/// The answer of a memcached with these values to `get` (or `gat`).
fn answer(values: &BTreeMap<u8, Vec<u8>>, text: &[u8]) -> Vec<u8> {
    let Parsed::Request(request) = parse(text, 100) else { panic!("{text:?}") };
    let mut reply = Vec::new();
    for key in request.keys() {
        if let Some(value) = values.get(&key[0]) {
            let line = format!("VALUE {} 0 {}\r\n", key[0] as char, value.len());
            reply.extend([line.as_bytes(), value, b"\r\n"].concat());
        }
    }
    [reply, b"END\r\n".to_vec()].concat()
}

fn get(text: &str) -> Request<'_> {
    match parse(text.as_bytes(), 100) {
        Parsed::Request(request) => request,
        step => panic!("{step:?}"),
    }
}

/// Writes the request for those keys that `is_mine` says yes to, by their index.
fn part(request: &Request<'_>, mut is_mine: impl FnMut(usize) -> bool, out: &mut Vec<u8>) {
    begin(request, out);
    let keys = request.keys().enumerate().filter(|(index, _)| is_mine(*index));
    keys.for_each(|(_, key)| add(key, out));
    end(out);
}

proptest! {
    #[test]
    fn many_nodes_answer_as_one(
        keys in prop::collection::vec(b'a'..=b'h', 1..12),
        values in prop::collection::btree_map(
            b'a'..=b'h', prop::collection::vec(any::<u8>(), 0..8), 0..8,
        ),
        nodes in 1usize..4,
        command in prop_oneof!["get", "  gat 5"],
    ) {
        let text: String = keys.iter().map(|key| format!(" {}", *key as char)).collect();
        let text = format!("{command}{text}\r\n");
        let owner = |key: &[u8]| usize::from(key[0]) % nodes;
        let request = get(&text);
        let mut parts = Vec::new();
        for node in 0..nodes {
            let mut bytes = Vec::new();
            let owners: Vec<usize> = request.keys().map(owner).collect();
            part(&request, |index| owners[index] == node, &mut bytes);
            let is_involved = owners.contains(&node);
            parts.push(if is_involved { answer(&values, &bytes) } else { b"END\r\n".to_vec() });
        }
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let mut joined = Vec::new();
        join(request.keys().map(|key| (key, owner(key))), &parts, &mut joined).unwrap();
        prop_assert_eq!(joined, answer(&values, text.as_bytes()));
    }
}

#[test]
fn the_words_of_a_part_are_those_of_the_whole() {
    let mut bytes = Vec::new();
    part(&get(" gats  -1 a bb  ccc\r\n"), |index| index != 1, &mut bytes);
    assert_eq!(bytes, b"gats  -1 a ccc\r\n");
}

#[test]
fn a_complaint_is_the_reply() {
    let keys = [(&b"a"[..], 0), (b"b", 1)];
    let mut out = Vec::new();
    join(keys.into_iter(), &[b"END\r\n", b"SERVER_ERROR no\r\n"], &mut out).unwrap();
    assert_eq!(out, b"SERVER_ERROR no\r\n");
}

#[test]
fn an_unrequested_value_is_no_reply() {
    let keys = [(&b"a"[..], 0), (b"b", 1)];
    let mut out = vec![1];
    let strange: &[u8] = b"VALUE aa 0 1\r\n1\r\nEND\r\n";
    assert_eq!(join(keys.into_iter(), &[strange, b"END\r\n"], &mut out), Err(MalformedReply));
    assert_eq!(out, [1]);
}
