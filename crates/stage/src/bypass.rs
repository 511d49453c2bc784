//! Reasons for letting a call pass without a gate: each such call is counted and shown by its
//! reason.

/// Why a call passed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Bypass {
    /// The descriptor is no file on storage: a pipe, a socket, a terminal, a file in memory.
    NotStorage = 0,
    /// The shim itself, or a library call inside one that is already counted.
    Nested = 1,
    /// A child between `vfork` and `exec`, which runs on its parent's stack.
    VforkChild = 2,
    /// Every slot of a queue was taken.
    QueueFull = 3,
    /// A memory mapping of a file: page faults cannot be seen.
    Mapping = 4,
    /// An `io_uring` that the program drives with system calls of its own.
    OwnRing = 5,
    /// A program without a dynamic loader was started: the shim is not in it.
    StaticProgram = 6,
    /// A program with more rights than its caller was started: the loader ignores the shim there.
    SetuidProgram = 7,
    /// A program for another C library was started; it was started without the shim, which it could
    /// not load.
    ForeignProgram = 8,
    /// A Go program was started: it makes system calls of its own.
    GoProgram = 9,
    /// A program was started in an environment without the shim.
    Unloaded = 10,
    /// Something in the shim went wrong and the call was made without it.
    Failure = 11,
    /// A filter on system calls that the program has installed forbids calls that the shim would
    /// have to make.
    Sandboxed = 12,
    /// A program was started that cannot open the shim or the segment: as another user, or in
    /// another root directory.
    Unreachable = 13,
    /// A program was to be started that may be run but not read, so that it is not known whether
    /// the shim would be in it.
    Unreadable = 14,
    /// A program was not started, because the shim would not be in it (`--fail-closed`).
    Refused = 15,
    /// No call that passed by, but one that brought more into service than a queue's depth, because
    /// a permit of a stopped thread was passed on.
    OverDepth = 16,
    /// A program was started with the shim, and the loader left it out, or it could not map the
    /// segment.
    NotLoaded = 17,
}

/// Every reason with its name in reports and what a user can do about it, in order of its number.
pub const BYPASSES: [(Bypass, &str, &str); 18] = [
    (Bypass::NotStorage, "not_storage", "nothing to do: pipes, sockets and memory are not storage"),
    (Bypass::Nested, "nested", "nothing: the outer call was counted"),
    (Bypass::VforkChild, "vfork_child", "nothing: such a child does no data I/O of its own"),
    (Bypass::QueueFull, "queue_full", "let fewer threads wait at one queue gate"),
    (Bypass::Mapping, "mapping", "page faults cannot be gated; serve the file over a gateway"),
    (Bypass::OwnRing, "own_ring", "own io_uring rings cannot be gated; use another I/O engine"),
    (Bypass::StaticProgram, "static_program", "use a dynamically linked build of it"),
    (Bypass::SetuidProgram, "setuid_program", "run it from an account that needs no setuid"),
    (Bypass::ForeignProgram, "foreign_program", "use a build of it for glibc"),
    (Bypass::GoProgram, "go_program", "Go makes its own system calls; serve its files otherwise"),
    (Bypass::Unloaded, "unloaded", "keep LD_PRELOAD in the environment that it is started in"),
    (Bypass::Failure, "failure", "report it: this is a defect of the shim"),
    (Bypass::Sandboxed, "sandboxed", "its own filter forbids futex or fstat; allow them there"),
    (
        Bypass::Unreachable,
        "unreachable",
        "it may not open the shim or the segment; start `tidegate run` as that user, in that root",
    ),
    (Bypass::Unreadable, "unreadable", "make the program's file readable for the user who runs it"),
    (
        Bypass::Refused,
        "refused",
        "not started, as --fail-closed asks; start them otherwise, or leave --fail-closed out",
    ),
    (Bypass::OverDepth, "over_depth", "stopped threads held permits at a queue, which passed on"),
    (
        Bypass::NotLoaded,
        "not_loaded",
        "the loader left the shim out, or could not map the segment, as under `ulimit -v`; give it \
         more address space",
    ),
];

/// The reasons of which each call is a program that was started and is not seen.
pub(crate) const PROGRAMS: [Bypass; 9] = [
    Bypass::StaticProgram,
    Bypass::SetuidProgram,
    Bypass::ForeignProgram,
    Bypass::GoProgram,
    Bypass::Unloaded,
    Bypass::Sandboxed,
    Bypass::Unreachable,
    Bypass::Unreadable,
    Bypass::NotLoaded,
];

impl Bypass {
    /// The name of the reason in reports.
    pub const fn name(self) -> &'static str {
        BYPASSES[self as usize].1
    }
}
