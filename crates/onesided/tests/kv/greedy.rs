//! Greedy clients beside modest ones: however often a client updates its keys, puts of other
//! clients find a block.

use tidegate_model::{Span, Time};
use tidegate_onesided::kv::{Answer, Client, ClientSettings, Layout};

use crate::double::{Double, Memory};
use crate::fresh;

/// How long blocks rest.
const REST: Span = Span(1_000);

fn client(memory: &Memory, layout: Layout) -> Client<Double> {
    let settings =
        ClientSettings { outstanding: 4, locations: 8, extent: 4, session_slot: None, rest: REST };
    Client::new(Double::new(memory, 8), layout, settings).unwrap()
}

/// Puts these keys together, and returns the answers in the order of completion.
fn put_all(client: &mut Client<Double>, now: u64, keys: &[u8]) -> Vec<Answer> {
    for key in keys {
        client.put(&[*key], b"value", 0).unwrap();
    }
    let mut outcomes = Vec::new();
    while client.outstanding() > 0 {
        client.poll(Time(now), &mut outcomes).unwrap();
    }
    outcomes.into_iter().map(|outcome| outcome.answer).collect()
}

fn put(client: &mut Client<Double>, now: u64, key: u8) -> Answer {
    put_all(client, now, &[key]).remove(0)
}

/// Updates one key until that fails, and returns how many updates there were.
fn update_without_end(client: &mut Client<Double>, now: u64, key: u8) -> (u32, Answer) {
    let mut updates = 0;
    loop {
        match put(client, now, key) {
            Answer::Stored => updates += 1,
            answer => return (updates, answer),
        }
    }
}

#[test]
fn a_modest_client_stores_new_keys_beside_a_greedy_one() {
    let (memory, layout) = fresh(16, 100, 3);
    let [mut greedy, mut modest] = [(); 2].map(|()| client(&memory, layout));
    // One block has the key. Of the other 99 the client may hold 58 <= 1 + 2 x (41 - 12), where 41
    // are free and 12 are the reserve.
    assert_eq!(update_without_end(&mut greedy, 0, 0), (59, Answer::Throttled));
    for key in 1..=41 {
        assert_eq!(put(&mut modest, 0, key), Answer::Stored, "key {key}");
    }
    assert_eq!(put(&mut modest, 0, 42), Answer::Full, "all blocks have values, or rest");
    assert_eq!(put(&mut greedy, REST.0, 0), Answer::Stored, "a rested block");
}

#[test]
fn a_modest_client_stores_new_keys_beside_several_greedy_ones() {
    let (memory, layout) = fresh(16, 100, 3);
    let mut greedy: Vec<_> = (0..5).map(|_| client(&memory, layout)).collect();
    for (key, client) in (0..).zip(&mut greedy) {
        let (updates, answer) = update_without_end(client, 0, key);
        assert!(updates > 0 && answer == Answer::Throttled, "{updates} updates, then {answer:?}");
    }
    let mut modest = client(&memory, layout);
    for key in 100..104 {
        assert_eq!(put(&mut modest, 0, key), Answer::Stored);
    }
}

#[test]
fn new_keys_fill_a_store_to_the_last_block() {
    let (memory, layout) = fresh(16, 40, 3);
    let mut client = client(&memory, layout);
    // Near the end, one put after another gets the client's guaranteed block.
    for keys in (0..40u8).collect::<Vec<_>>().chunks(4) {
        assert_eq!(put_all(&mut client, 0, keys), [(); 4].map(|()| Answer::Stored));
    }
    assert_eq!(put_all(&mut client, 0, &[50, 51]), [Answer::Full, Answer::Full]);
}

#[test]
fn a_throttled_put_changes_nothing_and_others_go_on() {
    let (memory, layout) = fresh(16, 100, 3);
    let mut client = client(&memory, layout);
    update_without_end(&mut client, 0, 0);
    let answers = put_all(&mut client, 0, &[1, 2, 3]);
    assert_eq!(answers, [(); 3].map(|()| Answer::Throttled));
    client.get(&[1], 7).unwrap();
    client.delete(&[0], 8).unwrap();
    let mut outcomes = Vec::new();
    while client.outstanding() > 0 {
        client.poll(Time(0), &mut outcomes).unwrap();
    }
    let answers: Vec<_> = outcomes.iter().map(|outcome| (outcome.token, &outcome.answer)).collect();
    assert!(answers.contains(&(7, &Answer::Missing)), "{answers:?}");
    assert!(answers.contains(&(8, &Answer::Deleted)), "{answers:?}");
}
