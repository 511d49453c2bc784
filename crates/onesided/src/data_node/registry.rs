//! The clients with a session slot on a data node, and the promise to each from its tenant's share.
//!
//! # Mechanism
//! A share is divided over the tenant's clients in the order in which they came. Each gets the
//! amount that it requests, of all that the tenant is promised, or an equal part of that, or the
//! rest, as far as the share goes. Where the share does not suffice for all equal parts they are
//! smaller. Shares change, so a client is refused only if it requests more than any share could
//! give: the tenant's promise at all nodes together, without the amounts that its clients here
//! requested. A client that had a session slot in memory that the node has left, or that a former
//! process of it had, is not refused even then: a client that came to the new memory before does
//! not keep it away. It gets the rest.
//!
//! Example: a tenant is promised 100 operations per period, all of it here. One client requests 30
//! and another names no amount: they get 30 and 70. A third that requests some is refused; one that
//! requests none lives on the pool. When the share falls to 50, they have 30 and 20.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_algo::onesided::engine::Promise;
use tidegate_model::policy::Tenant;
use tidegate_model::{Iops, Policy, SessionSlot, Span};

use super::Hello;

/// A tenant's promise here, in operations per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantShare {
    /// The reservation.
    pub reserved: u64,
    /// The most that it may do; `u64::MAX` for no limit.
    pub allowed: u64,
}

impl TenantShare {
    /// The share of a tenant for which no grant has come.
    pub const NOTHING: Self = Self { reserved: 0, allowed: u64::MAX };

    /// The greater of each of the two levels.
    pub(super) fn greatest(self, other: Self) -> Self {
        Self {
            reserved: self.reserved.max(other.reserved),
            allowed: self.allowed.max(other.allowed),
        }
    }
}

/// A client with a session slot, and the promise that it requested.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Session {
    session_slot: SessionSlot,
    tenant: String,
    request: PromiseRequest,
}

/// The part of its tenant's promise that a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PromiseRequest {
    reservation: Option<Iops>,
    limit: Option<Iops>,
    parts: u64,
}

impl PromiseRequest {
    fn of(hello: &Hello) -> Self {
        let Hello { reservation, limit, parts, .. } = *hello;
        Self { reservation, limit, parts: u64::from(parts.max(1)) }
    }
}

/// The clients with a session slot, in the order in which they came, and the tenants' shares.
#[derive(Clone, Debug)]
pub struct SessionRegistry {
    period: Span,
    /// C_L, per period.
    local: u64,
    sessions: Vec<Session>,
    shares: BTreeMap<String, TenantShare>,
    /// The tenant of each session slot's present or last client.
    last: BTreeMap<SessionSlot, String>,
}

impl SessionRegistry {
    /// An empty registry of a node with this period, on which one client alone can do `client`
    /// operations per second.
    pub fn new(period: Span, client: Iops) -> Self {
        let (sessions, shares, last) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mut registry = Self { period, local: 0, sessions, shares, last };
        registry.local = registry.count(client);
        registry
    }

    /// A tenant's promise here.
    pub fn share(&self, tenant: &str) -> TenantShare {
        self.shares.get(tenant).copied().unwrap_or(TenantShare::NOTHING)
    }

    /// Sets a tenant's promise here from now on.
    pub fn set_share(&mut self, tenant: &str, share: TenantShare) {
        self.shares.insert(tenant.into(), share);
    }

    /// Forgets the shares of tenants that a policy does not name.
    pub fn keep_shares(&mut self, policy: &Policy) {
        self.shares.retain(|tenant, _| policy.tenant_named(tenant).is_some());
    }

    /// The first promise to another client of a tenant, beside its present clients. A client
    /// without a tenant has no reservation.
    ///
    /// # Errors
    /// If it requests more than any share could give it, in words for people.
    pub fn offer(&self, tenant: Option<&Tenant>, hello: &Hello) -> Result<Promise, String> {
        let Some(tenant) = tenant else {
            return match hello.reservation {
                None | Some(Iops(0)) => {
                    Ok(Promise { reservation: 0, limit: self.cap(hello.limit) })
                }
                Some(_) => {
                    Err("a client without a tenant has no reservation; name a tenant".into())
                }
            };
        };
        let all = self.all(tenant);
        let sessions = || self.sessions.iter().filter(|session| session.tenant == tenant.name);
        let (_, left) = self.divide(all, all, sessions());
        let requested = hello.reservation.map(|requested| self.count(requested));
        let had_slot = hello.session_slot.is_some();
        if !had_slot && requested.is_some_and(|requested| requested > left.reservation) {
            return Err(format!(
                "{} operations per period are left of what tenant {:?} is promised, and {} were \
                 asked for; ask for less, or raise its reservation",
                left.reservation,
                tenant.name,
                requested.unwrap_or(0),
            ));
        }
        if left.limit == 0 {
            return Err(format!(
                "the limit of tenant {:?} is taken up by its other clients; let those ask for a \
                 limit below it, or raise it",
                tenant.name
            ));
        }
        // Earlier clients make headroom for an equal part when all promises are renewed.
        let (_, here) = self.divide(all, self.here(&tenant.name), sessions());
        Ok(self.part(all, here, PromiseRequest::of(hello), [1, 1]))
    }

    /// The limit of a client in the rest of the running period, if it was offered `limit`. It is at
    /// most the tenant's limit here, less the operations `allowed` to each session slot of the
    /// tenant in this period, also if its client has left since.
    ///
    /// Example: a tenant may do 100 operations per period here, and a client of it 60. Another that
    /// comes may do 40 until the next period. A client that comes after the first has left may do
    /// no more than that, as the first may have done its 60.
    pub fn rest(&self, tenant: &str, limit: u64, allowed: impl Fn(SessionSlot) -> u64) -> u64 {
        let here = self.here(tenant).limit;
        if here == u64::MAX {
            return limit;
        }
        let session_slots = self.last.iter().filter(|(_, last)| *last == tenant);
        let given = session_slots
            .fold(0u64, |sum, (session_slot, _)| sum.saturating_add(allowed(*session_slot)));
        here.saturating_sub(given).min(limit)
    }

    /// Notes the client of a session slot.
    pub fn add(&mut self, session_slot: SessionSlot, tenant: &str, hello: &Hello) {
        self.last.insert(session_slot, tenant.into());
        self.sessions.push(Session {
            session_slot,
            tenant: tenant.into(),
            request: PromiseRequest::of(hello),
        });
    }

    /// Whether a session slot is taken.
    pub fn has(&self, session_slot: SessionSlot) -> bool {
        self.sessions.iter().any(|session| session.session_slot == session_slot)
    }

    /// How many session slots are taken.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The tenants that have clients, in the order of their names; an empty one stands for clients
    /// without a tenant.
    pub fn tenants(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.sessions.iter().map(|session| session.tenant.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// How many clients of a tenant have a slot; with an empty name those without a tenant.
    pub fn clients_of(&self, tenant: &str) -> usize {
        self.sessions.iter().filter(|session| session.tenant == tenant).count()
    }

    /// Notes that all session slots are free.
    pub fn clear(&mut self) {
        self.sessions.clear();
        self.last.clear();
    }

    /// Notes that a session slot is free.
    pub fn leave(&mut self, session_slot: SessionSlot) {
        self.sessions.retain(|session| session.session_slot != session_slot);
    }

    /// The tenant of a session slot; empty for a free one, and for a client without tenant.
    pub fn tenant(&self, session_slot: SessionSlot) -> &str {
        let session = self.sessions.iter().find(|session| session.session_slot == session_slot);
        session.map_or("", |session| &session.tenant)
    }

    /// How many clients of a tenant there are, and the most per second that all of them together
    /// can be promised.
    pub fn clients(&self, tenant: &Tenant) -> (u32, u64) {
        let all = self.all(tenant);
        let sessions = self.sessions.iter().filter(|session| session.tenant == tenant.name);
        let most = sessions.clone().fold(0u64, |sum, session| {
            sum.saturating_add(
                self.part(all, all, session.request, [1, 1]).reservation.min(self.local),
            )
        });
        (sessions.count() as u32, self.per_second(most))
    }

    /// The promise to each session slot, with the present shares and a policy that may have changed
    /// since its client came: as much as is left of its request.
    pub fn promises(&self, policy: Option<&Policy>) -> Vec<(SessionSlot, Promise)> {
        let of_tenant = |name: &str| {
            let sessions = self.sessions.iter().filter(move |session| session.tenant == name);
            match policy.and_then(|policy| policy.tenant_named(name)) {
                Some((_, tenant)) => self.divide(self.all(tenant), self.here(name), sessions).0,
                None => sessions
                    .map(|session| {
                        let promise =
                            Promise { reservation: 0, limit: self.cap(session.request.limit) };
                        (session.session_slot, promise)
                    })
                    .collect(),
            }
        };
        self.tenants().into_iter().flat_map(of_tenant).collect()
    }

    /// Operations of a period at a rate, rounded down.
    fn count(&self, rate: Iops) -> u64 {
        let count = u128::from(rate.0) * u128::from(self.period.0) / u128::from(Span::SECOND.0);
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// Converts operations per period to operations per second, rounded down.
    pub fn per_second(&self, count: u64) -> u64 {
        let rate = u128::from(count) * u128::from(Span::SECOND.0);
        u64::try_from(rate / u128::from(self.period.0.max(1))).unwrap_or(u64::MAX)
    }

    fn cap(&self, limit: Option<Iops>) -> u64 {
        limit.map_or(u64::MAX, |limit| self.count(limit).max(1))
    }

    /// A tenant's promise at all nodes together, in operations per period.
    fn all(&self, tenant: &Tenant) -> Promise {
        let count = |rate: Option<Iops>| rate.map(|rate| self.count(rate));
        Promise {
            reservation: count(tenant.reservation.operations).unwrap_or(0),
            limit: count(tenant.limit.operations).unwrap_or(u64::MAX),
        }
    }

    /// The part of a tenant's promise that is kept here, in operations per period.
    fn here(&self, tenant: &str) -> Promise {
        let TenantShare { reserved, allowed } = self.share(tenant);
        let limit = if allowed == u64::MAX { allowed } else { self.count(Iops(allowed)) };
        Promise { reservation: self.count(Iops(reserved)), limit }
    }

    /// A client's part of `left`, if its tenant is promised `all`. A client that requests an equal
    /// part gets no more of limit and reservation than one of so many equal parts.
    fn part(
        &self,
        all: Promise,
        left: Promise,
        request: PromiseRequest,
        parts: [u64; 2],
    ) -> Promise {
        let even = |left: u64, parts: u64| if request.parts > 1 { left / parts } else { left };
        let limit = match request.limit {
            None if all.limit == u64::MAX => all.limit,
            None => (all.limit / request.parts).max(1).min(even(left.limit, parts[0])),
            limit => self.cap(limit),
        };
        let limit = limit.min(left.limit);
        let reservation = match request.reservation {
            Some(requested) => self.count(requested),
            None => {
                let part = (all.reservation / request.parts).min(self.local);
                part.min(even(left.reservation, parts[1]))
            }
        };
        Promise { reservation: reservation.min(left.reservation).min(limit), limit }
    }

    /// The promise to each of a tenant's clients out of `left`, if the tenant is promised `all`;
    /// and the rest.
    fn divide<'a>(
        &'a self,
        all: Promise,
        mut left: Promise,
        sessions: impl Iterator<Item = &'a Session> + Clone,
    ) -> (Vec<(SessionSlot, Promise)>, Promise) {
        let is_even = |session: &Session| {
            let PromiseRequest { reservation, limit, parts } = session.request;
            [limit, reservation].map(|requested| u64::from(parts > 1 && requested.is_none()))
        };
        let add = |sum: [u64; 2], one: [u64; 2]| [sum[0] + one[0], sum[1] + one[1]];
        let mut parts = sessions.clone().map(is_even).fold([0, 0], add);
        let mut promises = Vec::new();
        for session in sessions {
            let promise = self.part(all, left, session.request, parts.map(|parts| parts.max(1)));
            left = without(left, promise);
            let [limits, reservations] = is_even(session);
            parts = [parts[0] - limits, parts[1] - reservations];
            promises.push((session.session_slot, promise));
        }
        (promises, left)
    }
}

fn without(left: Promise, part: Promise) -> Promise {
    let limit = if left.limit == u64::MAX { left.limit } else { left.limit - part.limit };
    Promise { reservation: left.reservation - part.reservation, limit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_node::VERSION;

    fn policy() -> Policy {
        let text = "[[tenant]]\nname = \"oltp\"\nreservation = \"100 iops\"\nlimit = \"200 iops\"";
        Policy::parse(text).unwrap()
    }

    fn hello(reservation: Option<u64>, limit: Option<u64>) -> Hello {
        let (reservation, limit) = (reservation.map(Iops), limit.map(Iops));
        let (version, tenant) = (VERSION, "oltp".into());
        Hello { version, tenant, reservation, limit, parts: 1, session_slot: None, is_bare: false }
    }

    fn registry(period: Span, reserved: u64, allowed: u64) -> SessionRegistry {
        let mut registry = SessionRegistry::new(period, Iops(90));
        registry.set_share("oltp", TenantShare { reserved, allowed });
        registry
    }

    fn amounts(promise: Promise) -> (u64, u64) {
        (promise.reservation, promise.limit)
    }

    #[test]
    fn a_share_is_divided_in_the_order_of_arrival() {
        let policy = policy();
        let (_, oltp) = policy.tenant_named("oltp").unwrap();
        let mut registry = registry(Span::SECOND, 100, 200);
        let first = hello(Some(30), Some(50));
        assert_eq!(registry.offer(Some(oltp), &first).map(amounts), Ok((30, 50)));
        registry.add(SessionSlot(0), "oltp", &first);
        let error = registry.offer(Some(oltp), &hello(Some(71), None)).unwrap_err();
        assert!(error.starts_with("70 operations per period are left"), "{error}");
        let second = hello(None, None);
        assert_eq!(registry.offer(Some(oltp), &second).map(amounts), Ok((70, 150)));
        registry.add(SessionSlot(3), "oltp", &second);
        let error = registry.offer(Some(oltp), &hello(Some(0), None)).unwrap_err();
        assert!(error.starts_with("the limit of tenant \"oltp\" is taken up"), "{error}");
        assert_eq!(registry.offer(None, &hello(None, None)).map(amounts), Ok((0, u64::MAX)));
        assert!(registry.offer(None, &hello(Some(1), None)).is_err());
        assert_eq!(registry.clients(oltp), (2, 120), "30, and what one client can do");
        registry.set_share("oltp", TenantShare { reserved: 50, allowed: 60 });
        let promises = |registry: &SessionRegistry| {
            registry.promises(Some(&policy)).into_iter().map(|it| amounts(it.1)).collect::<Vec<_>>()
        };
        assert_eq!(promises(&registry), [(30, 50), (10, 10)]);
        registry.set_share("oltp", TenantShare { reserved: 100, allowed: 200 });
        registry.leave(SessionSlot(0));
        assert_eq!(promises(&registry), [(90, 200)]);
        let other = Policy::parse("[[tenant]]\nname = \"x\"").unwrap();
        let no_reservation = Promise { reservation: 0, limit: u64::MAX };
        assert_eq!(registry.promises(Some(&other)), [(SessionSlot(3), no_reservation)]);
        assert_eq!(registry.promises(None), [(SessionSlot(3), no_reservation)]);
    }

    #[test]
    fn a_new_client_of_new_memory_keeps_no_former_client_out() {
        let policy = policy();
        let (_, oltp) = policy.tenant_named("oltp").unwrap();
        let mut registry = registry(Span::SECOND, 100, 200);
        let newcomer = hello(Some(80), Some(100));
        registry.add(SessionSlot(0), "oltp", &newcomer);
        let former = Hello { session_slot: Some(SessionSlot(5)), ..hello(Some(80), Some(100)) };
        assert!(
            registry.offer(Some(oltp), &hello(Some(80), Some(100))).is_err(),
            "a second newcomer"
        );
        assert_eq!(registry.offer(Some(oltp), &former).map(amounts), Ok((20, 100)), "what is left");
        registry.add(SessionSlot(1), "oltp", &former);
        registry.leave(SessionSlot(0));
        let promises = registry.promises(Some(&policy));
        let whole = Promise { reservation: 80, limit: 100 };
        assert_eq!(
            promises,
            [(SessionSlot(1), whole)],
            "and all that it asked for once there is room"
        );
    }

    #[test]
    fn equal_parts_are_equal_though_they_are_small() {
        let policy = policy();
        let mut registry = registry(Span::SECOND, 60, 121);
        for session_slot in [0, 1].map(SessionSlot) {
            registry.add(session_slot, "oltp", &Hello { parts: 3, ..hello(None, None) });
        }
        let promises = |registry: &SessionRegistry| {
            registry.promises(Some(&policy)).into_iter().map(|it| amounts(it.1)).collect::<Vec<_>>()
        };
        assert_eq!(promises(&registry), [(30, 60), (30, 61)]);
        registry.set_share("oltp", TenantShare { reserved: 100, allowed: 200 });
        assert_eq!(promises(&registry), [(33, 66), (33, 66)]);
        registry.add(SessionSlot(2), "oltp", &hello(Some(50), Some(50)));
        assert_eq!(promises(&registry), [(33, 66), (33, 66), (34, 50)]);
    }

    #[test]
    fn a_client_comes_in_where_its_tenant_has_no_share_yet() {
        let policy = policy();
        let (_, oltp) = policy.tenant_named("oltp").unwrap();
        let registry = registry(Span::SECOND, 0, 0);
        assert_eq!(registry.offer(Some(oltp), &hello(Some(80), None)).map(amounts), Ok((0, 0)));
        assert!(registry.offer(Some(oltp), &hello(Some(101), None)).is_err());
    }

    #[test]
    fn a_limit_is_given_once_in_a_period() {
        let mut registry = registry(Span::SECOND, 100, 200);
        let rest = |registry: &SessionRegistry, allowed: [u64; 2]| {
            registry
                .rest("oltp", 150, |session_slot| *allowed.get(session_slot.index()).unwrap_or(&0))
        };
        assert_eq!(rest(&registry, [0, 0]), 150);
        registry.add(SessionSlot(0), "oltp", &hello(None, Some(120)));
        assert_eq!(rest(&registry, [120, 0]), 80);
        registry.leave(SessionSlot(0));
        assert_eq!(rest(&registry, [120, 0]), 80, "it may have done all of that");
        registry.add(SessionSlot(1), "oltp", &hello(None, None));
        assert_eq!(rest(&registry, [120, 80]), 0);
        assert_eq!(rest(&registry, [0, 200]), 0, "in the next period");
        registry.add(SessionSlot(0), "other", &hello(None, None));
        assert_eq!(rest(&registry, [u64::MAX, 80]), 120, "the slot is another's");
        assert_eq!(registry.rest("other", u64::MAX, |_| u64::MAX), u64::MAX, "it has no limit");
    }

    #[test]
    fn parts_are_of_all_that_is_promised() {
        let policy = policy();
        let (_, oltp) = policy.tenant_named("oltp").unwrap();
        let registry = registry(Span(Span::SECOND.0 / 10), 50, 100);
        assert_eq!(registry.offer(Some(oltp), &hello(None, None)).map(amounts), Ok((5, 10)));
        let third = Hello { parts: 3, ..hello(None, None) };
        assert_eq!(registry.offer(Some(oltp), &third).map(amounts), Ok((3, 6)));
        assert_eq!((registry.per_second(3), registry.per_second(0)), (30, 0));
    }
}
