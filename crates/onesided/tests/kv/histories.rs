//! Clients at the same keys, in any order of their connections' operations, with torn reads and
//! writes and sudden deaths, and while the node goes on with a copy of the memory without asking
//! any client. Every history must be one that a map could have given to clients one after another
//! (linearizability, by search), and must leave one slot for each key that has a value.
#![expect(clippy::disallowed_types, reason = "the set of seen states is not iterated")]

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet, VecDeque};

use tidegate_model::{Span, Time};
use tidegate_onesided::kv::{Answer, Client, ClientSettings, Layout};

use crate::double::{Double, Memory};
use crate::{INDEX, LEFT, fresh};

/// Chooses the next step, out of so many.
trait Chooser {
    fn choose(&mut self, ways: usize) -> usize;
}

/// At random.
struct Random(u64);

impl Chooser for Random {
    fn choose(&mut self, ways: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % ways
    }
}

/// Each order once: the choices of the last run, to be changed at the last place that has another.
#[derive(Default)]
struct Exhaustive {
    made: Vec<(usize, usize)>,
    at: usize,
}

impl Exhaustive {
    fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((chosen, ways)) = self.made.pop() {
            if chosen + 1 < ways {
                self.made.push((chosen + 1, ways));
                return true;
            }
        }
        false
    }
}

impl Chooser for Exhaustive {
    fn choose(&mut self, ways: usize) -> usize {
        if self.at == self.made.len() {
            self.made.push((0, ways));
        }
        let (chosen, then) = self.made[self.at];
        assert_eq!(then, ways, "a run repeats itself");
        self.at += 1;
        chosen
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Get,
    Put(u32),
    Delete,
}

/// The answer to an operation: the value, or whether the key had one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Value(Option<u32>),
    Stored,
    Deleted(bool),
    Nothing,
}

#[derive(Clone, Debug)]
struct Entry {
    key: u8,
    act: Act,
    begun: usize,
    ended: usize,
    reply: Option<Reply>,
}

/// The key of a number. Some are long.
fn key(number: u8) -> Vec<u8> {
    let mut key = vec![b'k'; 1 + usize::from(number % 3) * 40];
    key.push(number);
    key
}

/// A value that repeats its number in every four bytes.
fn value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat([0, 1, 40, 300][number as usize % 4] + 1)
}

fn number(value: &[u8]) -> u32 {
    let number = u32::from_le_bytes(value[..4].try_into().unwrap());
    assert_eq!(value, self::value(number), "a value that nobody stored");
    number
}

struct Player {
    client: Client<Double>,
    plan: VecDeque<(u8, Act)>,
    depth: usize,
    /// It was notified that its memory was left behind.
    is_lost: bool,
}

/// The node goes on with a copy of the memory: it says so in the old, then copies a piece at a time
/// from the first byte to the last, the index two words at a time.
struct Move {
    memory: [Memory; 2],
    layout: Layout,
    is_announced: bool,
    copied: usize,
}

impl Move {
    fn new(old: &Memory, layout: Layout) -> Self {
        let new = Memory::new(RefCell::new(vec![0; old.borrow().len()]));
        Self { memory: [old.clone(), new], layout, is_announced: false, copied: LEFT + 8 }
    }

    fn is_over(&self) -> bool {
        self.copied == self.memory[0].borrow().len()
    }

    fn go_on(&mut self) {
        let [old, new] = &self.memory;
        if !self.is_announced {
            self.is_announced = true;
            old.borrow_mut()[LEFT] = 1;
            return;
        }
        let index = self.layout.area().at as usize + INDEX;
        let blocks = index + self.layout.slots() as usize * 8;
        let chunk = match self.copied {
            at if at < index => index - at,
            at if at < blocks => 16,
            _ => 16 << 12,
        };
        let end = (self.copied + chunk).min(old.borrow().len());
        let part = self.copied..end;
        new.borrow_mut()[part.clone()].copy_from_slice(&old.borrow()[part]);
        self.copied = end;
    }
}

struct Game {
    players: Vec<Player>,
    history: Vec<Entry>,
    clock: usize,
    /// The node's move meanwhile, if it makes one.
    moves: Option<Move>,
}

impl Game {
    fn new(players: Vec<Player>) -> Self {
        Self { players, history: Vec::new(), clock: 0, moves: None }
    }

    /// Begins a player's next operation, if it may have one more.
    fn begin(&mut self, at: usize) {
        let player = &mut self.players[at];
        let (key, act) = player.plan.pop_front().unwrap();
        let (name, token) = (self::key(key), self.history.len() as u64);
        match act {
            Act::Get => player.client.get(&name, token),
            Act::Put(number) => player.client.put(&name, &value(number), token),
            Act::Delete => player.client.delete(&name, token),
        }
        .unwrap();
        self.history.push(Entry { key, act, begun: self.clock, ended: usize::MAX, reply: None });
        self.clock += 1;
        self.poll(at);
    }

    /// One player begins an operation, and so many steps of it happen, or all.
    fn alone(&mut self, at: usize, act: (u8, Act), steps: usize) {
        self.players[at].plan = [act].into();
        self.begin(at);
        for _ in 0..steps {
            if self.players[at].client.outstanding() == 0 {
                break;
            }
            self.players[at].client.remote_mut().go(0);
            self.poll(at);
        }
    }

    fn poll(&mut self, at: usize) {
        let client = &mut self.players[at].client;
        let mut outcomes = Vec::new();
        self.players[at].is_lost = client.poll(Time(self.clock as u64), &mut outcomes).is_err();
        let client = &mut self.players[at].client;
        for outcome in outcomes {
            let entry = &mut self.history[outcome.token as usize];
            entry.ended = self.clock;
            entry.reply = Some(match outcome.answer {
                Answer::Found(found) => {
                    let reply = number(client.value(&found));
                    client.release(found);
                    Reply::Value(Some(reply))
                }
                Answer::Missing if entry.act == Act::Get => Reply::Value(None),
                Answer::Missing => Reply::Deleted(false),
                Answer::Deleted => Reply::Deleted(true),
                Answer::Stored => Reply::Stored,
                Answer::Contended | Answer::Crowded => Reply::Nothing,
                other => panic!("{other:?}"),
            });
        }
        self.clock += 1;
    }

    /// All that can happen next: which player, and what it does.
    fn ways(&self) -> Vec<(usize, Option<usize>)> {
        let mut ways = Vec::new();
        for (at, player) in self.players.iter().enumerate() {
            if player.is_lost {
                continue;
            }
            if player.client.outstanding() < player.depth && !player.plan.is_empty() {
                ways.push((at, None));
            }
            ways.extend((0..player.client.remote().ways()).map(|way| (at, Some(way))));
        }
        if self.moves.as_ref().is_some_and(|moves| !moves.is_over()) {
            ways.push((self.players.len(), None));
        }
        ways
    }

    /// Players that know that their memory was left come again, once there is other.
    fn come_again(&mut self) {
        let Some(moves) = self.moves.as_ref().filter(|moves| moves.is_over()) else { return };
        for lost in self.players.iter_mut().filter(|player| player.is_lost) {
            let plan = core::mem::take(&mut lost.plan);
            *lost = player(&moves.memory[1], moves.layout, lost.depth, Some(self.clock as u64));
            lost.plan = plan;
        }
    }

    fn play(&mut self, chooser: &mut impl Chooser, mut deaths: usize) {
        loop {
            self.come_again();
            let ways = self.ways();
            if ways.is_empty() {
                break;
            }
            let (at, way) = ways[chooser.choose(ways.len())];
            if at == self.players.len() {
                self.moves.as_mut().unwrap().go_on();
                continue;
            }
            if deaths > 0 && self.players.len() > 1 && chooser.choose(60) == 0 {
                self.players.remove(at);
                deaths -= 1;
                continue;
            }
            match way {
                None => self.begin(at),
                Some(way) => {
                    self.players[at].client.remote_mut().go(way);
                    self.poll(at);
                }
            }
        }
        assert!(self.players.iter().all(|player| player.client.outstanding() == 0), "stuck");
    }
}

/// Whether a map, queried one after another, could have answered that.
fn is_linearizable(entries: &[Entry]) -> bool {
    fn search(
        entries: &[Entry],
        left: u64,
        state: Option<u32>,
        seen: &mut HashSet<(u64, Option<u32>)>,
    ) -> bool {
        let among = |at: &usize| left >> at & 1 == 1;
        let reply = |at: &usize| entries[*at].reply.is_some();
        if !(0..entries.len()).filter(among).any(|at| reply(&at)) {
            return true;
        }
        if !seen.insert((left, state)) {
            return false;
        }
        let first_end = (0..entries.len()).filter(among).map(|at| entries[at].ended).min();
        (0..entries.len()).filter(among).any(|at| {
            let entry = &entries[at];
            if Some(entry.begun) > first_end {
                return false;
            }
            let (after, answer) = match entry.act {
                Act::Get => (state, Reply::Value(state)),
                Act::Put(number) => (Some(number), Reply::Stored),
                Act::Delete => (None, Reply::Deleted(state.is_some())),
            };
            entry.reply.is_none_or(|reply| reply == answer)
                && search(entries, left & !(1 << at), after, seen)
        })
    }
    assert!(entries.len() < 64);
    search(entries, (1 << entries.len()) - 1, None, &mut HashSet::new())
}

fn check(history: &[Entry]) {
    let mut keys: BTreeMap<u8, Vec<Entry>> = BTreeMap::new();
    for entry in history.iter().filter(|entry| entry.reply != Some(Reply::Nothing)) {
        keys.entry(entry.key).or_default().push(entry.clone());
    }
    for entries in keys.values() {
        assert!(is_linearizable(entries), "no map tells that: {entries:#?}");
    }
}

/// Words of the index that are not empty: how many are valid, and how many only claims.
fn slots(memory: &Memory, layout: &Layout) -> (usize, usize) {
    let memory = memory.borrow();
    let index = layout.area().at as usize + INDEX;
    let words = memory[index..index + layout.slots() as usize * 8].chunks_exact(8);
    let words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let (claims, valid): (Vec<_>, Vec<_>) =
        words.filter(|word| *word != 0).partition(|word| word >> 31 & 3 != 0);
    (valid.len(), claims.len())
}

fn player(memory: &Memory, layout: Layout, depth: usize, shuffle: Option<u64>) -> Player {
    let buffers = 2 * depth as u32;
    let mut remote = match shuffle {
        Some(seed) => Double::adverse(memory, buffers, seed),
        None => Double::adverse_whole(memory, buffers, !is_long()),
    };
    remote.left = Some(LEFT);
    let (outstanding, rest) = (depth as u32, Span(0));
    let settings =
        ClientSettings { outstanding, locations: 8, extent: 4, session_slot: None, rest };
    let client = Client::new(remote, layout, settings).unwrap();
    Player { client, plan: VecDeque::new(), depth, is_lost: false }
}

/// After all, one client asks for every key: its answers belong to the history, and the index has a
/// slot for each value that it found and, if no client died, no claim.
fn audit(game: &mut Game, memory: &Memory, layout: Layout, keys: u8, is_calm: bool) {
    let mut auditor = player(memory, layout, 1, Some(9));
    auditor.plan = (0..keys).map(|key| (key, Act::Get)).collect();
    game.players = vec![auditor];
    game.play(&mut Random(1), 0);
    check(&game.history);
    let gets = &game.history[game.history.len() - usize::from(keys)..];
    let found = gets.iter().filter(|entry| entry.reply != Some(Reply::Value(None))).count();
    let (valid, claims) = slots(memory, &layout);
    assert_eq!(valid, found, "a slot for each key");
    assert!(!is_calm || claims == 0, "{claims} claims are left");
}

/// The parameters of a random game.
#[derive(Clone, Copy)]
struct Kind {
    /// Of eight operations, so many are gets, so many puts, and the rest deletes.
    gets: usize,
    puts: usize,
    keys: usize,
    deaths: usize,
    /// Whether the node goes on with other memory at some time.
    moves: bool,
}

fn random_game(seed: u64, kind: Kind) {
    let mut random = Random(seed);
    let clients = 2 + random.choose(3);
    let keys = 1 + random.choose(kind.keys) as u8;
    let (memory, layout) = fresh(2 + random.choose(2) as u32, 64, seed);
    let mut next = 0;
    let mut plan = |random: &mut Random| {
        next += 1;
        let act = match random.choose(8) {
            act if act < kind.gets => Act::Get,
            act if act < kind.gets + kind.puts => Act::Put(next),
            _ => Act::Delete,
        };
        (random.choose(usize::from(keys)) as u8, act)
    };
    let players = (0..clients).map(|at| {
        let mut player = player(&memory, layout, 1 + at % 2, Some(seed << 8 | at as u64));
        player.plan = (0..6 + random.choose(5)).map(|_| plan(&mut random)).collect();
        player
    });
    let mut game = Game::new(players.collect());
    game.moves = kind.moves.then(|| Move::new(&memory, layout));
    game.play(&mut random, kind.deaths);
    let memory = game.moves.take().map_or(memory, |moves| moves.memory[1].clone());
    audit(&mut game, &memory, layout, keys, kind.deaths == 0 && !kind.moves);
}

fn random_games(kind: Kind) {
    let games = if is_long() { 200_000 } else { 1_000 };
    for seed in 0..games {
        let run = std::panic::catch_unwind(|| random_game(seed, kind));
        assert!(run.is_ok(), "seed {seed}");
    }
}

/// `TIDEGATE_LONG=1` plays 200 times as many games.
pub(crate) fn is_long() -> bool {
    std::env::var_os("TIDEGATE_LONG").is_some()
}

#[test]
fn any_interleaving_of_torn_operations_is_that_of_a_map() {
    random_games(Kind { gets: 3, puts: 4, keys: 3, deaths: 0, moves: false });
}

#[test]
fn keys_that_come_and_go_are_those_of_a_map() {
    random_games(Kind { gets: 1, puts: 4, keys: 6, deaths: 0, moves: false });
}

#[test]
fn what_was_acknowledged_outlives_clients_that_die_at_any_point() {
    random_games(Kind { gets: 2, puts: 4, keys: 3, deaths: 2, moves: false });
}

#[test]
fn no_acknowledged_write_is_lost_when_the_node_moves_at_any_point() {
    random_games(Kind { gets: 3, puts: 4, keys: 3, deaths: 0, moves: true });
}

/// Every order of the steps of two clients that insert the same new key, in whole operations; both
/// buckets are read at once, except in a long run. Another key is deleted after the first has read
/// the index, so that each sees a different slot empty and both have a claim.
#[test]
fn two_clients_that_insert_the_same_key_make_one_slot_in_every_order() {
    let runs: usize = (1..=4).map(two_insert).sum();
    assert!(runs > 1_000, "only {runs} orders");
}

fn two_insert(neighbour: u8) -> usize {
    let mut choices = Exhaustive::default();
    let mut runs = 0;
    loop {
        let (memory, layout) = fresh(2, 16, 0);
        let mut game = Game::new([(); 2].map(|()| player(&memory, layout, 1, None)).into());
        // The second leaves a block for the next, so none has to come from the pool.
        game.alone(0, (neighbour, Act::Put(7)), usize::MAX);
        game.alone(0, (neighbour, Act::Put(8)), usize::MAX);
        // A block is written, and both buckets are read.
        game.alone(0, (0, Act::Put(1)), if is_long() { 3 } else { 2 });
        game.alone(1, (neighbour, Act::Delete), usize::MAX);
        game.alone(1, (0, Act::Put(2)), 0);
        game.play(&mut choices, 0);
        let is_put = |entry: &&Entry| entry.key == 0;
        let stored = |entry: &Entry| entry.reply == Some(Reply::Stored);
        assert!(game.history.iter().filter(is_put).all(stored), "{:?}", game.history);
        audit(&mut game, &memory, layout, 5, true);
        runs += 1;
        if !choices.advance() {
            return runs;
        }
    }
}
