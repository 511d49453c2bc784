//! Opens the key-value store in a region of memory: only this module reads the store's header.
//!
//! An [`Opening`] works over any connection and goes on to a client of the store. Over shared
//! memory, where what is posted is done at once, [`Opening::at_once`] returns the layout: the data
//! node's sweep needs no client, and an engine lets nothing through before its first grant.

use alloc::vec::Vec;

use tidegate_model::Time;

use super::client::{Client, ClientSettings};
use super::layout::{HEADER, Layout, LayoutError};
use crate::one_sided::{BufferPosition, Done, Lost, Operation, Post, PostError, RemoteMemory};

/// Reads the header of a store.
#[derive(Debug)]
pub struct Opening<F> {
    remote: F,
    at: u64,
    is_posted: bool,
    done: Vec<Done>,
    layout: Option<Layout>,
}

/// Why a store cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The region is lost.
    #[error("{0}")]
    Lost(Lost),
    /// There is no store that this program can use.
    #[error("{0}")]
    Layout(LayoutError),
}

impl<F: RemoteMemory> Opening<F> {
    /// Opens the store that begins at `at`, through a connection with at least one buffer that is
    /// not in use.
    pub fn new(remote: F, at: u64) -> Self {
        Self { remote, at, is_posted: false, done: Vec::new(), layout: None }
    }

    /// The layout of the store that begins at `at`, through a connection that has done what was
    /// posted when it is polled.
    ///
    /// # Errors
    /// If the store cannot be opened.
    pub fn at_once(remote: F, at: u64) -> Result<Layout, OpenError> {
        let mut opening = Self::new(remote, at);
        loop {
            opening.poll(Time::ZERO)?;
            if let Some(layout) = opening.layout {
                return Ok(layout);
            }
        }
    }

    /// Whether the header has been read, and all of the store is there. Call it until it is.
    ///
    /// # Errors
    /// If the store cannot be opened, now or later.
    pub fn poll(&mut self, now: Time) -> Result<bool, OpenError> {
        let length = HEADER as u32;
        if !self.is_posted {
            let operation =
                Operation::Read { from: self.at, into: BufferPosition::start(0), length };
            match self.remote.post(Post { id: 0, operation }) {
                Ok(()) => self.is_posted = true,
                Err(PostError::Full) => {}
                Err(_) => {
                    let needed_bytes = self.at.saturating_add(u64::from(length));
                    let bytes = self.remote.region();
                    let error = LayoutError::TooSmall { needed_bytes, bytes };
                    return Err(OpenError::Layout(error));
                }
            }
        }
        self.remote.flush(now).map_err(OpenError::Lost)?;
        self.remote.poll(now, &mut self.done).map_err(OpenError::Lost)?;
        if !self.done.is_empty() && self.layout.is_none() {
            let mut header = [0; HEADER];
            header.copy_from_slice(&self.remote.buffer(0)[..HEADER]);
            let layout = Layout::read(self.at, &header).map_err(OpenError::Layout)?;
            layout.check(self.remote.region()).map_err(OpenError::Layout)?;
            self.layout = Some(layout);
        }
        Ok(self.layout.is_some())
    }

    /// The client, once the header has been read.
    ///
    /// # Errors
    /// As [`Client::new`].
    ///
    /// # Panics
    /// If [`Self::poll`] has not returned that the header has been read; and as [`Client::new`].
    pub fn client(self, settings: ClientSettings) -> Result<Client<F>, LayoutError> {
        let layout = self.layout.expect("a header that has been read");
        Client::new(self.remote, layout, settings)
    }
}
