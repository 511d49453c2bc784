//! The scheduler against a list that is searched from end to end.

use super::*;
use alloc::collections::VecDeque;
use alloc::vec;
use proptest::prelude::*;
use tidegate_model::Span;

use tokens::Tokens;

#[path = "../../tests/laws/tokens.rs"]
mod tokens;

const SECOND: Time = Time(Span::SECOND.0);

/// Algorithm 1 with weights, by looking at every tenant for every request. Nothing is kept in
/// order, and nothing is moved when something changes.
struct Oracle {
    tenants: Vec<OracleTenant>,
    virtual_times: [u128; 2],
}

#[derive(Clone)]
struct OracleTenant {
    weight: u32,
    tokens: Tokens,
    /// Those of bytes, and bytes that make no whole token, if bytes are counted.
    bytes: Option<(Tokens, u32)>,
    finish_tags: [u128; 2],
    queue: VecDeque<OracleRequest>,
}

#[derive(Clone)]
struct OracleRequest {
    cost: u32,
    bytes: u32,
    number: u32,
}

impl OracleTenant {
    /// Whether it has reservation tokens, and any tokens, of both units.
    fn left(&self) -> (bool, bool) {
        let (by_reservation, any) = self.tokens.left();
        let bytes = self.bytes.as_ref().map_or((true, true), |(tokens, _)| tokens.left());
        (by_reservation && bytes.0, any && bytes.1)
    }

    fn spend(&mut self, request: &OracleRequest, by_reservation: bool) {
        self.tokens.spend(u64::from(request.cost), true, by_reservation);
        if let Some((tokens, rest)) = &mut self.bytes {
            let all = *rest + request.bytes;
            *rest = all % 1024;
            tokens.spend(u64::from(all / 1024), true, by_reservation);
        }
    }
}

impl Oracle {
    fn new(tenants: usize) -> Self {
        let tenant = OracleTenant {
            weight: 1,
            tokens: Tokens::unlimited(),
            bytes: None,
            finish_tags: [0; 2],
            queue: VecDeque::new(),
        };
        Self { tenants: vec![tenant; tenants], virtual_times: [0; 2] }
    }

    /// The next request as tenant, cost, number, and phase.
    fn pop(&mut self) -> Option<(usize, u32, u32, usize)> {
        for step in 0..2 {
            let has_tokens = |tenant: &OracleTenant| {
                let (by_reservation, any) = tenant.left();
                if step == 0 { by_reservation } else { any }
            };
            let virtual_time = self.virtual_times[step];
            let next = self
                .tenants
                .iter()
                .enumerate()
                .filter(|(_, tenant)| !tenant.queue.is_empty() && has_tokens(tenant))
                .map(|(index, tenant)| (tenant.finish_tags[step].max(virtual_time), index))
                .min();
            let Some((start, index)) = next else { continue };
            let tenant = &mut self.tenants[index];
            let request = tenant.queue.pop_front().unwrap();
            tenant.spend(&request, step == 0);
            let OracleRequest { cost, number, .. } = request;
            let length = u128::from(UNIT / u64::from(tenant.weight)) * u128::from(cost);
            tenant.finish_tags[step] = start + length;
            self.virtual_times[step] = start;
            return Some((index, cost, number, step));
        }
        None
    }
}

/// An event at the scheduler. Bytes of a request make up to four tokens.
#[derive(Clone, Debug)]
enum Act {
    Push(usize, u32, u32),
    Pop(usize),
    Grant(usize, u64, Option<u64>),
    GrantBytes(usize, Option<(u64, Option<u64>)>),
    Weight(usize, u32),
    Cancel(u32),
    Begin,
}

fn act() -> impl Strategy<Value = Act> {
    let slot = 0usize..5;
    prop_oneof![
        6 => (slot.clone(), 0u32..4, 0u32..4_000)
            .prop_map(|(slot, cost, bytes)| Act::Push(slot, cost, bytes)),
        6 => (1usize..4).prop_map(Act::Pop),
        2 => (slot.clone(), 0u64..8, prop::option::of(0u64..16))
            .prop_map(|(slot, reserved, more)| Act::Grant(slot, reserved, more)),
        2 => (slot.clone(), prop::option::of((0u64..12, prop::option::of(0u64..24))))
            .prop_map(|(slot, counts)| Act::GrantBytes(slot, counts)),
        1 => (slot, 1u32..5).prop_map(|(slot, weight)| Act::Weight(slot, weight)),
        1 => (2u32..6).prop_map(Act::Cancel),
        1 => Just(Act::Begin),
    ]
}

/// A scheduler and its oracle, to which the same happens.
struct Both {
    scheduler: Scheduler<u32>,
    slots: Vec<Slot>,
    oracle: Oracle,
    number: u32,
}

const NOW: Time = Time::ZERO;

impl Both {
    fn new() -> Self {
        let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Paper);
        let mut slots = vec![Slot::UNATTRIBUTED];
        slots.extend((1..5).map(|_| scheduler.add(TenantParameters::of_weight(1))));
        let oracle = Oracle::new(slots.len());
        Self { scheduler, slots, oracle, number: 0 }
    }

    fn act(&mut self, act: &Act) -> Result<(), TestCaseError> {
        let Self { scheduler, slots, oracle, number } = self;
        match *act {
            Act::Push(index, cost, bytes) => {
                *number += 1;
                let request_cost = RequestCost { bytes, ..RequestCost::of(cost.max(1)) };
                scheduler.push(NOW, slots[index], request_cost, *number);
                let request = OracleRequest { cost: cost.max(1), bytes, number: *number };
                oracle.tenants[index].queue.push_back(request);
            }
            Act::Pop(count) => (0..count).try_for_each(|_| self.pop())?,
            Act::Grant(index, reserved, more) => {
                let allowed = more.map_or(u64::MAX, |more| reserved + more);
                scheduler.grant(NOW, slots[index], PeriodGrant { reserved, allowed });
                if index > 0 {
                    oracle.tenants[index].tokens.grant(reserved, allowed);
                }
            }
            Act::GrantBytes(index, counts) => self.grant_bytes(index, counts),
            Act::Weight(index, weight) => {
                scheduler.set_parameters(NOW, slots[index], TenantParameters::of_weight(weight));
                oracle.tenants[index].weight = weight;
            }
            Act::Cancel(part) => self.cancel(part)?,
            Act::Begin => {
                scheduler.begin(NOW, SECOND);
                for tenant in &mut oracle.tenants {
                    tenant.tokens.begin();
                    if let Some((tokens, _)) = &mut tenant.bytes {
                        tokens.begin();
                    }
                }
            }
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<(), TestCaseError> {
        let got = self.scheduler.pop(NOW);
        let index = |slot| self.slots.iter().position(|other| *other == slot).unwrap();
        let got =
            got.map(|got| (index(got.slot), got.cost, got.job, usize::from(!got.is_reserved)));
        prop_assert_eq!(got, self.oracle.pop());
        Ok(())
    }

    fn grant_bytes(&mut self, index: usize, counts: Option<(u64, Option<u64>)>) {
        let counts = counts.map(|(reserved, more)| PeriodGrant {
            reserved,
            allowed: more.map_or(u64::MAX, |more| reserved + more),
        });
        self.scheduler.grant_bytes(NOW, self.slots[index], counts);
        if index > 0 {
            let bytes = &mut self.oracle.tenants[index].bytes;
            *bytes = counts.map(|counts| {
                let (mut tokens, rest) = bytes.take().unwrap_or_else(|| (Tokens::unlimited(), 0));
                tokens.grant(counts.reserved, counts.allowed);
                (tokens, rest)
            });
        }
    }

    fn cancel(&mut self, part: u32) -> Result<(), TestCaseError> {
        let cancelled = self.scheduler.cancel(NOW, |job| job % part == 0);
        let mut expected = vec![];
        for tenant in &mut self.oracle.tenants {
            let numbers = tenant.queue.iter().map(|request| request.number);
            expected.extend(numbers.filter(|number| number % part == 0));
            tenant.queue.retain(|request| request.number % part != 0);
        }
        prop_assert_eq!(cancelled, expected);
        Ok(())
    }

    /// Both have the same requests waiting and the same service.
    fn compare(&self) -> Result<(), TestCaseError> {
        let waiting = self.oracle.tenants.iter().flat_map(|tenant| &tenant.queue);
        let waiting = waiting.map(|request| u64::from(request.cost)).sum::<u64>();
        prop_assert_eq!(self.scheduler.waiting(), waiting);
        for (slot, tenant) in self.slots.iter().zip(&self.oracle.tenants) {
            prop_assert_eq!(self.scheduler.served(*slot), tenant.tokens.served);
            let bytes = self.scheduler.byte_counters(*slot);
            let served = tenant.bytes.as_ref().map(|(tokens, _)| tokens.served);
            prop_assert_eq!(bytes.map(|bytes| bytes.served), served);
            let waiting = tenant.queue.iter().map(|request| u64::from(request.bytes)).sum();
            prop_assert_eq!(bytes.map_or(waiting, |bytes| bytes.waiting.bytes), waiting);
        }
        Ok(())
    }
}

/// Does the same to the scheduler and to the oracle; what they give out must be the same.
fn replay(acts: &[Act]) -> Result<(), TestCaseError> {
    let mut both = Both::new();
    acts.iter().try_for_each(|act| {
        both.act(act)?;
        both.compare()
    })
}

proptest! {
    #[test]
    fn it_does_what_the_oracle_does(acts in prop::collection::vec(act(), 0..200)) {
        replay(&acts)?;
    }
}
