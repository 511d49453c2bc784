//! A descriptor on its way from one process to another, over a Unix socket.
//!
//! It travels with the bytes of one message, so that the receiver gets its purpose in the same
//! call. The sender checks first whether the receiver may have it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::stream::Stream;

/// Sends `message`, at least one byte, and with its first byte `file`. Returns how many bytes the
/// kernel took; the rest, if any, has to be sent without the descriptor.
///
/// # Errors
/// `WouldBlock` if the socket does not block and nothing can be sent now; else the peer is gone, or
/// this is no Unix socket.
pub fn send(socket: impl AsFd, message: &[u8], file: BorrowedFd<'_>) -> io::Result<usize> {
    assert!(!message.is_empty(), "a descriptor travels with a byte");
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    let has_space = control.push(SendAncillaryMessage::ScmRights(&files));
    assert!(has_space, "the space was made for one descriptor");
    let slices = [IoSlice::new(message)];
    let send = || sendmsg(&socket, &slices, &mut control, SendFlags::NOSIGNAL);
    Ok(rustix::io::retry_on_intr(send)?)
}

/// Reads bytes of a message into `message`, and the descriptor if one came with them; then nothing
/// behind those bytes is read. No bytes mean that the peer has closed the connection. The
/// descriptor is not passed on to programs that this one starts.
///
/// # Errors
/// `WouldBlock` if the socket does not block and nothing is there now; `InvalidData` if more than
/// one descriptor arrived, all of which are closed then; else the connection is gone.
pub fn receive(socket: impl AsFd, message: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(message)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let receive = || recvmsg(&socket, &mut slices, &mut control, flags);
    let received = rustix::io::retry_on_intr(receive)?;
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let mut files = files.flatten();
    let file = files.next();
    if received.flags.contains(rustix::net::ReturnFlags::CTRUNC) || files.next().is_some() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "more than one descriptor came"));
    }
    Ok((received.bytes, file))
}

/// As [`send`].
///
/// # Errors
/// As [`send`]; kind `Unsupported` for an encrypted stream, which leads to another machine.
pub fn send_on(stream: &Stream, message: &[u8], file: BorrowedFd<'_>) -> io::Result<usize> {
    match stream.names() {
        Some(_) => Err(io::ErrorKind::Unsupported.into()),
        None => send(stream, message, file),
    }
}

/// As [`receive`]; on an encrypted stream no descriptor arrives.
///
/// # Errors
/// As [`receive`].
pub fn receive_on(stream: &Stream, message: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    match stream.names() {
        Some(_) => stream.receive(&mut [IoSliceMut::new(message)]).map(|count| (count, None)),
        None => receive(stream, message),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;

    fn send_several(socket: &UnixStream, count: usize) {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [socket.as_fd(); 3];
        assert!(control.push(SendAncillaryMessage::ScmRights(&files[..count])));
        sendmsg(socket, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
    }

    #[test]
    fn a_descriptor_comes_with_its_message() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        assert_eq!(send(&ours, b"first", reader.as_fd()).unwrap(), 5);
        assert_eq!(rustix::io::write(&ours, b"second").unwrap(), 6);
        let mut message = [0; 64];
        let (count, file) = receive(&theirs, &mut message).unwrap();
        assert_eq!(&message[..count], b"first");
        let file = file.unwrap();
        assert_eq!(fcntl_getfd(&file).unwrap(), FdFlags::CLOEXEC);
        io::Write::write_all(&mut writer, b"through").unwrap();
        assert_eq!(rustix::io::read(&file, &mut message).unwrap(), 7);
        assert!(matches!(receive(&theirs, &mut message), Ok((6, None))));
        drop(ours);
        assert!(matches!(receive(&theirs, &mut message), Ok((0, None))));
        assert_eq!(
            send(&theirs, b"x", file.as_fd()).unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
    }

    #[test]
    fn more_than_one_descriptor_is_refused_and_none_is_kept() {
        // Two fit into the space for one, because that is rounded up; three do not.
        for count in [2, 3] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            send_several(&ours, count);
            let refused = receive(&theirs, &mut [0; 8]).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
            drop(ours);
            // Had one been kept, the other end would still be open.
            assert!(matches!(receive(&theirs, &mut [0; 8]), Ok((0, None))));
        }
    }
}
