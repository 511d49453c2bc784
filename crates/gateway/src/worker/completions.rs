//! Completed jobs: their counts, and the replies to clients.

use super::{Client, Frontend, Worker, client_entry};
use crate::clock;

impl<S: Frontend> Worker<S> {
    /// Passes finished jobs on to their clients.
    pub(super) fn complete(&mut self) {
        if self.done.is_empty() {
            return;
        }
        let now = clock::now();
        self.frontend.nodes().now = now;
        let mut done = std::mem::take(&mut self.done);
        for job in done.drain(..) {
            let (tenant, operation) = (job.tag.tenant, job.tag.operation);
            let Some((token, answer)) = self.frontend.complete(job) else { continue };
            let (volume, outcome) = S::weigh(&answer);
            self.context.counts.add(volume, outcome);
            self.table.count(tenant).add(outcome);
            self.table.latency(tenant).record(operation, now.since(S::received_at(&answer)));
            match client_entry(&mut self.slots, token) {
                Some(entry) => {
                    entry.client.answer(answer, &mut self.frontend);
                    self.list(token);
                }
                None => self.frontend.budget().release(S::charge_of(&answer)),
            }
        }
        self.done = done;
    }
}
