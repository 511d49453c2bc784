//! Parameters of a drive, as TOML: every number with its unit, default and range.
//!
//! The defaults are those that MQSim ships (Tavakkol et al., FAST 2018; its `ssdconfig.xml`): eight
//! channels of four chips, pages of 8 KiB, 75 us to read one and 750 us to program it. A file names
//! only what differs:
//!
//! ```
//! use tidegate_netsim::storage::Parameters;
//! let drive = Parameters::parse(r#"
//!     chip_queues = { weighted = { high = 4, medium = 2, low = 1 } }
//!     [geometry]
//!     blocks = 256
//!     [host]
//!     arbitration = { weighted = {} }
//!     fetch_limit = 64
//! "#)?;
//! assert_eq!(drive.geometry.planes(), 128);
//! assert_eq!(drive.capacity().get(), 128 * 60_948 * 8_192); // 93 % of 64 GiB
//! let error = Parameters::parse("[times]\nread = \"75\"").unwrap_err().to_string();
//! assert!(error.contains("has no unit"), "{error}");
//! # Ok::<(), tidegate_sim::scenario::ScenarioError>(())
//! ```

use serde::Deserialize;
use tidegate_algo::scheduling::wrr::{Arbitration, WEIGHT_MAX, Weights};
use tidegate_model::{Bytes, Portion, Rate, Span};

use tidegate_sim::scenario::{ScenarioError, must, read, text};
use tidegate_sim::time::Picoseconds;

/// The smallest unit that is read or written.
pub const SECTOR: u32 = 512; // bytes

/// A drive.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// How many of everything there are.
    pub geometry: Geometry,
    /// How long the cells take.
    pub times: CellTimes,
    /// The bus between the controller and the chips of a channel.
    pub channel: ChannelBus,
    /// The link between the host and the controller.
    pub link: HostLinkParameters,
    /// How commands come in.
    pub host: HostInterface,
    /// The order of service before each chip, and of writes that wait for room in the cache.
    pub chip_queues: CommandOrder,
    /// Memory in which writes are taken over before they are programmed.
    pub cache: Cache,
    /// How blocks become free again.
    pub cleaning: Cleaning,
    /// Writes before the run.
    pub before: Before,
}

/// Writes before the run: a drive that is full is slower than a new one. They take no simulated
/// time, and about 0.1 us a page of the computer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Before {
    /// The part of the drive that was written once, from its start in each plane; default none.
    #[serde(deserialize_with = "text")]
    pub filled: Portion,
    /// How often that was overwritten after, at random places; default 0. After about three times
    /// it is as full of garbage as it will ever be.
    pub overwrites: u32,
}

/// How many of everything there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Geometry {
    /// Channels, 1 to 64; default 8.
    pub channels: u32,
    /// Chips of a channel, 1 to 64; default 4.
    pub chips: u32,
    /// Dies of a chip, 1 to 16; default 2. They lend it room, not speed: a chip does one thing at
    /// a time.
    pub dies: u32,
    /// Planes of a die, 1 to 16; default 2. As above; each is cleaned by itself.
    pub planes: u32,
    /// Blocks of a plane, 8 to 65,536; default 2,048.
    pub blocks: u32,
    /// Pages of a block, 2 to 4,096; default 256.
    pub pages: u32,
    /// A page, a power of two from 512 B to 16 KiB; default 8 KiB.
    #[serde(deserialize_with = "text")]
    pub page: Bytes,
}

impl Default for Geometry {
    fn default() -> Self {
        let page = Bytes(8 << 10);
        Self { channels: 8, chips: 4, dies: 2, planes: 2, blocks: 2_048, pages: 256, page }
    }
}

impl Geometry {
    /// How many planes all chips have together.
    pub const fn planes(&self) -> u32 {
        self.chips_of_all() * self.dies * self.planes
    }

    /// How many chips all channels have together.
    pub const fn chips_of_all(&self) -> u32 {
        self.channels * self.chips
    }
}

/// How long the cells take, each from 1 ns to 1 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CellTimes {
    /// To read a page into the chip's register; default 75 us.
    #[serde(deserialize_with = "text")]
    pub read: Span,
    /// To program a page from it; default 750 us.
    #[serde(deserialize_with = "text")]
    pub program: Span,
    /// To erase a block; default 3.8 ms.
    #[serde(deserialize_with = "text")]
    pub erase: Span,
}

impl Default for CellTimes {
    fn default() -> Self {
        Self { read: Span(75_000), program: Span(750_000), erase: Span(3_800_000) }
    }
}

/// The bus between the controller and the chips of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChannelBus {
    /// Its bandwidth, 1 MB/s to 100 GB/s; default 333.3 MB/s (ONFI NV-DDR2, one byte in 3 ns).
    #[serde(deserialize_with = "text")]
    pub rate: Rate,
    /// To command a chip to read, up to 1 ms; default 290 ns.
    #[serde(deserialize_with = "text")]
    pub read_command: Span,
    /// To command it to program, without the data, up to 1 ms; default 361 ns.
    #[serde(deserialize_with = "text")]
    pub program_command: Span,
    /// To command it to erase, up to 1 ms; default 220 ns.
    #[serde(deserialize_with = "text")]
    pub erase_command: Span,
}

impl Default for ChannelBus {
    fn default() -> Self {
        Self {
            rate: Rate(333_333_333),
            read_command: Span(290),
            program_command: Span(361),
            erase_command: Span(220),
        }
    }
}

/// The link between the host and the controller: PCI Express, alike in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostLinkParameters {
    /// Its bandwidth each way, 1 MB/s to 1 TB/s; default 4 GB/s (four lanes of 1 GB/s).
    #[serde(deserialize_with = "text")]
    pub rate: Rate,
    /// The data of one packet, at least 16 B; default 128 B.
    #[serde(deserialize_with = "text")]
    pub payload: Bytes,
    /// The bytes of a packet beside its data; default 28 B.
    #[serde(deserialize_with = "text")]
    pub overhead: Bytes,
}

impl Default for HostLinkParameters {
    fn default() -> Self {
        Self { rate: Rate(4_000_000_000), payload: Bytes(128), overhead: Bytes(28) }
    }
}

/// How commands come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostInterface {
    /// From which submission queue the next command is fetched; default in turn, one at a time.
    pub arbitration: CommandOrder,
    /// How many commands are in the controller at a time, of all queues together, 1 to 65,535;
    /// default 512. The others wait in their queues, where arbitration decides.
    pub fetch_limit: u32,
}

impl Default for HostInterface {
    fn default() -> Self {
        Self { arbitration: CommandOrder::RoundRobin(RoundRobinBurst::default()), fetch_limit: 512 }
    }
}

/// The order of service: [`Arbitration`], as it is written in a file. Default: by arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommandOrder {
    /// First come, first served.
    #[default]
    Arrival,
    /// Round robin over the queues.
    RoundRobin(RoundRobinBurst),
    /// Urgent first, then by weight.
    Weighted(Shares),
}

/// The burst of a queue in round robin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoundRobinBurst {
    /// Commands of a queue in a round, 1 to 256; default 1.
    pub burst: u16,
}

impl Default for RoundRobinBurst {
    fn default() -> Self {
        Self { burst: 1 }
    }
}

/// Weights of classes, each 1 to 256; default 3, 2 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shares {
    /// Of high.
    pub high: u16,
    /// Of medium.
    pub medium: u16,
    /// Of low.
    pub low: u16,
    /// Commands of a queue in a round, 1 to 256; default 1.
    pub burst: u16,
}

impl Default for Shares {
    fn default() -> Self {
        let Weights { high, medium, low } = Weights::default();
        Self { high, medium, low, burst: 1 }
    }
}

impl CommandOrder {
    /// The same for an arbiter.
    pub const fn arbitration(self) -> Arbitration {
        match self {
            Self::Arrival => Arbitration::Arrival,
            Self::RoundRobin(RoundRobinBurst { burst }) => Arbitration::RoundRobin { burst },
            Self::Weighted(Shares { high, medium, low, burst }) => {
                Arbitration::Weighted { weights: Weights { high, medium, low }, burst }
            }
        }
    }

    fn check(self, what: &str) -> Result<(), ScenarioError> {
        let numbers = match self {
            Self::Arrival => [1; 4],
            Self::RoundRobin(RoundRobinBurst { burst }) => [burst; 4],
            Self::Weighted(Shares { high, medium, low, burst }) => [high, medium, low, burst],
        };
        let fit = numbers.iter().all(|number| (1..=WEIGHT_MAX).contains(number));
        must(fit, &format!("{what}: weights and burst from 1 to {WEIGHT_MAX}"))
    }
}

/// Memory in which writes are taken over before they are programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cache {
    /// Whether there is one; default yes. Without it a write is complete when it is programmed.
    pub writes: bool,
    /// Its capacity, in whole pages; default 256 MiB. At least twice its `room`.
    #[serde(deserialize_with = "text")]
    pub capacity: Bytes,
    /// The most data on its way from it to the chips; default one page for each plane.
    #[serde(deserialize_with = "tidegate_sim::scenario::optional", rename = "room")]
    pub programming_limit: Option<Bytes>,
    /// How fast its port is, 1 MB/s to 1 TB/s; default 200 MB/s (one byte wide, 100 MHz, both
    /// edges: what MQSim ships, and slower than any real one).
    #[serde(deserialize_with = "text")]
    pub rate: Rate,
    /// A row of it, at least 512 B; default 8 KiB.
    #[serde(deserialize_with = "text")]
    pub row: Bytes,
    /// To open a row, up to 1 ms; default 26 ns.
    #[serde(deserialize_with = "text")]
    pub open: Span,
    /// To close it, up to 1 ms; default 13 ns.
    #[serde(deserialize_with = "text")]
    pub close: Span,
    /// How often it forgets which pages it has seen, 1 ms to 1 h; default 1 s. A page that was not
    /// seen is programmed at once, the rest stays until its place is needed.
    #[serde(deserialize_with = "text")]
    pub forget: Span,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            writes: true,
            capacity: Bytes(256 << 20),
            programming_limit: None,
            rate: Rate(200_000_000),
            row: Bytes(8 << 10),
            open: Span(26),
            close: Span(13),
            forget: Span::SECOND,
        }
    }
}

/// How blocks become free again. Each plane cleans itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cleaning {
    /// The part of the pages that the host does not see, 1 to 50 %; default 7 %. It must hold the
    /// blocks of `threshold` and three more.
    #[serde(deserialize_with = "text")]
    pub spare: Portion,
    /// Cleaning starts when less than this part of the blocks is free; default 5 %.
    #[serde(deserialize_with = "text")]
    pub threshold: Portion,
    /// Free blocks that only cleaning may open, at least 1; default 10. Host writes wait at it.
    pub reserve: u32,
    /// Which block is cleaned; default the best of a sample.
    pub choice: Choice,
    /// Whether cleaning goes before everything of the host at its chip; default yes. If not, the
    /// host waits for it only where there is no room.
    pub first: bool,
}

impl Default for Cleaning {
    fn default() -> Self {
        Self {
            spare: Portion(70_000),
            threshold: Portion(50_000),
            reserve: 10,
            choice: Choice::Sampled,
            first: true,
        }
    }
}

/// Which block is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// The one with the fewest valid pages.
    Greedy,
    /// The one with the fewest of log2(blocks) random ones.
    Sampled,
    /// Any.
    Random,
}

impl Parameters {
    /// Reads a drive from TOML.
    ///
    /// # Errors
    /// The first thing that is wrong, and what to write instead.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        read(text, Self::check)
    }

    /// Whether it can be built. Code that makes or changes parameters calls this, too.
    ///
    /// # Errors
    /// The first thing that is out of its range or contradicts another, and what to write instead.
    pub fn check(&self) -> Result<(), ScenarioError> {
        self.check_geometry()?;
        self.check_speeds()?;
        self.host.arbitration.check("host.arbitration")?;
        self.chip_queues.check("chip_queues")?;
        let fits = (1..=65_535).contains(&self.host.fetch_limit);
        must(fits, "host.fetch_limit: 1 to 65535")?;
        let Cleaning { spare, reserve, .. } = self.cleaning;
        let fits = (10_000..=500_000).contains(&spare.0);
        must(fits, "cleaning.spare: \"1%\" to \"50%\"")?;
        must(reserve >= 1, "cleaning.reserve: at least 1")?;
        let pages = self.geometry.blocks * self.geometry.pages - self.logical_pages();
        let blocks = pages / self.geometry.pages;
        let needed = self.threshold_blocks().max(reserve.saturating_add(1)).saturating_add(3);
        let what = format!(
            "cleaning: spare is {blocks} blocks of a plane, needs {needed}: raise it, \
             or lower threshold or reserve"
        );
        must(blocks >= needed, &what)
    }

    fn check_geometry(&self) -> Result<(), ScenarioError> {
        let Geometry { channels, chips, dies, planes, blocks, pages, page } = self.geometry;
        must((1..=64).contains(&channels), "geometry.channels: 1 to 64")?;
        must((1..=64).contains(&chips), "geometry.chips: 1 to 64")?;
        must((1..=16).contains(&dies), "geometry.dies: 1 to 16")?;
        must((1..=16).contains(&planes), "geometry.planes: 1 to 16")?;
        must((8..=65_536).contains(&blocks), "geometry.blocks: 8 to 65536")?;
        must((2..=4_096).contains(&pages), "geometry.pages: 2 to 4096")?;
        let is_page = page.0.is_power_of_two() && (512..=16_384).contains(&page.0);
        must(is_page, "geometry.page: a power of two from \"512B\" to \"16KiB\"")?;
        let all = u64::from(self.geometry.planes()) * u64::from(blocks * pages);
        must(all <= 1 << 31, "geometry: at most 2147483648 pages of all planes together")
    }

    fn check_speeds(&self) -> Result<(), ScenarioError> {
        let Self { times, channel, link, cache, .. } = self;
        let cells = [times.read, times.program, times.erase];
        let fit = cells.iter().all(|time| (1..=Span::SECOND.0).contains(&time.0));
        must(fit, "times: from \"1ns\" to \"1s\"")?;
        let rates = 1_000_000..=1_000_000_000_000;
        let fit = [channel.rate, link.rate, cache.rate].iter().all(|rate| rates.contains(&rate.0));
        must(fit, "channel.rate, link.rate and cache.rate: from \"1MB/s\" to \"1TB/s\"")?;
        let ChannelBus { read_command, program_command, erase_command, .. } = *channel;
        let short = [read_command, program_command, erase_command, cache.open, cache.close];
        let fit = short.iter().all(|time| *time <= Span::MILLISECOND);
        must(fit, "channel, cache: commands, open and close at most \"1ms\"")?;
        let fits = (16..=4_096).contains(&link.payload.0) && link.overhead.0 <= 4_096;
        must(fits, "link: payload from \"16B\" to \"4KiB\", overhead at most \"4KiB\"")?;
        let fits = cache.row.0 >= 512 && (1_000_000..=3_600_000_000_000).contains(&cache.forget.0);
        must(fits, "cache: row at least \"512B\", forget from \"1ms\" to \"3600s\"")?;
        let (page, programming_limit) = (self.geometry.page.0, self.programming_limit().0);
        let fits = programming_limit >= page
            && cache.capacity.0 / 2 >= programming_limit
            && cache.capacity.0 >> 40 == 0;
        must(fits, "cache: room at least one page, capacity twice that, below \"1TiB\"")
    }

    /// How many pages of a plane the host sees.
    pub fn logical_pages(&self) -> u32 {
        let pages = u64::from(self.geometry.blocks * self.geometry.pages);
        let seen = u64::from(Portion::WHOLE.0 - self.cleaning.spare.0);
        (pages * seen / u64::from(Portion::WHOLE.0)) as u32
    }

    /// The capacity that the host sees: the pages of all planes but the spare ones.
    pub fn capacity(&self) -> Bytes {
        let pages = u64::from(self.logical_pages()) * u64::from(self.geometry.planes());
        Bytes(pages * self.geometry.page.0)
    }

    /// With fewer free blocks a plane begins to clean.
    pub(super) fn threshold_blocks(&self) -> u32 {
        let blocks = u64::from(self.geometry.blocks) * u64::from(self.cleaning.threshold.0);
        (blocks / u64::from(Portion::WHOLE.0)) as u32
    }

    /// The most data on its way from the cache to the chips.
    pub(super) fn programming_limit(&self) -> Bytes {
        let all = u64::from(self.geometry.planes()) * self.geometry.page.0;
        self.cache.programming_limit.unwrap_or(Bytes(all))
    }
}

/// How long so many bytes take at a rate, rounded to the next picosecond.
pub(super) fn duration(bytes: u64, rate: Rate) -> Picoseconds {
    let picoseconds = u128::from(bytes) * u128::from(Picoseconds::SECOND.0);
    let rate = u128::from(rate.0);
    Picoseconds(((picoseconds + rate / 2) / rate) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str, message: &str) {
        let error = Parameters::parse(text).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }

    #[test]
    fn what_is_refused() {
        assert_eq!(Parameters::parse(""), Ok(Parameters::default()));
        refused("[geometry]\nchanels = 8", "chanels");
        refused("[geometry]\nchannels = 0", "1 to 64");
        refused("[geometry]\npage = \"6KiB\"", "power of two");
        refused("[times]\nread = \"75\"", "has no unit");
        refused("[times]\nread = \"2s\"", "to \"1s\"");
        refused("[channel]\nrate = \"1kB/s\"", "\"1MB/s\"");
        refused("[host]\nfetch_limit = 0", "1 to 65535");
        refused("[host.arbitration.weighted]\nhigh = 0", "host.arbitration: weights");
        refused("chip_queues = { weighted = { heigh = 1 } }", "heigh");
        refused("[cleaning]\nspare = \"5%\"", "raise it");
        refused("[cache]\ncapacity = \"1MiB\"", "twice that");
    }

    /// Four kilobytes on the shipped channel: 12.288 us.
    #[test]
    fn a_page_on_the_bus() {
        let time = duration(4_096, ChannelBus::default().rate);
        assert_eq!(time.0, 12_288_000, "{time}");
    }
}
