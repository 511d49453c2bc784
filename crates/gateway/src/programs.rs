//! The tenants of clients that are programs under the policy, or children of such programs.
//!
//! # Problem
//! A program under `tidegate run` may open a gateway's Unix socket. Its requests count for its
//! tenant then, in place of that of the export. The gateway hears of programs when it likes, and of
//! a program perhaps after the program's first request; and no request may cost a look-up.
//!
//! # Mechanism
//! The agent receives the programs of this machine ([`KnownPrograms`]) and publishes each change.
//! A worker takes over the published table when it wakes up, as it does with policies. A client is
//! looked up when its next bytes are about to be read, if the table is another one than at its last
//! look-up. The kernel names its process and ancestors ([`peer_process`]) at the first of these
//! look-ups; they stay the same afterwards.
//!
//! From the first look-up that finds a tenant on, the kernel names the sender of all bytes, too. If
//! that is another process than the one that connected, the connection was handed on or inherited,
//! and its requests count for the tenant of the export from then on, for good. This includes a
//! block device of the kernel: the requests of any process may come from there.
//!
//! [`KnownPrograms`]: tidegate_proto::programs::KnownPrograms

use std::io::{self, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_algo::classify::access::Denied;
use tidegate_fabric::stream::Stream;
use tidegate_fabric::stream::peer_process::{self, Lineage};
use tidegate_proto::programs::ProgramTable;

/// Where workers find the present programs.
#[derive(Debug, Default)]
pub(crate) struct PublishedPrograms {
    version: AtomicU64,
    present: Mutex<Arc<Programs>>,
}

/// The programs, as of one change. They never change.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// Zero for those of a gateway that has heard of none.
    version: u64,
    table: ProgramTable,
}

impl PublishedPrograms {
    /// Replaces the programs.
    pub(crate) fn publish(&self, table: ProgramTable) {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let version = present.version + 1;
        *present = Arc::new(Programs { version, table });
        self.version.store(version, Ordering::Relaxed);
    }

    /// The programs, if they are others than `programs`.
    pub(crate) fn newer(&self, programs: &Programs) -> Option<Arc<Programs>> {
        let is_newer = self.version.load(Ordering::Relaxed) != programs.version;
        is_newer.then(|| self.present.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// The program behind a connection, as far as the connection shows it.
#[derive(Debug, Default)]
pub(crate) struct ClientProgram {
    /// The version of the programs at the last look-up.
    version: u64,
    /// The process that connected, and its ancestors, once they are known.
    lineage: Option<Lineage>,
    tenant: Option<String>,
    /// Nothing tells the program any more: another process has sent bytes, or a certificate names
    /// the client.
    is_unclear: bool,
    /// Why its requests do not count for this tenant, and whether the worker has read that.
    fallback: Option<(String, bool)>,
}

impl ClientProgram {
    /// Looks the client up, if the programs have changed. Returns whether its tenant changed.
    #[inline]
    pub(crate) fn look_up(&mut self, stream: &Stream, programs: &Programs) -> bool {
        self.version != programs.version && self.look_up_in(stream, programs)
    }

    #[cold]
    fn look_up_in(&mut self, stream: &Stream, programs: &Programs) -> bool {
        self.version = programs.version;
        if self.is_unclear {
            return false;
        }
        if self.lineage.is_none() && !programs.table.is_empty() {
            self.lineage = peer_process::lineage(stream);
        }
        let client = self.lineage.as_ref();
        let tenant = client.and_then(|it| programs.table.tenant(it.uid, &it.processes));
        let is_other = tenant != self.tenant.as_deref();
        if is_other {
            self.tenant = tenant.map(String::from);
        }
        is_other
    }

    /// Reads bytes of the client. Returns how many, and whether its tenant changed: these bytes are
    /// the first that count for the new one.
    pub(crate) fn receive(
        &mut self,
        stream: &Stream,
        slices: &mut [IoSliceMut<'_>],
    ) -> io::Result<(usize, bool)> {
        let (Some(lineage), Some(_)) = (&self.lineage, &self.tenant) else {
            return stream.receive(slices).map(|count| (count, false));
        };
        let (count, sender) = peer_process::receive(stream, slices)?;
        let pid = lineage.processes[0].pid;
        // The end of the connection has no sender.
        if count == 0 || sender == Some(pid) {
            return Ok((count, false));
        }
        let sender =
            sender.map_or("a process of another namespace".into(), |it| format!("pid {it}"));
        self.fallback = Some((
            format!(
                "requests of pid {pid} count as those of other clients from now on: {sender} sends \
                 on its connection, which was handed on or inherited"
            ),
            false,
        ));
        Ok((count, self.forget()))
    }

    /// The client is none of this program from now on. Returns whether its tenant changed.
    pub(crate) fn forget(&mut self) -> bool {
        self.is_unclear = true;
        self.tenant.take().is_some()
    }

    /// Notes why requests do not count for the tenant of the client's program; none if they do.
    pub(crate) fn note(&mut self, not_counted: Option<Denied>) {
        if self.is_unclear {
            return;
        }
        let pid = self.lineage.as_ref().map_or(0, |lineage| lineage.processes[0].pid);
        let reason = not_counted.map(|denied| {
            let tenant = self.tenant().unwrap_or_default();
            format!(
                "requests of pid {pid} do not count for {tenant}, the tenant of its program, but \
                 as those of other clients: {denied}"
            )
        });
        if reason.as_ref() != self.fallback.as_ref().map(|(reason, _)| reason) {
            self.fallback = reason.map(|reason| (reason, false));
        }
    }

    /// This reason, once.
    pub(crate) fn take_fallback(&mut self) -> Option<String> {
        let (reason, is_read) = self.fallback.as_mut().filter(|(_, is_read)| !is_read)?;
        *is_read = true;
        Some(reason.clone())
    }

    /// The tenant of the program, if the client is one.
    pub(crate) fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_reported_once_until_there_is_another() {
        let mut program = ClientProgram { tenant: Some("etl".into()), ..Default::default() };
        let denied = |name: &str| Some(Denied::NoTenant(name.into()));
        program.note(denied("etl"));
        let reason = program.take_fallback().expect("a reason");
        assert!(reason.contains("do not count for etl, the tenant of its program"), "{reason}");
        assert!(reason.ends_with("the policy has no tenant \"etl\""), "{reason}");
        program.note(denied("etl"));
        assert_eq!(program.take_fallback(), None);
        program.note(None);
        assert_eq!(program.take_fallback(), None);
        program.note(denied("etl"));
        assert!(program.take_fallback().is_some());
        program.forget();
        program.note(denied("other"));
        assert_eq!(program.take_fallback(), None, "its program is not known any more");
    }
}
