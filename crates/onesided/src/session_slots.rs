//! Session slots of a data node: decides whether a tenant may have another one.
//!
//! # Problem
//! A data node has a fixed number of session slots, 64 by default. First come, first served, one
//! tenant's clients could take all of them, and a tenant with a reservation could not use it.
//!
//! # Mechanism
//! Slots are *kept*: one for each other tenant that has a reservation in operations and no client
//! here. Above its *fair part*, the slots divided by the number of tenants, a tenant also leaves
//! one to each other such tenant that is below its own fair part, so that those can grow. A tenant
//! with a reservation and without a client may always take a free slot: the one kept for it.
//!
//! A client that has left gives its slot back when the period ends. A client that can have a slot
//! then waits that long; only one that cannot is refused.
//!
//! Example: 8 slots, tenants `oltp` (reserved), `web` (reserved) and `batch`. Clients of `batch`
//! get six of them; two are kept. The first clients of `oltp` and `web` get those.
//!
//! # Bound
//! A slot is not taken away from a client: where a new policy adds a reservation while all slots
//! are taken, its tenant waits until a client leaves, and is then the first to get a slot.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::Policy;
use tidegate_model::policy::Tenant;

/// How many slots a data node has, and how many are not free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// All of them.
    pub total: usize,
    /// Those that have a client, or that a client has left in this period.
    pub taken: usize,
    /// Of those, the ones that are free when the period ends.
    pub leaving: usize,
}

/// Why a client gets no slot now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotDenied {
    /// There will be one when the period ends: request it again then.
    Wait,
    /// There is none for this tenant, in words for people.
    Refused(String),
}

/// Whether a tenant (none for requests without a tenant) may take one more slot, if each tenant of
/// this name has so many `clients` at the node.
///
/// # Errors
/// Why not.
pub fn admit(
    policy: Option<&Policy>,
    tenant: Option<&Tenant>,
    clients: impl Fn(&str) -> usize,
    slots: Slots,
) -> Result<(), SlotDenied> {
    let tenants = policy.map_or(&[][..], |policy| &policy.tenants);
    let name = tenant.map_or("", |tenant| tenant.name.as_str());
    let own = clients(name);
    let free = slots.total.saturating_sub(slots.taken);
    let later = free + slots.leaving;
    if tenant.is_some_and(is_reserved) && own == 0 && later > 0 {
        return if free > 0 { Ok(()) } else { Err(SlotDenied::Wait) };
    }
    let fair = (slots.total / (tenants.len() + 1)).max(1);
    let kept_clients = if own < fair { 1 } else { fair };
    let is_kept =
        |it: &&Tenant| is_reserved(it) && it.name != name && clients(&it.name) < kept_clients;
    let kept: Vec<&str> =
        tenants.iter().filter(is_kept).map(|tenant| tenant.name.as_str()).collect();
    match (free > kept.len(), later > kept.len()) {
        (true, _) => Ok(()),
        (false, true) => Err(SlotDenied::Wait),
        (false, false) => Err(SlotDenied::Refused(refusal(name, own, &kept, slots))),
    }
}

fn is_reserved(tenant: &Tenant) -> bool {
    tenant.reservation.operations.is_some_and(|rate| rate.0 > 0)
}

fn refusal(name: &str, own: usize, kept: &[&str], slots: Slots) -> String {
    let Slots { total, .. } = slots;
    let whose = match name {
        "" => String::from("clients without a tenant"),
        name => format!("tenant {name:?}"),
    };
    // A policy may have thousands of tenants; three are enough as examples.
    let names = match kept {
        [] => String::new(),
        names if names.len() <= 3 => names.join(", "),
        names => format!("{} and {} more", names[..3].join(", "), names.len() - 3),
    };
    let taken = match kept {
        [] => format!("all {total} session slots of the data node are taken"),
        _ => format!(
            "the free ones of the data node's {total} session slots are kept for tenants with a \
             reservation: {names}"
        ),
    };
    format!(
        "{taken}, {own} of them by {whose}; close some of its clients, share one client between \
         threads, or raise `seats` in the cluster's file"
    )
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;

    const POLICY: &str = r#"
        tenant = [
            { name = "oltp", reservation = "100 iops" },
            { name = "web", reservation = "100 iops" },
            { name = "batch" },
        ]
    "#;

    /// A node with slots, whose clients only ever come, and leave on request.
    struct Node {
        policy: Policy,
        slots: Slots,
        clients: BTreeMap<&'static str, usize>,
    }

    impl Node {
        fn new(total: usize) -> Self {
            let policy = Policy::parse(POLICY).unwrap();
            let slots = Slots { total, ..Slots::default() };
            Self { policy, slots, clients: BTreeMap::new() }
        }

        fn connect(&mut self, name: &'static str) -> Result<(), SlotDenied> {
            let tenant = self.policy.tenant_named(name).map(|(_, tenant)| tenant);
            let clients = |name: &str| self.clients.get(name).copied().unwrap_or(0);
            admit(Some(&self.policy), tenant, clients, self.slots)?;
            *self.clients.entry(name).or_default() += 1;
            self.slots.taken += 1;
            Ok(())
        }

        fn fill(&mut self, name: &'static str) -> usize {
            (0..1_000).take_while(|_| self.connect(name).is_ok()).count()
        }

        fn leave(&mut self, name: &'static str) {
            *self.clients.get_mut(name).unwrap() -= 1;
            self.slots.leaving += 1;
        }

        fn end_period(&mut self) {
            self.slots.taken -= core::mem::take(&mut self.slots.leaving);
        }
    }

    #[test]
    fn one_slot_is_kept_for_each_reservation() {
        let mut node = Node::new(64);
        assert_eq!(node.fill("batch"), 62);
        assert_eq!(node.fill(""), 0, "clients without a tenant take none that is kept");
        assert_eq!((node.connect("oltp"), node.connect("web")), (Ok(()), Ok(())));
        let Err(SlotDenied::Refused(reason)) = node.connect("oltp") else { panic!() };
        assert!(reason.starts_with("all 64 session slots of the data node are taken"), "{reason}");
        let mut node = Node::new(64);
        assert_eq!(node.fill("oltp"), 63, "its own one it need not leave");
        let Err(SlotDenied::Refused(reason)) = node.connect("oltp") else { panic!() };
        assert!(reason.contains("kept for tenants with a reservation: web"), "{reason}");
        assert!(reason.contains("63 of them by tenant \"oltp\""), "{reason}");
        assert_eq!(node.connect("web"), Ok(()));
    }

    #[test]
    fn above_its_fair_part_a_tenant_lets_others_grow() {
        let mut node = Node::new(8);
        assert_eq!((node.fill("oltp"), node.fill("web")), (7, 1));
        node.leave("oltp");
        node.end_period();
        assert!(node.connect("oltp").is_err(), "it has six of eight, and web one");
        assert_eq!((node.connect("web"), node.fill("web")), (Ok(()), 0));
        // Both have at least a fair part, which is two of eight for each of three and the rest.
        node.leave("oltp");
        node.end_period();
        assert_eq!(node.connect("oltp"), Ok(()));
    }

    #[test]
    fn a_client_that_connects_as_others_leave_waits_for_the_end_of_the_period() {
        let mut node = Node::new(4);
        assert_eq!(
            (node.fill("batch"), node.connect("oltp"), node.connect("web")),
            (2, Ok(()), Ok(()))
        );
        assert!(matches!(node.connect("batch"), Err(SlotDenied::Refused(_))));
        node.leave("batch");
        assert_eq!(node.connect("batch"), Err(SlotDenied::Wait));
        node.end_period();
        assert_eq!(node.connect("batch"), Ok(()));
    }

    #[test]
    fn with_more_reservations_than_slots_the_first_have_them() {
        let mut node = Node::new(1);
        assert!(node.connect("batch").is_err());
        assert_eq!(node.connect("web"), Ok(()));
        assert!(node.connect("oltp").is_err());
        let none = admit(None, None, |_| 0, Slots { total: 2, taken: 1, leaving: 0 });
        assert_eq!(none, Ok(()), "without a policy nothing is kept");
    }

    /// Slots that have to be free for one more client of a tenant: its own, and those that are kept
    /// from it. The first client of a tenant with a reservation needs no more than its own.
    fn needed(policy: &Policy, name: &str, clients: &BTreeMap<&str, usize>, total: usize) -> usize {
        let own = clients[name];
        let fair = core::cmp::max(1, total / (policy.tenants.len() + 1));
        let is_reserved = |name: &str| name.starts_with("reserved");
        if is_reserved(name) && own == 0 {
            return 1;
        }
        let is_kept = |(other, count): &(&&str, &usize)| {
            let is_without = **count == 0 || (own >= fair && **count < fair);
            is_reserved(other) && **other != name && is_without
        };
        1 + clients.iter().filter(is_kept).count()
    }

    /// Every number of slots up to eight, and of clients of two tenants with a reservation, one
    /// without, and clients without a tenant.
    #[test]
    fn a_client_gets_a_slot_now_or_when_the_period_ends_if_so_many_are_free() {
        let tenants = "[[tenant]]\nname = \"reserved-a\"\nreservation = \"1 iops\"\n\
                       [[tenant]]\nname = \"reserved-b\"\nreservation = \"1 iops\"\n\
                       [[tenant]]\nname = \"batch\"\n";
        let policy = Policy::parse(tenants).unwrap();
        let names = ["reserved-a", "reserved-b", "batch", ""];
        for number in 0..9 * 4_usize.pow(4) * 3 {
            let digit = |position: u32| number / 4_usize.pow(position) % 4;
            let clients: BTreeMap<_, _> = names.into_iter().zip((0..4).map(digit)).collect();
            let (total, leaving) = (number / 4_usize.pow(4) % 9, number / (9 * 4_usize.pow(4)));
            let taken = clients.values().sum::<usize>() + leaving;
            let slots = Slots { total, taken, leaving };
            for name in names {
                let tenant = policy.tenant_named(name).map(|(_, tenant)| tenant);
                let admitted = admit(Some(&policy), tenant, |name| clients[name], slots);
                let needed = needed(&policy, name, &clients, total);
                let free = total.saturating_sub(taken);
                let seen = match admitted {
                    Ok(()) => "now",
                    Err(SlotDenied::Wait) => "later",
                    Err(SlotDenied::Refused(_)) => "never",
                };
                let wanted = match (free >= needed, free + leaving >= needed) {
                    (true, _) => "now",
                    (false, true) => "later",
                    (false, false) => "never",
                };
                assert_eq!(seen, wanted, "{name:?} {clients:?} {slots:?}");
            }
        }
    }

    #[test]
    fn a_refusal_names_up_to_three_tenants() {
        for (kept, named) in [
            (&["a"][..], "reservation: a, 5 of them"),
            (&["a", "b", "c"], "reservation: a, b, c, 5 of them"),
            (&["a", "b", "c", "d"], "reservation: a, b, c and 1 more, 5 of them"),
            (&["a", "b", "c", "d", "e"], "reservation: a, b, c and 2 more, 5 of them"),
        ] {
            let refusal = refusal("batch", 5, kept, Slots { total: 8, ..Slots::default() });
            assert!(refusal.contains(named), "{refusal}");
        }
    }
}
