//! Index of a policy: its tenants and channels by name, and the slots that tenants take in stages.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::Policy;
use tidegate_model::policy::StageSlots;

/// Made once for each policy. A tenant's own channel has the tenant's name, and no two channels
/// have the same.
#[derive(Debug, Default)]
pub(super) struct NameIndex {
    channels: BTreeMap<String, (usize, usize)>,
    /// Of each tenant, in the policy's order.
    pub(super) stage_slots: Vec<StageSlots>,
}

impl NameIndex {
    pub(super) fn new(policy: &Policy) -> Self {
        let mut channels = BTreeMap::new();
        for (index, tenant) in policy.tenants.iter().enumerate() {
            channels.insert(tenant.name.clone(), (index, 0));
        }
        let mut slots = alloc::vec![0; policy.tenants.len()];
        for channel in &policy.channels {
            let Some(index) = usize::from(channel.tenant.0).checked_sub(1) else { continue };
            let Some(slot) = slots.get_mut(index) else { continue };
            *slot += 1;
            channels.insert(channel.name.clone(), (index, *slot));
        }
        Self { channels, stage_slots: policy.stage_slots() }
    }

    /// The index of the tenant that owns the channel with this name, and the channel's number
    /// among the tenant's: zero for its own.
    pub(super) fn channel(&self, name: &str) -> Option<(usize, usize)> {
        self.channels.get(name).copied()
    }

    pub(super) fn tenant(&self, name: &str) -> Option<usize> {
        self.channel(name).filter(|(_, slot)| *slot == 0).map(|(index, _)| index)
    }
}
