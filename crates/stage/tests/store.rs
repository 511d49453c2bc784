//! A store and its data node, which is played here: what is requested is done, or refused with a
//! reason, also while the node moves, shuts us out, opens no periods, or is gone.
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
use tidegate_model::cluster::MemoryTransport;
use tidegate_model::{Iops, SessionSlot, Span};
use tidegate_onesided::data_node::{Hello, SlotParameters, ToClient, TokenRules, VERSION, Welcome};
use tidegate_onesided::haechi::{region_layout, words};
use tidegate_onesided::kv::{Area, HEADER, Layout, LayoutError};
use tidegate_onesided::one_sided::{BufferPosition, Operation, RemoteMemory};
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
        let area = Area { at: region_layout::DATA, length: memory - region_layout::DATA };
        node.write(region_layout::DATA, &Layout::fill(area, 1).unwrap().header());
        node
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("m.sock")
    }

    fn write(&self, to: u64, bytes: &[u8]) {
        let mut memory = Shm::new(self.region.clone(), 1);
        memory.buffer_mut(0)[..bytes.len()].copy_from_slice(bytes);
        let (from, length) = (BufferPosition::start(0), bytes.len() as u32);
        memory.perform(&Operation::Write { from, to, length }).unwrap();
    }

    /// Accepts the next client, and returns its connection and the memory that it brings.
    fn receive_hello(&self) -> (UnixStream, Option<Region>) {
        let (stream, _) = self.listener.accept().unwrap();
        let (mut decoder, mut buffer) = (Decoder::<Hello>::new(), [0; 4096]);
        let mut brought = None;
        while decoder.next_message().unwrap().is_none() {
            let (count, file) = handover::receive(&stream, &mut buffer).unwrap();
            brought = brought.or(file);
            decoder.extend(&buffer[..count]);
        }
        (stream, brought.map(|file| Region::from_fd(file).unwrap()))
    }

    /// Accepts and welcomes the next client.
    fn admit(&self, session_slot: Option<SlotParameters>) -> UnixStream {
        self.welcome(self.receive_hello().0, session_slot)
    }

    fn welcome(&self, stream: UnixStream, session_slot: Option<SlotParameters>) -> UnixStream {
        let transport = MemoryTransport::Shm;
        let welcome = Welcome {
            tenant: "t".into(),
            session_slot,
            transport,
            window: 16,
            store: region_layout::DATA,
        };
        let mut bytes = Vec::new();
        encode(&ToClient::Welcome(welcome), &mut bytes).unwrap();
        assert_eq!(handover::send(&stream, &bytes, self.region.as_fd()).unwrap(), bytes.len());
        stream
    }

    fn refuse(&self) {
        let refused = ToClient::Refused { version: VERSION, reason: "not you; go away".into() };
        send(&self.receive_hello().0, &refused);
    }

    /// A store here, and the node's end of its connection.
    fn store(&self, session_slot: Option<SlotParameters>) -> (Store, UnixStream) {
        thread::scope(|scope| {
            let server = scope.spawn(|| self.admit(session_slot));
            let store = Store::open(self.path(), Settings::default()).unwrap();
            (store, server.join().unwrap())
        })
    }
}

fn send(mut stream: &UnixStream, message: &ToClient) {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).unwrap();
    std::io::Write::write_all(&mut stream, &bytes).unwrap();
}

fn session_slot() -> SlotParameters {
    let (rules, period) = (TokenRules::Sound, Span::SECOND);
    SlotParameters {
        number: SessionSlot(3),
        rules,
        period,
        client: Iops(1_000_000),
        reservation: 10,
    }
}

#[test]
fn a_missing_rnic_is_reported_with_the_remedy() {
    let node = Node::new(MEMORY);
    let opened = thread::scope(|scope| {
        scope.spawn(|| {
            let (tenant, transport) = ("t".into(), MemoryTransport::Verbs);
            let welcome = Welcome {
                tenant,
                session_slot: None,
                transport,
                window: 16,
                store: region_layout::DATA,
            };
            let (stream, _) = node.receive_hello();
            send(&stream, &ToClient::Welcome(welcome));
        });
        let settings = Settings { device: Some("none_0".into()), ..Settings::default() };
        Store::open(node.path(), settings)
    });
    let reported = opened.unwrap_err().to_string();
    let remedies = match cfg!(feature = "verbs") {
        true => ["install libibverbs1", "`rdma link` lists", "install ibverbs-providers"],
        false => ["built without; use one of `tidegate`'s own"; 3],
    };
    assert!(remedies.iter().any(|remedy| reported.contains(remedy)), "{reported}");
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
    let mut reported: Vec<Option<Result<Option<Vec<u8>>, String>>> = vec![None; keys.len()];
    let report = |region_layout: usize, value: Result<Option<&[u8]>, Error>| {
        let value = value.map(|value| value.map(<[u8]>::to_vec)).map_err(|it| it.to_string());
        assert!(reported[region_layout].replace(value).is_none(), "each is told once");
    };
    store.get_many(&keys, report).unwrap();
    for (number, (key, reported)) in keys.iter().zip(reported).enumerate() {
        match (number, reported.unwrap()) {
            (7, reported) => assert!(reported.unwrap_err().contains("this one has 251")),
            (_, reported) if number % 3 == 0 => assert_eq!(reported, Ok(None)),
            (_, reported) => assert_eq!(reported, Ok(Some([key.as_slice(), b"!"].concat()))),
        }
    }
}

#[test]
fn impossible_requests_are_reported() {
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
    node.write(region_layout::DATA + 8, &99u32.to_le_bytes());
    let version = open();
    assert!(matches!(version, Err(Error::Store(LayoutError::Version { found: 99 }))));
    node.write(region_layout::DATA, &[0; HEADER]);
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
fn users_do_not_notice_that_the_node_moves() {
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
                    let mut reported = 0;
                    let is_right = |_, value: Result<Option<&[u8]>, Error>| {
                        assert_eq!(value.unwrap(), Some(&b"value"[..]));
                        reported += 1;
                    };
                    store.get_many(&[b"k"; 40], is_right).unwrap();
                    assert_eq!(reported, 40);
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        for _ in 0..20 {
            send(&lifeline, &ToClient::Moving);
            lifeline = node.admit(None);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_client_without_memory_neither_reads_nor_writes_the_former_memory() {
    let node = Node::new(MEMORY);
    let (store, lifeline) = node.store(None);
    store.put(b"k", b"value").unwrap();
    send(&lifeline, &ToClient::Moving);
    node.refuse();
    // Until it has received the answer it has the store's lock.
    until(|| match store.put(b"k", b"lost") {
        Err(Error::Outside(reason)) => reason == "not you; go away",
        other => panic!("{other:?}"),
    });
    let _lifeline = node.admit(None);
    until(|| !matches!(store.get(b"k"), Err(Error::Outside(_))));
    assert_eq!(store.get(b"k").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_client_stopped_during_the_move_reads_nothing_of_the_former_memory() {
    let node = Node::new(MEMORY);
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let lifeline = node.admit(None);
            // It has sent nothing, and goes on with other memory.
            let (again, brought) = node.receive_hello();
            assert_eq!(brought.map(|memory| memory.length()), Some(MEMORY));
            node.write(region_layout::LEFT, &0u64.to_le_bytes());
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
        node.write(region_layout::LEFT, &1u64.to_le_bytes());
        let moved = loop {
            match connection.poll(&mut outcomes) {
                Ok(()) => assert_eq!(outcomes, [], "nobody reads that"),
                Err(error) => break error,
            }
        };
        assert!(matches!(moved, Error::Moved), "{moved}");
        assert_eq!((outcomes.len(), connection.outstanding()), (0, 0));
        server.join().unwrap();
    });
}

#[test]
fn a_client_brings_the_memory_that_it_leaves() {
    let node = Node::new(MEMORY);
    let (store, lifeline) = node.store(None);
    send(&lifeline, &ToClient::Moving);
    // The node may die while it moves, and then wants it back.
    let (again, brought) = node.receive_hello();
    assert_eq!(brought.map(|memory| memory.length()), Some(MEMORY));
    let _lifeline = node.welcome(again, None);
    store.put(b"k", b"value").unwrap();
}

#[test]
fn without_tokens_the_reason_is_reported_in_time() {
    let node = Node::new(MEMORY);
    let (store, lifeline) = node.store(Some(session_slot()));
    let store = store.with_patience(Span(2 * Span::MILLISECOND.0));
    for _ in 0..100 {
        // More than may be under way: results without a waiter do not stay for good.
        let late = store.get(b"k");
        assert!(matches!(late, Err(Error::Late { is_alone: false })), "{late:?}");
    }
    drop((lifeline, node));
    until(|| matches!(store.put(b"k", b"v"), Err(Error::Gone)));
}

#[test]
fn an_unused_store_still_reports() {
    let node = Node::new(MEMORY);
    let (_store, _lifeline) = node.store(Some(session_slot()));
    let mut memory = Shm::new(node.region.clone(), 1);
    let mut beat = || {
        let from = region_layout::line(region_layout::REPORTS, session_slot().number);
        let read = Operation::Read { from, into: BufferPosition::start(0), length: 24 };
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
