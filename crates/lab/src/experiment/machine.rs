//! Facts about the machine, for readers who compare numbers.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::disk::Disk;

/// Properties of the machine that a reader of the numbers has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
    pub(crate) disk: String,
    pub(crate) file_system: String,
    /// The program of the tenants, and its release.
    pub(crate) load_generator: String,
    pub(crate) release: &'static str,
}

impl Machine {
    /// Reads the properties of this machine.
    pub(crate) fn inspect(
        directory: &Path,
        disk: &Result<Disk, String>,
        load_generator: String,
    ) -> Self {
        Self {
            processor: processor(),
            cores: cores(),
            memory_bytes: memory(&read("/proc/meminfo")),
            kernel: kernel(),
            disk: disk.as_ref().map_or("no block device".into(), |disk| disk.name.clone()),
            file_system: file_system(&read("/proc/self/mounts"), directory),
            load_generator,
            release: env!("CARGO_PKG_VERSION"),
        }
    }

    pub(crate) fn description(&self) -> String {
        let Self { file_system, disk, load_generator, release, .. } = self;
        format!("{}, {file_system} on {disk}, {load_generator}, Tidegate {release}", summary())
    }
}

/// Processors, memory and kernel in a line.
pub(crate) fn summary() -> String {
    let gib = (memory(&read("/proc/meminfo")) + (1 << 29)) >> 30;
    format!("{} x {}, {gib} GiB, Linux {}", cores(), processor(), kernel())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn processor() -> String {
    after(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown").to_owned()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// How many processes want to run, over the last minute, in hundredths.
pub(crate) fn load_percent() -> u64 {
    let text = read("/proc/loadavg");
    let load = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    load.map_or(0, |load| (load * 100.0) as u64)
}

/// The value of a line `name : value`.
fn after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start_matches([' ', '\t', ':']).trim())
}

fn memory(meminfo: &str) -> u64 {
    let kib = after(meminfo, "MemTotal").and_then(|text| text.strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

/// The type of the file system that holds `directory`: that of the longest mount above it, and of
/// of several at one mount point the last.
fn file_system(mounts: &str, directory: &Path) -> String {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((Path::new(fields.next()?), fields.next()?))
    });
    let above = mounts.filter(|(mount_point, _)| directory.starts_with(mount_point));
    let longest = above.max_by_key(|(mount_point, _)| mount_point.components().count());
    longest.map_or("unknown", |(_, kind)| kind).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_found_in_the_kernels_texts() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A Processor\nmodel name\t: B\n";
        assert_eq!(after(cpuinfo, "model name"), Some("A Processor"));
        assert_eq!(memory("MemTotal:       24523312 kB\nMemFree: 1 kB\n"), 24_523_312 << 10);
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /nowhere/tmp tmpfs rw 0 0\n\
                      /dev/sdb /nowhere/tmp/data xfs rw 0 0\n";
        let kind = |path: &str| file_system(mounts, Path::new(path));
        assert_eq!(kind("/nowhere/tmp/data/x"), "xfs");
        assert_eq!(kind("/nowhere/tmpx"), "ext4");
    }
}
