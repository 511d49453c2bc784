//! Connections to HTTP, with time limits.
//!
//! Two rules cover every way to hold a connection idle. From the first byte of a request on, its
//! head has a time limit and its body another, whether the client sends nothing, half a header or a
//! byte every second. Between two replies, or two parts of one, a third limit holds, whether the
//! client sends no request or does not read. [`crate::http_connections`] limits the number of
//! connections and evicts the rest.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::serve::Listener;
use tidegate_algo::shaping::log_limiter::LogLimiter;
use tidegate_fabric::clock::Clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};

use crate::error::ServeError;
use crate::http_connections::{Eviction, HttpConnection, HttpConnections, origin};
use crate::limits::{ACCEPT_PAUSE, Limits};

/// The reply to a refused client.
const FULL: &str = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n\
    Content-Type: application/json\r\nContent-Length: 60\r\n\r\n\
    {\"code\":1,\"message\":\"too many connections; try again later\"}";

/// Listens on loopback.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    if !address.ip().is_loopback() {
        return Err(ServeError::NotLoopback { address });
    }
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| ServeError::Http { address, error })
}

pub(crate) struct HttpListener {
    listener: TcpListener,
    connections: Arc<HttpConnections>,
    clock: Clock,
    limits: Limits,
    /// The log lines about failures to accept a connection.
    failures: LogLimiter,
}

impl HttpListener {
    pub(crate) fn new(listener: TcpListener, clock: Clock, limits: Limits) -> Self {
        let connections = HttpConnections::new(limits.http_connections, limits.http_pending());
        Self { listener, connections, clock, limits, failures: LogLimiter::default() }
    }
}

impl Listener for HttpListener {
    type Io = HttpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (HttpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    // The client has disconnected already.
                    let Ok(local) = stream.local_addr() else { continue };
                    let (clock, from) = (self.clock, origin(local, address));
                    let counted = self.connections.admit(from, clock.now());
                    return (HttpStream::new(stream, (self.limits, clock), counted), address);
                }
                Err(error) => {
                    if let Some(unlogged) = self.failures.admit(self.clock.now()) {
                        tracing::error!(%error, unlogged, "cannot accept an HTTP connection");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection with a time limit.
pub(crate) struct HttpStream {
    stream: TcpStream,
    limits: Limits,
    clock: Clock,
    /// The part of a request that has to arrive in time, if one has to.
    due: Due,
    timer: Pin<Box<Sleep>>,
    counted: HttpConnection,
    /// Done if the connection is evicted, which it is not once its first head is whole.
    eviction: Option<Eviction>,
}

/// The part of a request that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// The head of a request, with the state of its end.
    Head(HeadEnd),
    /// The rest of a request.
    Body,
    /// A reply, that the client reads it, or the next request.
    Answer,
}

/// The received part of the empty line that ends a request's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeadEnd {
    /// The last line has ended, and no byte of the next one has arrived.
    is_at_line: bool,
}

impl HeadEnd {
    /// Whether these bytes, behind those before, have the end of the head.
    fn is_in(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            match byte {
                b'\n' if self.is_at_line => return true,
                b'\n' => self.is_at_line = true,
                b'\r' => {}
                _ => self.is_at_line = false,
            }
        }
        false
    }
}

impl HttpStream {
    fn new(
        stream: TcpStream,
        (limits, clock): (Limits, Clock),
        (counted, eviction): (HttpConnection, Eviction),
    ) -> Self {
        let timer = Box::pin(sleep(limits.http_head));
        let due = Due::Head(HeadEnd::default());
        Self { stream, limits, clock, due, timer, counted, eviction: Some(eviction) }
    }

    fn expect(&mut self, due: Due, cx: &mut Context<'_>) {
        self.due = due;
        self.timer.set(sleep(match due {
            Due::Head(_) => self.limits.http_head,
            Due::Body => self.limits.http_request,
            Due::Answer => self.limits.http_idle,
        }));
        // So that it wakes the task, which may be waiting for the next request already.
        let _ = self.timer.as_mut().poll(cx);
    }

    /// Records the received bytes of a request. An error if the connection is refused.
    fn on_received(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.due == Due::Answer {
            self.expect(Due::Head(HeadEnd::default()), cx);
        }
        let Due::Head(mut end) = self.due else { return Ok(()) };
        if !end.is_in(bytes) {
            self.due = Due::Head(end);
            return Ok(());
        }
        self.expect(Due::Body, cx);
        self.eviction = None;
        self.counted.open(self.clock.now()).map_err(|_| self.refuse())
    }

    /// Sends the reason, without waiting.
    fn refuse(&self) -> io::Error {
        let _ = self.stream.try_write(FULL.as_bytes());
        io::ErrorKind::ConnectionAborted.into()
    }

    /// An error if the connection is evicted.
    fn check_eviction(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.eviction.as_mut().map(|eviction| Pin::new(eviction).poll(cx)) {
            Some(Poll::Ready(_)) => Err(self.refuse()),
            Some(Poll::Pending) | None => Ok(()),
        }
    }

    /// An error once the time is over.
    fn wait<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for HttpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_eviction(cx)?;
        let before = buffer.filled().len();
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buffer) else {
            return self.wait(cx);
        };
        self.on_received(&buffer.filled()[before..], cx)?;
        Poll::Ready(read)
    }
}

impl AsyncWrite for HttpStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(cx, bytes) else {
            return self.wait(cx);
        };
        self.expect(Due::Answer, cx);
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
    fn a_head_ends_with_an_empty_line_however_its_bytes_come() {
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nbody";
        for size in 1..request.len() {
            let mut end = HeadEnd::default();
            let whole = request.chunks(size).position(|bytes| end.is_in(bytes));
            assert_eq!(whole, Some((request.len() - 5) / size), "in pieces of {size}");
        }
        assert!(!HeadEnd::default().is_in(b"GET / HTTP/1.1\r\nHost: localhost\r\n"));
    }

    #[test]
    fn the_refusal_has_the_right_content_length() {
        let (head, body) = FULL.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{}", body.len());
    }
}
