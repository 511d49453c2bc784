//! A drive in the small: nothing is lost, whatever is asked of it.

use proptest::prelude::*;
use tidegate_model::{Portion, Span};

use super::super::parameters::{self, Choice, Cleaning, CommandOrder, Geometry, Shares};
use super::*;
use tidegate_sim::event::{EventQueue, Events};
use tidegate_sim::rng::Stream;

fn small() -> Parameters {
    Parameters {
        geometry: Geometry {
            channels: 2,
            chips: 2,
            dies: 1,
            planes: 2,
            blocks: 24,
            pages: 8,
            page: Bytes(8_192),
        },
        chip_queues: CommandOrder::Weighted(Shares::default()),
        cleaning: Cleaning {
            spare: Portion(350_000),
            threshold: Portion(150_000),
            reserve: 2,
            choice: Choice::Greedy,
            first: true,
        },
        cache: parameters::Cache {
            capacity: Bytes(64 << 10),
            programming_limit: Some(Bytes(32 << 10)),
            forget: Span::MILLISECOND,
            ..parameters::Cache::default()
        },
        ..Parameters::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Random commands, closed loop: after each event the tables are right and no command waits for
    /// nothing; in the end every command has completed exactly once.
    #[test]
    fn nothing_is_lost(
        seed: u64, writes in 0u32..=1_000_000, has_cache: bool, first: bool, depth in 1u64..40,
        choice in prop::sample::select(vec![Choice::Greedy, Choice::Sampled, Choice::Random]),
        reserve in 1u32..4, filled in 0u32..=2,
    ) {
        let mut parameters = small();
        (parameters.cleaning.choice, parameters.cleaning.reserve) = (choice, reserve);
        // New, half written, or all of it and then over again.
        let (filled, overwrites) = (Portion(filled * 500_000), filled / 2);
        parameters.before = parameters::Before { filled, overwrites };
        parameters.cache.writes = has_cache;
        parameters.cleaning.first = first;
        parameters.host.fetch_limit = 16;
        let mut drive = Ssd::new(&parameters, seed, 0);
        let queues = [Class::Urgent, Class::High, Class::Low].map(|class| {
            (drive.add_queue(class), class)
        });
        let mut events = Events::default();
        let mut random = Stream::new(seed, "test", 0);
        let (mut submitted, mut complete) = (0, vec![0u8; 600]);
        let mut submit = |now, drive: &mut Ssd, events: &mut Events<SsdEvent>| {
            if submitted == 600 {
                return;
            }
            let (queue, class) = queues[random.below(3) as usize];
            let is_write = random.happens(writes);
            let direction = if is_write { Direction::Write } else { Direction::Read };
            let bytes = SECTOR * random.within(1, 64) as u32;
            let sectors = (drive.capacity().0 - u64::from(bytes)) / u64::from(SECTOR);
            let at = Bytes(random.within(0, sectors) * u64::from(SECTOR));
            let command = DriveCommand { direction, class, at, bytes, tag: submitted };
            drive.submit(now, queue, command, &mut |at, event| events.push(at, event));
            submitted += 1;
        };
        (0..depth).for_each(|_| submit(Picoseconds::ZERO, &mut drive, &mut events));
        let mut count = 0;
        while let Some((now, event)) = events.pop() {
            let done = drive.on_event(now, event, &mut |at, event| events.push(at, event));
            if let Some(done) = done {
                complete[done.command.tag as usize] += 1;
                submit(now, &mut drive, &mut events);
            }
            prop_assert!(drive.outstanding().1 <= 16);
            count += 1;
            if count % 16 == 0 {
                drive.media.check(now);
            }
        }
        drive.media.check(Picoseconds::MAX);
        prop_assert!(drive.is_idle());
        prop_assert!(complete.iter().all(|times| *times == 1));
    }
}
