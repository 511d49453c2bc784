//! Threads that do blocking work, one job each at a time.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use tidegate_fabric::service::Fault;

use super::priority::ThreadPriority;
use super::{Engine, Sink, Work};
use crate::mutex::lock;
use crate::store::Medium;
use crate::threads;

/// Threads that do blocking work. As many as there may be requests at the device: fewer would form
/// a second queue, which the scheduler does not control.
pub(crate) struct ThreadPool {
    shared: Arc<PoolState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct PoolState {
    /// Whether a job has the I/O priority of its class.
    has_priorities: bool,
    medium: Arc<dyn Medium>,
    sink: Arc<dyn Sink>,
    queue: Mutex<WorkQueue>,
    is_filled: Condvar,
}

#[derive(Default)]
struct WorkQueue {
    work: VecDeque<Work>,
    is_ending: bool,
}

impl ThreadPool {
    /// Starts `count` threads that finish into `sink`. With `has_priorities` a job has the I/O
    /// priority of its class.
    pub(crate) fn start(
        count: usize,
        has_priorities: bool,
        medium: Arc<dyn Medium>,
        sink: Arc<dyn Sink>,
    ) -> io::Result<Self> {
        let (queue, is_filled) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(PoolState { has_priorities, medium, sink, queue, is_filled });
        let pool = Self { shared, threads: Mutex::default() };
        for number in 0..count {
            let shared = pool.shared.clone();
            match threads::spawn(format!("store-{number}"), move || shared.serve()) {
                Ok(thread) => lock(&pool.threads).push(thread),
                Err(error) => {
                    pool.stop();
                    return Err(error);
                }
            }
        }
        Ok(pool)
    }
}

impl Engine for ThreadPool {
    fn run(&self, work: &mut Vec<Work>, done: &mut Vec<Work>) {
        let mut queue = lock(&self.shared.queue);
        if queue.is_ending {
            done.extend(work.drain(..).map(|mut work| {
                work.body.job.outcome = Err(Fault::Ending);
                work
            }));
            return;
        }
        let count = work.len();
        queue.work.extend(work.drain(..));
        drop(queue);
        (0..count).for_each(|_| self.shared.is_filled.notify_one());
    }

    fn stop(&self) {
        lock(&self.shared.queue).is_ending = true;
        self.shared.is_filled.notify_all();
        for thread in lock(&self.threads).drain(..) {
            // A thread's panic was reported already.
            let _ = thread.join();
        }
    }
}

impl PoolState {
    fn serve(&self) {
        let (mut finished, mut priority) = (Vec::new(), ThreadPriority::default());
        while let Some(mut work) = self.next() {
            if self.has_priorities {
                priority.set(work.body.job.tag.class);
            }
            self.medium.perform(&mut std::iter::once(&mut work.body.job));
            finished.push(work);
            self.sink.finished(&mut finished);
        }
    }

    /// The next work, or none after the end.
    fn next(&self) -> Option<Work> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(work) = queue.work.pop_front() {
                return Some(work);
            }
            if queue.is_ending {
                return None;
            }
            queue = self.is_filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
