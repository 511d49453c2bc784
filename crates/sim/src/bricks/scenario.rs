//! DSFQ simulation, its scenario: a TOML file with strict keys.

use serde::Deserialize;
use tidegate_algo::scheduling::shards::SHARDS_MAX;
use tidegate_model::{Bytes, Class, ClassWeights, Discipline, Iops, Span};

use crate::device::Disks;
use crate::scenario::{ScenarioError, must, one_shard, optional, read, text, texts};

/// One simulation, but for its seed's consequences.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DsfqScenario {
    /// Title of the scenario, for display.
    pub name: String,
    /// Seed of every random number of the run.
    pub seed: u64,
    /// The order in which bricks serve.
    #[serde(deserialize_with = "text")]
    pub discipline: Discipline,
    /// The weights by which high, medium and low requests take turns; none if classes have none.
    #[serde(default)]
    pub class_weights: Option<ClassWeights>,
    /// How many coordinators there are, at least one.
    #[serde(default = "one")]
    pub coordinators: u16,
    /// Whether coordinators announce to bricks what no request has carried within an epoch.
    #[serde(default)]
    pub exchange: bool,
    /// The time before anything is measured.
    #[serde(deserialize_with = "text")]
    pub skip: Span,
    /// The time that is measured.
    #[serde(deserialize_with = "text")]
    pub length: Span,
    /// How finely. It divides `length`.
    #[serde(deserialize_with = "text")]
    pub sample: Span,
    /// The storage bricks.
    pub bricks: Bricks,
    /// The client streams. The unfairness is measured between the first two, at the first brick.
    pub stream: Vec<ClientStream>,
}

/// The storage bricks; all are alike.
///
/// The defaults are those of the paper's bricks, of which it says what they do: about 6 MB/s with
/// files of up to 16 KB, about 200 MB/s with files of up to 1 MB, and, in figure 8, that a stream
/// with two thirds of a brick has them from about 13 threads on. A depth of 18 makes the last;
/// `base` and `per_mib` are what then gives the other two with four disks
/// (`bricks_are_as_fast_as_the_papers` among the tests).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bricks {
    /// How many there are.
    pub count: u16,
    /// How many requests a brick keeps at its disks.
    #[serde(default = "Bricks::depth")]
    pub depth: u32,
    /// Over how many shards of its scheduler a brick spreads the streams: 1 to 16.
    #[serde(default = "one_shard")]
    pub shards: usize,
    /// How many disks each has.
    #[serde(default = "Bricks::disks")]
    pub disks: u16,
    /// Mean time of a disk for any request, however small.
    #[serde(default = "Bricks::base", deserialize_with = "text")]
    pub base: Span,
    /// Mean time that a disk takes in addition for each MiB.
    #[serde(default = "Bricks::per_mib", deserialize_with = "text")]
    pub per_mib: Span,
    /// How far a time may lie from its mean.
    #[serde(default = "Bricks::spread_percent")]
    pub spread_percent: u32,
}

const fn one() -> u16 {
    1
}

const fn weight() -> u32 {
    1
}

const fn files() -> [Bytes; 2] {
    [Bytes(1 << 10), Bytes(16 << 10)]
}

impl Bricks {
    const fn depth() -> u32 {
        18
    }

    const fn disks() -> u16 {
        4
    }

    const fn base() -> Span {
        Span(5_250_000)
    }

    const fn per_mib() -> Span {
        Span(8_700_000)
    }

    const fn spread_percent() -> u32 {
        50
    }

    /// The disks of one.
    pub(super) const fn array(&self) -> Disks {
        let Self { disks: count, base, per_mib, spread_percent, .. } = *self;
        Disks { count, base, per_mib, spread_percent }
    }
}

/// A stream of client requests.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientStream {
    /// Its name.
    pub name: String,
    /// Its share among equals.
    #[serde(default = "weight")]
    pub weight: u32,
    /// The class of its requests.
    #[serde(default, deserialize_with = "text")]
    pub class: Class,
    /// At least so much of each brick it has whatever it is served elsewhere, in millionths; if
    /// it is not said, a tenth of its share by weight.
    #[serde(default)]
    pub minimum_ppm: Option<u32>,
    /// The stream's reservation per second, on all bricks together.
    #[serde(default, deserialize_with = "optional")]
    pub reservation: Option<Iops>,
    /// The stream's limit per second.
    #[serde(default, deserialize_with = "optional")]
    pub limit: Option<Iops>,
    /// Its threads.
    pub threads: Vec<Threads>,
}

/// Threads that are alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threads {
    /// Where their data lies. On several bricks it lies in stripes, and a request has an equal
    /// part on each, unless `burst` says otherwise.
    pub on: Vec<u16>,
    /// How many there are, at most.
    pub count: u32,
    /// How many requests they make to one brick together before they turn to the next.
    #[serde(default)]
    pub burst: Option<u32>,
    /// The coordinators that they take in turn; all if none is named.
    #[serde(default)]
    pub through: Vec<u16>,
    /// The least and the largest request; each in between is equally likely.
    #[serde(default = "files", deserialize_with = "texts")]
    pub size: [Bytes; 2],
    /// They ask together for some time, and then not, in turn.
    #[serde(default)]
    pub pulse: Option<Pulse>,
    /// How many ask follows a sine.
    #[serde(default)]
    pub wave: Option<Wave>,
}

impl Threads {
    /// So many threads with their data on one brick.
    pub fn on(brick: u16, count: u32) -> Self {
        Self {
            on: vec![brick],
            count,
            burst: None,
            through: Vec::new(),
            size: files(),
            pulse: None,
            wave: None,
        }
    }
}

/// On and off, in turn. It begins off.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pulse {
    /// For how long no thread asks.
    #[serde(deserialize_with = "text")]
    pub off: Span,
    /// For how long all threads ask.
    #[serde(deserialize_with = "text")]
    pub on: Span,
}

/// A sine, from half way upwards.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wave {
    /// How many threads ask at its lowest; at its highest it is all.
    pub least: u32,
    /// How long one takes.
    #[serde(deserialize_with = "text")]
    pub period: Span,
    /// How much of it is over at the beginning.
    #[serde(default, deserialize_with = "text")]
    pub shift: Span,
}

impl DsfqScenario {
    /// Reads a scenario from TOML.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line where there is one.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        read(text, Self::check)
    }

    /// Whether the scenario can be run. Code that builds or changes one calls this, too.
    ///
    /// # Errors
    /// The first thing that contradicts another, and what to write instead.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let Self { bricks, .. } = self;
        let divides = self.sample.0 > 0 && self.length.0.is_multiple_of(self.sample.0);
        must(divides, "sample: choose one that divides the length")?;
        must(self.coordinators > 0, "coordinators: at least 1")?;
        must(bricks.count > 0 && bricks.disks > 0, "bricks: at least 1, with at least 1 disk")?;
        must(bricks.depth > 0, "bricks.depth: at least 1")?;
        must((1..=SHARDS_MAX).contains(&bricks.shards), "bricks.shards: 1 to 16")?;
        must(bricks.spread_percent <= 100, "bricks.spread_percent: at most 100")?;
        must(self.stream.len() >= 2, "stream: at least 2")?;
        for stream in &self.stream {
            must(stream.weight > 0, "stream.weight: at least 1")?;
            for threads in &stream.threads {
                let known = threads.on.iter().all(|brick| *brick < bricks.count);
                must(known && !threads.on.is_empty(), "threads.on: from 0 to bricks.count - 1")?;
                let known = threads.through.iter().all(|number| *number < self.coordinators);
                must(known, "threads.through: from 0 to coordinators - 1")?;
                let [least, most] = threads.size;
                let parts = threads.on.len() as u64;
                must(least.0 >= parts && least <= most, "threads.size: [least, most]")?;
                must(most.0 <= 1 << 30, "threads.size: at most 1 GiB")?;
                must(threads.burst != Some(0), "threads.burst: at least 1")?;
                let two = threads.pulse.is_some() && threads.wave.is_some();
                must(!two, "threads: either pulse or wave")?;
                let pulse = threads.pulse.as_ref();
                let passes = pulse.is_none_or(|pulse| pulse.on.0 > 0 && pulse.off.0 > 0);
                must(passes, "threads.pulse: both longer than 0")?;
                let wave = threads.wave.as_ref();
                let rises = wave.is_none_or(|w| w.least <= threads.count && w.period.0 > 0);
                must(rises, "threads.wave: least up to count, period longer than 0")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        name = "x"
        seed = 1
        discipline = "sfq"
        coordinators = 2
        skip = "1s"
        length = "4s"
        sample = "1s"
        [bricks]
        count = 2
        [[stream]]
        name = "f"
        threads = [{ on = [0], count = 3, through = [1] }]
        [[stream]]
        name = "g"
        weight = 2
        threads = [{ on = [0, 1], count = 3, wave = { least = 1, period = "9s" } }]
    "#;

    #[track_caller]
    fn refused(from: &str, to: &str, expected: &str) {
        assert!(GOOD.contains(from));
        let error = DsfqScenario::parse(&GOOD.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn what_is_refused() {
        let good = DsfqScenario::parse(GOOD).unwrap();
        assert_eq!(good.stream[0].threads[0].size, files());
        refused("seed = 1", "sede = 1", "sede");
        refused("\"sfq\"", "\"mclock\"", "known are fifo");
        refused("length = \"4s\"", "length = \"4\"", "has no unit");
        refused("sample = \"1s\"", "sample = \"3s\"", "divides the length");
        refused("coordinators = 2", "coordinators = 0", "at least 1");
        refused("coordinators = 2", "coordinators = 1", "coordinators - 1");
        refused("count = 2", "count = 1", "bricks.count - 1");
        refused("count = 2", "count = 2\ndepth = 0", "bricks.depth");
        refused("weight = 2", "weight = 0", "stream.weight");
        refused("on = [0], count", "on = [], count", "threads.on");
        refused("count = 3, through", "count = 3, burst = 0, through", "threads.burst");
        refused("count = 3, through", "size = [\"2KiB\", \"1KiB\"], count = 3, through", "size");
        refused("least = 1", "least = 4", "threads.wave");
        refused(", wave", ", pulse = { off = \"1s\", on = \"1s\" }, wave", "either pulse or wave");
    }
}
