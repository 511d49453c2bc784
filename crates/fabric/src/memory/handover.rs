//! A descriptor on its way from one process to another, over a Unix socket.
//!
//! It travels with the bytes of one message, so that the receiver learns what it is for in the same
//! call. Whoever may have it is the sender's to decide, before.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends `message`, at least one byte, and with its first byte `file`. Tells how many bytes the
/// kernel took; the rest, if any, is to be sent without the descriptor.
///
/// # Errors
/// `WouldBlock` if the socket does not block and nothing can be sent now; else the peer is gone, or
/// this is no Unix socket.
pub fn send(socket: impl AsFd, message: &[u8], file: BorrowedFd<'_>) -> io::Result<usize> {
    assert!(!message.is_empty(), "a descriptor travels with a byte");
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    let is_room = control.push(SendAncillaryMessage::ScmRights(&files));
    assert!(is_room, "the space was made for one descriptor");
    let pieces = [IoSlice::new(message)];
    let send = || sendmsg(&socket, &pieces, &mut control, SendFlags::NOSIGNAL);
    Ok(rustix::io::retry_on_intr(send)?)
}

/// Reads bytes of a message into `message`, and the descriptor if one came with them. No bytes mean
/// that the peer has closed the connection. The descriptor is not passed on to programs that this
/// one starts.
///
/// # Errors
/// `WouldBlock` if the socket does not block and nothing is there now; `InvalidData` if more than
/// one descriptor came, all of which are closed then; else the connection is gone.
pub fn receive(socket: impl AsFd, message: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(message)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let receive = || recvmsg(&socket, &mut pieces, &mut control, flags);
    let received = rustix::io::retry_on_intr(receive)?;
    let mut files = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.next().and_then(|mut files| files.next());
    if received.flags.contains(rustix::net::ReturnFlags::CTRUNC) || files.next().is_some() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "more than one descriptor came"));
    }
    Ok((received.bytes, file))
}
