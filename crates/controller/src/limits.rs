//! Limits on the use of the daemon by one client.

use std::time::Duration;

/// How long to wait before accepting again after that failed: usually there are no file descriptors
/// left until a client disconnects.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits on the use of the daemon by its clients, so that none of them can exhaust it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections to the socket, of stages and operators together. By default 16,384, which is
    /// more programs than a machine runs; fewer where the process may not open as many files.
    pub connections: usize,
    /// Connections of one user to the socket, other than root and the daemon's own: a quarter of
    /// all by default.
    pub connections_per_user: usize,
    /// Connections to HTTP that have sent a request; half of them may watch events. By default 256,
    /// for dashboards and scripts. A quarter of that number may be pending beside them.
    pub http_connections: usize,
    /// How long a client of HTTP may take to send the head of a request. By default two seconds:
    /// it is a few hundred bytes, from this machine.
    pub http_head: Duration,
    /// How long it may then take for the rest. By default ten seconds, for the longest request is a
    /// policy of a megabyte.
    pub http_request: Duration,
    /// How long a connection to HTTP may be idle, or a reply unread. By default a minute, so that a
    /// scraper with an interval of half a minute need not connect anew.
    pub http_idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1 << 14,
            connections_per_user: 1 << 12,
            http_connections: 256,
            http_head: Duration::from_secs(2),
            http_request: Duration::from_secs(10),
            http_idle: Duration::from_secs(60),
        }
    }
}

impl Limits {
    /// The same for a process that may open `files` files.
    pub(crate) fn within(self, files: usize) -> Self {
        /// Files that are no connection: the store, the lock, the runtime's, and one for the next
        /// accept.
        const OTHERS: usize = 64;
        let http_connections = self.http_connections.min(files / 4);
        let limits = Self { http_connections, ..self };
        let http = http_connections + limits.http_pending();
        let left = files.saturating_sub(http + OTHERS).max(1);
        Self { connections: self.connections.min(left), ..limits }
    }

    /// Connections to HTTP that have not sent the head of a request.
    pub(crate) fn http_pending(&self) -> usize {
        (self.http_connections / 4).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_mean_few_connections() {
        let limits = Limits::default();
        assert_eq!(limits.within(1 << 20), limits);
        let few = limits.within(1_024);
        assert_eq!((few.connections, few.http_connections), (640, 256));
        assert!(limits.within(10).connections > 0);
    }
}
