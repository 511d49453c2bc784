//! Building and running programs under the shim.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use tidegate_algo::classify::channel::{self, ChannelEntry, Source};
use tidegate_model::operation::OPERATIONS;
use tidegate_model::{Class, Conditions, Operation, OperationSet, TenantId, Time};
use tidegate_stage::layout::GateKind;
use tidegate_stage::segment::VARIABLE;
use tidegate_stage::{Bypass, Segment};

/// The shim, built for the profile of this test. Cargo builds the library of a package for its
/// tests only if they can link with it, and no test can link with this one.
pub(crate) fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let test = std::env::current_exe().expect("a test has a path");
        // target/<profile>/deps/<test>
        let profile = test.ancestors().nth(2).expect("a test is in the target directory");
        let target = profile.parent().expect("a profile is in the target directory");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", "tidegate-preload", "--target-dir"]);
        build.arg(target);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        run(build.current_dir(env!("CARGO_MANIFEST_DIR")));
        profile.join("libtidegate_preload.so")
    })
}

/// Runs a command that has to work, and gives what it says.
pub(crate) fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the command is there");
    let output = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {status}\n{output}");
    String::from_utf8_lossy(&stdout).into_owned()
}

/// A new directory on storage.
pub(crate) fn directory() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("shim-{}-{number}", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&path).expect("cargo's directory for tests can be written to");
    path
}

/// A program of `programs/`, built with these further arguments.
pub(crate) fn build(directory: &Path, name: &str, arguments: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let built = directory.join(Path::new(name).with_extension(""));
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-w", "-o"]).arg(&built).arg(source);
    run(compiler.args(["-pthread"]).args(arguments));
    built
}

/// A stage for one test: a segment, and the directory whose files are counted.
pub(crate) struct Bench {
    pub(crate) segment: Segment,
    segment_path: PathBuf,
    /// Where programs work.
    pub(crate) directory: PathBuf,
    /// Where programs are.
    pub(crate) programs: PathBuf,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.segment_path);
        let _ = std::fs::remove_dir_all(&self.directory);
        let _ = std::fs::remove_dir_all(&self.programs);
    }
}

/// How often an operation was done, and how many bytes it moved.
pub(crate) type Count = (u64, u64);

impl Bench {
    /// One channel for each operation on files in the directory.
    pub(crate) fn new() -> Self {
        let directory = directory();
        let everything = format!("{}/**", directory.display());
        let rules: Vec<_> = OPERATIONS
            .iter()
            .map(|(operation, _)| {
                let conditions = Conditions {
                    operation: OperationSet::of(&[*operation]),
                    path: vec![everything.clone()],
                    ..Conditions::default()
                };
                (conditions, *operation as u8)
            })
            .collect();
        let bench = Self::with(directory, &rules, None);
        assert_eq!(bench.count(Operation::Read), (0, 0));
        bench
    }

    /// A channel for each operation number, and these rules that choose between them. Every channel
    /// has gate 0, which is open.
    pub(crate) fn with(
        directory: PathBuf,
        rules: &[(Conditions, u8)],
        default: Option<u8>,
    ) -> Self {
        let (segment, segment_path) = Segment::create().expect("shared memory is there");
        let mut gates = [None; channel::GATES_PER_CHANNEL];
        gates[0] = Some(0);
        let entry =
            |channel| ChannelEntry { channel, tenant: TenantId(1), class: Class::Medium, gates };
        let channels: Vec<_> = (0..OPERATIONS.len() as u8).map(entry).collect();
        let source = Source { rules, default, channels: &channels, queues: &[] };
        let words = channel::compile(&source).expect("a dozen rules fit");
        let cells = segment.tables[1].iter().zip(words);
        cells.for_each(|(cell, word)| cell.store(word, Ordering::Relaxed));
        segment.header.channels.store(channels.len() as u32, Ordering::Relaxed);
        segment.header.generation.store(1, Ordering::Release);
        Self { segment, segment_path, directory, programs: self::directory() }
    }

    /// Makes the gate a bucket of bytes.
    pub(crate) fn limit(&self, bytes_per_second: u64, burst: u64) {
        let gate = &self.segment.gates[0];
        gate.bucket.configure(bytes_per_second, burst, Time::ZERO);
        gate.kind.store(GateKind::Bytes as u32, Ordering::Relaxed);
    }

    /// A command that will run in the directory, under the shim.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.directory);
        command.env("LD_PRELOAD", shim()).env(VARIABLE, &self.segment_path);
        command
    }

    /// Builds a program and runs it.
    pub(crate) fn program(&self, name: &str, arguments: &[&str]) -> String {
        let program = build(&self.programs, name, arguments);
        run(&mut self.command(program))
    }

    /// Builds a program and runs it with an argument.
    pub(crate) fn program_with(&self, name: &str, argument: &str) -> String {
        let program = build(&self.programs, name, &[]);
        run(self.command(program).arg(argument))
    }

    /// The count of an operation.
    pub(crate) fn count(&self, operation: Operation) -> Count {
        self.channel(operation as usize)
    }

    /// The operations and bytes that passed a channel.
    pub(crate) fn channel(&self, channel: usize) -> Count {
        let cell = &self.segment.channels[channel];
        (cell.passed.operations(), cell.passed.bytes())
    }

    /// The operations and bytes that bypassed the gates for this reason.
    pub(crate) fn bypassed(&self, reason: Bypass) -> Count {
        let cell = &self.segment.bypasses[reason as usize];
        (cell.operations(), cell.bytes())
    }
}
