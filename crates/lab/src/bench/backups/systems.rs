//! The systems of the backups benchmark: what holds the backup back, if anything does, and the
//! commands that a user would type for it.

use std::ffi::OsString;
use std::path::Path;

use crate::experiment::child::Start;
use tidegate_model::Rate;

/// The policy that the book shows.
const POLICY: &str = include_str!("../../../../../policies/backups.toml");
/// The path and the capacity in it.
const POLICY_PATH: &str = "/srv/**";
const POLICY_CAPACITY: &str = "capacity = \"110MiB/s\"";
/// The bound of a measured capacity: some six times what a request takes that is alone.
const LATENCY: &str = "p99 < 5ms";

/// The stated capacity, in hundredths of the rate that the backup has alone.
const STATED_PERCENT: u64 = 90;

/// The systems that hold the backup back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackupSystem {
    /// `tidegate run`, the database too, with the policy of the book: the capacity is stated, as
    /// nine tenths of the rate that the backup has alone.
    Stated,
    /// The same with a measured capacity.
    Measured,
    Bare,
    /// A fixed limit, of a quarter of the rate that the backup has alone.
    LowLimit,
    /// A fixed limit, of nine tenths of that.
    HighLimit,
    /// The kernel's idle class of I/O priority, with a scheduler that knows it.
    Idle,
    /// The kernel's limit for a control group, of half of that rate.
    Throttled,
}

impl BackupSystem {
    /// Ours come first.
    pub(super) const ALL: [Self; 7] = [
        Self::Stated,
        Self::Measured,
        Self::Bare,
        Self::LowLimit,
        Self::HighLimit,
        Self::Idle,
        Self::Throttled,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stated => "Tidegate",
            Self::Measured => "Tidegate, measured",
            Self::Bare => "no control",
            Self::LowLimit => "a limit of a quarter",
            Self::HighLimit => "a limit of nine tenths",
            Self::Idle => "BFQ, ionice -c 3",
            Self::Throttled => "cgroup throttling at half",
        }
    }

    /// Its limit, of the rate that the backup has alone.
    pub(super) const fn limit(self, alone: Rate) -> Option<Rate> {
        match self {
            Self::LowLimit => Some(Rate(alone.0 / 4)),
            Self::HighLimit => Some(Rate(alone.0 / 10 * 9)),
            Self::Throttled => Some(Rate(alone.0 / 2)),
            Self::Measured | Self::Stated | Self::Bare | Self::Idle => None,
        }
    }

    /// The policy of ours, for the files below `directory`; none of a peer.
    pub(super) fn policy(self, directory: &Path, alone: Rate) -> Option<String> {
        let capacity = match self {
            Self::Stated => {
                format!("capacity = \"{}\"", Rate(alone.0 / 100 * STATED_PERCENT))
            }
            Self::Measured => format!("capacity = \"measured\"\nlatency = \"{LATENCY}\""),
            _ => return None,
        };
        let policy = POLICY.replace(POLICY_PATH, &format!("{}/**", directory.display()));
        Some(policy.replace(POLICY_CAPACITY, &capacity))
    }
}

/// Copies the folder again and again, until it is ended together with all of its group.
const COPIES: &str = "trap 'trap - TERM; kill 0' TERM\n\
                      while :; do tar -C \"$0\" -cf - . | cat >/dev/null & wait $!; done";
/// The same, with a fixed limit in bytes per second.
const LIMITED_COPIES: &str = "trap 'trap - TERM; kill 0' TERM\n\
                              while :; do tar -C \"$0\" -cf - . | pv -q -L \"$1\" >/dev/null & \
                              wait $!; done";

/// The backup of `folder`, as it runs without Tidegate. The archive goes to a command that throws
/// it away: `tar` reads no file if it writes to `/dev/null` itself.
pub(super) fn backup(system: BackupSystem, folder: &Path, alone: Rate) -> Start {
    let limit = system.limit(alone).filter(|_| system != BackupSystem::Throttled);
    let script = if limit.is_some() { LIMITED_COPIES } else { COPIES };
    let mut arguments: Vec<OsString> = vec!["-c".into(), script.into(), folder.into()];
    arguments.extend(limit.map(|limit| limit.0.max(1).to_string().into()));
    let start =
        Start { name: "backup".into(), program: "sh".into(), arguments, ..Start::default() };
    match system {
        BackupSystem::Idle => start.started_by("ionice".into(), ["-c".into(), "3".into()]),
        _ => start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::fio::command_line;

    #[test]
    fn the_policy_is_that_of_the_page_for_other_files() {
        let folder = Path::new("/a b");
        let [stated, measured] = [BackupSystem::Stated, BackupSystem::Measured].map(|system| {
            let text = system.policy(folder, Rate(100_000_000)).unwrap();
            let policy = tidegate_model::Policy::parse(&text).unwrap();
            assert_eq!(policy.tenants.len(), 2, "{text}");
            assert!(text.contains("path = \"/a b/**\""), "{text}");
            policy.at(tidegate_model::policy::GateKind::Stage)
        });
        assert_eq!(stated.budget.bandwidth, Some(Rate(90_000_000)));
        assert!(measured.measured_at(tidegate_model::policy::GateKind::Stage).is_some());
        assert_eq!(BackupSystem::Bare.policy(folder, Rate(1)), None);
    }

    #[test]
    fn each_system_has_its_command() {
        let command = |system| {
            let start = backup(system, Path::new("/b"), Rate(1_000));
            let last = start.arguments.last().cloned();
            (start.program.clone(), command_line(&start.arguments), last)
        };
        let (program, line, last) = command(BackupSystem::Bare);
        assert_eq!((program, last), ("sh".into(), Some("/b".into())));
        assert!(line.contains("cat >/dev/null") && !line.contains("pv"));
        let (_, line, last) = command(BackupSystem::HighLimit);
        assert_eq!(last, Some("900".into()));
        assert!(line.contains("pv -q -L"), "{line}");
        let (program, line, _) = command(BackupSystem::Idle);
        assert_eq!(program, "ionice");
        assert!(line.starts_with("-c 3 sh -c"), "{line}");
        assert!(!command(BackupSystem::Throttled).1.contains("pv"), "the kernel limits it");
    }
}
