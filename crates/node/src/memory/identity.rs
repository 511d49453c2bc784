//! Identity of the process at the other end of a connection, as the kernel reports it.

use std::fs;
use std::io;
use std::os::fd::AsFd;

use nix::unistd::{Uid, User};
use rustix::process::geteuid;
use tidegate_fabric::peer_credentials::{self, PeerCredentials};
use tidegate_onesided::data_node::ClientIdentity;
use tidegate_proto::controller::Peer;

/// The process at the other end. The look-up of its user's name may go over a network.
pub(super) fn of(socket: impl AsFd) -> io::Result<ClientIdentity> {
    let PeerCredentials { pid, uid } = peer_credentials::of(socket)?;
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let process = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let process = process.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    Ok(ClientIdentity {
        peer: Peer { uid, pid, user: user.map_or(String::new(), |it| it.name), ..Peer::default() },
        process,
        cgroup: informative_path(&cgroup).into(),
        is_operator: uid == 0 || uid == geteuid().as_raw(),
        certificate: None,
    })
}

/// Of lines like `4:blkio:/batch` and `0::/user.slice` the most specific path, as stages choose it.
fn informative_path(lines: &str) -> &str {
    let paths = || lines.lines().filter_map(|line| Some((line, line.splitn(3, ':').nth(2)?)));
    let is_informative = |(_, path): &(&str, &str)| *path != "/";
    let unified = paths().filter(is_informative).find(|(line, _)| line.starts_with("0:"));
    let found = unified.or_else(|| paths().find(is_informative)).or_else(|| paths().next());
    found.map_or("", |(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_informative_control_group() {
        assert_eq!(informative_path("4:blkio:/batch\n0::/\n"), "/batch");
        assert_eq!(informative_path("4:blkio:/\n0::/user.slice/a:b\n"), "/user.slice/a:b");
        assert_eq!((informative_path("1:cpu:/\n0::/\n"), informative_path("")), ("/", ""));
    }

    #[test]
    fn this_process_is_one_of_our_own() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let identity = of(&ours).unwrap();
        let path = std::env::current_exe().unwrap();
        assert_eq!(Some(identity.process.as_str()), path.file_name().unwrap().to_str());
        assert_eq!((identity.peer.pid, identity.is_operator), (std::process::id(), true));
    }
}
