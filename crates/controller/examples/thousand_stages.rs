//! How long a cycle takes with many stages: collect, solve, push.
//!
//! Starts a daemon and as many stages as its argument says (1,000), each a socket with a tenant of
//! a hundred behind it, all played by one thread. Every stage reports a different flow in each
//! round, so rates change all the time. Prints the daemon's own measure, from the first question
//! of a cycle to the last new rate, and how far apart its rounds were.
//!
//! ```text
//! cargo run --release -p tidegate-controller --example thousand_stages -- [STAGES] [CYCLES]
//! ```

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tidegate_controller::{Clock, Config, Daemon, Draft, PolicyStore, PutError, StoreError};
use tidegate_model::Time;
use tidegate_proto::codec::{Decoder, encode};
use tidegate_proto::controller::status::PolicyText;
use tidegate_proto::message::{
    ChannelReport, FromStage, GateReport, Hello, Report, StageInfo, ToStage, VERSION,
};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

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
}

fn policy() -> String {
    let mut text = String::from("budget = [\"10GiB/s\", \"1M iops\"]\nredistribute = \"100ms\"\n");
    for tenant in 0..TENANTS {
        text += &format!("[[tenant]]\nname = \"t{tenant}\"\nreservation = \"50MiB/s\"\n");
    }
    text
}

/// One stage.
struct Fake {
    stream: UnixStream,
    decoder: Decoder<ToStage>,
    tenant: usize,
    report: Report,
    rates: u64,
}

impl Fake {
    async fn connect(socket: PathBuf, number: usize) -> io::Result<Self> {
        let tenant = number % TENANTS;
        let name = format!("t{tenant}");
        let stream = UnixStream::connect(socket).await?;
        let gate = |unit: &str| GateReport { name: format!("{name}:{unit}"), ..Default::default() };
        let report = Report {
            channels: vec![ChannelReport { name: name.clone(), ..ChannelReport::default() }],
            gates: vec![gate("bandwidth"), gate("operations")],
            processes: 1,
            ..Report::default()
        };
        let fake = Self { stream, decoder: Decoder::new(), tenant, report, rates: 0 };
        let info = StageInfo { tenant: name, ..StageInfo::default() };
        fake.say(&[Hello::Stage { version: VERSION, info }]).await?;
        Ok(fake)
    }

    /// Answers what it hears until it was asked `cycles` times. Returns how many rates it got.
    async fn live(mut self, clock: Clock, cycles: u64) -> io::Result<u64> {
        while self.report.round < cycles {
            self.stream.readable().await?;
            let mut piece = [0; 4096];
            match self.stream.try_read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.decoder.extend(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            let mut answers = Vec::new();
            while let Some(message) = self.decoder.next_message().map_err(io::Error::other)? {
                match message {
                    ToStage::Collect { round, .. } => {
                        self.flow(round, clock.now());
                        answers.push(FromStage::Report(self.report.clone()));
                    }
                    ToStage::Apply { revision, rules } => {
                        self.rates += rules.len() as u64;
                        answers.push(FromStage::Applied { revision, error: None });
                    }
                    ToStage::Refused { reason, .. } => return Err(io::Error::other(reason)),
                    _ => {}
                }
            }
            self.say(&answers).await?;
        }
        Ok(self.rates)
    }

    async fn say<M: Serialize>(&self, messages: &[M]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for message in messages {
            encode(message, &mut bytes).map_err(io::Error::other)?;
        }
        let mut sent = 0;
        while sent < bytes.len() {
            self.stream.writable().await?;
            match self.stream.try_write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Some tenants wait, the others use between 1 and 9 MiB in a round.
    fn flow(&mut self, round: u64, at: Time) {
        self.report.round = round;
        self.report.at_ns = at.0;
        let channel = &mut self.report.channels[0];
        channel.bytes += MIB * (1 + (round + self.tenant as u64) % 9);
        channel.operations += 100;
        if self.tenant.is_multiple_of(2) {
            self.report.gates[0].waited_ns += 50_000_000;
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse::<usize>());
    let (stages, cycles) = (number(1_000)?, number(100)?);
    let state = std::env::temp_dir().join(format!("tidegate-stages-{}", std::process::id()));
    let config = Config {
        socket: state.join("controller.sock"),
        state: state.clone(),
        http: None::<SocketAddr>,
        log: "warn".into(),
        hello_max: Duration::from_secs(60),
    };
    let socket = config.socket.clone();
    let (ready_tx, ready) = std::sync::mpsc::channel();
    let (wanted, wanted_rx) = tokio::sync::oneshot::channel::<()>();
    let daemon = std::thread::spawn(move || -> Result<Vec<Duration>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(async {
            let store = Fixed(PolicyText { revision: 1, text: policy(), ..PolicyText::default() });
            let daemon = Daemon::start_with_store(config, Box::new(store)).await;
            let daemon = daemon.map_err(|error| error.to_string())?;
            let _ = ready_tx.send(());
            let _ = wanted_rx.await;
            let cycles = daemon.cycles().await;
            daemon.stop().await;
            Ok(cycles)
        })
    });
    ready.recv()?;
    let rates = play(&socket, stages, cycles)?;
    let _ = wanted.send(());
    let measured = daemon.join().map_err(|_| "the daemon panicked")??;
    std::fs::remove_dir_all(&state)?;
    // The first cycles belong to the joining.
    report(stages, rates, measured.get(5..).unwrap_or(&measured));
    Ok(())
}

/// Plays all stages until each has seen enough rounds. Returns how many rates came.
fn play(socket: &Path, stages: usize, cycles: usize) -> io::Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let clock = Clock::start();
        let mut fakes = JoinSet::new();
        for number in 0..stages {
            let fake = Fake::connect(socket.to_owned(), number).await?;
            fakes.spawn(fake.live(clock, cycles as u64));
        }
        let mut rates = 0;
        while let Some(fake) = fakes.join_next().await {
            rates += fake.map_err(io::Error::other)??;
        }
        Ok(rates)
    })
}

fn report(stages: usize, rates: u64, cycles: &[Duration]) {
    let mut sorted = cycles.to_vec();
    sorted.sort_unstable();
    if sorted.is_empty() {
        println!("no cycle ended");
        return;
    }
    let at = |percent: usize| sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)];
    println!("stages {stages}, cycles {}, rates pushed {rates}", sorted.len());
    println!("cycle: median {:?}, p99 {:?}, max {:?}", at(50), at(99), at(100));
}
