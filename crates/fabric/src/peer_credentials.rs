//! The process and the user at the other end of a Unix socket, by the kernel (`SO_PEERCRED`), and
//! what that process may send besides bytes.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The process that connected or listened, as it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its number; zero if it is not in our namespace of processes, as outside of a container.
    pub pid: u32,
    /// Its user, by number.
    pub uid: u32,
}

/// Asks the kernel. rustix does so, too, but has no number for a process of another namespace, and
/// then returns an error.
///
/// # Errors
/// If that is no socket. Of a socket that is not a Unix socket the numbers say nothing.
pub fn of(socket: impl AsFd) -> io::Result<PeerCredentials> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    // SAFETY: the option's value is a `ucred`, of which any bits are a value.
    unsafe { read_option(&socket, libc::SO_PEERCRED, &mut peer) }?;
    Ok(PeerCredentials { pid: u32::try_from(peer.pid).unwrap_or(0), uid: peer.uid })
}

/// Reads an option of a socket, for those of which rustix has nothing.
///
/// # Safety
/// Whatever the kernel writes for this option, up to the size of `T`, must be a value of `T`.
///
/// # Errors
/// The kernel's.
pub(crate) unsafe fn read_option<T>(
    socket: &impl AsFd,
    option: libc::c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    let descriptor = socket.as_fd().as_raw_fd();
    let target = (&raw mut *value).cast();
    // SAFETY: both pointers are to live values, and `length` is the size of the first; what is
    // written there is a value, as the caller promises.
    match unsafe { libc::getsockopt(descriptor, libc::SOL_SOCKET, option, target, &raw mut length) }
    {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets no client of a listening Unix socket send descriptors along with its bytes (Linux 6.16; no
/// effect on older kernels). A receiver of bytes closes the descriptors with them, and to close one
/// may take as long as its sender likes: a TCP socket that lingers.
pub fn refuse_descriptors(listener: impl AsFd) {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let is_allowed: libc::c_int = 0;
    // SAFETY: the pointer is to a live value of the given length. A kernel that does not know the
    // option returns an error.
    let _ = unsafe {
        libc::setsockopt(
            listener.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const is_allowed).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// Where this test connects to if it runs in a namespace of its own.
    const OUTSIDE: &str = "TIDEGATE_TEST_OUTSIDE";
    const OWN_NAME: &str = "peer_credentials::tests::\
                            a_process_outside_of_our_namespace_has_a_user_and_no_number";

    #[test]
    fn a_process_outside_of_our_namespace_has_a_user_and_no_number() {
        let uid = rustix::process::geteuid().as_raw();
        if let Some(path) = std::env::var_os(OUTSIDE) {
            let stream = UnixStream::connect(path).unwrap();
            assert_eq!(of(&stream).unwrap(), PeerCredentials { pid: 0, uid });
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        assert_eq!(of(&stream).unwrap(), PeerCredentials { pid: std::process::id(), uid });
        let inside = |program: &std::ffi::OsStr| {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-current-user", "--pid", "--fork", "--"]).arg(program);
            command
        };
        if !inside("true".as_ref()).status().is_ok_and(|status| status.success()) {
            eprintln!("nothing more is tested: no namespace can be made here");
            return;
        }
        let own = std::env::current_exe().unwrap();
        let mut again = inside(own.as_os_str());
        again.args(["--exact", OWN_NAME]).env(OUTSIDE, &path);
        let output = again.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
    }

    #[test]
    fn descriptors_are_refused_and_bytes_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        refuse_descriptors(&listener);
        let client = UnixStream::connect(folder.path().join("s")).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let send = |with_file: bool| {
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let files = [client.as_fd()];
            assert!(!with_file || control.push(SendAncillaryMessage::ScmRights(&files)));
            sendmsg(&client, &[io::IoSlice::new(b"x")], &mut control, SendFlags::empty())
        };
        assert_eq!(send(false), Ok(1));
        match send(true) {
            Err(error) => assert_eq!(error, rustix::io::Errno::PERM),
            Ok(_) => eprintln!("nothing is tested: this kernel is older than Linux 6.16"),
        }
        let mut byte = [0];
        assert_eq!(rustix::io::read(&accepted, &mut byte), Ok(1));
    }

    #[test]
    fn what_is_no_socket_is_an_error() {
        assert!(of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
