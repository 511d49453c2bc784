//! Child processes that end with their parent, however the parent ends.
//!
//! # Problem
//! A process that starts others ends them, too, when it is done or asked to end. Killed, it can do
//! nothing any more: a data node, a controller and ten clients of an experiment would go on for an
//! hour.
//!
//! # Mechanism
//! The kernel can send a signal to a process when its parent is gone (`PR_SET_PDEATHSIG`), if the
//! process has asked for that. The new process asks between its fork and its exec, and then looks
//! whether its parent is still there, for a signal that came before it asked is lost. The program
//! that it executes keeps that, unless it changes its user. The signal is SIGTERM, so our own
//! daemons end as they do when they are asked to.
//!
//! "Parent" is the *thread* that forked, not its process. The thread of `main` lives as long as its
//! process does, any other may end before. So only what that thread starts is tied; a process that
//! another one starts lives on as it always did.
//!
//! # What is left out
//! Processes that a tied process has started itself: it has to end them when it is asked to end.
//! And files.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::thread::gettid;

/// Ties what the command starts to this process. Says whether it is: only what the first thread
/// starts can be. The command is to be started by the thread that calls this.
///
/// ```
/// use std::process::Command;
/// use tidegate_fabric::tether;
/// // A test has a thread of its own, and that may end while what it started goes on.
/// let alone = std::thread::spawn(|| tether::tie(&mut Command::new("true"))).join();
/// assert!(!alone.unwrap());
/// ```
pub fn tie(command: &mut Command) -> bool {
    let parent = getpid();
    if gettid() != parent {
        return false;
    }
    let set_parent_death_signal = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        match getppid() == Some(parent) {
            true => Ok(()),
            // No process is there to receive it, but the program must not begin.
            false => Err(Errno::SRCH.into()),
        }
    };
    // SAFETY: after a fork only what is safe in a signal handler may be called. The closure makes
    // two system calls, allocates nothing and takes no lock; an error of the system's is a number.
    unsafe { command.pre_exec(set_parent_death_signal) };
    true
}
