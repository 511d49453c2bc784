//! A link over a Unix socket: messages out without blocking, messages in as they arrive.

use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_proto::codec::{self, Decoder};

use crate::clock;
#[cfg(feature = "cluster")]
use crate::reactor::EventSource;
use crate::stream::Stream;

/// Bytes that may wait for a peer that does not read, besides its longest message twice. A stage's
/// report is a few kilobytes, so a peer this far behind has been silent for minutes.
const BACKLOG_MAX: usize = 8 << 20;

/// One end of a connection on which messages of type `In` arrive.
#[derive(Debug)]
pub struct MessageLink<In> {
    stream: Stream,
    decoder: Decoder<In>,
    /// Encoded and not yet taken by the kernel.
    backlog: Vec<u8>,
    /// The length of the longest message so far.
    longest: usize,
}

impl<In: DeserializeOwned> MessageLink<In> {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// The kernel's error: not found and connection refused mean that no process listens there.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_nonblocking(true)?;
        Ok(Stream::from(stream).into())
    }

    /// Queues `message` and hands over as much as the kernel takes without blocking.
    ///
    /// # Errors
    /// If the connection is gone, the message is too large, or the peer has not read for so long
    /// that more than eight megabytes and its two longest messages wait for it.
    pub fn send<Out: Serialize>(&mut self, message: &Out) -> io::Result<()> {
        let before = self.backlog.len();
        codec::encode_pages(message, &mut self.backlog).map_err(io::Error::other)?;
        self.longest = self.longest.max(self.backlog.len() - before);
        self.flush()?;
        if self.backlog.len() > BACKLOG_MAX + 2 * self.longest {
            return Err(io::Error::other("the peer does not read"));
        }
        Ok(())
    }

    /// Hands over as much of the backlog as the kernel takes without blocking.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn flush(&mut self) -> io::Result<()> {
        self.stream.flush();
        while !self.backlog.is_empty() {
            match self.stream.send(&[IoSlice::new(&self.backlog)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => drop(self.backlog.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next message that has arrived, if one has.
    ///
    /// # Errors
    /// If the peer closed the connection, or what arrived is no message.
    pub fn receive(&mut self) -> io::Result<Option<In>> {
        let mut chunk = [0; 16_384];
        loop {
            if let Some(message) = self.decoder.next_message().map_err(io::Error::other)? {
                return Ok(Some(message));
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.decoder.extend(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the next message. A peer that has gone may have left one before: that comes first.
    ///
    /// # Errors
    /// As [`Self::receive`]; `TimedOut` if none arrives within `patience`.
    pub fn wait(&mut self, patience: Duration) -> io::Result<In> {
        let deadline = clock::now() + patience;
        loop {
            let flushed = self.flush();
            if let Some(message) = self.receive()? {
                return Ok(message);
            }
            flushed?;
            let left = deadline.saturating_duration_since(clock::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let interest = self.interest();
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.stream, interest)], Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends this side once all messages are handed over, and waits until the peer has ended, too.
    ///
    /// A connection that is closed while received bytes are unread is reset, and so is one whose
    /// peer goes on writing: a peer that notices the reset first reads no message that is still
    /// before it.
    #[cfg(feature = "cluster")]
    pub fn leave(mut self, patience: Duration) {
        let deadline = clock::now() + patience;
        let mut has_finished = false;
        let mut unread = [0; 16_384];
        while self.flush().is_ok() {
            if self.backlog.is_empty() && !std::mem::replace(&mut has_finished, true) {
                let _ = self.stream.finish();
            }
            match self.stream.read(&mut unread) {
                Ok(count) if count > 0 => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return,
            }
            let left = deadline.saturating_duration_since(clock::now());
            let Ok(timeout) = Timespec::try_from(left) else { return };
            let _ = poll(&mut [PollFd::new(&self.stream, self.interest())], Some(&timeout));
            if left.is_zero() {
                return;
            }
        }
    }

    /// The events to poll the link for: always for reading, and for writing while something waits.
    pub fn interest(&self) -> PollFlags {
        match self.backlog.is_empty() && !self.stream.wants_write() {
            true => PollFlags::IN,
            false => PollFlags::IN | PollFlags::OUT,
        }
    }
}

impl<In: DeserializeOwned> From<Stream> for MessageLink<In> {
    fn from(stream: Stream) -> Self {
        Self { stream, decoder: Decoder::of_pages(), backlog: Vec::new(), longest: 0 }
    }
}

#[cfg(feature = "cluster")]
impl<In> EventSource for MessageLink<In> {
    fn stream(&self) -> Option<&Stream> {
        Some(&self.stream)
    }
}

impl<In> AsFd for MessageLink<In> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says where")]

    use tidegate_proto::message::Reply;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn pair() -> (MessageLink<Reply>, MessageLink<Reply>) {
        let (ours, theirs) = Stream::pair().unwrap();
        (ours.into(), theirs.into())
    }

    fn text(length: usize) -> Reply {
        Reply::Json("x".repeat(length))
    }

    #[test]
    fn messages_arrive_in_order_and_then_the_end() {
        let (mut ours, mut theirs) = pair();
        assert_eq!(theirs.receive().unwrap(), None);
        for length in [0, 1, 20_000] {
            ours.send(&text(length)).unwrap();
        }
        drop(ours);
        for length in [0, 1, 20_000] {
            assert_eq!(theirs.receive().unwrap(), Some(text(length)));
        }
        assert_eq!(theirs.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(theirs.wait(PATIENCE).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(theirs.send(&text(1)).is_err(), "no process listens");
    }

    #[test]
    fn malformed_messages_end_a_link() {
        let (ours, mut theirs) = pair();
        ours.stream.send(&[IoSlice::new(&u32::MAX.to_le_bytes())]).unwrap();
        for _ in 0..2 {
            let error = theirs.receive().unwrap_err().to_string();
            assert!(error.contains("over the maximum"), "{error}");
        }
    }

    #[test]
    fn what_waits_for_a_peer_that_does_not_read_is_bounded() {
        let (mut ours, mut theirs) = pair();
        assert_eq!(ours.interest(), PollFlags::IN);
        let encoded = |message: &Reply| {
            let mut bytes = Vec::new();
            codec::encode_pages(message, &mut bytes).unwrap();
            bytes.len()
        };
        // Eight megabytes may wait, and two of the longest message.
        let longest = text(1 << 20);
        let most = (8 << 20) + 2 * encoded(&longest);
        let mut sent = Vec::new();
        while ours.backlog.len() < most {
            let left = most - ours.backlog.len();
            // The longest that fits: what waits is as much as may in the end.
            let mut message = text(left.min(1 << 20));
            while encoded(&message) > left
                && let Reply::Json(text) = &mut message
            {
                assert!(text.pop().is_some(), "no message is as short as {left} bytes");
            }
            ours.send(&message).unwrap();
            sent.push(message);
        }
        assert_eq!((ours.backlog.len(), ours.interest()), (most, PollFlags::IN | PollFlags::OUT));
        let error = ours.send(&text(0)).unwrap_err();
        assert!(error.to_string().contains("does not read"), "{error}");
        // Messages that were sent before are not lost.
        for message in sent {
            let received = loop {
                ours.flush().unwrap();
                if let Some(received) = theirs.receive().unwrap() {
                    break received;
                }
            };
            assert!(received == message);
        }
    }

    /// Over TCP, where a close with unread bytes resets the connection.
    #[cfg(feature = "cluster")]
    #[test]
    fn the_last_message_of_one_that_leaves_arrives_beside_unread_ones() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut ours: MessageLink<Reply> = Stream::try_from(ours).unwrap().into();
        let theirs = Stream::try_from(listener.accept().unwrap().0).unwrap();
        let mut theirs: MessageLink<Reply> = theirs.into();
        theirs.send(&text(20_000)).unwrap();
        ours.send(&text(1)).unwrap();
        let leaving = std::thread::spawn(move || ours.leave(PATIENCE));
        // It reads before it closes, so that nothing of what the other side writes is refused.
        theirs.send(&text(2)).unwrap();
        assert_eq!(theirs.wait(PATIENCE).unwrap(), text(1));
        assert_eq!(theirs.wait(PATIENCE).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        theirs.send(&text(3)).unwrap();
        drop(theirs);
        leaving.join().unwrap();
    }

    #[test]
    fn a_peer_that_left_without_reading_is_an_error_and_not_silence() {
        let (mut ours, mut theirs) = pair();
        ours.send(&text(1)).unwrap();
        theirs.send(&text(2)).unwrap();
        assert_eq!(ours.receive().unwrap(), Some(text(2)));
        drop(theirs);
        assert_eq!(ours.receive().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn the_last_words_of_a_peer_that_has_gone_are_read_although_it_takes_none() {
        let (mut ours, mut theirs) = pair();
        theirs.send(&text(2)).unwrap();
        drop(theirs);
        let patience = Duration::from_secs(10);
        assert_eq!(ours.send(&text(1)).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(ours.wait(patience).unwrap(), text(2));
        assert_eq!(ours.wait(patience).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn who_waits_for_an_answer_goes_on_asking() {
        let (mut ours, mut theirs) = pair();
        // Longer than the kernel takes at once: the rest goes out while this end waits.
        ours.send(&text(3 << 20)).unwrap();
        assert_eq!(ours.interest(), PollFlags::IN | PollFlags::OUT);
        let received = std::thread::spawn(move || {
            let received = theirs.wait(PATIENCE).unwrap();
            theirs.send(&text(3)).unwrap();
            received
        });
        assert_eq!(ours.wait(PATIENCE).unwrap(), text(3));
        assert!(received.join().unwrap() == text(3 << 20));
        let (mut alone, _peer) = pair();
        assert_eq!(alone.wait(Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
