//! A store and its data node, which is played here: what is asked for is done, or said why not,
//! also while the node moves, shuts us out, opens no periods, or is gone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tempfile::TempDir;
use tidegate_fabric::memory::handover;
use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::shm::Shm;
use tidegate_model::cluster::{Fabric as Carrier, TokenRules};
use tidegate_model::{Iops, Span};
use tidegate_onesided::data_node::{Hello, Seat, ToClient, VERSION, Welcome};
use tidegate_onesided::haechi::{place, words};
use tidegate_onesided::kv::{Area, HEADER, Layout, LayoutError};
use tidegate_onesided::one_sided::{Fabric, Operation, Place};
use tidegate_proto::codec::{Decoder, encode};
use tidegate_stage::memory::{Answer, Connection, Error, Refused, Settings, Store};

const MEMORY: u64 = 8 << 20;

/// One that has memory with an empty store.
struct Node {
    folder: TempDir,
    listener: UnixListener,
    region: Arc<Region>,
}

impl Node {
    fn new(memory: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("m.sock")).unwrap();
        let region = Arc::new(Region::create(memory).unwrap());
        let node = Self { folder, listener, region };
        let area = Area { at: place::DATA, length: memory - place::DATA };
        node.write(place::DATA, &Layout::fill(area, 1).unwrap().header());
        node
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("m.sock")
    }

    fn write(&self, to: u64, bytes: &[u8]) {
        let mut memory = Shm::new(self.region.clone(), 1);
        memory.buffer_mut(0)[..bytes.len()].copy_from_slice(bytes);
        let (from, length) = (Place::start(0), bytes.len() as u32);
        memory.perform(&Operation::Write { from, to, length }).unwrap();
    }

    /// Accepts the next client, and returns its connection and the memory that it brings.
    fn hear(&self) -> (UnixStream, Option<Region>) {
        let (stream, _) = self.listener.accept().unwrap();
        let (mut decoder, mut piece) = (Decoder::<Hello>::new(), [0; 4096]);
        let mut brought = None;
        while decoder.next_message().unwrap().is_none() {
            let (count, file) = handover::receive(&stream, &mut piece).unwrap();
            brought = brought.or(file);
            decoder.extend(&piece[..count]);
        }
        (stream, brought.map(|file| Region::from_fd(file).unwrap()))
    }

    /// Accepts and welcomes the next client.
    fn admit(&self, seat: Option<Seat>) -> UnixStream {
        self.welcome(self.hear().0, seat)
    }

    fn welcome(&self, stream: UnixStream, seat: Option<Seat>) -> UnixStream {
        let fabric = Carrier::Shm;
        let welcome = Welcome { tenant: "t".into(), seat, fabric, window: 16, store: place::DATA };
        let mut bytes = Vec::new();
        encode(&ToClient::Welcome(welcome), &mut bytes).unwrap();
        assert_eq!(handover::send(&stream, &bytes, self.region.as_fd()).unwrap(), bytes.len());
        stream
    }

    fn refuse(&self) {
        let refused = ToClient::Refused { version: VERSION, reason: "not you; go away".into() };
        say(&self.hear().0, &refused);
    }

    /// A store here, and the node's end of its connection.
    fn store(&self, seat: Option<Seat>) -> (Store, UnixStream) {
        thread::scope(|scope| {
            let door = scope.spawn(|| self.admit(seat));
            let store = Store::open(self.path(), Settings::default()).unwrap();
            (store, door.join().unwrap())
        })
    }
}

fn say(mut stream: &UnixStream, message: &ToClient) {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).unwrap();
    std::io::Write::write_all(&mut stream, &bytes).unwrap();
}

fn seat() -> Seat {
    let (rules, period) = (TokenRules::Sound, Span::SECOND);
    Seat { number: 3, rules, period, client: Iops(1_000_000), reservation: 10 }
}

#[test]
fn where_cards_reach_the_memory_and_there_is_none_the_remedy_is_told() {
    let node = Node::new(MEMORY);
    let opened = thread::scope(|scope| {
        scope.spawn(|| {
            let (tenant, fabric) = ("t".into(), Carrier::Verbs);
            let welcome = Welcome { tenant, seat: None, fabric, window: 16, store: place::DATA };
            let (stream, _) = node.hear();
            say(&stream, &ToClient::Welcome(welcome));
        });
        let settings = Settings { device: Some("none_0".into()), ..Settings::default() };
        Store::open(node.path(), settings)
    });
    let told = opened.unwrap_err().to_string();
    let remedies = match cfg!(feature = "verbs") {
        true => ["install libibverbs1", "`rdma link` lists", "install ibverbs-providers"],
        false => ["built without; use one of `tidegate`'s own"; 3],
    };
    assert!(remedies.iter().any(|remedy| told.contains(remedy)), "{told}");
}

/// Waits until something is so, for as long as the test may take.
fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        thread::yield_now();
    }
}

#[test]
fn values_come_back_one_at_a_time_and_many() {
    let node = Node::new(MEMORY);
    let (store, _lifeline) = node.store(None);
    assert_eq!(store.get(b"k").unwrap(), None);
    store.put(b"k", b"one").unwrap();
    store.put(b"k", b"").unwrap();
    assert_eq!(store.get_with(b"k", <[u8]>::len).unwrap(), Some(0));
    assert_eq!((store.delete(b"k").unwrap(), store.delete(b"k").unwrap()), (true, false));
    // Far more than may be under way, every third of them without a value.
    let mut keys: Vec<Vec<u8>> = (0..500u32).map(|number| number.to_be_bytes().to_vec()).collect();
    for key in keys.iter().enumerate().filter(|(number, _)| number % 3 > 0).map(|(_, key)| key) {
        store.put(key, &[key.as_slice(), b"!"].concat()).unwrap();
    }
    keys[7] = vec![b'x'; 251];
    let mut told: Vec<Option<Result<Option<Vec<u8>>, String>>> = vec![None; keys.len()];
    let tell = |place: usize, value: Result<Option<&[u8]>, Error>| {
        let value = value.map(|value| value.map(<[u8]>::to_vec)).map_err(|it| it.to_string());
        assert!(told[place].replace(value).is_none(), "each is told once");
    };
    store.get_many(&keys, tell).unwrap();
    for (number, (key, told)) in keys.iter().zip(told).enumerate() {
        match (number, told.unwrap()) {
            (7, told) => assert!(told.unwrap_err().contains("this one has 251")),
            (_, told) if number % 3 == 0 => assert_eq!(told, Ok(None)),
            (_, told) => assert_eq!(told, Ok(Some([key.as_slice(), b"!"].concat()))),
        }
    }
}

#[test]
fn what_cannot_be_is_told() {
    let node = Node::new(4 << 20);
    let (store, _lifeline) = node.store(None);
    let put = |key: &[u8], bytes| store.put(key, &vec![7; bytes]);
    assert!(matches!(put(b"", 1), Err(Error::Operation(Refused::Key { bytes: 0 }))));
    let refused = put(b"k", 5_000);
    assert!(matches!(refused, Err(Error::Operation(Refused::Value { bytes: 5_000, .. }))));
    let full = (0..10_000u32).find_map(|number| put(&number.to_be_bytes(), 4_000).err());
    assert!(matches!(full, Some(Error::Full)), "{full:?}");
    assert!(store.get(&0u32.to_be_bytes()).unwrap().is_some(), "what is there stays");
    // Of another release, and none at all.
    let open = || {
        thread::scope(|scope| {
            scope.spawn(|| node.admit(None));
            Store::open(node.path(), Settings::default()).map(|_| ())
        })
    };
    node.write(place::DATA + 8, &99u32.to_le_bytes());
    let version = open();
    assert!(matches!(version, Err(Error::Store(LayoutError::Version { found: 99 }))));
    node.write(place::DATA, &[0; HEADER]);
    assert!(matches!(open(), Err(Error::Store(LayoutError::NoStore))));
}

#[test]
fn threads_have_what_is_theirs() {
    let node = Node::new(MEMORY);
    let (store, _lifeline) = node.store(None);
    thread::scope(|scope| {
        for number in 0..4u32 {
            let store = &store;
            scope.spawn(move || {
                let keys: Vec<[u8; 8]> = (0..20u32)
                    .map(|key| (u64::from(number) << 32 | u64::from(key)).to_be_bytes())
                    .collect();
                for round in 0..10u8 {
                    keys.iter().for_each(|key| store.put(key, &[round; 100]).unwrap());
                    let is_right = |value: Result<Option<&[u8]>, Error>| {
                        assert_eq!(value.unwrap(), Some(&[round; 100][..]));
                    };
                    store.get_many(&keys, |_, value| is_right(value)).unwrap();
                }
            });
        }
    });
}

#[test]
fn nobody_notices_that_the_node_moves() {
    // Blocks rest for two seconds, and those of the memory that was left are lost.
    let node = Node::new(8 * MEMORY);
    let (store, mut lifeline) = node.store(None);
    store.put(b"k", b"value").unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (store, is_over) = (&store, &is_over);
        for number in 0..3u8 {
            scope.spawn(move || {
                for round in 0u64.. {
                    let own = round.min(2_000).to_le_bytes();
                    if round <= 2_000 {
                        store.put(&[number], &own).unwrap();
                    }
                    assert_eq!(store.get(&[number]).unwrap().as_deref(), Some(&own[..]));
                    let mut told = 0;
                    let is_right = |_, value: Result<Option<&[u8]>, Error>| {
                        assert_eq!(value.unwrap(), Some(&b"value"[..]));
                        told += 1;
                    };
                    store.get_many(&[b"k"; 40], is_right).unwrap();
                    assert_eq!(told, 40);
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        for _ in 0..20 {
            say(&lifeline, &ToClient::Moving);
            lifeline = node.admit(None);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn who_is_left_outside_neither_reads_nor_writes_what_was_left() {
    let node = Node::new(MEMORY);
    let (store, lifeline) = node.store(None);
    store.put(b"k", b"value").unwrap();
    say(&lifeline, &ToClient::Moving);
    node.refuse();
    // Until it has heard the answer it has the store's lock.
    until(|| match store.put(b"k", b"lost") {
        Err(Error::Outside(reason)) => reason == "not you; go away",
        other => panic!("{other:?}"),
    });
    let _lifeline = node.admit(None);
    until(|| !matches!(store.get(b"k"), Err(Error::Outside(_))));
    assert_eq!(store.get(b"k").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn who_was_stopped_while_the_node_moved_is_told_nothing_of_what_was_left() {
    let node = Node::new(MEMORY);
    thread::scope(|scope| {
        let door = scope.spawn(|| {
            let lifeline = node.admit(None);
            // It has said nothing, and goes on with other memory.
            let (again, brought) = node.hear();
            assert_eq!(brought.map(|memory| memory.length()), Some(MEMORY));
            node.write(place::LEFT, &0u64.to_le_bytes());
            (lifeline, node.welcome(again, None))
        });
        let mut connection = Connection::open(node.path(), Settings::default()).unwrap();
        let mut outcomes = Vec::new();
        connection.begin_put(b"k", b"value", 1).unwrap();
        while connection.outstanding() > 0 {
            connection.poll(&mut outcomes).unwrap();
        }
        assert_eq!(outcomes.pop().unwrap().answer, Answer::Stored);
        connection.begin_put(b"k", b"lost", 2).unwrap();
        node.write(place::LEFT, &1u64.to_le_bytes());
        let moved = loop {
            match connection.poll(&mut outcomes) {
                Ok(()) => assert_eq!(outcomes, [], "nobody reads that"),
                Err(error) => break error,
            }
        };
        assert!(matches!(moved, Error::Moved), "{moved}");
        assert_eq!((outcomes.len(), connection.outstanding()), (0, 0));
        door.join().unwrap();
    });
}

#[test]
fn who_leaves_memory_brings_it_along() {
    let node = Node::new(MEMORY);
    let (store, lifeline) = node.store(None);
    say(&lifeline, &ToClient::Moving);
    // The node may die while it moves, and then wants it back.
    let (again, brought) = node.hear();
    assert_eq!(brought.map(|memory| memory.length()), Some(MEMORY));
    let _lifeline = node.welcome(again, None);
    store.put(b"k", b"value").unwrap();
}

#[test]
fn without_tokens_it_says_in_time_why_there_are_none() {
    let node = Node::new(MEMORY);
    let (store, lifeline) = node.store(Some(seat()));
    let store = store.with_patience(Span(2 * Span::MILLISECOND.0));
    for _ in 0..100 {
        // More than may be under way: what nobody waits for is in nobody's way for good.
        let late = store.get(b"k");
        assert!(matches!(late, Err(Error::Late { is_alone: false })), "{late:?}");
    }
    drop((lifeline, node));
    until(|| matches!(store.put(b"k", b"v"), Err(Error::Gone)));
}

#[test]
fn a_store_that_nobody_uses_reports_all_the_same() {
    let node = Node::new(MEMORY);
    let (_store, _lifeline) = node.store(Some(seat()));
    let mut memory = Shm::new(node.region.clone(), 1);
    let mut beat = || {
        let from = place::line(place::REPORTS, seat().number);
        let read = Operation::Read { from, into: Place::start(0), length: 24 };
        memory.perform(&read).unwrap();
        let bytes: &[u8; 24] = memory.buffer(0).first_chunk().unwrap();
        let (words, _) = bytes.as_chunks::<8>();
        words::beat(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
    };
    for _ in 0..5 {
        let before = beat();
        until(|| beat() != before);
    }
}
