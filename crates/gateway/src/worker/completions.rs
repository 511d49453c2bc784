//! Completed jobs: their counts, and the replies to clients.

use super::{Client, Frontend, Worker, client_entry};
use tidegate_fabric::service::JobTimes;
use tidegate_proto::stats::path::PathTimes;

use crate::clock;
use crate::recorder::Answered;

impl<S: Frontend> Worker<S> {
    /// Passes finished jobs on to their clients.
    pub(super) fn complete(&mut self) {
        if self.done.is_empty() {
            return;
        }
        let now = clock::now();
        self.frontend.nodes().now = now;
        let mut done = std::mem::take(&mut self.done);
        let recorder = self.context.counts.recorder.active();
        let mut log = recorder.as_ref().map(|recorder| recorder.log());
        for job in done.drain(..) {
            let (tenant, operation) = (job.tag.tenant, job.tag.operation);
            let Some((token, answer)) = self.frontend.complete(job) else { continue };
            let (volume, outcome) = S::weigh(&answer);
            self.context.counts.add(volume, outcome);
            self.table.count(tenant).add(outcome);
            let received_at = S::received_at(&answer);
            let latency = now.since(received_at);
            self.table.latency(tenant).record(operation, latency);
            let JobTimes { sent, stay } = S::times(&answer);
            let at_node = sent.map(|sent| (now.since(sent), stay));
            self.table.path(tenant).add(&PathTimes::of(latency, at_node));
            match client_entry(&mut self.slots, token) {
                Some(entry) => {
                    if let Some(log) = &mut log
                        && let Some((volume, extent)) = self.frontend.extent(&answer)
                    {
                        let has_failed = outcome.is_err();
                        let request =
                            Answered { tenant, operation, received_at, extent, has_failed };
                        let connection = (volume, entry.client.owner_name());
                        let name = || self.table.name(tenant);
                        log.add(now, &mut entry.recorded, request, (connection, name));
                    }
                    entry.client.answer(answer, &mut self.frontend);
                    self.list(token);
                }
                None => self.frontend.budget().release(S::charge_of(&answer)),
            }
        }
        self.done = done;
    }
}
