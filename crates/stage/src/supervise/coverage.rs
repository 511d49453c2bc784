//! The report about a run's traffic, for its user: bytes through the gates, past them, and unseen.

use tidegate_proto::message::{Bypassed, Coverage};

use crate::bypass::{BYPASSES, Bypass, PROGRAMS};

/// Less than this share of a program's bytes unseen is noise: the loader's reads, a shell's.
const UNSEEN_SHARE: f64 = 0.01;
/// Nor is less than this worth a word.
const UNSEEN_BYTES: u64 = 1 << 20;

/// Bytes that a run's programs moved by system calls, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoverageReport {
    /// Bytes of requests that passed the gates; without rules, all that the shim saw.
    pub passed_bytes: u64,
    /// Bytes that went to pipes, sockets and memory.
    pub not_storage_bytes: u64,
    /// Bytes that the shim did not see.
    pub unseen_bytes: u64,
    /// Whether these are more than a loader's or a shell's.
    pub is_much_unseen: bool,
    /// Programs that ran without the shim, of which nothing is known.
    pub unseen_programs: u64,
    /// Whether a controller's rules ever were in force.
    pub has_rules: bool,
    /// Calls that passed the gates, and programs without the shim, by reason. Harmless ones only in
    /// a full report.
    pub reasons: Vec<PassedCalls>,
    /// The part of each channel in what passed the gates, in a full report.
    pub channels: Vec<ChannelBytes>,
    /// The part of requests that matched no rule, in a full report.
    pub unmatched_bytes: u64,
    /// Whether the user wants all of this.
    pub is_full: bool,
}

/// Requests that passed the gates of one channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelBytes {
    /// Its name; that of the tenant for the tenant's own.
    pub channel: String,
    /// How many requests.
    pub operations: u64,
    /// How many bytes they moved.
    pub bytes: u64,
}

/// Calls that passed the gates for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassedCalls {
    /// Its name.
    pub reason: &'static str,
    /// How often.
    pub calls: u64,
    /// How many bytes, where known.
    pub bytes: u64,
    /// Advice for the user.
    pub advice: &'static str,
}

impl CoverageReport {
    /// A report about `coverage`: all of it in a full report, otherwise its calls that need advice.
    /// `more_unseen` programs ran without the shim beside those that it has.
    pub(super) fn new(
        coverage: &Coverage,
        (has_rules, more_unseen): (bool, u64),
        is_full: bool,
    ) -> Self {
        let bypassed: u64 = coverage.bypasses.iter().map(|bypassed| bypassed.bytes).sum();
        let seen = coverage.seen_bytes.saturating_add(bypassed);
        let unseen_bytes = coverage.syscall_bytes.saturating_sub(seen);
        let share = unseen_bytes as f64 / coverage.syscall_bytes as f64;
        let not_storage = coverage.bypasses.iter();
        let not_storage = not_storage.filter(|it| it.reason == Bypass::NotStorage.name());
        let is_shown = |it: &PassedCalls| is_full || !it.advice.starts_with("nothing");
        Self {
            passed_bytes: coverage.seen_bytes,
            not_storage_bytes: not_storage.map(|bypassed| bypassed.bytes).sum(),
            unseen_bytes,
            is_much_unseen: unseen_bytes > UNSEEN_BYTES && share > UNSEEN_SHARE,
            unseen_programs: unseen_programs(coverage) + more_unseen,
            has_rules,
            reasons: coverage.bypasses.iter().filter_map(known).filter(is_shown).collect(),
            channels: Vec::new(),
            unmatched_bytes: 0,
            is_full,
        }
    }

    /// The same report with the traffic of channels, if it is a full one.
    pub(super) fn with_channels(mut self, channels: (Vec<(String, u64, u64)>, u64)) -> Self {
        if self.is_full {
            let (channels, unmatched_bytes) = channels;
            let channel =
                |(channel, operations, bytes)| ChannelBytes { channel, operations, bytes };
            self.channels = channels.into_iter().map(channel).collect();
            self.unmatched_bytes = unmatched_bytes;
        }
        self
    }

    /// Whether there is nothing to say.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_full && !self.is_much_unseen && self.reasons.is_empty()
    }

    /// The same in lines for people.
    pub fn lines(&self) -> Vec<String> {
        let has_bytes = self.is_full || self.is_much_unseen;
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let reason = |it: &PassedCalls| {
            format!("{}: {} call{}; {}", it.reason, it.calls, plural(it.calls), it.advice)
        };
        let channel = |it: &ChannelBytes| {
            let (name, count) = (&it.channel, it.operations);
            format!("channel {name}: {} in {count} request{}", mib(it.bytes), plural(count))
        };
        // One channel has it all.
        let channels = self.channels.iter().filter(|_| self.channels.len() > 1).map(channel);
        let bytes = has_bytes.then(|| self.bytes());
        bytes.into_iter().chain(channels).chain(self.reasons.iter().map(reason)).collect()
    }

    fn bytes(&self) -> String {
        let seen = match self.has_rules {
            true => format!(
                "{} passed the gates, {} went to pipes, sockets and memory",
                mib(self.passed_bytes),
                mib(self.not_storage_bytes),
            ),
            // Where they went is looked at for rules only.
            false => format!("{} were moved without rules", mib(self.passed_bytes)),
        };
        let why = match self.is_much_unseen {
            true => " (raw system calls, or programs without the shim)",
            false => "",
        };
        let programs = match self.unseen_programs {
            0 => String::new(),
            1 => "; nothing is known of 1 program that ran without the shim".into(),
            count => format!("; nothing is known of {count} programs that ran without the shim"),
        };
        format!("{seen}, {} were not seen{why}{programs}", mib(self.unseen_bytes))
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

fn known(bypassed: &Bypassed) -> Option<PassedCalls> {
    let (_, reason, advice) = *BYPASSES.iter().find(|(_, name, _)| *name == bypassed.reason)?;
    Some(PassedCalls { reason, calls: bypassed.calls, bytes: bypassed.bytes, advice })
}

/// How many programs ran without the shim; what they did is in no number.
fn unseen_programs(coverage: &Coverage) -> u64 {
    let is_program =
        |reason: &str| PROGRAMS.iter().any(|known| BYPASSES[*known as usize].1 == reason);
    let unseen = coverage.bypasses.iter().filter(|bypassed| is_program(&bypassed.reason));
    unseen.map(|bypassed| bypassed.calls).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn coverage(syscall_bytes: u64, bypasses: &[(&str, u64, u64)]) -> Coverage {
        let bypassed = |&(reason, calls, bytes): &(&str, u64, u64)| Bypassed {
            reason: reason.into(),
            calls,
            bytes,
        };
        Coverage {
            seen_bytes: 20 * MIB,
            syscall_bytes,
            bypasses: bypasses.iter().map(bypassed).collect(),
        }
    }

    #[test]
    fn harmless_calls_are_in_a_full_report_only() {
        let harmless = coverage(21 * MIB, &[("not_storage", 7, MIB)]);
        assert!(CoverageReport::new(&harmless, (true, 0), false).is_empty());
        let report = CoverageReport::new(&harmless, (true, 0), true);
        let lines = [
            "20.0 MiB passed the gates, 1.0 MiB went to pipes, sockets and memory, \
             0.0 MiB were not seen",
            "not_storage: 7 calls; nothing to do: pipes, sockets and memory are not storage",
        ];
        assert_eq!(report.lines(), lines);
    }

    #[test]
    fn a_full_report_has_the_channels() {
        let channels = || {
            let flush = (String::from("flush"), 1, 3 * MIB);
            (Vec::from([(String::from("store"), 7, 17 * MIB), flush]), 0)
        };
        let report = CoverageReport::new(&coverage(20 * MIB, &[]), (true, 0), true);
        let report = report.with_channels(channels());
        let lines =
            ["channel store: 17.0 MiB in 7 requests", "channel flush: 3.0 MiB in 1 request"];
        assert_eq!(report.lines()[1..], lines);
        let brief = CoverageReport::new(&coverage(20 * MIB, &[]), (true, 0), false);
        assert_eq!(brief.with_channels(channels()).lines(), [""; 0]);
        let (mut one, unmatched) = channels();
        one.truncate(1);
        let alone = CoverageReport::new(&coverage(20 * MIB, &[]), (true, 0), true);
        assert_eq!(alone.with_channels((one, unmatched)).lines().len(), 1);
    }

    #[test]
    fn a_mapping_is_shown_without_bytes() {
        let report =
            CoverageReport::new(&coverage(20 * MIB, &[("mapping", 1, 0)]), (true, 0), false);
        let line = "mapping: 1 call; page faults cannot be gated; serve the file over a gateway";
        assert_eq!(report.lines(), [line]);
    }

    #[test]
    fn without_rules_nothing_passes_gates() {
        let report = CoverageReport::new(&coverage(30 * MIB, &[]), (false, 1), false);
        assert!(report.is_much_unseen);
        let line = "20.0 MiB were moved without rules, 10.0 MiB were not seen (raw system calls, \
                    or programs without the shim); nothing is known of 1 program that ran without \
                    the shim";
        assert_eq!(report.lines(), [line]);
    }
}
