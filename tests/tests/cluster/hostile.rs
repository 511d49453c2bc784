//! Hostile clients of five kinds at NBD and memcached: silent, slow, greedy, garbage, and not
//! reading. The gateway's memory stays below its bound, and an honest neighbour is served.
//!
//! With `TIDEGATE_LONG=1` 200 of them for a minute, and the neighbour's response times are held to
//! three times what they are alone; otherwise 40 of them, for as long as the neighbour takes for
//! its requests, and no time is looked at. Both once with hostile tenants that have limits, and
//! once with such that have none, beside a neighbour that has a reservation.
//!
//! Hostile clients run at the lowest priority. As ordinary threads 200 of them were in line for two
//! processors before the gateway, the nodes and the neighbour, whose p99 was 13 times what it is
//! with them at the lowest priority: the test measured the machine. On machines of their own they
//! would take no processor from other threads. The work of the gateway and the nodes for them runs
//! at the priority of all else.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::setpriority_process;
use tidegate_tests::cluster::{Cluster, GATEWAY, volume};
use tidegate_tests::nbd::{Client, connect};
use tidegate_tests::process::Running;
use tidegate_tests::{PATIENCE, eventually};
use tidegate_wire::nbd::client::request;
use tidegate_wire::nbd::constants::command;

use super::keys::server;

/// The most memory that the gateway may have had, in KiB: 512 MiB.
const MEMORY_KIB: u64 = 512 << 10;

/// The policies of the hostile tenants, and of the honest one, whose key is in their pool.
const POLICIES: [(&str, [&str; 2]); 2] = [
    ("with a limit", ["limit = \"200 iops\"", "weight = 1000"]),
    ("without a limit", ["", "reservation = \"10k iops\"\nweight = 1000"]),
];

fn policy([hostile, honest]: [&str; 2]) -> String {
    format!(
        "[[tenant]]\nname = \"hostile\"\n{hostile}\n[[tenant]]\nname = \"web\"\n{hostile}\n\
         [[tenant]]\nname = \"honest\"\n{honest}\n\
         [[match]]\ntenant = \"honest\"\nkey = [\"small\"]\n"
    )
}

/// How often a slow client says a byte.
const DRIP: Duration = Duration::from_millis(20);

const KINDS: usize = 5;

/// The largest `nice` value that Linux knows.
const LOWEST_PRIORITY: i32 = 19;

/// The state that hostile clients share.
struct Attack {
    nbd: PathBuf,
    memcached: PathBuf,
    is_over: AtomicBool,
}

impl Attack {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Says something once in a while, until it is cut off or all is over.
    fn drip(&self, stream: &mut UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(DRIP))?;
        while !self.is_over() {
            stream.write_all(b"x")?;
            match stream.read(&mut [0; 512]) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until it is cut off, without reading.
    fn linger(&self, stream: &UnixStream) {
        stream.set_write_timeout(Some(DRIP)).unwrap();
        while !self.is_over() {
            // The socket is full, or it is gone.
            match (&mut &*stream).write(b"get k\r\n") {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
                _ => thread::park_timeout(DRIP),
            }
        }
    }

    /// One connection of one kind, at NBD.
    fn at_nbd(&self, kind: usize) -> io::Result<()> {
        match kind {
            0 => {
                let mut stream = connect(&self.nbd)?;
                stream.read_to_end(&mut Vec::new()).map(drop)
            }
            1 => {
                let mut stream = Client::enter(&self.nbd, "theirs")?.into_stream();
                stream.write_all(&request(command::WRITE, 0, 7, 0, 16 << 20))?;
                self.drip(&mut stream)
            }
            2 => {
                let mut client = Client::enter(&self.nbd, "theirs")?;
                while !self.is_over() {
                    client.submit_reads(0, 1 << 20, 16)?;
                    for _ in 0..16 {
                        drop(client.receive()?);
                    }
                }
                Ok(())
            }
            3 => connect(&self.nbd)?.write_all(&[0xa5; 4096]),
            _ => {
                let mut client = Client::enter(&self.nbd, "theirs")?;
                client.submit_reads(0, 1 << 20, 1000)?;
                self.linger(&client.into_stream());
                Ok(())
            }
        }
    }

    /// The same, at memcached.
    fn at_memcached(&self, kind: usize) -> io::Result<()> {
        let mut stream = connect(&self.memcached)?;
        match kind {
            0 => stream.read_to_end(&mut Vec::new()).map(drop),
            1 => {
                stream.write_all(b"set slow 0 0 1000000\r\n")?;
                self.drip(&mut stream)
            }
            2 => {
                let mut bytes = vec![0; 1 << 20];
                while !self.is_over() {
                    stream.write_all(&b"get big\r\n".repeat(16))?;
                    let mut finished = 0;
                    while finished < 16 {
                        let count = stream.read(&mut bytes)?;
                        finished +=
                            bytes[..count].windows(5).filter(|five| five == b"END\r\n").count();
                        finished += usize::from(count == 0) * 16;
                    }
                }
                Ok(())
            }
            3 => stream.write_all(&[b'\xa5'; 4096]),
            _ => {
                stream.write_all(&b"get big\r\n".repeat(1000))?;
                self.linger(&stream);
                Ok(())
            }
        }
    }
}

/// Gives this thread the lowest priority, for good: it runs when no other thread wants to.
fn yield_to_others() {
    // With the process named as none, Linux means the calling thread alone.
    setpriority_process(None, LOWEST_PRIORITY).unwrap();
}

/// The most memory that a process has had, in KiB.
fn memory_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The 99th percentile of how long a small read takes at NBD and a get at memcached.
fn honest(attack: &Attack, requests: usize, span: Duration) -> Duration {
    let (start, mut times) = (Instant::now(), Vec::new());
    let mut client = Client::enter(&attack.nbd, "ours").unwrap();
    let mut keys = connect(&attack.memcached).unwrap();
    while times.len() < requests || start.elapsed() < span {
        let since = Instant::now();
        assert_eq!(client.read(0, 4096).unwrap().len(), 4096);
        times.push(since.elapsed());
        let since = Instant::now();
        keys.write_all(b"get small\r\n").unwrap();
        keys.read_exact(&mut [0; b"VALUE small 0 1\r\n1\r\nEND\r\n".len()]).unwrap();
        times.push(since.elapsed());
    }
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

fn stored(socket: &Path, key: &str, length: usize) -> bool {
    let mut stream = connect(socket).unwrap();
    let line = format!("set {key} 0 0 {length}\r\n");
    let request = [line.as_bytes(), &vec![b'1'; length], b"\r\n"].concat();
    stream.write_all(&request).unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).is_ok() && answer == *b"STORED\r\n"
}

/// A cluster with a volume for the hostile and one for the honest, and a pool for both.
fn cluster(policy: &str) -> (Cluster, Running) {
    let mut cluster = Cluster::new("", policy);
    let (server, memcached) = server(&cluster.bed().path("server.memcached"));
    let theirs = volume("theirs", "hostile", "64MiB", &["a"]);
    let ours = volume("ours", "honest", "1MiB", &["a"]);
    cluster.write(&format!(
        "[[node]]\nname = \"a\"\naddress = \"unix:a.sock\"\nmemory = true\n\
         [[node]]\nname = \"kv\"\naddress = \"unix:kv.sock\"\nmemcached = \"unix:{}\"\n\
         {theirs}{ours}[[pool]]\nname = \"cache\"\ntenant = \"web\"\nnodes = \"kv\"\n\
         [[gateway]]\nname = {GATEWAY:?}\nnbd = \"unix:{GATEWAY}.sock\"\n\
         memcached = \"unix:k.sock\"\n",
        memcached.display()
    ));
    cluster.up_apart(&["a", "kv"], &["ours"]);
    (cluster, server)
}

/// So many hostile clients at once, until the attack is over.
fn hostile(attack: &Arc<Attack>, clients: usize) -> Vec<JoinHandle<()>> {
    let client = |number: usize| {
        let attack = attack.clone();
        thread::spawn(move || {
            yield_to_others();
            while !attack.is_over() {
                // A client that is disconnected connects again.
                let _ = match number / KINDS % 2 {
                    0 => attack.at_nbd(number % KINDS),
                    _ => attack.at_memcached(number % KINDS),
                };
                thread::park_timeout(DRIP);
            }
        })
    };
    (0..clients).map(client).collect()
}

fn attack((what, lines): (&str, [&str; 2])) {
    let is_long = std::env::var_os("TIDEGATE_LONG").is_some();
    let (clients, requests, span) = match is_long {
        true => (200, 1000, Duration::from_secs(60)),
        false => (40, 200, Duration::ZERO),
    };
    let (mut cluster, _server) = cluster(&policy(lines));
    let attack = Arc::new(Attack {
        nbd: cluster.endpoint(),
        memcached: cluster.path("k.sock"),
        is_over: AtomicBool::new(false),
    });
    for (key, length) in [("big", 1_000_000), ("small", 1)] {
        eventually("the memcached node", || stored(&attack.memcached, key, length));
    }
    let alone = honest(&attack, requests, span / 6);
    let hostile = hostile(&attack, clients);
    let beside = honest(&attack, requests, span);
    let memory = memory_kib(cluster.component(GATEWAY).pid());
    attack.is_over.store(true, Ordering::Relaxed);
    println!(
        "{what}: p99 alone {alone:?}, beside {clients} hostile clients {beside:?}; {memory} KiB"
    );
    // Clients that still wait are cut off with the gateway.
    cluster.kill(GATEWAY);
    hostile.into_iter().for_each(|client| client.join().unwrap());
    assert!(memory < MEMORY_KIB, "{what}: {memory} KiB");
    assert!(beside < PATIENCE, "{what}");
    if is_long {
        let ratio = "p99 beside hostile clients and alone";
        assert!(beside <= 3 * alone, "{what}: {ratio}: {beside:?}, {alone:?}");
    }
}

#[test]
fn hostile_clients_take_neither_memory_nor_service_from_others() {
    // One after the other: each would be the other one's hostile neighbour.
    POLICIES.into_iter().for_each(attack);
}
