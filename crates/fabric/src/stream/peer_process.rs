//! The process at the other end of a Unix socket, its ancestors, and the process that sends.
//!
//! # Problem
//! A number of a process is given to another one as soon as the process has ended. A client may
//! connect, hand the socket to another process and end; then its number may be that of any process.
//!
//! # Mechanism
//! The kernel hands out a descriptor of the process that connected (`SO_PEERPIDFD`, Linux 6.5).
//! `/proc` names the number of that process, and the time when the process with that number began.
//! Both count only if the process of the descriptor has not ended afterwards: until then its number
//! is its own. Its ancestors are read likewise: each began no later than its child, and is still
//! the child's parent after it was read.
//!
//! The process *that connected* is meant. Any process that inherits or receives the socket may send
//! on it, so a listener may have the kernel name the sender with the bytes
//! ([`Listener::naming_senders`], `SO_PASSCRED`), and [`receive`] reports it.
//!
//! All that cannot be proved counts as unknown: earlier kernels, a process of a namespace that is
//! not seen from here, one that has ended, and ancestors behind one that has ended.
//!
//! [`Listener::naming_senders`]: super::Listener::naming_senders

use std::fs;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_proto::message::ProcessId;

use super::{Kind, Stream};
use crate::peer_credentials;
use crate::socket::Socket;

/// The most processes that are looked at for one client: more than shells in shells need.
const GENERATIONS_MAX: usize = 32;

/// The process that connected, and its ancestors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The user of the process when it connected, by number.
    pub uid: u32,
    /// The process first, then its parent, and so on. There is at least one.
    pub processes: Vec<ProcessId>,
}

/// The process at the other end of a connection that was accepted at a Unix socket, with its
/// ancestors; none if that is not certain, or the connection is encrypted.
pub fn lineage(stream: &Stream) -> Option<Lineage> {
    let (process, descriptor) = connected(stream)?;
    let Kind::Plain(Socket::Unix(socket)) = &stream.0 else { return None };
    let uid = peer_credentials::of(socket).ok()?.uid;
    let (_, mut parent) = stat(process.pid)?;
    let mut processes = vec![process];
    // The first process of a namespace adopts others than its own.
    while parent > 1 && processes.len() < GENERATIONS_MAX {
        let Some((ancestor, next)) = stat(parent) else { break };
        let child = processes[processes.len() - 1];
        // A parent that ended before it was read has left its child to another one by now.
        let is_parent = stat(child.pid) == Some((child, parent));
        if !is_parent || ancestor.started > child.started {
            break;
        }
        processes.push(ancestor);
        parent = next;
    }
    has_not_ended(&descriptor).then_some(Lineage { uid, processes })
}

/// The process at the other end of a connection that was accepted at a Unix socket; none if that is
/// not certain, or the connection is encrypted.
pub fn process(stream: &Stream) -> Option<ProcessId> {
    connected(stream).map(|(process, _)| process)
}

/// Reads like [`Stream::receive`], and returns the number of the process that sent the bytes, too:
/// zero if it cannot be seen from here, none if the kernel does not report it.
///
/// # Errors
/// Those of [`Stream::receive`].
pub fn receive(stream: &Stream, slices: &mut [IoSliceMut<'_>]) -> io::Result<(usize, Option<u32>)> {
    match &stream.0 {
        Kind::Plain(Socket::Unix(socket)) => receive_with_sender(socket, slices),
        _ => stream.receive(slices).map(|count| (count, None)),
    }
}

/// The machine since it was started, and the namespace in which processes have their numbers here.
/// Empty if that is unknown, or if `/proc` is another namespace's.
pub fn process_space() -> String {
    let read = || {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
        let own = fs::read_link("/proc/self").ok()?;
        let is_ours = own.to_str() == Some(&*std::process::id().to_string());
        is_ours.then(|| format!("{} {}", boot.trim(), namespace.display()))
    };
    read().unwrap_or_default()
}

/// The process that connected, and a descriptor of it.
fn connected(stream: &Stream) -> Option<(ProcessId, OwnedFd)> {
    let Kind::Plain(Socket::Unix(socket)) = &stream.0 else { return None };
    let descriptor = peer_descriptor(socket)?;
    let details = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    let details = fs::read_to_string(details).ok()?;
    let pid = details.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    // Negative of a process that has ended, and zero of one that is not seen in this `/proc`.
    let pid = pid.trim().parse::<u32>().ok().filter(|pid| *pid > 0)?;
    let (process, _) = stat(pid)?;
    has_not_ended(&descriptor).then_some((process, descriptor))
}

/// The process with this number, if there is one now, and the number of its parent.
fn stat(pid: u32) -> Option<(ProcessId, u32)> {
    // Of its first thread: that of the process has the sums of all threads, which takes longer the
    // more a client has. Both name the same parent and start.
    let stat = fs::read(format!("/proc/{pid}/task/{pid}/stat")).ok()?;
    // The name, in brackets, may have any bytes. Behind it: the state, the parent, and, as the
    // twentieth, the start (proc_pid_stat(5)).
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some((ProcessId { pid, started }, parent))
}

/// Whether the process of a descriptor has not ended.
fn has_not_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)) == Ok(0)
}

/// A descriptor of the process that connected.
fn peer_descriptor(socket: &impl AsFd) -> Option<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    // SAFETY: the option's value is an integer.
    unsafe { peer_credentials::read_option(socket, libc::SO_PEERPIDFD, &mut descriptor) }.ok()?;
    // SAFETY: the kernel has made the descriptor for us, and no other value has it.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The memory for the sender's credentials. Nothing else has room there, so descriptors that a
/// client sends along are not taken.
#[repr(C)]
struct ReceivedCredentials {
    head: libc::cmsghdr,
    credentials: libc::ucred,
}

fn receive_with_sender(
    socket: &impl AsFd,
    slices: &mut [IoSliceMut<'_>],
) -> io::Result<(usize, Option<u32>)> {
    // SAFETY: both are numbers and null pointers.
    let (mut message, mut control) =
        unsafe { (std::mem::zeroed::<libc::msghdr>(), std::mem::zeroed::<ReceivedCredentials>()) };
    message.msg_iov = slices.as_mut_ptr().cast();
    message.msg_iovlen = slices.len() as _;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<ReceivedCredentials>() as _;
    let descriptor = socket.as_fd().as_raw_fd();
    let count = loop {
        // SAFETY: `IoSliceMut` has the layout of `iovec`, and all pointers are to live values of
        // the given lengths.
        let count = unsafe { libc::recvmsg(descriptor, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(count) {
            Ok(count) => break count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    };
    // Both are zero if the kernel has written nothing.
    let kind = (control.head.cmsg_level, control.head.cmsg_type);
    let is_sender = kind == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS);
    let sender = is_sender.then(|| u32::try_from(control.credentials.pid).unwrap_or(0));
    Ok((count, sender))
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Command, Stdio};

    use super::super::{Address, Listener, ListenerAccess};
    use super::*;

    /// A listener of the test, and where it is.
    fn listener() -> (tempfile::TempDir, std::path::PathBuf, UnixListener) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        (folder, path, listener)
    }

    fn own() -> ProcessId {
        stat(std::process::id()).unwrap().0
    }

    /// Python that connects to the path of its first argument, and then goes on.
    fn python(path: &std::path::Path, then: &str) -> Command {
        let script = format!(
            "import os, socket, sys\nc = socket.socket(socket.AF_UNIX)\nc.connect(sys.argv[1])\n\
             {then}"
        );
        let mut command = Command::new("python3");
        command.args(["-c", &script]).arg(path).stdin(Stdio::piped());
        command
    }

    #[test]
    fn the_process_that_connected_and_its_ancestors_are_known() {
        let (_folder, path, listener) = listener();
        let accepted = || Stream::from(listener.accept().unwrap().0);
        let _own = UnixStream::connect(&path).unwrap();
        let Some(found) = lineage(&accepted()) else { return };
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        assert_eq!(found.processes[0], own());
        assert!(found.processes.windows(2).all(|it| it[0].started >= it[1].started));
        // A child of a shell that is our child, and stays.
        let mut shell = Command::new("sh");
        let mut client = python(&path, "sys.stdin.read()");
        shell.args(["-c", "\"$@\"; true", "sh"]).arg(client.get_program());
        shell.args(client.get_args()).stdin(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let stream = accepted();
        let found = lineage(&stream).unwrap();
        assert_eq!(process(&stream), Some(found.processes[0]));
        assert_eq!(found.processes[1].pid, shell.id(), "{found:?}");
        assert_eq!(found.processes[2], own(), "{found:?}");
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert_eq!((lineage(&stream), process(&stream)), (None, None), "it has ended");
        // One that has ended although the connection has not: its child keeps that.
        client = python(&path, "os.fork() == 0 and sys.stdin.read()");
        let mut parent = client.spawn().unwrap();
        let stream = accepted();
        let stays = parent.stdin.take();
        parent.wait().unwrap();
        assert_eq!(lineage(&stream), None);
        assert!(!stream.has_ended());
        drop(stays);
    }

    #[test]
    fn ancestors_end_at_one_that_has_ended() {
        let (_folder, path, listener) = listener();
        // The parent ends at once; the child connects when it is another's.
        let script = "c.close()\nif os.fork() == 0: sys.stdin.buffer.read(1); \
                      c = socket.socket(socket.AF_UNIX); c.connect(sys.argv[1]); \
                      sys.stdin.read()";
        let mut parent = python(&path, script).spawn().unwrap();
        drop(listener.accept().unwrap());
        let mut stays = parent.stdin.take().unwrap();
        let ended = parent.id();
        parent.wait().unwrap();
        stays.write_all(b"x").unwrap();
        let stream = Stream::from(listener.accept().unwrap().0);
        let Some(found) = lineage(&stream) else { return };
        assert!(found.processes.iter().all(|it| it.pid != ended && *it != own()), "{found:?}");
    }

    #[test]
    fn the_sender_of_bytes_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener =
            Listener::bind(&Address::Unix(path.clone()), ListenerAccess::PRIVATE).unwrap();
        let listener = listener.naming_senders().unwrap();
        let accepted = || loop {
            match listener.accept().unwrap() {
                Some(stream) => return stream,
                None => std::thread::yield_now(),
            }
        };
        let received = |stream: &Stream| loop {
            let (mut one, mut two) = ([0; 1], [0; 8]);
            let mut slices = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
            match receive(stream, &mut slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => {
                    let (count, sender) = received.unwrap();
                    let bytes: Vec<u8> = one.into_iter().chain(two).take(count).collect();
                    return (bytes, sender);
                }
            }
            std::thread::yield_now();
        };
        let mut ours = UnixStream::connect(&path).unwrap();
        // Before it is accepted, and afterwards.
        ours.write_all(b"abc").unwrap();
        let theirs = accepted();
        let us = Some(std::process::id());
        assert_eq!(received(&theirs), (b"abc".to_vec(), us));
        ours.write_all(b"de").unwrap();
        assert_eq!(received(&theirs), (b"de".to_vec(), us));
        // A child that inherits the connection is another process.
        let output = Stdio::from(OwnedFd::from(ours.try_clone().unwrap()));
        let mut child = Command::new("sh").args(["-c", "printf x"]).stdout(output).spawn().unwrap();
        assert_eq!(received(&theirs), (b"x".to_vec(), Some(child.id())));
        child.wait().unwrap();
        assert_eq!(process(&theirs), Some(own()).filter(|_| process(&theirs).is_some()));
        drop(ours);
        assert_eq!(received(&theirs).0, b"");
        let (one, other) = Stream::pair().unwrap();
        one.send(&[IoSlice::new(b"a")]).unwrap();
        assert_eq!(received(&other), (b"a".to_vec(), None), "it did not ask");
    }

    /// The path at which the server of the test below listens.
    const SERVER: &str = "PEER_PROCESS_TEST_SERVER";

    /// The test starts itself in another namespace, as the server of a client that is not seen from
    /// there.
    #[test]
    fn a_client_outside_of_the_namespace_is_unknown() {
        let name = "stream::peer_process::tests::a_client_outside_of_the_namespace_is_unknown";
        if let Some(path) = std::env::var_os(SERVER) {
            // The client finds it only once the kernel notes who sends.
            let new = std::path::Path::new(&path).with_extension("new");
            let listener = UnixListener::bind(&new).unwrap();
            rustix::net::sockopt::set_socket_passcred(&listener, true).unwrap();
            fs::rename(new, path).unwrap();
            let stream = Stream::from(listener.accept().unwrap().0);
            let (_, sender) = receive(&stream, &mut [IoSliceMut::new(&mut [0; 8])]).unwrap();
            assert_eq!((lineage(&stream), process(&stream), sender), (None, None, Some(0)));
            assert!(!process_space().is_empty());
            stream.send(&[IoSlice::new(process_space().as_bytes())]).unwrap();
            return;
        }
        let enter = |arguments: &[std::ffi::OsString]| {
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--mount-proc"]).args(arguments);
            command
        };
        if !enter(&["true".into()]).output().is_ok_and(|it| it.status.success()) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let test = std::env::current_exe().unwrap();
        let mut server = enter(&[test.into(), "--exact".into(), name.into()]);
        let mut server = server.env(SERVER, &path).stdout(Stdio::null()).spawn().unwrap();
        let mut stream = loop {
            match UnixStream::connect(&path) {
                Ok(stream) => break stream,
                Err(_) => assert_eq!(server.try_wait().unwrap(), None, "it serves"),
            }
            std::thread::yield_now();
        };
        stream.write_all(b"x").unwrap();
        let mut space = String::new();
        io::Read::read_to_string(&mut stream, &mut space).unwrap();
        assert!(server.wait().unwrap().success());
        assert_ne!(space, process_space());
        assert_eq!(space.split_once(' ').unwrap().0, process_space().split_once(' ').unwrap().0);
    }
}
