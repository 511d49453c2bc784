//! A data node and its clients until all is one-sided: who comes, for whom, for which promise.
//!
//! # Mechanism
//! A client says [`Hello`] on the data node's Unix socket, and hears [`ToClient`]: it has a seat,
//! and the descriptor of the memory comes with that message; or it has none, and why. After that
//! the connection is a lifeline only. When it ends, so does the seat; when the data node moves to
//! other memory, the client hears [`ToClient::Moving`] and comes again.
//!
//! Whose client it is says the client, if the policy lets its user act for that tenant; or else the
//! first rule of the policy that asks for nothing but what the kernel says of a process: user,
//! executable and control group. What a tenant is promised is divided over its clients in the order
//! in which they came ([`Book`]): each gets what it asks for, or a part of it, or whatever is left.
//!
//! Example: a tenant is promised 100 operations per period. One client asks for 30 and another for
//! nothing in particular: they get 30 and 70. A third that asks for some is refused; one that asks
//! for none lives on the pool.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};
use tidegate_algo::channel::glob;
use tidegate_algo::haechi::Rules;
use tidegate_algo::haechi::engine::Promise;
use tidegate_model::cluster::{Fabric, TokenRules};
use tidegate_model::policy::{Match, Target, Tenant};
use tidegate_model::{Conditions, Iops, Policy, Span, TenantId};

use crate::controller::Peer;

/// The version of these messages and of the words in a region. Both sides say theirs first and part
/// if they differ.
pub const VERSION: u16 = 1;

/// The first message of a connection, from a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version it speaks.
    pub version: u16,
    /// The tenant it acts for; empty to go by the policy's rules.
    pub tenant: String,
    /// What of its tenant's reservation it wants to have; none for its part of it.
    pub reservation: Option<Iops>,
    /// The most that it wants to do; none for its part of its tenant's limit.
    pub limit: Option<Iops>,
    /// Of how many equal parts of what its tenant is promised it wants to have one, where it does
    /// not say how much: of 1 for all that is left.
    pub parts: u32,
    /// The seat that it had, if the data node is gone that gave it the memory. The descriptor of
    /// that comes with this message, so that another node can go on with it.
    pub seat: Option<u16>,
    /// Whether it wants the memory without a seat, tokens and limits: to measure what those cost.
    pub is_bare: bool,
}

/// From a data node to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToClient {
    /// Here is the memory: its descriptor comes with this message.
    Welcome(Welcome),
    /// There is none for this client; the connection ends.
    Refused {
        /// The version that the data node speaks.
        version: u16,
        /// Why, in words for people.
        reason: String,
    },
    /// The node goes on with other memory: nothing that is begun from now on will be there. Close
    /// the connection, and come again.
    Moving,
}

/// What a client needs to know of the memory that it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The tenant that it acts for; empty if nobody's.
    pub tenant: String,
    /// Its seat; none for one that goes without.
    pub seat: Option<Seat>,
    /// What carries out operations.
    pub fabric: Fabric,
    /// Operations that it keeps under way at most.
    pub window: u32,
    /// Where in the memory the key-value store begins.
    pub store: u64,
}

/// A seat, and what its client goes by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Its number.
    pub number: u16,
    /// By which rules tokens are given out.
    pub rules: TokenRules,
    /// T.
    pub period: Span,
    /// C_L.
    pub client: Iops,
    /// Operations per period that are guaranteed, for now: later ones are told by grants.
    pub reservation: u64,
}

/// The rules of that name.
pub const fn rules(rules: TokenRules) -> Rules {
    match rules {
        TokenRules::Sound => Rules::SOUND,
        TokenRules::Unpaced => Rules::UNPACED,
        TokenRules::Paper => Rules::PAPER,
        TokenRules::Basic => Rules::BASIC,
    }
}

/// Who comes, as the kernel says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visitor {
    /// The process and its user.
    pub peer: Peer,
    /// The file name of its executable; empty if it cannot be seen.
    pub process: String,
    /// The path of its control group; likewise.
    pub cgroup: String,
    /// Whether it is root, or of the data node's own user.
    pub is_operator: bool,
}

/// For which tenant of the policy a client comes; for none, if it is one of those who may do that.
///
/// # Errors
/// Why it may not come in, in words for people.
pub fn tenant(policy: &Policy, visitor: &Visitor, named: &str) -> Result<Option<TenantId>, String> {
    let user = || visitor.peer.user_or_number();
    if !named.is_empty() {
        let Some((id, tenant)) = policy.tenant_named(named) else {
            // The name comes from elsewhere; it is shortened before it is repeated.
            let name: String = named.chars().take(64).collect();
            return Err(format!("the policy has no tenant {name:?}; apply one that has it"));
        };
        if !visitor.peer.may_act_for(tenant) {
            let users = tenant.users.join(", ");
            let user = user();
            return Err(format!(
                "user {user} may not act for tenant {named:?}; the policy allows {users}"
            ));
        }
        return Ok(Some(id));
    }
    let is_whose = |rule: &&Match| rule.storage.is_empty() && visitor.is_one_of(&rule.conditions);
    let target = policy.matches.iter().find(is_whose).map(|rule| match rule.target {
        Target::Tenant(id) => id,
        Target::Channel(place) => policy.channels[place].tenant,
    });
    let may = |id: &TenantId| policy.tenant(*id).is_some_and(|it| visitor.peer.may_act_for(it));
    match target.filter(may) {
        Some(id) => Ok(Some(id)),
        None if visitor.is_operator => Ok(None),
        None => Err(format!(
            "no rule of the policy says whose client this is; name a tenant that user {} may act \
             for, or add a rule",
            user()
        )),
    }
}

impl Visitor {
    /// Whether all that a rule asks for is told by the kernel, and holds.
    fn is_one_of(&self, conditions: &Conditions) -> bool {
        let Conditions { user, process, cgroup, .. } = conditions;
        let asked = Conditions {
            user: user.clone(),
            process: process.clone(),
            cgroup: cgroup.clone(),
            ..Conditions::default()
        };
        let number = format!("{}", self.peer.uid);
        let accepts = |patterns: &[String], values: &[&str]| {
            let is_any = |pattern: &String| {
                values.iter().any(|value| glob(pattern.as_bytes(), value.as_bytes()))
            };
            patterns.is_empty() || patterns.iter().any(is_any)
        };
        asked == *conditions
            && accepts(user, &[&self.peer.user, &number])
            && accepts(process, &[&self.process])
            && accepts(cgroup, &[&self.cgroup])
    }
}

/// How many operations of a period a rate is; of several data nodes each has an equal part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// T.
    pub period: Span,
    /// Data nodes that share what is promised, 1 at least.
    pub nodes: u64,
}

impl Share {
    /// Of what is promised to a tenant.
    fn of_tenant(&self, rate: Iops) -> u64 {
        self.of_client(rate) / self.nodes
    }

    /// Of what a client of this node asks for.
    fn of_client(&self, rate: Iops) -> u64 {
        let count = u128::from(rate.0) * u128::from(self.period.0) / u128::from(Span::SECOND.0);
        u64::try_from(count).unwrap_or(u64::MAX)
    }
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
    share: Share,
    guests: Vec<Guest>,
}

impl Book {
    /// One without guests.
    pub const fn new(share: Share) -> Self {
        Self { share, guests: Vec::new() }
    }

    /// What another client of a tenant can be promised beside those that are there. Who is nobody's
    /// is promised nothing.
    ///
    /// # Errors
    /// If it asks for more than is left, in words for people.
    pub fn offer(&self, tenant: Option<&Tenant>, hello: &Hello) -> Result<Promise, String> {
        let Some(tenant) = tenant else {
            return match hello.reservation {
                None | Some(Iops(0)) => {
                    Ok(Promise { reservation: 0, limit: self.cap(hello.limit) })
                }
                Some(_) => Err("nothing is promised to who is nobody's; name a tenant".into()),
            };
        };
        let guests = self.guests.iter().filter(|guest| guest.tenant == tenant.name);
        let left = self.left(tenant, guests);
        let asked = hello.reservation.map(|asked| self.share.of_client(asked));
        if asked.is_some_and(|asked| asked > left.reservation) {
            return Err(format!(
                "{} operations per period are left of what tenant {:?} is promised here, and {} \
                 were asked for; ask for less, or raise its reservation",
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
        Ok(self.part(tenant, left, Ask::of(hello)))
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

    /// What each seat is promised by a policy that may be another than when its client came:
    /// whatever is left for it of what it asked for.
    pub fn promises(&self, policy: &Policy) -> Vec<(u16, Promise)> {
        let promise = |(at, guest): (usize, &Guest)| {
            let Some((_, tenant)) = policy.tenant_named(&guest.tenant) else {
                return (guest.seat, Promise { reservation: 0, limit: self.cap(guest.ask.limit) });
            };
            let before = self.guests[..at].iter().filter(|other| other.tenant == guest.tenant);
            let left = self.left(tenant, before);
            (guest.seat, self.part(tenant, left, guest.ask))
        };
        self.guests.iter().enumerate().map(promise).collect()
    }

    fn cap(&self, limit: Option<Iops>) -> u64 {
        limit.map_or(u64::MAX, |limit| self.share.of_client(limit).max(1))
    }

    /// All that a tenant is promised here.
    fn whole(&self, tenant: &Tenant) -> Promise {
        let share = |rate: Option<Iops>| rate.map(|rate| self.share.of_tenant(rate));
        Promise {
            reservation: share(tenant.reservation.operations).unwrap_or(0),
            limit: share(tenant.limit.operations).unwrap_or(u64::MAX),
        }
    }

    /// What a client gets of what is left.
    fn part(&self, tenant: &Tenant, left: Promise, ask: Ask) -> Promise {
        let whole = self.whole(tenant);
        let limit = match ask.limit {
            None if whole.limit == u64::MAX => whole.limit,
            None => (whole.limit / ask.parts).max(1),
            limit => self.cap(limit),
        };
        let limit = limit.min(left.limit);
        let reservation = ask.reservation.map(|asked| self.share.of_client(asked));
        let reservation = reservation.unwrap_or(whole.reservation / ask.parts);
        Promise { reservation: reservation.min(left.reservation).min(limit), limit }
    }

    /// What these guests leave of what their tenant is promised.
    fn left<'a>(&'a self, tenant: &Tenant, guests: impl Iterator<Item = &'a Guest>) -> Promise {
        let whole = self.whole(tenant);
        guests.fold(whole, |left, guest| {
            let part = self.part(tenant, left, guest.ask);
            let limit = if whole.limit == u64::MAX { whole.limit } else { left.limit - part.limit };
            Promise { reservation: left.reservation - part.reservation, limit }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        let text = r#"
            [[tenant]]
            name = "oltp"
            reservation = "100 iops"
            limit = "200 iops"
            users = ["ann", "7"]
            [[tenant]]
            name = "batch"
            [[match]]
            tenant = "oltp"
            process = "post*"
            operation = "read"
            [[match]]
            tenant = "oltp"
            process = "post*"
            [[match]]
            tenant = "batch"
            user = "bob"
            cgroup = "/batch/**"
        "#;
        Policy::parse(text).unwrap()
    }

    fn visitor(uid: u32, user: &str, process: &str) -> Visitor {
        let peer = Peer { uid, pid: 1, user: user.into() };
        let cgroup = "/batch/nightly".into();
        Visitor { peer, process: process.into(), cgroup, is_operator: uid == 0 }
    }

    fn whose(visitor: &Visitor, named: &str) -> Result<&'static str, String> {
        let names = ["nobody", "oltp", "batch"];
        tenant(&policy(), visitor, named).map(|id| names[id.map_or(0, |id| usize::from(id.0))])
    }

    #[test]
    fn clients_are_whose_the_policy_says() {
        assert_eq!(whose(&visitor(5, "ann", "sh"), "oltp"), Ok("oltp"));
        assert_eq!(whose(&visitor(7, "", "sh"), "oltp"), Ok("oltp"));
        assert_eq!(whose(&visitor(5, "ann", "postgres"), ""), Ok("oltp"));
        assert_eq!(whose(&visitor(8, "bob", "sh"), ""), Ok("batch"));
        assert_eq!(whose(&visitor(0, "root", "sh"), ""), Ok("nobody"));
        assert_eq!(
            whose(&visitor(8, "bob", "sh"), "oltp").unwrap_err(),
            "user bob may not act for tenant \"oltp\"; the policy allows ann, 7"
        );
        let error = whose(&visitor(8, "bob", "sh"), "oltq").unwrap_err();
        assert_eq!(error, "the policy has no tenant \"oltq\"; apply one that has it");
        let error = whose(&visitor(9, "", "postgres"), "").unwrap_err();
        assert!(error.starts_with("no rule of the policy says whose client this is"), "{error}");
        assert!(error.contains("user 9"), "{error}");
    }

    fn hello(reservation: Option<u64>, limit: Option<u64>) -> Hello {
        let (reservation, limit) = (reservation.map(Iops), limit.map(Iops));
        let (version, tenant) = (VERSION, "oltp".into());
        Hello { version, tenant, reservation, limit, parts: 1, seat: None, is_bare: false }
    }

    #[test]
    fn a_promise_is_divided_in_the_order_of_arrival() {
        let policy = policy();
        let (_, oltp) = policy.tenant_named("oltp").unwrap();
        let mut book = Book::new(Share { period: Span::SECOND, nodes: 1 });
        let first = hello(Some(30), Some(50));
        let told = |promise: Promise| (promise.reservation, promise.limit);
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
        book.leave(0);
        assert_eq!(book.promises(&policy).iter().map(|it| told(it.1)).next(), Some((100, 200)));
        let other = Policy::parse("[[tenant]]\nname = \"x\"").unwrap();
        assert_eq!(book.promises(&other), [(3, Promise { reservation: 0, limit: u64::MAX })]);
    }

    #[test]
    fn several_nodes_and_short_periods_have_their_part() {
        let policy = policy();
        let (_, oltp) = policy.tenant_named("oltp").unwrap();
        let book = Book::new(Share { period: Span(Span::SECOND.0 / 10), nodes: 2 });
        let promise = book.offer(Some(oltp), &hello(None, None)).unwrap();
        assert_eq!((promise.reservation, promise.limit), (5, 10));
        let promise = book.offer(Some(oltp), &Hello { parts: 3, ..hello(None, None) }).unwrap();
        assert_eq!((promise.reservation, promise.limit), (1, 3));
    }

    #[test]
    fn golden_bytes() {
        let hello = postcard::to_allocvec(&hello(Some(300), None)).unwrap();
        assert_eq!(hello, b"\x01\x04oltp\x01\xac\x02\x00\x01\x00\x00");
        let seat = Seat {
            number: 2,
            rules: TokenRules::Sound,
            period: Span(5),
            client: Iops(6),
            reservation: 7,
        };
        let (tenant, fabric) = ("t".into(), Fabric::Model);
        let welcome = Welcome { tenant, seat: Some(seat), fabric, window: 8, store: 9 };
        let bytes = postcard::to_allocvec(&ToClient::Welcome(welcome)).unwrap();
        assert_eq!(bytes, b"\x00\x01t\x01\x02\x00\x05\x06\x07\x01\x08\x09");
        let refused = ToClient::Refused { version: 1, reason: "r".into() };
        assert_eq!(postcard::to_allocvec(&refused).unwrap(), b"\x01\x01\x01r");
        assert_eq!(postcard::to_allocvec(&ToClient::Moving).unwrap(), b"\x02");
    }
}
