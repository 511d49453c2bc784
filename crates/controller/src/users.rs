//! User names by number, looked up once and remembered.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use nix::unistd::{Uid, User};
use tokio::sync::Semaphore;

/// Lookups at a time. A lookup may wait for a directory server on a thread of its own, and a
/// thousand stages that connect at once are usually of the same few users.
const LOOKUPS_MAX: usize = 2;

/// Users whose names are remembered; enough for all users of a machine, and a bound in any case.
const REMEMBERED_MAX: usize = 1024;

/// Names of users by number, after lookups.
#[derive(Debug)]
pub(crate) struct Users {
    known: Mutex<BTreeMap<u32, String>>,
    lookups: Semaphore,
}

impl Users {
    pub(crate) fn new() -> Self {
        Self { known: Mutex::default(), lookups: Semaphore::new(LOOKUPS_MAX) }
    }

    /// The user's name, or nothing if the number has none.
    pub(crate) async fn name(&self, uid: u32) -> String {
        if let Some(name) = self.remembered(uid) {
            return name;
        }
        let _permit = self.lookups.acquire().await;
        // Another task may have looked up the same user meanwhile.
        if let Some(name) = self.remembered(uid) {
            return name;
        }
        let look_up_user =
            move || User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
        let Ok(Some(name)) = tokio::task::spawn_blocking(look_up_user).await else {
            return String::new();
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(uid, name.clone());
        name
    }

    fn remembered(&self, uid: u32) -> Option<String> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&uid).cloned()
    }
}
