//! One reply for all clients that send the same request at the same time.
//!
//! Clients of the HTTP port may request the status without a limit. Each reply occupies the thread
//! that also distributes tokens for a moment, and with many tenants tens of milliseconds of a
//! processor. So a reply is made once for all clients that wait for it, and never more than one at
//! a time. It is never older than the request. After each reply there is a pause as long as the
//! reply took. So the replies to one kind of request take half of a processor at most, with any
//! number of clients.

use std::future::Future;

use tidegate_fabric::clock::Clock;
use tidegate_model::Time;
use tokio::sync::Mutex;
use tokio::time::sleep;

/// The latest reply to one kind of request.
#[derive(Debug)]
pub(crate) struct SharedReply<T> {
    clock: Clock,
    latest: Mutex<Option<Made<T>>>,
}

#[derive(Debug)]
struct Made<T> {
    begun: Time,
    ended: Time,
    answer: T,
}

impl<T: Clone> SharedReply<T> {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, latest: Mutex::new(None) }
    }

    /// The reply that another caller began to make since this call; or the one that `make` makes
    /// now. A failure is not shared.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) async fn get<E>(&self, make: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let requested = self.clock.now();
        let mut latest = self.latest.lock().await;
        if let Some(made) = &*latest {
            if made.begun >= requested {
                return Ok(made.answer.clone());
            }
            let next = made.ended.after(made.ended.since(made.begun));
            sleep(self.clock.until(next)).await;
        }
        let begun = self.clock.now();
        let answer = make.await?;
        *latest = Some(Made { begun, ended: self.clock.now(), answer: answer.clone() });
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn simultaneous_requests_share_an_answer_that_is_no_older_than_they_are() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (shared, made) = (Rc::new(SharedReply::new(Clock::start())), Rc::new(Cell::new(0)));
        let request = || {
            let (shared, made) = (shared.clone(), made.clone());
            async move {
                let make = async {
                    made.set(made.get() + 1);
                    // Other callers arrive while it is made.
                    tokio::task::yield_now().await;
                    Ok::<_, ()>(made.get())
                };
                shared.get(make).await.unwrap()
            }
        };
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, async {
            let all: Vec<_> = (0..200).map(|_| tokio::task::spawn_local(request())).collect();
            for one in all {
                one.await.unwrap();
            }
            assert!(made.get() <= 2, "{} answers for those who asked at once", made.get());
            let before = made.get();
            assert_eq!([request().await, request().await], [before + 1, before + 2], "none is old");
            let failed: Result<i32, &str> = shared.get(async { Err("no") }).await;
            assert_eq!(failed, Err("no"));
            assert_eq!(request().await, before + 3, "a failure is not kept");
        });
    }
}
