//! What a gateway has done, for whoever asks how it is.
//!
//! Workers count when a request is answered, in numbers that all of them share; they are added to
//! without order and read one after the other, so a sum may be one request behind another.

use std::sync::atomic::{AtomicU64, Ordering};

/// How a gateway is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Clients that are connected.
    pub clients: usize,
    /// What each volume was asked, in the order of the configuration.
    pub volumes: Vec<Traffic>,
    /// What each pool was asked, likewise.
    pub pools: Vec<Traffic>,
}

/// What was asked of a volume or pool since the gateway started, and answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The volume's or pool's name.
    pub name: String,
    /// Requests that went to nodes.
    pub requests: u64,
    /// Bytes that those of them that succeeded have read or written; of a pool, those of replies.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// The numbers behind [`Traffic`].
#[derive(Debug)]
pub(crate) struct Count {
    name: String,
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

impl Count {
    pub(crate) fn new(name: &str) -> Self {
        let [requests, bytes, errors] = [0; 3].map(AtomicU64::new);
        Self { name: name.to_owned(), requests, bytes, errors }
    }

    /// A request was answered, and moved so many bytes, or failed.
    pub(crate) fn add(&self, bytes: Option<u64>) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match bytes {
            Some(bytes) => self.bytes.fetch_add(bytes, Ordering::Relaxed),
            None => self.errors.fetch_add(1, Ordering::Relaxed),
        };
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let [requests, bytes, errors] =
            [&self.requests, &self.bytes, &self.errors].map(|count| count.load(Ordering::Relaxed));
        Traffic { name: self.name.clone(), requests, bytes, errors }
    }
}
