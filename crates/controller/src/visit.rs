//! Connections to HTTP: how many there may be, and how long each may take.
//!
//! One rule covers every way to hold a connection for nothing. Once a client has begun to ask, it
//! has to bring its whole request in a given time, whether it sends nothing, half a header or a
//! byte every second; and between two answers, or two pieces of one, no more than another time may
//! pass, whether the client asks nothing or does not read.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};

use crate::clock::Clock;
use crate::daemon::ACCEPT_PAUSE;
use crate::limits::Limits;
use crate::seats::{Guest, Seat, Seats};

/// What one hears who finds no seat.
const FULL: &str = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n\
    Content-Type: application/json\r\nContent-Length: 60\r\n\r\n\
    {\"code\":1,\"message\":\"too many connections; try again later\"}";

/// Where visits begin.
pub(crate) struct Entrance {
    listener: TcpListener,
    seats: Arc<Seats>,
    clock: Clock,
    limits: Limits,
}

impl Entrance {
    pub(crate) fn new(listener: TcpListener, clock: Clock, limits: Limits) -> Self {
        let seats = Seats::new(limits.http_connections, usize::MAX);
        Self { listener, seats, clock, limits }
    }
}

impl Listener for Entrance {
    type Io = Visit;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visit, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    // Who it is nobody knows, so there are no seats for anybody in particular.
                    match self.seats.take(Guest::Operator, self.clock.now()) {
                        Some(seat) => return (Visit::new(stream, self.limits, seat), address),
                        None => turn_away(stream),
                    }
                }
                Err(error) => {
                    tracing::error!("cannot accept an HTTP connection: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Says why and closes, without waiting for anything.
fn turn_away(stream: TcpStream) {
    let Ok(mut stream) = stream.into_std() else { return };
    // What is there already is taken, or the kernel would answer it with a reset that overtakes us.
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write(FULL.as_bytes());
}

/// A connection with a time limit.
pub(crate) struct Visit {
    stream: TcpStream,
    limits: Limits,
    /// Whether a request is due, rather than an answer or nothing.
    is_asking: bool,
    timer: Pin<Box<Sleep>>,
    _seat: Seat,
}

impl Visit {
    fn new(stream: TcpStream, limits: Limits, seat: Seat) -> Self {
        let timer = Box::pin(sleep(limits.http_request));
        Self { stream, limits, is_asking: true, timer, _seat: seat }
    }

    fn note(&mut self, is_asking: bool, cx: &mut Context<'_>) {
        let limit = if is_asking { self.limits.http_request } else { self.limits.http_idle };
        self.is_asking = is_asking;
        self.timer.set(sleep(limit));
        // So that it wakes the task, which may be waiting for the next request already.
        let _ = self.timer.as_mut().poll(cx);
    }

    /// An error once the time is over.
    fn wait<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Visit {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buffer) else {
            return self.wait(cx);
        };
        if buffer.filled().len() > before && !self.is_asking {
            self.note(true, cx);
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Visit {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(cx, bytes) else {
            return self.wait(cx);
        };
        self.note(false, cx);
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_says_how_long_it_is() {
        let (head, body) = FULL.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{}", body.len());
    }
}
