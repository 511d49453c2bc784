//! Who has a seat of a data node, and what each client is promised of its tenant's share here.
//!
//! # Mechanism
//! A share is divided over the tenant's clients in the order in which they came: each gets what it
//! asks for of all that the tenant is promised, or an equal part of that, or whatever is left, as
//! far as the share goes. Shares change, so a client is refused only for what no share could give:
//! more than the tenant is promised at all nodes together, without what its clients here asked for.
//!
//! Example: a tenant is promised 100 operations per period, all of it here. One client asks for 30
//! and another for nothing in particular: they get 30 and 70. A third that asks for some is refused;
//! one that asks for none lives on the pool. When the share falls to 50, they have 30 and 20.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_algo::haechi::engine::Promise;
use tidegate_model::policy::Tenant;
use tidegate_model::{Iops, Policy, Span};

use super::Hello;

/// What a tenant is promised here, in operations per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What is reserved.
    pub reserved: u64,
    /// The most that it may do; `u64::MAX` for no limit.
    pub allowed: u64,
}

impl Part {
    /// Of a tenant of which nobody has said anything.
    pub const NOTHING: Self = Self { reserved: 0, allowed: u64::MAX };
}

/// What a client asked for when it came.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Guest {
    seat: u16,
    tenant: String,
    ask: Ask,
}

/// How much of what its tenant is promised a client wants to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ask {
    reservation: Option<Iops>,
    limit: Option<Iops>,
    parts: u64,
}

impl Ask {
    fn of(hello: &Hello) -> Self {
        let Hello { reservation, limit, parts, .. } = *hello;
        Self { reservation, limit, parts: u64::from(parts.max(1)) }
    }
}

/// Who has a seat, in the order in which they came, and what each is promised.
#[derive(Clone, Debug)]
pub struct Book {
    period: Span,
    /// C_L, per period.
    local: u64,
    guests: Vec<Guest>,
    shares: BTreeMap<String, Part>,
}

impl Book {
    /// One without guests and shares, of a node whose period is so long, and of which one client
    /// alone can do so much.
    pub fn new(period: Span, client: Iops) -> Self {
        let mut book = Self { period, local: 0, guests: Vec::new(), shares: BTreeMap::new() };
        book.local = book.count(client);
        book
    }

    /// What a tenant is promised here.
    pub fn share(&self, tenant: &str) -> Part {
        self.shares.get(tenant).copied().unwrap_or(Part::NOTHING)
    }

    /// Notes what a tenant is promised here from now on.
    pub fn set_share(&mut self, tenant: &str, share: Part) {
        self.shares.insert(tenant.into(), share);
    }

    /// Forgets the shares of tenants that a policy does not name.
    pub fn keep_shares(&mut self, policy: &Policy) {
        self.shares.retain(|tenant, _| policy.tenant_named(tenant).is_some());
    }

    /// What another client of a tenant is promised at first beside those that are there. Who is
    /// nobody's is promised nothing.
    ///
    /// # Errors
    /// If it asks for more than any share could give it, in words for people.
    pub fn offer(&self, tenant: Option<&Tenant>, hello: &Hello) -> Result<Promise, String> {
        let Some(tenant) = tenant else {
            return match hello.reservation {
                None | Some(Iops(0)) => {
                    Ok(Promise { reservation: 0, limit: self.cap(hello.limit) })
                }
                Some(_) => Err("nothing is promised to who is nobody's; name a tenant".into()),
            };
        };
        let all = self.all(tenant);
        let left = self.left(all, all, &tenant.name);
        let asked = hello.reservation.map(|asked| self.count(asked));
        if asked.is_some_and(|asked| asked > left.reservation) {
            return Err(format!(
                "{} operations per period are left of what tenant {:?} is promised, and {} were \
                 asked for; ask for less, or raise its reservation",
                left.reservation,
                tenant.name,
                asked.unwrap_or(0),
            ));
        }
        if left.limit == 0 {
            return Err(format!(
                "the limit of tenant {:?} is taken up by its other clients; let those ask for a \
                 limit below it, or raise it",
                tenant.name
            ));
        }
        let here = self.left(all, self.here(&tenant.name), &tenant.name);
        Ok(self.part(all, here, Ask::of(hello)))
    }

    /// Notes who has a seat now.
    pub fn seat(&mut self, seat: u16, tenant: &str, hello: &Hello) {
        self.guests.push(Guest { seat, tenant: tenant.into(), ask: Ask::of(hello) });
    }

    /// Whether a seat is taken.
    pub fn has(&self, seat: u16) -> bool {
        self.guests.iter().any(|guest| guest.seat == seat)
    }

    /// How many seats are taken.
    pub fn guests(&self) -> usize {
        self.guests.len()
    }

    /// Notes that all seats are free.
    pub fn clear(&mut self) {
        self.guests.clear();
    }

    /// Notes that a seat is free.
    pub fn leave(&mut self, seat: u16) {
        self.guests.retain(|guest| guest.seat != seat);
    }

    /// The tenant of a seat; empty for a free one, and for nobody's.
    pub fn tenant(&self, seat: u16) -> &str {
        let guest = self.guests.iter().find(|guest| guest.seat == seat);
        guest.map_or("", |guest| &guest.tenant)
    }

    /// How many clients of a tenant there are, and the most per second that all of them together
    /// can be promised.
    pub fn clients(&self, tenant: &Tenant) -> (u32, u64) {
        let all = self.all(tenant);
        let guests = self.guests.iter().filter(|guest| guest.tenant == tenant.name);
        let most = guests.clone().fold(0u64, |sum, guest| {
            sum.saturating_add(self.part(all, all, guest.ask).reservation.min(self.local))
        });
        (guests.count() as u32, self.per_second(most))
    }

    /// What each seat is promised, with the shares as they are and a policy that may be another than
    /// when its client came: whatever is left for it of what it asked for.
    pub fn promises(&self, policy: Option<&Policy>) -> Vec<(u16, Promise)> {
        let mut left: BTreeMap<&str, Promise> = BTreeMap::new();
        let mut promises = Vec::with_capacity(self.guests.len());
        for Guest { seat, tenant, ask } in &self.guests {
            let Some((_, tenant)) = policy.and_then(|policy| policy.tenant_named(tenant)) else {
                let promise = Promise { reservation: 0, limit: self.cap(ask.limit) };
                promises.push((*seat, promise));
                continue;
            };
            let here = left.entry(&tenant.name).or_insert_with(|| self.here(&tenant.name));
            let promise = self.part(self.all(tenant), *here, *ask);
            *here = without(*here, promise);
            promises.push((*seat, promise));
        }
        promises
    }

    /// Operations of a period at a rate, rounded down.
    fn count(&self, rate: Iops) -> u64 {
        let count = u128::from(rate.0) * u128::from(self.period.0) / u128::from(Span::SECOND.0);
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// What so many operations in a period are in a second, rounded down.
    pub fn per_second(&self, count: u64) -> u64 {
        let rate = u128::from(count) * u128::from(Span::SECOND.0);
        u64::try_from(rate / u128::from(self.period.0.max(1))).unwrap_or(u64::MAX)
    }

    fn cap(&self, limit: Option<Iops>) -> u64 {
        limit.map_or(u64::MAX, |limit| self.count(limit).max(1))
    }

    /// All that a tenant is promised, here and elsewhere.
    fn all(&self, tenant: &Tenant) -> Promise {
        let count = |rate: Option<Iops>| rate.map(|rate| self.count(rate));
        Promise {
            reservation: count(tenant.reservation.operations).unwrap_or(0),
            limit: count(tenant.limit.operations).unwrap_or(u64::MAX),
        }
    }

    /// What of that is kept here.
    fn here(&self, tenant: &str) -> Promise {
        let Part { reserved, allowed } = self.share(tenant);
        let limit = if allowed == u64::MAX { allowed } else { self.count(Iops(allowed)) };
        Promise { reservation: self.count(Iops(reserved)), limit }
    }

    /// What a client gets of what is left, if its tenant is promised `all`.
    fn part(&self, all: Promise, left: Promise, ask: Ask) -> Promise {
        let limit = match ask.limit {
            None if all.limit == u64::MAX => all.limit,
            None => (all.limit / ask.parts).max(1),
            limit => self.cap(limit),
        };
        let limit = limit.min(left.limit);
        let reservation = match ask.reservation {
            Some(asked) => self.count(asked),
            None => (all.reservation / ask.parts).min(self.local),
        };
        Promise { reservation: reservation.min(left.reservation).min(limit), limit }
    }

    /// What its clients leave of what a tenant is promised, `all`, of which so much is to be had.
    fn left(&self, all: Promise, of: Promise, tenant: &str) -> Promise {
        let guests = self.guests.iter().filter(|guest| guest.tenant == tenant);
        guests.fold(of, |left, guest| without(left, self.part(all, left, guest.ask)))
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
        Hello { version, tenant, reservation, limit, parts: 1, seat: None, is_bare: false }
    }

    fn book(period: Span, reserved: u64, allowed: u64) -> Book {
        let mut book = Book::new(period, Iops(90));
        book.set_share("oltp", Part { reserved, allowed });
        book
    }

    fn told(promise: Promise) -> (u64, u64) {
        (promise.reservation, promise.limit)
    }

    #[test]
    fn a_share_is_divided_in_the_order_of_arrival() {
        let policy = policy();
        let (_, oltp) = policy.tenant_named("oltp").unwrap();
        let mut book = book(Span::SECOND, 100, 200);
        let first = hello(Some(30), Some(50));
        assert_eq!(book.offer(Some(oltp), &first).map(told), Ok((30, 50)));
        book.seat(0, "oltp", &first);
        let error = book.offer(Some(oltp), &hello(Some(71), None)).unwrap_err();
        assert!(error.starts_with("70 operations per period are left"), "{error}");
        let second = hello(None, None);
        assert_eq!(book.offer(Some(oltp), &second).map(told), Ok((70, 150)));
        book.seat(3, "oltp", &second);
        let error = book.offer(Some(oltp), &hello(Some(0), None)).unwrap_err();
        assert!(error.starts_with("the limit of tenant \"oltp\" is taken up"), "{error}");
        assert_eq!(book.offer(None, &hello(None, None)).map(told), Ok((0, u64::MAX)));
        assert!(book.offer(None, &hello(Some(1), None)).is_err());
        assert_eq!(book.clients(oltp), (2, 120), "30, and what one client can do");
        book.set_share("oltp", Part { reserved: 50, allowed: 60 });
        let promises = |book: &Book| {
            book.promises(Some(&policy)).into_iter().map(|it| told(it.1)).collect::<Vec<_>>()
        };
        assert_eq!(promises(&book), [(30, 50), (10, 10)]);
        book.set_share("oltp", Part { reserved: 100, allowed: 200 });
        book.leave(0);
        assert_eq!(promises(&book), [(90, 200)]);
        let other = Policy::parse("[[tenant]]\nname = \"x\"").unwrap();
        let nobody = Promise { reservation: 0, limit: u64::MAX };
        assert_eq!(book.promises(Some(&other)), [(3, nobody)]);
        assert_eq!(book.promises(None), [(3, nobody)]);
    }

    #[test]
    fn a_client_comes_in_where_its_tenant_has_no_share_yet() {
        let policy = policy();
        let (_, oltp) = policy.tenant_named("oltp").unwrap();
        let book = book(Span::SECOND, 0, 0);
        assert_eq!(book.offer(Some(oltp), &hello(Some(80), None)).map(told), Ok((0, 0)));
        assert!(book.offer(Some(oltp), &hello(Some(101), None)).is_err());
    }

    #[test]
    fn parts_are_of_all_that_is_promised() {
        let policy = policy();
        let (_, oltp) = policy.tenant_named("oltp").unwrap();
        let book = book(Span(Span::SECOND.0 / 10), 50, 100);
        assert_eq!(book.offer(Some(oltp), &hello(None, None)).map(told), Ok((5, 10)));
        let third = Hello { parts: 3, ..hello(None, None) };
        assert_eq!(book.offer(Some(oltp), &third).map(told), Ok((3, 6)));
        assert_eq!((book.per_second(3), book.per_second(0)), (30, 0));
    }
}
