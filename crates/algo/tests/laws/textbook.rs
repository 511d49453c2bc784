//! The order of dispatch against the papers: each request gets its tags when it comes (Eq. 2 and 3
//! for SFQ(D), 5 and 6 for DSFQ), virtual time is the start tag of the last dispatch, and the next
//! is found by looking at all that wait. Tags are exact fractions.

use proptest::prelude::*;
use tidegate_algo::scheduling::dsfq::Bound;
use tidegate_algo::scheduling::scheduler::{
    Pacing, RequestCost, Scheduler, Slot, TenantParameters,
};
use tidegate_model::tag::CLASSES;
use tidegate_model::{Discipline, Time};

use super::{PART, SCALES, WEIGHTS, applied_delay, bounds};

struct Textbook {
    discipline: Discipline,
    streams: Vec<Stream>,
    virtual_time: u128,
    /// As start tag, stream and number.
    waiting: Vec<(u128, usize, u64)>,
    number: u64,
}

struct Stream {
    weight: u32,
    bound: Bound,
    finish: u128,
    /// Of virtual requests since the last real one.
    elsewhere: u32,
}

impl Textbook {
    fn push(&mut self, stream: usize, work: u32, delay: u32) {
        let Stream { weight, bound, finish, elsewhere } = &mut self.streams[stream];
        let delay = delay.saturating_add(core::mem::take(elsewhere));
        let delay = applied_delay(self.discipline, *bound, work, delay);
        let (work, weight) = match self.discipline {
            Discipline::RoundRobin => (1, 1),
            _ => (work, u128::from(*weight)),
        };
        let start = match self.discipline {
            Discipline::Fifo => u128::from(self.number),
            _ => self.virtual_time.max(*finish + u128::from(delay) * PART / weight),
        };
        *finish = start + (u128::from(work) << 16) * PART / weight;
        self.waiting.push((start, stream, self.number));
        self.number += 1;
    }

    fn pop(&mut self) -> Option<u64> {
        let next = *self.waiting.iter().min()?;
        self.waiting.retain(|other| *other != next);
        self.virtual_time = next.0;
        Some(next.2)
    }
}

#[derive(Clone, Debug)]
enum Act {
    Push { stream: usize, cost: u32, work: u32, delay: u32 },
    Virtual { stream: usize, work: u32 },
    Pop,
}

fn act() -> impl Strategy<Value = Act> {
    let delay = prop_oneof![2 => Just(0u32), 2 => 0u32..9, 1 => 0u32..200];
    prop_oneof![
        5 => (0usize..4, 1u32..4, 1u32..9, delay)
            .prop_map(|(stream, cost, work, delay)| Act::Push { stream, cost, work, delay }),
        1 => (0usize..4, 1u32..20).prop_map(|(stream, work)| Act::Virtual { stream, work }),
        5 => Just(Act::Pop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn requests_go_in_the_order_of_the_papers(
        discipline in prop::sample::select(vec![
            Discipline::Fifo, Discipline::RoundRobin, Discipline::Sfq,
            Discipline::DsfqTotal, Discipline::DsfqHybrid,
        ]),
        parameters in prop::collection::vec((0..WEIGHTS.len(), 0usize..8), 4),
        acts in prop::collection::vec(act(), 0..300),
        scale in prop::sample::select(SCALES.to_vec()),
    ) {
        let mut scheduler = Scheduler::new(discipline, Pacing::Even);
        let mut textbook =
            Textbook { discipline, streams: vec![], virtual_time: 0, waiting: vec![], number: 0 };
        let mut slots: Vec<Slot> = vec![];
        for (weight, bound) in parameters {
            let (weight, bound) = (WEIGHTS[weight], bounds()[bound]);
            slots.push(scheduler.add(TenantParameters { weight, bound }));
            textbook.streams.push(Stream { weight, bound, finish: 0, elsewhere: 0 });
        }
        let now = Time::ZERO;
        for act in acts {
            match act {
                Act::Push { stream, cost, work, delay } => {
                    let (work, delay) = (work * scale, delay * scale);
                    let request_cost = RequestCost { work, delay, ..RequestCost::of(cost) };
                    // Without weights, classes change nothing here.
                    let (class, _) = CLASSES[textbook.number as usize % CLASSES.len()];
                    let from = (slots[stream], class);
                    scheduler.push_in_class(now, from, request_cost, textbook.number);
                    textbook.push(stream, work, delay);
                }
                Act::Virtual { stream, work } => {
                    let work = work * scale;
                    scheduler.delay(slots[stream], u64::from(work));
                    if !textbook.waiting.is_empty() {
                        let elsewhere = &mut textbook.streams[stream].elsewhere;
                        *elsewhere = elsewhere.saturating_add(work);
                    }
                }
                Act::Pop => {
                    let got = scheduler.pop(now).map(|got| got.job);
                    prop_assert_eq!(got, textbook.pop());
                }
            }
        }
        while let Some(expected) = textbook.pop() {
            prop_assert_eq!(scheduler.pop(now).map(|got| got.job), Some(expected));
        }
        prop_assert!(scheduler.pop(now).is_none());
    }
}
