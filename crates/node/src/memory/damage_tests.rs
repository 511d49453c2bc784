//! Garbage in a data node's memory: any client can write to all of it. The node notices within a
//! bounded time, gives out other memory, and serves those who come again. So it does where a former
//! incarnation of the node and its clients have left no free blocks.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_fabric::memory::handover;
use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::shm::Shm;
use tidegate_fabric::stream::Address;
use tidegate_model::cluster::DataNode;
use tidegate_model::{Cluster, SessionSlot, Span, Time};
use tidegate_onesided::data_node::{Hello, ToClient, VERSION};
use tidegate_onesided::haechi::region_layout;
use tidegate_onesided::kv::{self, Answer, Layout, Opening};
use tidegate_onesided::one_sided::{BufferPosition, Operation, RemoteMemory as _};
use tidegate_proto::codec::{Decoder, encode};

use super::{Config, Running, TokenRules, start};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A data node that has no controller: operators come in.
struct Bed {
    folder: TempDir,
    node: DataNode,
    running: Option<Running>,
}

/// A client with a session slot, which has the memory.
struct Client {
    stream: UnixStream,
    memory: Arc<Region>,
}

impl Bed {
    fn new(remote: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[[data-node]]\nname = \"m\"\nlisten = \"unix:m.sock\"\nmemory = \"4MiB\"\n\
             capacity = \"1k iops\"\nclient = \"1k iops\"\nperiod = \"100ms\"\n\
             fabric = \"{remote}\"\n"
        );
        let node = Cluster::parse(&text).unwrap().data_nodes.remove(0);
        let mut bed = Self { folder, node, running: None };
        bed.restart();
        bed
    }

    /// Ends the node, if it runs, and starts it again.
    fn restart(&mut self) {
        drop(self.running.take());
        let (node, listen) = (self.node.clone(), Address::Unix(self.socket()));
        let config =
            Config { node, rules: TokenRules::Sound, listen, guard: None, controller: None };
        self.running = Some(start(config).unwrap());
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("m.sock")
    }

    fn come(&self) -> Client {
        self.bring(None)
    }

    /// Comes, and brings memory that the node may have had in a former incarnation.
    fn bring(&self, memory: Option<&Region>) -> Client {
        let (stream, answer, file) = self.connect_with("", memory);
        assert!(matches!(answer, ToClient::Welcome(_)), "{answer:?}");
        Client { stream, memory: Arc::new(Region::from_fd(file.unwrap()).unwrap()) }
    }

    /// Says hello for a tenant, and waits for the answer.
    fn connect_with(
        &self,
        tenant: &str,
        memory: Option<&Region>,
    ) -> (UnixStream, ToClient, Option<OwnedFd>) {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello = Hello {
            version: VERSION,
            tenant: tenant.into(),
            reservation: None,
            limit: None,
            parts: 1,
            session_slot: None,
            is_bare: false,
        };
        let mut bytes = Vec::new();
        encode(&hello, &mut bytes).unwrap();
        match memory {
            None => (&stream).write_all(&bytes).unwrap(),
            Some(memory) => {
                let sent = handover::send(&stream, &bytes, memory.as_fd()).unwrap();
                assert_eq!(sent, bytes.len());
            }
        }
        let (answer, file) = answer(&stream);
        (stream, answer, file)
    }
}

fn answer(stream: &UnixStream) -> (ToClient, Option<OwnedFd>) {
    let (mut decoder, mut chunk, mut file) = (Decoder::<ToClient>::new(), [0; 4096], None);
    loop {
        if let Some(message) = decoder.next_message().unwrap() {
            return (message, file);
        }
        let (count, came) = handover::receive(stream, &mut chunk).unwrap();
        assert!(count > 0, "the node closed the connection without an answer");
        file = file.or(came);
        decoder.extend(&chunk[..count]);
    }
}

impl Client {
    fn write(&self, to: u64, bytes: &[u8]) {
        let mut shm = Shm::new(self.memory.clone(), 1);
        for (to, bytes) in (to..).step_by(4096).zip(bytes.chunks(4096)) {
            shm.buffer_mut(0)[..bytes.len()].copy_from_slice(bytes);
            let (from, length) = (BufferPosition::start(0), bytes.len() as u32);
            shm.perform(&Operation::Write { from, to, length }).unwrap();
        }
    }

    fn set(&self, to: u64, word: u64) {
        self.write(to, &word.to_le_bytes());
    }

    fn layout(&self) -> Layout {
        Opening::at_once(Shm::new(self.memory.clone(), 1), region_layout::DATA).unwrap()
    }

    /// Damages the memory until the node says that it goes on with other: a word that the node
    /// writes itself now and then is damaged again. Tells how long that took.
    fn damage(&mut self, damage: impl Fn(&Self)) -> Duration {
        let (end, elapsed) = self.damage_until_reported(damage);
        assert_eq!(end, Some(ToClient::Moving), "the client was shut out instead");
        elapsed
    }

    /// The same for damage that may also be to the client's own words, for which it is shut out:
    /// then there is no message.
    fn damage_until_reported(&mut self, damage: impl Fn(&Self)) -> (Option<ToClient>, Duration) {
        let started = Instant::now();
        self.stream.set_nonblocking(true).unwrap();
        let (mut decoder, mut chunk) = (Decoder::<ToClient>::new(), [0; 64]);
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return (None, started.elapsed()),
                Ok(count) => decoder.extend(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return (None, started.elapsed());
                }
                Err(_) => damage(self),
            }
            let message = decoder.next_message().unwrap();
            if message == Some(ToClient::Moving) {
                return (message, started.elapsed());
            }
            assert!(started.elapsed() < PATIENCE, "the damage is not noticed");
        }
    }

    /// Whether a value can be stored.
    fn has_headroom(&self) -> bool {
        let rest = Span(200_000_000);
        let settings = kv::ClientSettings {
            outstanding: 1,
            locations: 0,
            extent: 1,
            session_slot: None,
            rest,
        };
        let shm = Shm::new(self.memory.clone(), 16).until_left(region_layout::LEFT);
        let mut client = kv::Client::new(shm, self.layout(), settings).unwrap();
        let mut outcomes = Vec::new();
        client.put(b"other", b"value", 0).unwrap();
        while client.outstanding() > 0 {
            client.poll(Time(1), &mut outcomes).unwrap();
        }
        outcomes.remove(0).answer == Answer::Stored
    }

    /// A store in the memory that works, with what is under this key.
    fn get_and_put(&self, key: &[u8]) -> Option<Vec<u8>> {
        let rest = Span(200_000_000);
        let settings = kv::ClientSettings {
            outstanding: 4,
            locations: 0,
            extent: 4,
            session_slot: None,
            rest,
        };
        let shm = Shm::new(self.memory.clone(), 16).until_left(region_layout::LEFT);
        let mut client = kv::Client::new(shm, self.layout(), settings).unwrap();
        let run = |client: &mut kv::Client<Shm>| {
            let mut outcomes = Vec::new();
            while client.outstanding() > 0 {
                client.poll(Time(1), &mut outcomes).unwrap();
            }
            outcomes.remove(0).answer
        };
        client.get(key, 0).unwrap();
        let found = match run(&mut client) {
            Answer::Found(value) => {
                let bytes = client.value(&value).to_vec();
                client.release(value);
                Some(bytes)
            }
            Answer::Missing => None,
            other => panic!("{other:?}"),
        };
        client.put(key, b"value", 0).unwrap();
        assert_eq!(run(&mut client), Answer::Stored);
        found
    }
}

/// Garbage from a seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..length.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes()
    });
    words.take(length).collect()
}

/// Damages one structure after the other; those that come again find memory that works, with what
/// was stored, unless the store itself was damaged.
fn damage_each(remote: &str, cases: &[(&str, u64, u64, bool)]) {
    let bed = Bed::new(remote);
    bed.come().get_and_put(b"key");
    for (what, at, word, is_kept) in cases.iter().copied() {
        let mut client = bed.come();
        let took = client.damage(|client| client.set(at, word));
        println!("{what} {word:#x}: {took:?}");
        let found = bed.come().get_and_put(b"key");
        assert_eq!(found.is_some(), is_kept, "{what} {word:#x}");
    }
}

#[test]
fn each_damaged_structure_is_noticed_and_clients_go_on() {
    let layout = Bed::new("shm").come().layout();
    let (store, index) = (region_layout::DATA, region_layout::DATA + 64 + 64 + 256 * 8);
    let last = region_layout::DATA + layout.area().length - 8;
    let block = last - u64::from(layout.blocks()) * u64::from(kv::BLOCK);
    let ring = index + layout.slots() * 8;
    assert!(ring < block);
    damage_each(
        "shm",
        &[
            ("header", region_layout::HEADER, 0, true),
            ("version", region_layout::LAYOUT, 99, true),
            ("lease", region_layout::LEASE, u64::MAX, true),
            ("lease", region_layout::LEASE, 0, true),
            ("capacity", region_layout::LEARNED, u64::MAX, true),
            ("left", region_layout::LEFT, 1, true),
            ("grants", region_layout::GRANTS, u64::MAX, true),
            ("grants", region_layout::line(region_layout::GRANTS, SessionSlot(63)), 1, true),
            ("store header", store + 24, 1, false),
            ("taken", store + 64 + 8, u64::MAX, false),
            ("given", store + 64 + 16, u64::MAX, false),
            ("census", store + 128 + 7 * 8, u64::MAX, false),
            ("index", index + 8, u64::MAX, false),
            ("free blocks", ring, u64::MAX, false),
        ],
    );
}

fn word(memory: &Arc<Region>, at: u64) -> u64 {
    let mut shm = Shm::new(memory.clone(), 1);
    let read = Operation::Read { from: at, into: BufferPosition::start(0), length: 8 };
    shm.perform(&read).unwrap();
    u64::from_le_bytes(shm.buffer(0)[..8].try_into().unwrap())
}

#[test]
fn pool_tokens_that_the_monitor_did_not_make_are_not_used() {
    let bed = Bed::new("shm");
    // As many as fit, whatever period runs when they are written. A client that is silent for some
    // periods is evicted, which on a busy machine may come first, as late periods follow each other
    // at once: then another one goes on.
    let is_noticed = (0..10).any(|_| {
        let (end, _) = bed.come().damage_until_reported(|client| {
            let pool = word(&client.memory, region_layout::POOL);
            client.set(region_layout::POOL, pool | ((1 << 48) - 1));
        });
        end.is_some()
    });
    assert!(is_noticed);
    // A pool of another period is replaced by that of the next one.
    let deadline = Instant::now() + PATIENCE;
    for garbage in [0, u64::MAX] {
        let client = bed.come();
        client.set(region_layout::POOL, garbage);
        while word(&client.memory, region_layout::POOL) == garbage {
            assert!(deadline > Instant::now());
        }
    }
    bed.come().get_and_put(b"key");
}

/// Clients that put a key and die with the blocks that they have not used, until none is left.
fn use_up_blocks(memory: &Arc<Region>) {
    let layout = Opening::at_once(Shm::new(memory.clone(), 1), region_layout::DATA).unwrap();
    loop {
        let rest = Span(0);
        let settings = kv::ClientSettings {
            outstanding: 1,
            locations: 0,
            extent: 64,
            session_slot: None,
            rest,
        };
        let shm = Shm::new(memory.clone(), 16);
        let mut client = kv::Client::new(shm, layout, settings).unwrap();
        let mut outcomes = Vec::new();
        client.put(b"key", b"kept", 0).unwrap();
        while client.outstanding() > 0 {
            client.poll(Time(1), &mut outcomes).unwrap();
        }
        match outcomes.remove(0).answer {
            Answer::Stored => {}
            Answer::Full => return,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_store_that_came_back_full_of_lost_blocks_can_be_written_again() {
    let mut bed = Bed::new("shm");
    let memory = bed.come().memory;
    use_up_blocks(&memory);
    bed.restart();
    let mut client = bed.bring(Some(&memory));
    // Others than this client may have the memory, so the node moves, and sweeps what is new.
    assert_eq!(client.damage_until_reported(|_| ()).0, Some(ToClient::Moving));
    drop(client);
    let (client, deadline) = (bed.come(), Instant::now() + PATIENCE);
    while !client.has_headroom() {
        assert!(deadline > Instant::now(), "no block comes back");
        std::thread::yield_now();
    }
    assert_eq!(client.get_and_put(b"key").as_deref(), Some(&b"kept"[..]), "no value is lost");
}

#[test]
fn memory_that_a_client_brings_late_is_adopted_while_no_client_has_new_memory() {
    let mut bed = Bed::new("shm");
    let memory = {
        let client = bed.come();
        client.get_and_put(b"key");
        client.memory.clone()
    };
    bed.restart();
    // It is answered when the node no longer waits for its memory.
    let (_, refused, _) = bed.connect_with("unknown", None);
    assert!(matches!(refused, ToClient::Refused { .. }), "{refused:?}");
    let late = bed.bring(Some(&memory));
    assert_eq!(late.get_and_put(b"key").as_deref(), Some(&b"value"[..]), "no value is lost");
    // The note still names it, or names what was given out since.
    bed.restart();
    let again = bed.bring(Some(&late.memory));
    assert_eq!(again.get_and_put(b"key").as_deref(), Some(&b"value"[..]));
    drop((memory, late, again));
    bed.restart();
    let first = bed.come();
    assert_eq!(first.get_and_put(b"key"), None, "nobody has it any more");
}

#[test]
fn a_damaged_nic_model_is_noticed() {
    damage_each(
        "model",
        &[("busy", region_layout::NIC, u64::MAX, true), ("slot", region_layout::NIC + 64, 0, true)],
    );
}

#[test]
fn random_garbage_in_any_part_is_survived() {
    let bed = Bed::new("shm");
    for seed in 0..24 {
        let mut client = bed.come();
        let length = client.memory.length();
        let (at, bytes) = match seed % 4 {
            0 => (0, length),
            1 => (0, region_layout::DATA),
            2 => (region_layout::DATA, length - region_layout::DATA),
            _ => (region_layout::REPORTS, 64 * region_layout::LINE),
        };
        let garbage = noise(seed + 1, bytes as usize);
        match seed % 4 {
            3 => client.write(at, &garbage),
            _ => drop(client.damage_until_reported(|client| client.write(at, &garbage))),
        }
        // Reports are clients' own words: who writes garbage there is shut out, at most.
        drop(client);
        bed.come().get_and_put(b"key");
    }
}
