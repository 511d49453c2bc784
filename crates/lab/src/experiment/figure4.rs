//! PAIO §9.1 and figure 4: what a stage costs the process that calls it.
//!
//! Threads call a stage of their own process in a closed loop, each in its own channel with one
//! no-op gate, as in the paper. Two things differ. The paper's no-op copies the content of a
//! request into its result; ours leaves content alone, so requests are measured three times:
//! decided on their metadata, handed over with their content, and with content that a gate
//! transforms (encryption, which touches every byte once). And a number is the median of many short
//! stretches that nothing disturbed ([`super::pace`]) instead of the mean of ten long runs.

use std::hint::black_box;
use std::thread;

use serde_json::{Map, Value, json};
use tidegate_model::gate::{Burst, Throughput};
use tidegate_model::{ChannelSpec, Class, Conditions, GateSpec, Operation, Rate, Span, TenantId};
use tidegate_proto::message::Rule;
use tidegate_stage::transform::Keys;
use tidegate_stage::{Request, Settings, Stage, StageAgent};

use super::pace::{Pace, thread_name};
use super::paper::{ClaimSource, LIVE};
use super::plot::{Panel, Series, draw};
use super::verdict::{Check, Claim, at_least, at_most};
use tidegate_console::amounts;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::output::{self, Paint};
use tidegate_console::table::Table;

/// The paper's sizes of requests, in bytes.
const SIZES: [u64; 4] = [0, 1 << 10, 4 << 10, 128 << 10];

/// The paper's largest number of channels.
const CHANNELS_MAX: usize = 128;

/// Rounds of each number, and the most rounds until there are enough that nothing disturbed.
const ROUNDS: usize = 6;
const ROUNDS_MAX: usize = 24;

/// The paper's rate on one channel, in operations per second, on its slower machine.
const PAPER_SINGLE: f64 = 3.05e6;

/// The least times of the paper's steps, in nanoseconds: making a context object, choosing a
/// channel and then a gate, and the no-op without content.
const PAPER_TAG: f64 = 17.0;
const PAPER_CHOICE: f64 = 2.0 * 85.0;
const PAPER_GATE: f64 = 20.0;

/// A request of 128 KiB may cost this much more than one of 0 B before they are not the same.
const SAME_PERCENT: f64 = 115.0;

/// With as many channels as processors, decisions scale as in the paper from this share of perfect
/// scaling on: 31 times on 80 processors, 30 on 72.
const SCALES_PERCENT: f64 = 38.0;

/// How a request is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    /// Without its content.
    Metadata,
    /// With its content, which no gate touches.
    Content,
    /// With its content, which a gate encrypts.
    Transformed,
}

impl RequestKind {
    const ALL: [Self; 3] = [Self::Metadata, Self::Content, Self::Transformed];

    fn title(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::Content => "content",
            Self::Transformed => "encrypted",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Figure4Cell {
    way: RequestKind,
    bytes: u64,
    channels: usize,
    /// Of all threads together.
    per_second: f64,
}

/// Times of a request's steps, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Profile {
    /// Making the request.
    tag: f64,
    /// Finding its channel and gates.
    choice: f64,
    /// Passing a no-op, and counting.
    noop: f64,
    /// Passing a token bucket that does not block, and counting.
    bucket: f64,
    /// All of it, with a no-op.
    whole: f64,
}

/// Measures and judges; returns the claims, the tables and the picture. Tables are printed if they
/// are to be.
///
/// # Errors
/// If no stage can be made, or standard output cannot be written.
pub(crate) fn run(is_printed: bool) -> Result<(Vec<Claim>, String, Vec<String>), Failure> {
    let clock = Clock::start();
    let counts = counts();
    let stages = Stages::new(*counts.last().unwrap_or(&1))?;
    let cells = stages.cells(&counts)?;
    let profile = stages.profile()?;
    if is_printed {
        output::print(&formatted(&cells, &counts, profile, Paint::stdout()))?;
    }
    let seconds = clock.now().0 as f64 / Span::SECOND.0 as f64;
    let claims = claims(&cells, &counts, profile, seconds);
    let text = formatted(&cells, &counts, profile, Paint::none());
    Ok((claims, text, vec![picture(&cells)]))
}

/// A panel for each kind of request, with a line for each size.
fn picture(cells: &[Figure4Cell]) -> String {
    let panels = RequestKind::ALL.map(|way| {
        let line = |bytes: u64| {
            let own = cells.iter().filter(|cell| (cell.way, cell.bytes) == (way, bytes));
            let points = own.map(|cell| (cell.channels as f64, cell.per_second / 1e6));
            Series::line(amounts::bytes(bytes), points.collect())
        };
        Panel::new(way.title(), ["channels", "million requests per second"], SIZES.map(line))
    });
    draw("What a stage decides in a second, by channels and size of a request", &panels)
}

/// One channel, two, four and so on, up to twice as many as there are processors.
fn counts() -> Vec<usize> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let doubled = std::iter::successors(Some(1), |count| Some(count * 2));
    doubled.take_while(|count| *count <= (2 * processors).min(CHANNELS_MAX)).collect()
}

/// A stage for each kind of gate.
struct Stages {
    noop: StageAgent,
    bucket: StageAgent,
    encrypting: StageAgent,
}

impl Stages {
    fn new(channels: usize) -> Result<Self, Failure> {
        let bucket = GateSpec::TokenBucket {
            // Just below where a bucket counts as open: it is asked, and never empty.
            rate: Throughput::Bandwidth(Rate((1 << 40) - 1)),
            burst: Burst::DEFAULT,
        };
        let encrypt = GateSpec::Encrypt { key: KEY.into() };
        Ok(Self {
            noop: agent(channels, &GateSpec::NoOp)?,
            bucket: agent(channels, &bucket)?,
            encrypting: agent(channels, &encrypt)?,
        })
    }

    /// All cells of the figure, measured in rounds.
    fn cells(&self, counts: &[usize]) -> Result<Vec<Figure4Cell>, Failure> {
        let sizes = RequestKind::ALL.into_iter().flat_map(|way| SIZES.map(|bytes| (way, bytes)));
        let mut cells: Vec<(Figure4Cell, Pace)> = sizes
            .flat_map(|(way, bytes)| counts.iter().map(move |channels| (way, bytes, *channels)))
            .map(|(way, bytes, channels)| Figure4Cell { way, bytes, channels, per_second: 0.0 })
            .map(|cell| (cell, Pace::default()))
            .collect();
        for round in 0..ROUNDS_MAX {
            for (cell, pace) in &mut cells {
                // Threads that share processors are never undisturbed.
                let can_be_sure = cell.channels <= processors(counts);
                if round < ROUNDS || (can_be_sure && !pace.is_sure()) {
                    self.run(*cell, pace)?;
                }
            }
        }
        let formatted = cells.into_iter().map(|(cell, pace)| {
            let per_second = pace.per_second(cell.channels);
            Figure4Cell { per_second, ..cell }
        });
        Ok(formatted.collect())
    }

    fn run(&self, cell: Figure4Cell, pace: &mut Pace) -> Result<(), Failure> {
        let Figure4Cell { way, bytes, channels, .. } = cell;
        let content = vec![0xA5; usize::try_from(bytes).unwrap_or(0)];
        let request = Request::new(Operation::Read, bytes);
        let keys = || Keys::default().with(KEY, &[7; 32]);
        match way {
            RequestKind::Metadata => {
                let stage = self.noop.stage();
                pace.run(channels, &|| call(stage, &request))
            }
            RequestKind::Content | RequestKind::Transformed => {
                let is_plain = way == RequestKind::Content;
                let agent = if is_plain { &self.noop } else { &self.encrypting };
                let layered = agent.layered(keys());
                pace.run(channels, &|| {
                    let content = black_box(&content[..]);
                    if let Ok((admission, result)) =
                        layered.write(black_box(&request), content, b"")
                    {
                        black_box(result);
                        admission.complete(bytes);
                    }
                })
            }
        }
    }

    fn profile(&self) -> Result<Profile, Failure> {
        let request = Request::new(Operation::Read, 0);
        let (noop, bucket) = (self.noop.stage(), self.bucket.stage());
        let paced = Request::new(Operation::Read, 4_096);
        let mut paces: [Pace; 5] = Default::default();
        for _ in 0..ROUNDS {
            let [nothing, tag, choice, whole, with_bucket] = &mut paces;
            nothing.run(1, &|| {
                black_box(0u64);
            })?;
            tag.run(1, &|| {
                black_box(Request::new(Operation::Read, black_box(4_096)));
            })?;
            choice.run(1, &|| {
                black_box(noop.classify(black_box(&request)));
            })?;
            whole.run(1, &|| call(noop, &request))?;
            with_bucket.run(1, &|| call(bucket, &paced))?;
        }
        let [nothing, tag, choice, whole, with_bucket] = paces.map(|pace| 1e9 / pace.per_second(1));
        Ok(Profile {
            tag: (tag - nothing).max(0.0),
            choice: choice - nothing,
            noop: (whole - choice).max(0.0),
            bucket: (with_bucket - choice).max(0.0),
            whole: whole - nothing,
        })
    }
}

/// The name of the key that content is encrypted with.
const KEY: &str = "figure-4";

#[inline]
fn call(stage: &Stage, request: &Request<'_>) {
    stage.enforce(black_box(request)).complete(request.bytes);
}

/// A stage in this process with a channel for each of so many threads, with one such gate each.
fn agent(channels: usize, spec: &GateSpec) -> Result<StageAgent, Failure> {
    // No controller listens there, so the rules stay ours.
    let socket = "/dev/null/controller.sock".into();
    let fail = |message: &str| Failure::new(Code::Failure, message);
    let agent = StageAgent::start(Settings { socket, ..Settings::default() })
        .map_err(|error| fail("cannot make a stage in this process").cause(error))?;
    agent
        .apply(rules(channels, spec))
        .map_err(|error| fail("the stage refuses its rules").cause(error.reason))?;
    Ok(agent)
}

fn rules(channels: usize, spec: &GateSpec) -> Vec<Rule> {
    let mut rules = Vec::new();
    for number in 0..channels {
        let (gate, channel) = (format!("gate-{number}"), format!("channel-{number}"));
        rules.push(Rule::gate(&gate, spec.clone()));
        rules.push(Rule::channel(ChannelSpec {
            name: channel.clone(),
            tenant: TenantId(1),
            class: Class::default(),
            gates: vec![gate],
        }));
        let conditions =
            Conditions { workflow: vec![thread_name(number)], ..Conditions::default() };
        rules.push(Rule::insert(u32::MAX, conditions, channel));
    }
    rules
}

/// The table of the figure, and the profile.
fn formatted(cells: &[Figure4Cell], counts: &[usize], profile: Profile, paint: Paint) -> String {
    let mut table = Table::new()
        .left("REQUESTS")
        .right("SIZE")
        .right("CHANNELS")
        .right("M OPS/S")
        .right("NS/OP")
        .right("X 1 CHANNEL")
        .right("GIB/S");
    for cell in cells {
        let single = find(cells, cell.way, cell.bytes, 1);
        let is_first = cell.channels == counts[0];
        let first = |text: String| if is_first { text } else { String::new() };
        let gib = cell.per_second * cell.bytes as f64 / (1u64 << 30) as f64;
        table.row([
            first(cell.way.title().into()).into(),
            first(amounts::bytes(cell.bytes)).into(),
            cell.channels.to_string().into(),
            format!("{:.2}", cell.per_second / 1e6).into(),
            format!("{:.1}", cell.channels as f64 * 1e9 / cell.per_second).into(),
            format!("{:.2}", cell.per_second / single).into(),
            if cell.bytes > 0 { format!("{gib:.1}") } else { "-".into() }.into(),
        ]);
    }
    let Profile { tag, choice, noop, bucket, whole } = profile;
    let mut steps = Table::new().left("STEP").right("NS").right("PAPER, NS");
    let mut step = |name: &str, ns: f64, paper: &str| {
        steps.row([name.into(), format!("{ns:.1}").into(), paper.into()]);
    };
    step("make the request", tag, "17 to 19");
    step("choose channel and gates", choice, "170 to 178");
    step("pass a no-op and count", noop, "20");
    step("pass a token bucket and count", bucket, "-");
    step("all, with a no-op", whole, "292 to 327");
    let width = usize::MAX;
    format!("{}\n{}\n", table.render(paint, width), steps.render(paint, width))
}

fn find(cells: &[Figure4Cell], way: RequestKind, bytes: u64, channels: usize) -> f64 {
    let same =
        |cell: &&Figure4Cell| (cell.way, cell.bytes, cell.channels) == (way, bytes, channels);
    cells.iter().find(same).map_or(f64::NAN, |cell| cell.per_second)
}

/// The paper's claims, with the measurements.
fn claims(cells: &[Figure4Cell], counts: &[usize], profile: Profile, seconds: f64) -> Vec<Claim> {
    let source = ClaimSource { paper: "paio", figure: "4", world: LIVE, seed: None, seconds };
    let single = find(cells, RequestKind::Metadata, 0, 1);
    let one_processor = (processors(counts) == 1).then_some("this machine has one processor");
    vec![
        source.claim(
            "one channel decides as many requests a second as the paper's slower machine",
            json!({ "operations_per_second_1_channel": single.round() }),
            [at_least("", "million", PAPER_SINGLE / 1e6, single / 1e6)],
        ),
        source
            .claim(
                "decisions scale with the number of channels, as long as there are processors",
                throughputs(cells, counts),
                [scales(cells, counts)],
            )
            .skipped(one_processor),
        source
            .claim(
                "a request that is decided on its metadata costs the same at any size; only \
                 transformations touch content",
                sizes(cells),
                same_cost(cells),
            )
            .because("of a request without content no bytes are counted"),
        source.claim(
            "making a request, choosing its channel and gate, and a no-op take little time",
            json!({
                "request_ns": profile.tag,
                "choice_ns": profile.choice,
                "noop_ns": profile.noop,
                "bucket_ns": profile.bucket,
                "whole_ns": profile.whole,
            }),
            [
                at_most("request", "ns", PAPER_TAG, profile.tag),
                at_most("choice", "ns", PAPER_CHOICE, profile.choice),
                at_most("no-op", "ns", PAPER_GATE, profile.noop),
            ],
        ),
    ]
}

/// Throughput with each number of channels, for requests without content.
fn throughputs(cells: &[Figure4Cell], counts: &[usize]) -> Value {
    let named = |channels: &usize| {
        let rate = find(cells, RequestKind::Metadata, 0, *channels).round();
        (format!("operations_per_second_{channels}_channels"), json!(rate))
    };
    let mut measured: Map<String, Value> = counts.iter().map(named).collect();
    measured.insert("processors".into(), processors(counts).into());
    measured.into()
}

/// The largest number of channels that do not have to share processors.
fn processors(counts: &[usize]) -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    counts.iter().copied().filter(|count| *count <= processors).max().unwrap_or(1)
}

fn scales(cells: &[Figure4Cell], counts: &[usize]) -> Check {
    let channels = processors(counts);
    let times =
        find(cells, RequestKind::Metadata, 0, channels) / find(cells, RequestKind::Metadata, 0, 1);
    let percent = times * 100.0 / channels as f64;
    at_least(format!("{channels} channels beside as many times one"), "%", SCALES_PERCENT, percent)
}

/// The cost of a request by way and size, on one channel, in nanoseconds.
fn sizes(cells: &[Figure4Cell]) -> Value {
    let on_one = cells.iter().filter(|cell| cell.channels == 1);
    let named = |cell: &Figure4Cell| {
        let name = format!("{}_{}_bytes_ns", cell.way.title(), cell.bytes);
        (name, json!(1e9 / cell.per_second))
    };
    on_one.map(named).collect::<Map<String, Value>>().into()
}

fn same_cost(cells: &[Figure4Cell]) -> Vec<Check> {
    let largest = SIZES[SIZES.len() - 1];
    let percent = |way, bytes| 100.0 * find(cells, way, bytes, 1) / find(cells, way, largest, 1);
    let check = |way: RequestKind| {
        [(0, "0 B"), (SIZES[1], "1 KiB")].map(|(bytes, name)| {
            let what = format!("128 KiB beside {name}, {}", way.title());
            at_most(what, "%", SAME_PERCENT, percent(way, bytes))
        })
    };
    [RequestKind::Metadata, RequestKind::Content].map(check).concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::{Verdict, judge};

    fn cells(at: impl Fn(RequestKind, u64, usize) -> f64) -> Vec<Figure4Cell> {
        let all = RequestKind::ALL.into_iter().flat_map(|way| SIZES.map(|bytes| (way, bytes)));
        all.flat_map(|(way, bytes)| [1, 2, 4].map(|channels| (way, bytes, channels)))
            .map(|(way, bytes, channels)| Figure4Cell {
                way,
                bytes,
                channels,
                per_second: at(way, bytes, channels),
            })
            .collect()
    }

    #[test]
    fn a_cost_that_grows_with_content_is_noticed() {
        let constant = cells(|way, bytes, _| match way {
            RequestKind::Transformed => 1e6 / (1 + bytes) as f64,
            RequestKind::Metadata | RequestKind::Content => 4e7,
        });
        let verdict = |cells: &[Figure4Cell]| judge(&same_cost(cells)).verdict;
        assert_eq!(verdict(&constant), Verdict::Reproduced);
        let growing = cells(|_, bytes, _| if bytes > 4096 { 3e7 } else { 4e7 });
        assert_eq!(verdict(&growing), Verdict::Differs);
        let counting = cells(|_, bytes, _| if bytes > 0 { 3e7 } else { 4e7 });
        assert_eq!(verdict(&counting), Verdict::Differs);
        let twice = cells(|_, bytes, _| if bytes > 4096 { 1e7 } else { 4e7 });
        assert_eq!(verdict(&twice), Verdict::NotReproduced);
    }

    #[test]
    fn a_table_has_a_row_for_each_cell() {
        let cells = cells(|_, _, channels| 1e7 * channels as f64);
        let formatted = formatted(&cells, &[1, 2, 4], Profile::default(), Paint::none());
        assert!(
            formatted
                .contains("metadata   128 KiB         1    10.00  100.0         1.00  1220.7\n"),
            "{formatted}"
        );
        assert_eq!(formatted.lines().filter(|line| line.contains("4.00")).count(), 12);
        let picture = picture(&cells);
        let shown = ["metadata", "content", "encrypted", "128 KiB"];
        assert!(shown.iter().all(|text| picture.contains(text)), "{picture}");
        assert!(!picture.contains("NaN"));
    }

    #[test]
    fn a_stage_with_such_rules_sorts_threads_into_their_channels() {
        let agent = agent(2, &GateSpec::NoOp).unwrap();
        let stage = agent.stage();
        let mut pace = Pace::default();
        pace.run(2, &|| call(stage, &Request::new(Operation::Read, 0))).unwrap();
        assert!(pace.per_second(2) > 0.0);
        let counted = |channel: usize| stage.layout().channels[channel].passed.operations();
        assert!(counted(0) > 0 && counted(1) > 0);
    }
}
