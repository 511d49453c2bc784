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
    /// Whether the user wants all of this.
    pub is_full: bool,
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
            is_full,
        }
    }

    /// Whether there is nothing to say.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_full && !self.is_much_unseen && self.reasons.is_empty()
    }

    /// The same in lines for people.
    pub fn lines(&self) -> Vec<String> {
        let has_bytes = self.is_full || self.is_much_unseen;
        let reason = |it: &PassedCalls| {
            let plural = if it.calls == 1 { "" } else { "s" };
            format!("{}: {} call{plural}; {}", it.reason, it.calls, it.advice)
        };
        has_bytes.then(|| self.bytes()).into_iter().chain(self.reasons.iter().map(reason)).collect()
    }

    fn bytes(&self) -> String {
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64);
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
