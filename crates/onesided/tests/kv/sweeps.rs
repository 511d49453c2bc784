//! Clients that come, die and leave at any point while the store is swept: no block belongs to two
//! clients, and when all have gone, passes bring back all blocks without a key.

use std::collections::BTreeMap;
use std::rc::Rc;

use proptest::prelude::*;
use tidegate_model::{SessionSlot, Span, Time};
use tidegate_onesided::kv::{Answer, Client, ClientSettings, Inspector, Layout, Pass, Sweep};

use crate::double::{Double, Memory};
use crate::{INDEX, blocks_at, fresh};

const BUCKETS: u32 = 3;

/// The bytes of a value: the number of its put, in every four bytes.
fn value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + number as usize % 30)
}

struct Player {
    session_slot: SessionSlot,
    client: Client<Double>,
    /// Puts that found no block.
    refused: u32,
}

/// A store, its clients, and the sweep.
struct SweepSim {
    memory: Memory,
    layout: Layout,
    players: Vec<Player>,
    sweep: Sweep<Double>,
    inspector: Inspector,
    enough: u32,
    now: u64,
    next: u32,
    /// Whatever each key may have: the numbers of puts, 0 for nothing.
    written: BTreeMap<u8, Vec<u32>>,
    swept: u64,
}

fn word(memory: &Memory, at: usize) -> u64 {
    u64::from_le_bytes(memory.borrow()[at..at + 8].try_into().unwrap())
}

impl SweepSim {
    fn new(blocks: u32, seed: u64) -> Self {
        let (memory, layout) = fresh(BUCKETS, blocks, seed);
        // Reads in any order, and what is longer than a word in pieces.
        let sweep = Sweep::new(Double::adverse(&memory, 1, seed), layout);
        let (players, written) = (Vec::new(), BTreeMap::new());
        Self {
            memory,
            layout,
            players,
            sweep,
            inspector: Inspector::new(layout),
            enough: u32::MAX,
            now: 1,
            next: 0,
            written,
            swept: 0,
        }
    }

    fn come(&mut self, session_slot: SessionSlot, seed: u64) {
        self.come_with_rest(session_slot, seed, Span(3));
    }

    fn come_with_rest(&mut self, session_slot: SessionSlot, seed: u64, rest: Span) {
        if self.players.iter().any(|player| player.session_slot == session_slot) {
            return;
        }
        // As the data node does it before the client hears of its session slot.
        self.memory.borrow_mut()[64 + 128 + session_slot.index() * 8..][..8].fill(0);
        let remote = Double::adverse(&self.memory, 4, seed);
        let settings = ClientSettings {
            outstanding: 2,
            locations: 16,
            extent: 4,
            session_slot: Some(session_slot),
            rest,
        };
        let client = Client::new(remote, self.layout, settings).unwrap();
        self.players.push(Player { session_slot, client, refused: 0 });
    }

    fn begin(&mut self, at: usize, key: u8, act: u8) {
        let client = &mut self.players[at].client;
        let begun = match act {
            0 => client.get(&[key], u64::from(key)),
            1 => client.delete(&[key], u64::from(key)),
            _ => {
                self.next += 1;
                client.put(&[key], &value(self.next), u64::from(key))
            }
        };
        if begun.is_ok() && act > 0 {
            let number = if act == 1 { 0 } else { self.next };
            self.written.entry(key).or_default().push(number);
        }
        self.poll(at);
    }

    fn poll(&mut self, at: usize) {
        self.now += 1;
        let (client, mut outcomes) = (&mut self.players[at].client, Vec::new());
        client.poll(Time(self.now), &mut outcomes).unwrap();
        for outcome in outcomes {
            let client = &mut self.players[at].client;
            match outcome.answer {
                Answer::Found(found) => {
                    let bytes = client.value(&found);
                    let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                    assert_eq!(bytes, value(number), "torn");
                    let key = outcome.token as u8;
                    assert!(self.written[&key].contains(&number), "a value of another key");
                    client.release(found);
                }
                Answer::Corrupt => panic!("two have written the same block"),
                Answer::Full | Answer::Throttled => self.players[at].refused += 1,
                _ => {}
            }
        }
    }

    /// One thing happens at a client's RNIC, if there is one that can.
    fn go(&mut self, at: usize, way: usize) {
        let ways = self.players[at].client.remote().ways();
        if ways > 0 {
            self.players[at].client.remote_mut().go(way % ways);
        }
        self.poll(at);
    }

    /// One thing happens where it is swept.
    fn go_sweeping(&mut self, way: usize) -> Option<Pass> {
        let remote = self.sweep.remote_mut();
        if remote.ways() > 0 {
            remote.go(way % remote.ways());
        }
        let players = &self.players;
        let is_living =
            |session_slot| players.iter().any(|player| player.session_slot == session_slot);
        let over = self.sweep.poll(Time(self.now), self.enough, is_living).unwrap();
        if let Some(Pass::Over { swept, .. }) = over {
            self.swept += u64::from(swept);
        }
        over
    }

    fn pass(&mut self) -> Pass {
        loop {
            if let Some(pass) = self.go_sweeping(0) {
                return pass;
            }
        }
    }

    /// Blocks that slots point to, and those in the pool, as they are written in memory.
    fn blocks(&self) -> (Vec<u32>, Vec<u32>) {
        let count = self.layout.blocks();
        let slots = (0..self.layout.slots() as usize).map(|slot| 64 + INDEX + slot * 8);
        let slots = slots.map(|at| word(&self.memory, at)).filter(|word| *word != 0);
        let reached = slots.map(|word| word as u32 & 0x7fff_ffff).collect();
        let [taken, given] = [8, 16].map(|at| word(&self.memory, 64 + 64 + at));
        let ring = blocks_at(BUCKETS, 0);
        let free = (taken..given + u64::from(count)).map(|index| {
            let index = (index % u64::from(count)) as u32;
            let distance = word(&self.memory, 64 + ring + index as usize * 8) as u32;
            (index + distance) % count
        });
        (reached, free.collect())
    }

    /// No block is in the pool twice, or there and in the index; and what clients and the sweep do
    /// is never taken for damage.
    fn check(&mut self) {
        let memory = self.memory.borrow();
        let mut read = |at: u64, into: &mut [u8]| {
            into.copy_from_slice(&memory[at as usize..][..into.len()]);
        };
        assert_eq!(self.inspector.check_all(&mut read), None);
        drop(memory);
        let (reached, free) = self.blocks();
        let mut all: Vec<u32> = reached.into_iter().chain(free).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "a block is somebody's twice");
    }
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Come { session_slot: SessionSlot, seed: u64 },
    Die { who: usize },
    Begin { who: usize, key: u8, act: u8 },
    Go { who: usize, way: usize },
    Sweep { way: usize },
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        2 => ((0..3u16).prop_map(SessionSlot), any::<u64>())
            .prop_map(|(session_slot, seed)| Move::Come { session_slot, seed }),
        1 => (0..3usize).prop_map(|who| Move::Die { who }),
        14 => (0..3usize, 0..6u8, 0..6u8)
            .prop_map(|(who, key, act)| Move::Begin { who, key, act }),
        60 => (0..3usize, any::<usize>()).prop_map(|(who, way)| Move::Go { who, way }),
        30 => any::<usize>().prop_map(|way| Move::Sweep { way }),
    ];
    prop::collection::vec(one, 0..1_500)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if crate::histories::is_long() { 5_000 } else { 100 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn only_blocks_without_an_owner_come_back(
        moves in moves(),
        blocks in 4..20u32,
        seed: u64,
    ) {
        let mut sim = SweepSim::new(blocks, seed);
        for one in moves {
            let count = sim.players.len();
            match one {
                Move::Come { session_slot, seed } => sim.come(session_slot, seed),
                Move::Die { who } if who < count => drop(sim.players.remove(who)),
                Move::Begin { who, key, act } if who < count => sim.begin(who, key, act),
                Move::Go { who, way } if who < count => sim.go(who, way),
                Move::Sweep { way } => drop(sim.go_sweeping(way)),
                _ => {}
            }
            sim.check();
        }
        sim.players.clear();
        // Operations under way end. Claims of the dead are emptied by the second whole pass, and
        // their blocks are swept by the fourth.
        for _ in 0..5 {
            let pass = sim.pass();
            prop_assert!(pass != Pass::Held, "nobody lives");
        }
        sim.check();
        let (reached, free) = sim.blocks();
        prop_assert_eq!(reached.len() + free.len(), blocks as usize);
        prop_assert_eq!(sim.sweep.stock().free as usize, free.len());
        // All that is free can be used, and what was stored is still there.
        sim.come(SessionSlot(0), 1);
        for key in 0..6 {
            sim.begin(0, key, 0);
            while sim.players[0].client.outstanding() > 0 {
                sim.go(0, 0);
            }
        }
    }
}

/// A block that is noted, kept, used and removed again, all between two passes, is as it was but
/// for its version.
#[test]
fn what_was_used_between_two_passes_is_not_swept() {
    let mut sim = SweepSim::new(8, 5);
    sim.come(SessionSlot(0), 1);
    let act = |sim: &mut SweepSim, key, act| {
        sim.begin(0, key, act);
        // It ends, and the client has looked at the round since.
        for _ in 0..40 {
            sim.go(0, 0);
        }
    };
    act(&mut sim, 1, 2);
    act(&mut sim, 1, 1);
    assert!(matches!(sim.pass(), Pass::Over { swept: 0, noted: 1.. }));
    act(&mut sim, 2, 2);
    act(&mut sim, 2, 1);
    let (_, before) = sim.blocks();
    assert_eq!(sim.pass(), Pass::Over { swept: 0, noted: 8 - before.len() as u32 });
}

/// Puts by clients that die at once, one after another, many more than there are blocks.
#[test]
fn a_store_outlives_any_number_of_clients_that_die() {
    let mut sim = SweepSim::new(64, 1);
    for round in 0..3_000u64 {
        sim.come(SessionSlot::at(round as usize % 3), round);
        sim.begin(0, (round % 5) as u8, 2);
        for _ in 0..round % 40 {
            sim.go(0, 0);
        }
        sim.players.clear();
        sim.pass();
    }
    assert!(sim.swept > 2_000, "{}", sim.swept);
    assert!(sim.sweep.stock().free > 40);
}

/// A client that puts once takes one block out of the pool, and one that goes on takes more.
#[test]
fn a_client_takes_no_more_than_it_is_likely_to_use() {
    let (memory, layout) = fresh(BUCKETS, 64, 3);
    let taken = || word(&memory, 64 + 64 + 8);
    for (key, expected) in [1, 2, 3].into_iter().zip([1, 2, 3]) {
        let settings = ClientSettings {
            outstanding: 1,
            locations: 0,
            extent: 8,
            session_slot: Some(SessionSlot(0)),
            rest: Span(5),
        };
        let mut client =
            Client::new(Double::new(&Rc::clone(&memory), 2), layout, settings).unwrap();
        client.put(&[key], b"value", 0).unwrap();
        while client.outstanding() > 0 {
            client.poll(Time(0), &mut Vec::new()).unwrap();
        }
        assert_eq!(taken(), expected);
    }
}

/// Three clients update one key each without end, in a store that is swept as a data node does it:
/// while less than a quarter is free. A fourth client updates now and then.
#[test]
fn greedy_clients_never_keep_another_one_from_a_block() {
    let mut sim = SweepSim::new(64, 7);
    sim.enough = 16;
    for slot in 0..4 {
        sim.come_with_rest(SessionSlot(slot), u64::from(slot), Span(4_000));
    }
    for round in 0..6_000 {
        for greedy in 0..3 {
            if sim.players[greedy].client.outstanding() == 0 {
                sim.begin(greedy, greedy as u8, 2);
            }
            sim.go(greedy, round);
        }
        if round % 300 == 299 {
            sim.begin(3, 9, 2);
        }
        sim.go(3, round);
        sim.go_sweeping(round);
        sim.check();
    }
    let refused: Vec<u32> = sim.players.iter().map(|player| player.refused).collect();
    assert_eq!(refused[3], 0, "{refused:?}");
    assert!(refused[..3].iter().all(|refused| *refused > 0), "all are greedy: {refused:?}");
    assert!(sim.swept > 16, "{}", sim.swept);
}

/// The sweep looks for no blocks as long as there are enough.
#[test]
fn a_store_with_enough_blocks_is_not_swept() {
    let mut sim = SweepSim::new(8, 5);
    sim.enough = 8;
    assert_eq!(sim.pass(), Pass::Enough);
    sim.come(SessionSlot(0), 1);
    sim.begin(0, 1, 2);
    (0..40).for_each(|_| sim.go(0, 0));
    assert!(matches!(sim.pass(), Pass::Over { .. }));
}

/// Two clients share few blocks: what one frees and does not use, the other gets.
#[test]
fn what_one_client_frees_another_can_use() {
    let mut sim = SweepSim::new(8, 5);
    sim.come(SessionSlot(0), 1);
    sim.come(SessionSlot(1), 2);
    let finish = |sim: &mut SweepSim, who: usize| {
        while sim.players[who].client.outstanding() > 0 {
            sim.go(who, 0);
        }
    };
    for act in [2, 1] {
        for key in 0..6 {
            sim.begin(0, key, act);
            finish(&mut sim, 0);
        }
    }
    assert_eq!(sim.written.len(), 6);
    for _ in 0..4 {
        sim.pass();
        // The owner reads the round now and then, and would keep what it used.
        (0..20).for_each(|_| sim.go(0, 0));
    }
    assert_eq!(sim.sweep.stock().free, 8);
    for key in 10..16 {
        sim.begin(1, key, 2);
        finish(&mut sim, 1);
    }
    assert_eq!(sim.blocks().0.len(), 6);
}

/// A put that is under way for long holds back the sweep of what it may still write, however long
/// that takes.
#[test]
fn nothing_is_swept_from_under_a_put_that_waits() {
    let mut sim = SweepSim::new(8, 7);
    sim.come(SessionSlot(0), 1);
    sim.begin(0, 1, 2);
    // It has a block, and has posted what it will write there.
    while sim.players[0].client.remote().posts < 6 {
        sim.go(0, 0);
    }
    assert!(matches!(sim.pass(), Pass::Over { noted: 1.., .. }));
    for _ in 0..5 {
        assert_eq!(sim.pass(), Pass::Held);
    }
    while sim.players[0].client.outstanding() > 0 {
        sim.go(0, 0);
    }
    for _ in 0..20 {
        sim.go(0, 0);
    }
    assert!(matches!(sim.pass(), Pass::Over { swept: 0, .. }));
    sim.begin(0, 1, 0);
    while sim.players[0].client.outstanding() > 0 {
        sim.go(0, 0);
    }
}

/// A client reads the round while its read of the pool's words is under way, and the latter shows
/// the round before. By then the client has announced the later round, so its blocks of the earlier
/// one are swept.
#[test]
fn a_client_does_not_return_to_an_earlier_round() {
    // How a read is split depends on the seed.
    for seed in 1..200 {
        let mut sim = SweepSim::new(8, seed);
        sim.come(SessionSlot(0), seed);
        let reads = |sim: &SweepSim| sim.players[0].client.remote().reads();
        let finish_reads = |sim: &mut SweepSim| {
            while reads(sim) > 0 {
                sim.go(0, 0);
            }
        };
        let finish = |sim: &mut SweepSim| {
            while sim.players[0].client.outstanding() > 0 {
                sim.go(0, 0);
                sim.check();
            }
        };
        // All but a read happens, if there is one.
        let change = |sim: &mut SweepSim| match reads(sim) {
            reads if reads < sim.players[0].client.remote().ways() => sim.go(0, reads),
            _ => sim.poll(0),
        };
        sim.begin(0, 1, 2);
        finish(&mut sim);
        sim.begin(0, 1, 1);
        finish_reads(&mut sim);
        // The only block is in the index still, so this put asks the pool for one.
        sim.begin(0, 2, 2);
        sim.go(0, 0);
        while sim.players[0].client.outstanding() > 1 {
            change(&mut sim);
        }
        assert_eq!(sim.pass(), Pass::Over { swept: 0, noted: 1 });
        // The client announces the next round.
        while word(&sim.memory, 64 + 128) < 2 {
            change(&mut sim);
        }
        finish_reads(&mut sim);
        assert_eq!(sim.pass(), Pass::Over { swept: 1, noted: 0 });
        finish(&mut sim);
        // The value is where no other client writes.
        sim.come(SessionSlot(1), seed);
        for key in 3..10 {
            sim.begin(1, key, 2);
            while sim.players[1].client.outstanding() > 0 {
                sim.go(1, 0);
                sim.check();
            }
        }
        sim.begin(0, 2, 0);
        finish(&mut sim);
    }
}
