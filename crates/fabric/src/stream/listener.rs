//! Listening sockets, Unix and TCP: the checks of a socket's file (the file of a dead process is
//! replaced, that of a live one is not), and the rules about which users and machines may connect.

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::sockopt::set_socket_passcred;
use rustix::process::geteuid;

use super::{Address, Stream};
use crate::peer_credentials::{self, PeerCredentials};
use crate::socket::Socket;
use crate::tls::Guard;
use crate::trusted::{Folder, Purpose, TrustError, TrustProblem};

/// The access rules of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerAccess {
    /// The mode of a Unix socket's file.
    pub mode: u32,
    /// On a Unix socket, only processes of root and of our own user.
    pub own_user_only: bool,
    /// Listen on addresses that other machines reach, because clients have to show a certificate.
    pub is_public: bool,
    /// Clients of a Unix socket may send descriptors along with their bytes. Everywhere else these
    /// are refused ([`peer_credentials::refuse_descriptors`]).
    pub takes_descriptors: bool,
}

impl ListenerAccess {
    /// For peers without restrictions: our own user and root, on this machine.
    pub const PRIVATE: Self =
        Self { mode: 0o600, own_user_only: true, is_public: false, takes_descriptors: false };

    /// For peers of every user on this machine.
    pub const EVERYBODY: Self = Self { mode: 0o666, own_user_only: false, ..Self::PRIVATE };
}

/// Why an address cannot be listened on.
#[derive(Debug)]
pub enum BindError {
    /// A process listens there.
    InUse {
        /// The address.
        address: Address,
        /// The process, if the kernel reports it.
        pid: Option<u32>,
    },
    /// A file that is no socket has the path.
    NoSocket(PathBuf),
    /// Its folder is not there, or other users could put a socket of their own in its place.
    Folder(Address, TrustError),
    /// Other machines would reach it, and the configuration does not allow that.
    Public(SocketAddr),
    /// The kernel refuses.
    Io(Address, io::Error),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { address, pid } => {
                write!(f, "another process")?;
                if let Some(pid) = pid {
                    write!(f, " (pid {pid})")?;
                }
                write!(f, " listens on {address}; stop it, or choose another address")
            }
            Self::NoSocket(path) => write!(
                f,
                "{} exists and is no socket; move it away, or choose another address",
                path.display()
            ),
            Self::Public(address) => write!(
                f,
                "{address} can be reached from other machines, and any host that reaches it may do \
                 anything; add [tls] to the cluster's file, or listen on 127.0.0.1"
            ),
            Self::Folder(address, error) => {
                write!(f, "cannot listen on {address}: {error}")?;
                match (&error.problem, address) {
                    (TrustProblem::Io(cause), Address::Unix(path))
                        if cause.kind() == io::ErrorKind::NotFound =>
                    {
                        let folder = path.parent().unwrap_or(Path::new("/")).display();
                        write!(
                            f,
                            "; make its folder first, as the user who runs this: `mkdir -p -m 755 \
                             {folder}`, or with -m 700 where only that user's clients come"
                        )
                    }
                    _ => Ok(()),
                }
            }
            Self::Io(address, error) => write!(f, "cannot listen on {address}: {error}"),
        }
    }
}

impl std::error::Error for BindError {}

/// A listening socket. A Unix socket's file is removed with it, unless it is another's by then.
#[derive(Debug)]
pub struct Listener {
    kind: ListenerSocket,
    access: ListenerAccess,
    address: Address,
    guard: Option<Guard>,
}

#[derive(Debug)]
enum ListenerSocket {
    /// With device and inode of the file that we made.
    Unix(UnixListener, (u64, u64)),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at `address`. The socket file of a dead process is replaced.
    ///
    /// # Errors
    /// See [`BindError`]; nothing is changed then.
    pub fn bind(address: &Address, access: ListenerAccess) -> Result<Self, BindError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse { address: address.clone(), pid: None },
            _ => BindError::Io(address.clone(), error),
        };
        match address {
            Address::Unix(path) => {
                let absolute = std::path::absolute(path).map_err(failed)?;
                let folder = absolute.parent().unwrap_or(Path::new("/"));
                let refused = |error| BindError::Folder(address.clone(), error);
                Folder::open(folder, Purpose::Public).map_err(refused)?;
                remove_stale(path)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                if !access.takes_descriptors {
                    peer_credentials::refuse_descriptors(&listener);
                }
                let made = identity(path).map_err(failed)?;
                let (kind, address) = (ListenerSocket::Unix(listener, made), address.clone());
                let listener = Self { kind, access, address, guard: None };
                fs::set_permissions(path, Permissions::from_mode(access.mode)).map_err(failed)?;
                listener.set_nonblocking().map_err(failed)?;
                Ok(listener)
            }
            Address::Tcp(at) if !at.ip().is_loopback() && !access.is_public => {
                Err(BindError::Public(*at))
            }
            Address::Tcp(at) => {
                let listener = TcpListener::bind(at).map_err(failed)?;
                let address = Address::Tcp(listener.local_addr().map_err(failed)?);
                let listener =
                    Self { kind: ListenerSocket::Tcp(listener), access, address, guard: None };
                listener.set_nonblocking().map_err(failed)?;
                Ok(listener)
            }
        }
    }

    /// From now on, connections over TCP are encrypted by `guard`.
    #[must_use]
    pub fn behind(mut self, guard: Option<Guard>) -> Self {
        self.guard = guard;
        self
    }

    /// From now on the kernel keeps the sender of bytes on connections over a Unix socket, for
    /// [`super::peer_process::receive`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn naming_senders(self) -> io::Result<Self> {
        if let ListenerSocket::Unix(listener, _) = &self.kind {
            set_socket_passcred(listener, true)?;
        }
        Ok(self)
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match &self.kind {
            ListenerSocket::Unix(listener, _) => listener.set_nonblocking(true),
            ListenerSocket::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    /// The listener's address, with the port that the kernel chose if the port was 0.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The next connection, or none if no client waits.
    ///
    /// # Errors
    /// If there is no descriptor left, or the client may not connect: kind `PermissionDenied`, and
    /// the connection is closed.
    pub fn accept(&self) -> io::Result<Option<Stream>> {
        let socket = match &self.kind {
            ListenerSocket::Unix(listener, _) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Socket::Unix(stream))
            }),
            ListenerSocket::Tcp(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Socket::from_tcp(stream)
            }),
        };
        use io::ErrorKind::{ConnectionAborted, NotConnected, WouldBlock};
        match socket.and_then(|socket| self.admit(socket)) {
            Ok(stream) => Ok(Some(stream)),
            // A client that disconnects before it is accepted is no error.
            Err(error) if matches!(error.kind(), ConnectionAborted | NotConnected | WouldBlock) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Lets no client connect any more: new connections are refused at once, and those that were
    /// not accepted are closed.
    pub fn refuse(&self) {
        // It fails only for what is no listening socket, or not any more.
        let _ = rustix::net::shutdown(self, rustix::net::Shutdown::Both);
    }

    fn admit(&self, socket: Socket) -> io::Result<Stream> {
        if let (Socket::Unix(_), true) = (&socket, self.access.own_user_only) {
            let PeerCredentials { pid, uid } = peer_credentials::of(&socket)?;
            if uid != 0 && uid != geteuid().as_raw() {
                let reason = format!("process {pid} of user {uid} may not connect here");
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
            }
        }
        match (&socket, &self.guard) {
            (Socket::Tcp(_), Some(guard)) => Ok(guard.accept(socket)?.into()),
            _ => Ok(socket.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            ListenerSocket::Unix(listener, _) => listener.as_fd(),
            ListenerSocket::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let (ListenerSocket::Unix(_, made), Address::Unix(path)) = (&self.kind, &self.address)
            && identity(path).is_ok_and(|found| found == *made)
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Removes a socket on which no process listens.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    let address = || Address::Unix(path.into());
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(BindError::Io(address(), error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindError::NoSocket(path.into()));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(stream) => {
            let pid = peer_credentials::of(&stream).ok().filter(|peer| peer.pid > 0);
            let pid = pid.map(|peer| peer.pid);
            Err(BindError::InUse { address: address(), pid })
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| BindError::Io(address(), error))
        }
        Err(error) => Err(BindError::Io(address(), error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_folder_is_reported_with_the_command_that_makes_it() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("run");
        let error =
            Listener::bind(&Address::Unix(folder.join("local.sock")), ListenerAccess::PRIVATE);
        let message = error.unwrap_err().to_string();
        assert!(message.contains(&format!("`mkdir -p -m 755 {}`", folder.display())), "{message}");
    }
    use std::io::Read;

    fn address(folder: &tempfile::TempDir) -> Address {
        Address::Unix(folder.path().join("socket"))
    }

    fn accepted(listener: &Listener) -> Stream {
        loop {
            match listener.accept().unwrap() {
                Some(stream) => return stream,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn both_kinds_connect_and_carry_bytes() {
        let folder = tempfile::tempdir().unwrap();
        for address in [address(&folder), "127.0.0.1:0".parse().unwrap()] {
            let listener = Listener::bind(&address, ListenerAccess::PRIVATE).unwrap();
            let ours = Stream::connect(listener.address()).unwrap();
            let mut theirs = accepted(&listener);
            ours.error().unwrap();
            assert_eq!(ours.send(&[IoSlice::new(b"ab"), IoSlice::new(b"c")]).unwrap(), 3);
            let mut bytes = [0; 8];
            let count = loop {
                match theirs.read(&mut bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    count => break count.unwrap(),
                }
            };
            assert_eq!(&bytes[..count], b"abc");
            assert!(listener.accept().unwrap().is_none());
        }
    }

    use std::io::IoSlice;

    #[test]
    fn a_socket_file_is_private_replaced_when_stale_and_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let address = address(&folder);
        let Address::Unix(path) = &address else { unreachable!() };
        drop(UnixListener::bind(path).unwrap());
        let listener = Listener::bind(&address, ListenerAccess::PRIVATE).unwrap();
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = Listener::bind(&address, ListenerAccess::PRIVATE).unwrap_err();
        let pid = Some(std::process::id());
        assert!(matches!(&error, BindError::InUse { pid: found, .. } if *found == pid), "{error}");
        drop(listener);
        assert!(!path.exists());
        fs::write(path, "precious").unwrap();
        let error = Listener::bind(&address, ListenerAccess::PRIVATE).unwrap_err();
        assert!(matches!(error, BindError::NoSocket(_)));
        assert_eq!(fs::read(path).unwrap(), b"precious");
    }

    #[test]
    fn a_listener_that_refuses_keeps_no_client_waiting() {
        let folder = tempfile::tempdir().unwrap();
        for address in [address(&folder), "127.0.0.1:0".parse().unwrap()] {
            let listener = Listener::bind(&address, ListenerAccess::PRIVATE).unwrap();
            listener.refuse();
            let refused = match listener.address() {
                Address::Unix(path) => UnixStream::connect(path).map(drop),
                Address::Tcp(address) => std::net::TcpStream::connect(address).map(drop),
            };
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        }
    }

    #[test]
    fn a_busy_port_and_a_public_one_are_refused() {
        let listener =
            Listener::bind(&"127.0.0.1:0".parse().unwrap(), ListenerAccess::PRIVATE).unwrap();
        let error = Listener::bind(listener.address(), ListenerAccess::PRIVATE).unwrap_err();
        assert!(matches!(error, BindError::InUse { .. }), "{error}");
        let everywhere = "0.0.0.0:0".parse().unwrap();
        let error = Listener::bind(&everywhere, ListenerAccess::PRIVATE).unwrap_err();
        assert!(matches!(error, BindError::Public(_)), "{error}");
        assert!(
            Listener::bind(
                &everywhere,
                ListenerAccess { is_public: true, ..ListenerAccess::PRIVATE }
            )
            .is_ok()
        );
    }
}
