//! The Unix socket that stages and operators connect to.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tidegate_fabric::trusted::{Folder, Purpose, TrustError};
use tokio::net::{UnixListener, UnixStream};

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A running controller listens there.
    #[error(
        "another controller{} listens on {path}; stop it, or choose another --socket",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The socket.
        path: PathBuf,
        /// The process, if the kernel reports it.
        pid: Option<i32>,
    },
    /// A file that is no socket has the path.
    #[error("{path} exists and is no socket; move it away, or choose another --socket")]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// Its folder cannot be made, or other users could put a socket of their own in its place.
    #[error("cannot listen on {path}: {error}")]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The folder that is wrong, why, and how to mend it.
        error: TrustError,
    },
    /// The kernel refuses.
    #[error("cannot listen on {path}: {error}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

/// A listening socket. Its file is removed with it, unless the file is another's by then.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    /// Device and inode of the file that we made.
    made: (u64, u64),
    pub(crate) listener: UnixListener,
}

impl Socket {
    /// Listens at `path`. The file of a dead controller is replaced.
    ///
    /// A daemon of root serves every user, and decides on permissions per connection. Any other
    /// daemon serves its own user, by the file's mode.
    pub(crate) async fn listen(path: &Path) -> Result<Self, SocketError> {
        let failed = |error| SocketError::Io { path: path.into(), error };
        let refused = |error| SocketError::Refused { path: path.into(), error };
        let absolute = std::path::absolute(path).map_err(failed)?;
        let folder = absolute.parent().unwrap_or(Path::new("/"));
        Folder::make(folder, Purpose::Public).map_err(refused)?;
        remove_stale(path).await?;
        let listener = UnixListener::bind(path).map_err(failed)?;
        tidegate_fabric::peer_credentials::refuse_descriptors(&listener);
        let mode = if nix::unistd::geteuid().is_root() { 0o666 } else { 0o600 };
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
        let made = identity(path).map_err(failed)?;
        Ok(Self { path: path.into(), made, listener })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.made) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Removes a socket on which no process listens.
async fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let failed = |error| SocketError::Io { path: path.into(), error };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NoSocket { path: path.into() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Ok(stream) => {
            let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
            Err(SocketError::InUse { path: path.into(), pid })
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}
