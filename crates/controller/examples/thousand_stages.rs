//! How long a control cycle takes with many stages: collect, solve, push.
//!
//! Starts a daemon and as many stages as its argument says (1,000), each a socket with a tenant of
//! a hundred behind it. The daemon has one thread, and all stages together have one, on the same
//! machine. Every round a tenth of the tenants wants something else, so rates change all the time.
//!
//! The measured time is the daemon's own, which it serves as `tidegate_controller_cycle_seconds`. A
//! cycle begins when the daemon asks the first stage, and ends when it has written the last new
//! rate to a socket. It includes the questions, the stages' answers, reading them, deciding and
//! writing. Rounds before the last stage has joined do not count.
//!
//! The stages' one thread encodes and decodes every message and shares the cores with the daemon,
//! so a cycle includes its work. A thousand processes would add a wake-up each, which is not
//! included.
//!
//! ```text
//! cargo run --release -p tidegate-controller --example thousand_stages -- [STAGES] [CYCLES]
//! ```
//!
//! Ends with 1 if the 99th percentile is over the promise.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::Serialize;
use tidegate_controller::{Config, Daemon, Draft, Logging, PolicyStore, PutError, StoreError};
use tidegate_fabric::clock::Clock;
use tidegate_fabric::poller::Poller;
use tidegate_model::{Discipline, Time};
use tidegate_proto::codec::{Decoder, encode};
use tidegate_proto::controller::status::PolicyText;
use tidegate_proto::message::{
    ChannelReport, FromStage, GateReport, Hello, StageInfo, StageReport, ToStage, VERSION,
};
use tokio::sync::oneshot;

/// The promised cycle time for a thousand stages on two cores, at the 99th percentile.
const PROMISE: Duration = Duration::from_millis(20);
/// Rounds that every stage has answered when measuring begins: those before are full of joining.
const WARM_ROUNDS: u64 = 5;
/// Rounds after which a tenant wants something else: the policy's period, so that it is noticed.
const PHASE_ROUNDS: u64 = 10;
/// Far longer than the daemon ever keeps a stage waiting.
const PATIENCE: Duration = Duration::from_secs(20);

const TENANTS: usize = 100;
const MIB: u64 = 1 << 20;

/// A store that has one policy and takes no other.
struct Fixed(PolicyText);

impl PolicyStore for Fixed {
    fn latest(&self) -> Result<Option<PolicyText>, StoreError> {
        Ok(Some(self.0.clone()))
    }
    fn put(&mut self, expected: u64, _: Draft) -> Result<u64, PutError> {
        Err(PutError::Conflict { expected, found: self.0.revision })
    }
    fn history(&self, _: usize) -> Result<Vec<PolicyText>, StoreError> {
        Ok(vec![self.0.clone()])
    }
    fn schedulers(&self) -> Result<BTreeMap<String, Discipline>, StoreError> {
        Ok(BTreeMap::new())
    }
    fn choose(&mut self, _: &[String], _: Option<Discipline>) -> Result<(), PutError> {
        Ok(())
    }
}

fn policy() -> String {
    let mut text = String::from("budget = [\"10GiB/s\", \"1M iops\"]\nredistribute = \"100ms\"\n");
    for tenant in 0..TENANTS {
        text += &format!("[[tenant]]\nname = \"t{tenant}\"\nreservation = \"50MiB/s\"\n");
    }
    text
}

struct Fake {
    stream: UnixStream,
    decoder: Decoder<ToStage>,
    tenant: usize,
    report: StageReport,
}

/// Counts of all stages together.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Bytes on the sockets, in both directions.
    bytes: u64,
    rates: u64,
}

impl Fake {
    fn connect(socket: &Path, number: usize) -> io::Result<Self> {
        let tenant = number % TENANTS;
        let name = format!("t{tenant}");
        // It blocks, but is read from only when there is something, and the daemon always reads.
        let stream = UnixStream::connect(socket)?;
        let gate = |unit: &str| GateReport { name: format!("{name}:{unit}"), ..Default::default() };
        let report = StageReport {
            channels: vec![ChannelReport { name: name.clone(), ..ChannelReport::default() }],
            gates: vec![gate("bandwidth"), gate("operations")],
            processes: 1,
            ..StageReport::default()
        };
        let mut fake = Self { stream, decoder: Decoder::new(), tenant, report };
        let info = StageInfo { tenant: name, ..StageInfo::default() };
        fake.send(&[Hello::Stage { version: VERSION, info }])?;
        Ok(fake)
    }

    /// Answers what has arrived.
    fn answer(&mut self, clock: Clock, seen: &mut Seen) -> io::Result<()> {
        let mut chunk = [0; 4096];
        let count = self.stream.read(&mut chunk)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.decoder.extend(&chunk[..count]);
        seen.bytes += count as u64;
        let mut answers = Vec::new();
        while let Some(message) = self.decoder.next_message().map_err(io::Error::other)? {
            match message {
                ToStage::Collect { round, .. } => {
                    self.flow(round, clock.now());
                    answers.push(FromStage::Report(self.report.clone()));
                }
                ToStage::Apply { revision, rules } => {
                    seen.rates += rules.len() as u64;
                    answers.push(FromStage::Applied { revision, error: None });
                }
                ToStage::Refused { reason, .. } => return Err(io::Error::other(reason)),
                _ => {}
            }
        }
        seen.bytes += self.send(&answers)?;
        Ok(())
    }

    fn send<M: Serialize>(&mut self, messages: &[M]) -> io::Result<u64> {
        let mut bytes = Vec::new();
        for message in messages {
            encode(message, &mut bytes).map_err(io::Error::other)?;
        }
        self.stream.write_all(&bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Half of the tenants wait for more than they have, the others use 1 to 9 tenths of a MiB in a
    /// round. For how long they do is what the controller looks back on, and every round a tenth
    /// of them changes over.
    fn flow(&mut self, round: u64, at: Time) {
        self.report.round = round;
        self.report.at_ns = at.0;
        let phase = (round + self.tenant as u64) / PHASE_ROUNDS;
        let channel = &mut self.report.channels[0];
        channel.bytes += MIB / 10 * (1 + (phase * 5 + self.tenant as u64) % 9);
        channel.operations += 100;
        if (phase + self.tenant as u64).is_multiple_of(2) {
            self.report.gates[0].waited_ns += 50_000_000;
        }
    }
}

/// All stages, played by one thread.
struct Play {
    poller: Poller,
    fakes: Vec<Fake>,
    clock: Clock,
    seen: Seen,
}

impl Play {
    fn new(socket: &Path, stages: usize) -> io::Result<Self> {
        let (poller, clock) = (Poller::new()?, Clock::start());
        let mut fakes = Vec::with_capacity(stages);
        for number in 0..stages {
            let fake = Fake::connect(socket, number)?;
            poller.add(&fake.stream, number as u64)?;
            fakes.push(fake);
        }
        Ok(Self { poller, fakes, clock, seen: Seen::default() })
    }

    /// Goes on until every stage has answered `round`, and returns what they saw on the way.
    fn until(&mut self, round: u64) -> io::Result<Seen> {
        self.seen = Seen::default();
        let mut readable = Vec::new();
        let mut behind = self.fakes.iter().filter(|fake| fake.report.round < round).count();
        while behind > 0 {
            self.poller.poll(PATIENCE, &mut readable)?;
            if readable.is_empty() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            for speaker in readable.drain(..) {
                let fake = &mut self.fakes[speaker as usize];
                let was_behind = fake.report.round < round;
                fake.answer(self.clock, &mut self.seen)?;
                behind -= usize::from(was_behind && fake.report.round >= round);
            }
        }
        Ok(self.seen)
    }
}

/// The daemon's account of itself: its cycles so far, and the processor time of its thread.
struct DaemonUsage {
    cycles: Vec<Duration>,
    processor: Duration,
}

async fn account(daemon: &Daemon) -> io::Result<DaemonUsage> {
    let cycles = daemon.cycles().await;
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    let used = usage.user_time() + usage.system_time();
    let processor = Duration::from_micros(used.num_microseconds().unsigned_abs());
    Ok(DaemonUsage { cycles, processor })
}

/// Runs a daemon on this thread, which gives an account whenever it is asked for one.
fn serve(
    config: Config,
    ready: std::sync::mpsc::Sender<()>,
    mut account_requests: tokio::sync::mpsc::Receiver<oneshot::Sender<DaemonUsage>>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = Fixed(PolicyText { revision: 1, text: policy(), ..PolicyText::default() });
        let daemon = Daemon::start_with_store(config, Box::new(store)).await?;
        ready.send(())?;
        while let Some(reply) = account_requests.recv().await {
            let _ = reply.send(account(&daemon).await?);
        }
        daemon.stop().await;
        Ok(())
    })
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse::<usize>());
    let (stages, cycles) = (number(1_000)?, number(300)?);
    let state = std::env::temp_dir().join(format!("tidegate-stages-{}", std::process::id()));
    let config = Config {
        socket: state.join("controller.sock"),
        state: state.clone(),
        forget_policy: false,
        http: None::<SocketAddr>,
        http_hosts: Vec::new(),
        log: Logging { filter: "warn".into(), ..Logging::default() },
        cluster: None,
        cluster_file: std::path::PathBuf::new(),
        remote: None,
        hello_max: Duration::from_secs(60),
    };
    let socket = config.socket.clone();
    let (ready_tx, ready) = std::sync::mpsc::channel();
    let (account_requests_tx, account_requests) = tokio::sync::mpsc::channel(1);
    let daemon = std::thread::spawn(move || serve(config, ready_tx, account_requests));
    let account = || -> Result<DaemonUsage, Box<dyn std::error::Error>> {
        let (reply, answer) = oneshot::channel();
        account_requests_tx.blocking_send(reply)?;
        Ok(answer.blocking_recv()?)
    };
    ready.recv()?;
    let mut play = Play::new(&socket, stages)?;
    play.until(WARM_ROUNDS)?;
    let before = account()?;
    // Asking for the account costs a round in which no stage answers; it is not counted either.
    let from = play.fakes.iter().map(|fake| fake.report.round).max().unwrap_or(0) + 1;
    play.until(from)?;
    let seen = play.until(from + cycles as u64)?;
    let after = account()?;
    drop(account_requests_tx);
    daemon.join().map_err(|_| "the daemon panicked")?.map_err(|error| error.to_string())?;
    std::fs::remove_dir_all(&state)?;
    Ok(report(stages, seen, &before, &after))
}

fn report(stages: usize, seen: Seen, before: &DaemonUsage, after: &DaemonUsage) -> ExitCode {
    let mut sorted = after.cycles.get(before.cycles.len() + 1..).unwrap_or(&[]).to_vec();
    sorted.sort_unstable();
    let count = sorted.len();
    if count == 0 {
        println!("no cycle ended");
        return ExitCode::FAILURE;
    }
    // The least that at least so many per cent do not exceed.
    let at = |percent: usize| sorted[(count * percent).div_ceil(100).max(1) - 1];
    let each = |sum: u64| sum / count as u64;
    println!(
        "counted: from the first question to the last new rate written, the answers of {stages} \
         stages (one thread, same machine) included; joining not"
    );
    println!("cycles {count}, new rates {} per cycle", each(seen.rates));
    println!("cycle: median {:.1?}, p99 {:.1?}, max {:.1?}", at(50), at(99), at(100));
    println!("sockets: {} bytes per cycle, both ways", each(seen.bytes));
    let processor = (after.processor - before.processor) / count as u32;
    println!("controller's own processor time: {processor:.1?} per cycle");
    if at(99) > PROMISE {
        println!("not kept: the promise is {PROMISE:?} at p99");
        return ExitCode::FAILURE;
    }
    println!("kept: the promise is {PROMISE:?} at p99");
    ExitCode::SUCCESS
}
