//! Log lines of the controller's events.

use tidegate_algo::shaping::log_limiter::LogLimiter;
use tidegate_model::event::DISCONNECTED;
use tidegate_model::{Event, Time};

/// The log of events. Those that any user's program can cause are bounded, each kind by itself.
#[derive(Debug)]
pub(crate) struct EventLog {
    refusals: LogLimiter,
    /// Each program under `tidegate run` is two of these events.
    stages: LogLimiter,
    /// Clients of data nodes.
    clients: LogLimiter,
}

impl Default for EventLog {
    fn default() -> Self {
        let [refusals, clients] = [(); 2].map(|()| LogLimiter::default());
        Self { refusals, stages: LogLimiter::new(100), clients }
    }
}

impl EventLog {
    /// Logs an event, unless too many of its kind were logged lately.
    pub(crate) fn log(&mut self, now: Time, event: &Event) {
        let limiter = match event {
            Event::StageRefused { .. }
            | Event::RulesRefused { .. }
            | Event::NodeRefused { .. }
            | Event::GatewayRefused { .. } => &mut self.refusals,
            Event::StageJoined { .. } | Event::StageLeft { .. } => &mut self.stages,
            Event::ClientOverstepped { .. }
            | Event::ClientEvicted { .. }
            | Event::ReservationUnused { .. }
            | Event::MemoryMoved { .. }
            | Event::MemoryDamaged { .. } => &mut self.clients,
            _ => return log(event),
        };
        match limiter.admit(now) {
            None => {}
            Some(0) => log(event),
            Some(unlogged) => {
                tracing::warn!(unlogged, "too many events like the next one; some are not logged");
                log(event);
            }
        }
    }
}

fn log(event: &Event) {
    match event {
        Event::PolicyApplied { revision } => tracing::info!(revision, "policy applied"),
        Event::StageJoined { stage, tenant, pid } => {
            tracing::info!(%stage, tenant, pid, "stage joined");
        }
        Event::StageLeft { stage, tenant, pid, reason } if reason == DISCONNECTED => {
            tracing::info!(%stage, tenant, pid, "stage disconnected");
        }
        Event::StageLeft { stage, tenant, pid, reason } => {
            tracing::info!(%stage, tenant, pid, reason, "stage left");
        }
        Event::StageRefused { pid, reason } => tracing::warn!(pid, reason, "stage refused"),
        Event::RulesRefused { stage, revision, reason } => {
            tracing::warn!(
                %stage,
                revision,
                reason,
                "rules refused; mend the policy and apply it again"
            );
        }
        Event::RateChanged { tenant, rate } => tracing::debug!(tenant, %rate, "rate changed"),
        Event::CapacityFound { .. } => log_capacity(event),
        Event::NodeJoined { node, is_known } => tracing::info!(node, is_known, "node joined"),
        Event::NodeLeft { node, reason } if reason == DISCONNECTED => {
            tracing::info!(node, "node disconnected");
        }
        Event::NodeLeft { node, reason } => tracing::warn!(node, reason, "node left"),
        Event::NodeRefused { node, reason } => tracing::warn!(node, reason, "node refused"),
        Event::SchedulerChosen { node, scheduler } => {
            tracing::info!(node, %scheduler, "scheduler chosen");
        }
        Event::NodeSilent { node, is_silent: true } => tracing::warn!(node, "node is silent"),
        Event::NodeSilent { node, .. } => tracing::info!(node, "node answers again"),
        Event::ReservationMissed { .. } | Event::BytesMissed { .. } => log_missed(event),
        Event::GatewayJoined { gateway } => tracing::info!(gateway, "gateway joined"),
        Event::GatewayLeft { gateway, reason } if reason == DISCONNECTED => {
            tracing::info!(gateway, "gateway disconnected");
        }
        Event::GatewayLeft { gateway, reason } => {
            tracing::warn!(gateway, reason, "gateway left");
        }
        Event::GatewayRefused { gateway, reason } => {
            tracing::warn!(gateway, reason, "gateway refused");
        }
        Event::ShareMissed { .. }
        | Event::ClientOverstepped { .. }
        | Event::ClientEvicted { .. }
        | Event::ReservationUnused { .. }
        | Event::MemoryMoved { .. }
        | Event::MemoryDamaged { .. }
        | Event::MonitorLate { .. }
        | Event::CapacityLearned { .. } => log_at_data_node(event),
    }
}

fn log_missed(event: &Event) {
    match event {
        Event::ReservationMissed { tenant, period, served_operations, reserved_operations } => {
            tracing::warn!(
                tenant,
                period = period.0,
                served_operations,
                reserved_operations,
                "reservation missed"
            );
        }
        Event::BytesMissed { tenant, period, served_bytes, reserved_bytes } => {
            tracing::warn!(
                tenant,
                period = period.0,
                served_bytes,
                reserved_bytes,
                "reservation of bytes missed"
            );
        }
        _ => {}
    }
}

fn log_capacity(event: &Event) {
    if let Event::CapacityFound {
        resource,
        before_operations_per_second,
        operations_per_second,
        bytes_per_second,
        reason,
    } = event
    {
        tracing::info!(
            resource,
            before_operations_per_second,
            operations_per_second,
            bytes_per_second,
            reason,
            "capacity found"
        );
    }
}

fn log_at_data_node(event: &Event) {
    match event {
        Event::ShareMissed {
            node,
            tenant,
            done_operations_per_second,
            reserved_operations_per_second,
        } => tracing::warn!(
            node,
            tenant,
            done_operations_per_second,
            reserved_operations_per_second,
            "share missed"
        ),
        Event::ClientOverstepped {
            node,
            tenant,
            session_slot,
            issued_operations,
            token_operations,
        } => {
            tracing::warn!(
                node,
                tenant,
                "seat" = session_slot.0,
                issued_operations,
                token_operations,
                "client overstepped, and is shut out"
            );
        }
        Event::ClientEvicted { node, tenant, session_slot } => {
            tracing::warn!(
                node,
                tenant,
                "seat" = session_slot.0,
                "client was silent, and is shut out"
            );
        }
        Event::ReservationUnused { node, tenant, session_slot, periods } => {
            tracing::info!(node, tenant, "seat" = session_slot.0, periods, "reservation not used");
        }
        Event::MemoryMoved { node, took_ns } => tracing::info!(node, took_ns, "memory moved"),
        Event::MemoryDamaged { node, structure, is_store_kept, took_ns } => {
            tracing::error!(node, structure, is_store_kept, took_ns, "memory damaged by a client");
        }
        Event::MonitorLate { node, late_ns } => tracing::warn!(node, late_ns, "monitor late"),
        Event::CapacityLearned { node, before_operations_per_second, operations_per_second } => {
            tracing::info!(
                node,
                before_operations_per_second,
                operations_per_second,
                "capacity learned"
            )
        }
        _ => {}
    }
}
