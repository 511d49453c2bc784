//! One client after another: against a map, to the last slot and the last block, and with what is
//! wrong with stores, keys and values.

use std::collections::BTreeMap;
use std::rc::Rc;

use proptest::prelude::*;
use tidegate_model::{Span, Time};
use tidegate_onesided::kv::{
    Answer, Area, BLOCK, Client, ClientSettings, ENTRY_MAX, HEADER, KEY_MAX, LAYOUT_VERSION,
    Layout, LayoutError, OpenError, Opening, Refused, VALUE_MAX,
};
use tidegate_onesided::one_sided::{Lost, RemoteMemory};

use crate::double::{Double, Memory};
use crate::{INDEX, blocks_at, fresh};

const SETTINGS: ClientSettings =
    ClientSettings { outstanding: 4, locations: 64, extent: 4, session_slot: None, rest: Span(0) };

fn client(memory: &Memory, layout: Layout, settings: ClientSettings) -> Client<Double> {
    let buffers = 2 * settings.outstanding;
    Client::new(Double::new(memory, buffers), layout, settings).unwrap()
}

/// Runs a single operation. Returns the value if it found one, else its answer.
fn run(
    client: &mut Client<Double>,
    now: u64,
    begin: impl FnOnce(&mut Client<Double>) -> Result<(), Refused>,
) -> Result<Vec<u8>, Answer> {
    begin(client).unwrap();
    let mut outcomes = Vec::new();
    while client.outstanding() > 0 {
        client.poll(Time(now), &mut outcomes).unwrap();
    }
    match outcomes.pop().unwrap().answer {
        Answer::Found(found) => {
            let value = client.value(&found).to_vec();
            client.release(found);
            Ok(value)
        }
        answer => Err(answer),
    }
}

fn get(client: &mut Client<Double>, key: &[u8]) -> Option<Vec<u8>> {
    let answer = run(client, 0, |client| client.get(key, 7));
    assert!(matches!(answer, Ok(_) | Err(Answer::Missing)), "{answer:?}");
    answer.ok()
}

fn put(client: &mut Client<Double>, key: &[u8], value: &[u8]) -> Answer {
    run(client, 0, |client| client.put(key, value, 7)).unwrap_err()
}

fn delete(client: &mut Client<Double>, key: &[u8]) -> Answer {
    run(client, 0, |client| client.delete(key, 7)).unwrap_err()
}

#[derive(Clone, Debug)]
enum Act {
    Get,
    Put(Vec<u8>),
    Delete,
}

fn acts() -> impl Strategy<Value = Vec<(u8, u8, Act)>> {
    let value = (any::<u8>(), prop_oneof![0..200usize, Just(VALUE_MAX)])
        .prop_map(|(byte, length)| Act::Put(vec![byte; length]));
    let act = prop_oneof![3 => Just(Act::Get), 4 => value, 2 => Just(Act::Delete)];
    prop::collection::vec((0..2u8, 0..20u8, act), 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Two clients in turn, one of which remembers locations, over connections with little room.
    #[test]
    fn a_store_is_a_map(acts in acts(), capacity in 1..4usize, seed: u64) {
        let (memory, layout) = fresh(4, 40, seed);
        let settings = [SETTINGS, ClientSettings { locations: 0, ..SETTINGS }];
        let mut clients = settings.map(|settings| client(&memory, layout, settings));
        for client in &mut clients {
            client.remote_mut().capacity = capacity;
        }
        let mut map = BTreeMap::new();
        for (who, number, act) in acts {
            let client = &mut clients[usize::from(who)];
            let key = vec![number; 1 + usize::from(number)];
            match act {
                Act::Get => prop_assert_eq!(get(client, &key), map.get(&key).cloned()),
                Act::Put(value) => {
                    prop_assert_eq!(put(client, &key, &value), Answer::Stored);
                    map.insert(key, value);
                }
                Act::Delete => {
                    let is_there = map.remove(&key).is_some();
                    let answer = if is_there { Answer::Deleted } else { Answer::Missing };
                    prop_assert_eq!(delete(client, &key), answer);
                }
            }
        }
    }
}

#[test]
fn an_index_takes_keys_for_eight_tenths_of_its_slots() {
    let (memory, layout) = fresh(128, 900, 5);
    let mut client = client(&memory, layout, SETTINGS);
    let keys = layout.slots() as u32 * 8 / 10;
    for key in 0..keys {
        assert_eq!(put(&mut client, &key.to_le_bytes(), b"value"), Answer::Stored, "key {key}");
    }
    assert!((0..keys).all(|key| get(&mut client, &key.to_le_bytes()).is_some()));
}

#[test]
fn keys_of_one_fingerprint_are_distinguished() {
    // All keys of two buckets share both. Of 600 keys about 44 pairs have one fingerprint.
    let (memory, layout) = fresh(2, 700, 11);
    let mut client = client(&memory, layout, SETTINGS);
    let mut fingerprints: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for key in 0..600u32 {
        put(&mut client, &key.to_le_bytes(), b"");
        let words = |index: usize| {
            let at = 64 + INDEX + index * 8;
            u64::from_le_bytes(memory.borrow()[at..at + 8].try_into().unwrap())
        };
        let word = (0..16).map(words).find(|word| *word != 0).unwrap();
        fingerprints.entry(word >> 52).or_default().push(key);
        assert_eq!(delete(&mut client, &key.to_le_bytes()), Answer::Deleted);
    }
    let pairs: Vec<_> = fingerprints.into_values().filter(|keys| keys.len() > 1).collect();
    assert!(pairs.len() > 20, "{} pairs", pairs.len());
    for keys in pairs {
        for key in &keys {
            assert_eq!(put(&mut client, &key.to_le_bytes(), &key.to_be_bytes()), Answer::Stored);
        }
        for key in &keys {
            assert_eq!(get(&mut client, &key.to_le_bytes()), Some(key.to_be_bytes().to_vec()));
            assert_eq!(delete(&mut client, &key.to_le_bytes()), Answer::Deleted);
            assert_eq!(get(&mut client, &key.to_le_bytes()), None);
        }
    }
}

#[test]
fn a_get_takes_one_read_where_the_key_was_seen_and_three_elsewhere() {
    let (memory, layout) = fresh(8, 8, 0);
    let mut writer = client(&memory, layout, SETTINGS);
    put(&mut writer, b"key", &[1; VALUE_MAX]);
    let mut reader = client(&memory, layout, SETTINGS);
    let reads = |reader: &mut Client<Double>| {
        let before = reader.remote().posts;
        assert!(get(reader, b"key").is_some());
        reader.remote().posts - before
    };
    assert_eq!([reads(&mut reader), reads(&mut reader)], [3, 1]);
    put(&mut writer, b"key", b"another");
    assert_eq!([reads(&mut reader), reads(&mut reader)], [4, 1], "one in vain, as it has moved");
    // Write, read, mark and swap.
    let before = writer.remote().posts;
    put(&mut writer, b"key", b"and another");
    assert_eq!(writer.remote().posts - before, 4);
}

#[test]
fn a_full_store_is_reported_and_takes_freed_blocks_after_their_rest() {
    let (memory, layout) = fresh(8, 4, 0);
    let settings = ClientSettings { rest: Span(100), ..SETTINGS };
    let mut client = client(&memory, layout, settings);
    for key in 0..4u8 {
        assert_eq!(put(&mut client, &[key], b"value"), Answer::Stored);
    }
    assert_eq!(put(&mut client, &[9], b"value"), Answer::Full);
    assert_eq!(put(&mut client, &[0], b"value"), Answer::Full, "an update takes a block, too");
    let at = |client: &mut Client<Double>, now, key: u8| {
        run(client, now, |client| client.put(&[key], b"other", 0)).unwrap_err()
    };
    let deleted = run(&mut client, 1_000, |client| client.delete(&[0], 0));
    assert_eq!(deleted, Err(Answer::Deleted));
    assert_eq!(at(&mut client, 1_099, 9), Answer::Full);
    assert_eq!(at(&mut client, 1_100, 9), Answer::Stored);
    assert_eq!(get(&mut client, &[9]), Some(b"other".to_vec()));
}

#[test]
fn no_block_is_lost_over_many_updates() {
    let (memory, layout) = fresh(4, 24, 0);
    let mut clients = [(); 2].map(|()| client(&memory, layout, SETTINGS));
    for round in 0..20_000u32 {
        let client = &mut clients[round as usize % 2];
        let key = [(round / 3 % 8) as u8];
        if round % 7 == 0 {
            delete(client, &key);
        } else {
            assert_eq!(put(client, &key, &round.to_le_bytes()), Answer::Stored, "round {round}");
        }
    }
}

#[test]
fn full_buckets_take_no_further_key() {
    let (memory, layout) = fresh(2, 40, 0);
    let mut client = client(&memory, layout, SETTINGS);
    for key in 0..16u8 {
        assert_eq!(put(&mut client, &[key], b"value"), Answer::Stored);
    }
    assert_eq!(put(&mut client, &[16], b"value"), Answer::Crowded);
    assert_eq!(put(&mut client, &[3], b"other"), Answer::Stored, "an update takes no slot");
    assert_eq!(delete(&mut client, &[5]), Answer::Deleted);
    assert_eq!(put(&mut client, &[16], b"value"), Answer::Stored);
}

#[test]
fn a_value_that_was_changed_behind_the_store_is_reported_and_not_returned() {
    let (memory, layout) = fresh(2, 4, 0);
    let mut client = client(&memory, layout, SETTINGS);
    put(&mut client, b"key", &[1; 1000]);
    let block = 64 + blocks_at(2, 4);
    memory.borrow_mut()[block + 500] ^= 4;
    let answer = |client: &mut Client<Double>| run(client, 0, |client| client.get(b"key", 0));
    assert_eq!(answer(&mut client), Err(Answer::Corrupt));
    memory.borrow_mut()[block + 500] ^= 4;
    assert_eq!(get(&mut client, b"key"), Some(vec![1; 1000]));
    // A slot that points beyond the store is not followed.
    let words = 64 + INDEX..64 + INDEX + 128;
    for word in memory.borrow_mut()[words].chunks_exact_mut(8) {
        if word != [0; 8] {
            word[..3].fill(255);
        }
    }
    let mut other = self::client(&memory, layout, SETTINGS);
    assert_eq!(answer(&mut other), Err(Answer::Corrupt));
}

#[test]
fn a_damaged_value_is_stored_anew_or_deleted() {
    // In its mark, its sum, its lengths, its key, and its value.
    for damaged in [0, 9, 12, 17, 500] {
        for is_put in [true, false] {
            let (memory, layout) = fresh(2, 8, 0);
            let new = || client(&memory, layout, SETTINGS);
            put(&mut new(), b"key", &[1; 1000]);
            memory.borrow_mut()[64 + blocks_at(2, 8) + damaged] ^= 4;
            let value = is_put.then(|| b"new".to_vec());
            match is_put {
                true => assert_eq!(put(&mut new(), b"key", b"new"), Answer::Stored, "{damaged}"),
                false => assert_eq!(delete(&mut new(), b"key"), Answer::Deleted, "{damaged}"),
            }
            assert_eq!(get(&mut new(), b"key"), value, "{damaged}");
        }
    }
}

#[test]
fn invalid_requests_are_refused_at_once() {
    let (memory, layout) = fresh(2, 8, 0);
    let mut client = client(&memory, layout, ClientSettings { outstanding: 2, ..SETTINGS });
    assert_eq!(client.get(b"", 0), Err(Refused::Key { bytes: 0 }));
    assert_eq!(client.put(&[0; KEY_MAX + 1], b"", 0), Err(Refused::Key { bytes: KEY_MAX + 1 }));
    let refused = Refused::Value { bytes: 4097, max_bytes: 4096 };
    assert_eq!(client.put(b"key", &[0; 4097], 0), Err(refused));
    let max_bytes = ENTRY_MAX - KEY_MAX;
    let refused = Refused::Value { bytes: max_bytes + 1, max_bytes };
    assert_eq!(client.put(&[0; KEY_MAX], &vec![0; max_bytes + 1], 0), Err(refused));
    assert_eq!(put(&mut client, &[0; KEY_MAX], &vec![3; max_bytes]), Answer::Stored);
    assert_eq!(get(&mut client, &[0; KEY_MAX]), Some(vec![3; max_bytes]));
    assert_eq!((client.get(b"a", 0), client.get(b"b", 0)), (Ok(()), Ok(())));
    assert_eq!(client.get(b"c", 0), Err(Refused::Busy));
}

#[test]
fn values_that_are_not_released_keep_their_buffers() {
    let (memory, layout) = fresh(2, 8, 0);
    let mut client = client(&memory, layout, ClientSettings { outstanding: 1, ..SETTINGS });
    put(&mut client, b"key", b"value");
    let mut outcomes = Vec::new();
    for _ in 0..2 {
        client.get(b"key", 0).unwrap();
        client.poll(Time(0), &mut outcomes).unwrap();
    }
    assert_eq!(client.get(b"key", 0), Err(Refused::Busy));
    for outcome in outcomes.drain(..) {
        let Answer::Found(found) = outcome.answer else { panic!("{outcome:?}") };
        assert_eq!(client.value(&found), b"value");
        client.release(found);
    }
    assert_eq!(client.get(b"key", 0), Ok(()));
}

#[test]
fn a_lost_region_ends_the_client() {
    let (memory, layout) = fresh(2, 8, 0);
    let mut client = client(&memory, layout, SETTINGS);
    client.get(b"key", 0).unwrap();
    client.remote_mut().is_lost = true;
    assert_eq!(client.poll(Time(0), &mut Vec::new()), Err(Lost));
}

fn opened(memory: &Memory, at: u64) -> Result<Layout, OpenError> {
    let at_once = Opening::at_once(Double::new(memory, 2), at);
    let mut opening = Opening::new(Double::new(memory, 2), at);
    while !opening.poll(Time(0))? {}
    let layout = *opening.client(ClientSettings { outstanding: 1, ..SETTINGS }).unwrap().layout();
    assert_eq!(at_once, Ok(layout));
    Ok(layout)
}

#[test]
fn a_store_is_opened_by_its_header_and_nothing_else_is() {
    let (memory, layout) = fresh(2, 8, 9);
    assert_eq!(opened(&memory, 64), Ok(layout));
    let error = |at: u64| opened(&memory, at).unwrap_err();
    assert_eq!(error(128), OpenError::Layout(LayoutError::NoStore));
    let bytes = memory.borrow().len() as u64;
    let needed_bytes = bytes + 64;
    let small = LayoutError::TooSmall { needed_bytes, bytes };
    assert_eq!(error(bytes), OpenError::Layout(small));
    memory.borrow_mut()[64 + 20] ^= 1;
    assert_eq!(error(64), OpenError::Layout(LayoutError::Damaged));
    memory.borrow_mut()[64 + 8] = 3;
    let later = LayoutError::Version { found: LAYOUT_VERSION + 1 };
    assert_eq!(error(64), OpenError::Layout(later));
    assert!(later.to_string().contains("layout 3"), "{later}");

    let (memory, layout) = fresh(2, 8, 9);
    memory.borrow_mut().truncate(4000);
    let remote = Double::new(&Rc::clone(&memory), 2);
    let bytes = remote.region();
    let needed_bytes = layout.area().at + layout.area().length;
    assert_eq!(
        Client::new(remote, layout, SETTINGS).map(drop).unwrap_err(),
        LayoutError::TooSmall { needed_bytes, bytes }
    );
}

#[test]
fn an_area_is_filled_and_no_more() {
    let area = |length| Area { at: 128, length };
    for length in (0..40_000).step_by(8).chain([1 << 30, 1 << 45]) {
        match Layout::fill(area(length), 3) {
            Ok(layout) => {
                let (slots, blocks) = (layout.slots(), u64::from(layout.blocks()));
                let words = (INDEX as u64 + slots * 8 + blocks * 8).next_multiple_of(64);
                let used = words + blocks * u64::from(BLOCK);
                let is_capped = layout.blocks() == (1 << 31) - 1;
                assert!(used <= length && (is_capped || length - used < 5_000), "{length}");
                let load = f64::from(layout.blocks()) / layout.slots() as f64;
                assert!(load <= 0.6, "{length}: {load}");
            }
            Err(error) => assert!(length < 7_000, "{length}: {error}"),
        }
    }
    assert_eq!(Layout::fill(Area { at: 8, length: 1 << 20 }, 0), Err(LayoutError::Unaligned));
    assert_eq!(Layout::new(area(1 << 20), 0, 1, 1), Err(LayoutError::Shape));
    assert_eq!(Layout::new(area(1 << 20), 0, 2, 0), Err(LayoutError::Shape));
}

/// The bytes of a header, a slot and a block, as every later release must read them.
#[test]
fn the_layout_is_what_it_was() {
    let area = Area { at: 64, length: 100_000 };
    let layout = Layout::new(area, 0x0123_4567_89ab_cdef, 3, 20).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let header = concat!(
        "5449444547544b56", // magic
        "02000000",         // layout
        "40100000",         // bytes of a block
        "efcdab8967452301", // seed
        "a086010000000000", // bytes of the area
        "03000000",         // buckets
        "14000000",         // blocks
        "0000000000000000000000000000000000000000",
        "99ba7068", // crc32c
    );
    assert_eq!(hex(&layout.header()), header);
    assert_eq!(Layout::read(64, &layout.header()), Ok(layout));

    let memory = Memory::default();
    memory.borrow_mut().resize(64 + 100_000, 0);
    memory.borrow_mut()[64..64 + HEADER].copy_from_slice(&layout.header());
    let mut client = client(&memory, layout, SETTINGS);
    put(&mut client, b"key", b"first");
    put(&mut client, b"key", b"value");
    let memory = memory.borrow();
    let index = &memory[64 + INDEX..64 + INDEX + 3 * 64];
    let slot = index.chunks_exact(8).position(|word| word != [0; 8]).unwrap();
    assert_eq!((slot, hex(&index[slot * 8..][..8])), (8, "010000000201f083".into()));
    let block = |number: usize| {
        let at = 64 + blocks_at(3, 20) + number * 4160;
        hex(&memory[at..at + 24])
    };
    // A version that is left of a mark, sum, lengths, key and value; and the same with a mark.
    assert_eq!(
        [block(0), block(1)],
        [
            "010000000000000063270801030005006b65796669727374",
            "01b03ffc509e16905085d66a030005006b657976616c7565"
        ]
    );
}
