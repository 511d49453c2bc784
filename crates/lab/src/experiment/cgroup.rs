//! Control groups, as the kernel's static limits: blkio of version 1, io of version 2.
//!
//! Groups lie side by side below the root of the hierarchy, because in version 1 limits do not
//! nest.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tidegate_model::{Rate, Span};

use super::disk::Disk;
use tidegate_console::clock::Clock;

/// How long a group may still be busy after the last process in it was waited for.
const PATIENCE: Span = Span::SECOND;
const POLL_INTERVAL: Span = Span(5 * Span::MILLISECOND.0);

/// The way to limit what groups of processes read from one disk.
#[derive(Debug)]
pub(crate) struct Throttle {
    version: Version,
    root: PathBuf,
    disk: Disk,
    /// Whether groups below the root had no such controller before.
    was_switched_on: bool,
}

/// Limits on what a group reads and on what it writes, each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoLimits {
    pub(crate) bandwidth: Rate,
    /// Requests per second.
    pub(crate) iops: u64,
}

impl IoLimits {
    /// A volume as clouds rent them by default.
    pub(crate) const CLOUD_VOLUME: Self = Self { bandwidth: Rate(125 << 20), iops: 3_000 };

    fn all(self) -> [Limit; 4] {
        let (file, key) = READ_BANDWIDTH;
        [
            (file, key, self.bandwidth.0),
            ("blkio.throttle.write_bps_device", "wbps", self.bandwidth.0),
            ("blkio.throttle.read_iops_device", "riops", self.iops),
            ("blkio.throttle.write_iops_device", "wiops", self.iops),
        ]
    }
}

/// A limit, with its file of version 1 and its name of version 2.
type Limit = (&'static str, &'static str, u64);

const READ_BANDWIDTH: (&str, &str) = ("blkio.throttle.read_bps_device", "rbps");

/// Of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Throttle {
    /// The way to limit `disk`, or why there is none.
    ///
    /// # Errors
    /// If we are not root, or the kernel has no such controller.
    pub(crate) fn new(disk: Disk) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let (version, root) = hierarchy(&mounts)
            .ok_or("the kernel has no controller for block I/O in its control groups")?;
        if !rustix::process::geteuid().is_root() {
            return Err("control groups are root's to make".into());
        }
        remove_remains(&root);
        let mut throttle = Self { version, root, disk, was_switched_on: false };
        throttle.switch_on().map_err(|error| throttle.refused(&error))?;
        Ok(throttle)
    }

    /// Describes the throttle for people: the kernel's control file, and the disk.
    pub(crate) fn description(&self) -> String {
        let name = match self.version {
            Version::One => "cgroup v1 blkio.throttle.read_bps_device",
            Version::Two => "cgroup v2 io.max rbps",
        };
        format!("{name} on {} ({})", self.disk.name, self.disk.number)
    }

    /// A new group whose processes together read no more than `limit` from the disk.
    ///
    /// # Errors
    /// If the kernel refuses, in its words.
    pub(crate) fn group(&self, name: &str, limit: Rate) -> Result<Group, String> {
        let (file, key) = READ_BANDWIDTH;
        self.group_with(name, &[(file, key, limit.0)])
    }

    /// A new group whose processes together stay within limits.
    ///
    /// # Errors
    /// If the kernel refuses, in its words.
    pub(crate) fn limited(&self, name: &str, limits: IoLimits) -> Result<Group, String> {
        self.group_with(name, &limits.all())
    }

    /// Changes the limits of a group of [`Self::limited`], while its processes run.
    ///
    /// # Errors
    /// If the kernel refuses, in its words.
    pub(crate) fn change(&self, group: &Group, limits: IoLimits) -> Result<(), String> {
        let limits = limits.all();
        group.set(self.settings(&limits)).map_err(|error| self.refused(&error))
    }

    fn group_with(&self, name: &str, limits: &[Limit]) -> Result<Group, String> {
        let group = Group::create(&self.root, name, self.settings(limits));
        group.map_err(|error| self.refused(&error))
    }

    fn settings(&self, limits: &[Limit]) -> impl Iterator<Item = (&'static str, String)> {
        limits.iter().map(|limit| setting(self.version, &self.disk.number, *limit))
    }

    fn switch_on(&mut self) -> io::Result<()> {
        if self.version == Version::One {
            return Ok(());
        }
        let control = self.root.join("cgroup.subtree_control");
        if !fs::read_to_string(&control)?.split_whitespace().any(|word| word == "io") {
            fs::write(&control, "+io")?;
            self.was_switched_on = true;
        }
        Ok(())
    }

    fn refused(&self, error: &io::Error) -> String {
        format!("the kernel refuses {}: {error}", self.description())
    }
}

/// A new group whose processes, and the files that they read, have so many bytes of memory
/// together. Version 2 is not asked: a process is in one of its groups, and could not have a limit
/// of block I/O from another.
///
/// # Errors
/// If we are not root, or the kernel has no such controller of version 1.
pub(crate) fn memory_group(name: &str, bytes: u64) -> Result<Group, String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let root = version_one(&mounts, "memory")
        .ok_or("the kernel has no controller for memory in control groups of version 1")?;
    let limit = ("memory.limit_in_bytes", bytes.to_string());
    Group::create(&root, name, [limit])
        .map_err(|error| format!("the kernel refuses a group in {}: {error}", root.display()))
}

impl Drop for Throttle {
    fn drop(&mut self) {
        if self.was_switched_on {
            let _ = fs::write(self.root.join("cgroup.subtree_control"), "-io");
        }
    }
}

/// The beginning of the names of groups, before the number of the process that has made them.
const PREFIX: &str = "tidegate-demo-";

/// Removes the groups below `root` of processes that were killed. A group that has processes stays.
fn remove_remains(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let maker = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
        let pid = maker.and_then(|(pid, _)| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// A group. Dropping it removes it; its processes have to be gone.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
}

impl Group {
    /// A new group at the root of a hierarchy, with these contents of its files.
    fn create(
        root: &Path,
        name: &str,
        settings: impl IntoIterator<Item = (&'static str, String)>,
    ) -> io::Result<Self> {
        let path = root.join(format!("{PREFIX}{}-{name}", std::process::id()));
        fs::create_dir(&path)?;
        let group = Self { path };
        group.set(settings)?;
        Ok(group)
    }

    fn set(&self, settings: impl IntoIterator<Item = (&'static str, String)>) -> io::Result<()> {
        let mut settings = settings.into_iter();
        settings.try_for_each(|(file, text)| fs::write(self.path.join(file), text))
    }

    /// The file that takes the numbers of processes that are to belong to it.
    pub(crate) fn processes(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let clock = Clock::start();
        while let Err(error) = fs::remove_dir(&self.path) {
            let is_busy = error.kind() == io::ErrorKind::ResourceBusy;
            if !is_busy || clock.now().0 > PATIENCE.0 {
                return;
            }
            clock.sleep_until(clock.now().after(POLL_INTERVAL));
        }
    }
}

/// Where a controller of version 1 is: the root of its hierarchy, from the list of mounts.
fn version_one(mounts: &str, controller: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, mount_point, "cgroup", options, ..] = fields[..] else { return None };
        options.split(',').any(|option| option == controller).then(|| mount_point.into())
    })
}

/// Where block I/O is controlled: the root of the hierarchy, from the list of mounts.
fn hierarchy(mounts: &str) -> Option<(Version, PathBuf)> {
    if let Some(root) = version_one(mounts, "blkio") {
        return Some((Version::One, root));
    }
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut second = None;
    for mount in fields {
        let [_, mount_point, kind, ..] = mount[..] else { continue };
        if kind == "cgroup2" && has_io(Path::new(mount_point)) {
            second = Some((Version::Two, mount_point.into()));
        }
    }
    second
}

fn has_io(root: &Path) -> bool {
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    controllers.split_whitespace().any(|word| word == "io")
}

/// The file that holds a limit, and what to write there.
fn setting(version: Version, disk: &str, (file, key, limit): Limit) -> (&'static str, String) {
    match version {
        Version::One => (file, format!("{disk} {limit}")),
        Version::Two => ("io.max", format!("{disk} {key}={limit}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_one_is_preferred_where_it_holds_the_controller() {
        let root = tempfile::tempdir().unwrap();
        let unified = root.path().display();
        let old = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                   cgroup /sys/fs/cgroup/blkio cgroup rw,relatime,blkio 0 0\n";
        let new = format!("cgroup2 {unified} cgroup2 rw,nsdelegate 0 0\n");
        let both = format!("{new}{old}");
        let one = Some((Version::One, "/sys/fs/cgroup/blkio".into()));
        assert_eq!(hierarchy(&both), one);
        assert_eq!(hierarchy(&new), None, "no controllers there");
        fs::write(root.path().join("cgroup.controllers"), "cpuset cpu memory\n").unwrap();
        assert_eq!(hierarchy(&new), None, "not this one");
        fs::write(root.path().join("cgroup.controllers"), "cpuset cpu io memory\n").unwrap();
        assert_eq!(hierarchy(&new), Some((Version::Two, root.path().into())));
        assert_eq!(hierarchy("proc /proc proc rw 0 0\n"), None);
        assert_eq!(version_one(&both, "cpu"), Some("/sys/fs/cgroup/cpu".into()));
        assert_eq!(version_one(&both, "memory"), None);
    }

    #[test]
    fn limits_are_written_as_each_version_wants_them() {
        let (file, key) = READ_BANDWIDTH;
        let limit = (file, key, 150 << 20);
        let one = setting(Version::One, "254:0", limit);
        assert_eq!(one, ("blkio.throttle.read_bps_device", "254:0 157286400".into()));
        let two = setting(Version::Two, "254:0", limit);
        assert_eq!(two, ("io.max", "254:0 rbps=157286400".into()));
    }

    #[test]
    fn groups_of_killed_runs_are_removed() {
        let root = tempfile::tempdir().unwrap();
        // No process has the first number: the kernel's greatest is 4,194,304.
        let own = std::process::id();
        let names = ["4194305-I1".into(), format!("{own}-I1"), "I1".into(), "x-I1".into()];
        let names = names.map(|name: String| format!("{PREFIX}{name}"));
        names.iter().for_each(|name| fs::create_dir(root.path().join(name)).unwrap());
        remove_remains(root.path());
        let is_there = |name: &String| root.path().join(name).exists();
        assert_eq!(names.each_ref().map(is_there), [false, true, true, true]);
    }

    #[test]
    fn a_controller_that_was_off_is_off_again() {
        let root = tempfile::tempdir().unwrap();
        let control = root.path().join("cgroup.subtree_control");
        let throttle = |state: &str| {
            fs::write(&control, state).unwrap();
            let disk = Disk { name: "sda".into(), number: "8:0".into() };
            let (version, root) = (Version::Two, root.path().into());
            let mut throttle = Throttle { version, root, disk, was_switched_on: false };
            throttle.switch_on().unwrap();
            throttle
        };
        let on = throttle("cpu io\n");
        assert_eq!(fs::read_to_string(&control).unwrap(), "cpu io\n");
        drop(on);
        assert_eq!(fs::read_to_string(&control).unwrap(), "cpu io\n");
        let off = throttle("cpu\n");
        assert_eq!(fs::read_to_string(&control).unwrap(), "+io");
        let group = off.group("I1", Rate(1_000)).unwrap();
        let limit = fs::read_to_string(group.path.join("io.max")).unwrap();
        assert_eq!(limit, "8:0 rbps=1000");
        drop(off);
        assert_eq!(fs::read_to_string(&control).unwrap(), "-io");
    }
}
