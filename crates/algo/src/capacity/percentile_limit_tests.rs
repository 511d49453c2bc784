//! The limit in a closed loop, against a search by hand: a device that serves some requests at a
//! time, each in a time that varies, and always has as many as the limit allows.

use super::*;
use alloc::collections::BTreeMap;
use alloc::vec;
use proptest::prelude::*;

/// A device of some servers. A request waits for one of them that is drawn.
struct Device {
    servers: usize,
    random: u64,
}

impl Device {
    fn draw(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    /// Serves so many requests, with as many at a time as `limit` says, which is told of each with
    /// its time. Returns the part of the second half that took longer than `bound`, in thousandths,
    /// and the number of these served in a million units of time.
    fn serve(
        &mut self,
        count: usize,
        bound: u64,
        mut limit: impl FnMut(Option<(Time, Time, u32)>) -> u32,
    ) -> (u64, u64) {
        let mut free_at = vec![0u64; self.servers];
        let mut there: BTreeMap<(u64, usize), u64> = BTreeMap::new();
        let (mut now, mut slow, mut half) = (0, 0, 0);
        let mut allowed = limit(None);
        for number in 0..2 * count {
            while there.len() < allowed as usize {
                let server = self.draw(self.servers as u64) as usize;
                free_at[server] = now.max(free_at[server]) + 50 + self.draw(101);
                there.insert((free_at[server], number + there.len() * 1_000_000), now);
            }
            let ((end, _), begun) = there.pop_first().unwrap();
            now = end;
            if number == count {
                (slow, half) = (0, now);
            }
            slow += u64::from(end - begun > bound);
            allowed = limit(Some((Time(end), Time(begun), there.len() as u32 + 1)));
        }
        (slow * 1_000 / count as u64, count as u64 * 1_000_000 / (now - half).max(1))
    }

    /// The limit under test. Returns as [`Self::serve`].
    fn controlled(&mut self, count: usize, bound: u64, most: u32) -> (u64, u64) {
        let mut limit = PercentileLimit::new(most);
        self.serve(count, bound, |done| {
            if let Some((now, dispatched, present)) = done {
                limit.on_full();
                let took = now.since(dispatched).0;
                match took > bound {
                    true => limit.on_slow((now, dispatched), took > 2 * bound, present),
                    false => limit.on_quick(),
                }
            }
            limit.get()
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    /// At most 12 requests in a thousand are slow, though those at the device are slow together.
    /// And at least 85 in a hundred as many are served as by the largest fixed limit that keeps one
    /// in a thousand.
    #[test]
    fn a_percentile_is_kept_and_the_device_is_used(
        servers in 1usize..9,
        factor in 4u64..40,
        random in 1u64..u64::MAX,
    ) {
        let bound = 100 * factor;
        let mut device = Device { servers, random };
        let (slow, served) = device.controlled(20_000, bound, 64);
        prop_assert!(slow <= 12, "{slow} of a thousand");
        let mut best = 0;
        for fixed in 1..=64 {
            let (slow, served) = device.serve(2_000, bound, |_| fixed);
            if slow > 1 {
                break;
            }
            best = best.max(served);
        }
        prop_assert!(served * 100 >= best * 85, "{served} of {best}");
    }

    /// Whatever happens, it is from one to the largest.
    #[test]
    fn it_stays_within_its_bounds(
        most in 0u32..200,
        steps in prop::collection::vec((0u8..3, 0u64..1_000), 0..400),
    ) {
        let mut limit = PercentileLimit::new(most);
        for (step, at) in steps {
            match step {
                0 => limit.on_full(),
                1 => limit.on_quick(),
                _ => limit.on_slow((Time(at), Time(at / 2)), at > 500, at as u32),
            }
            prop_assert!((1..=most.max(1)).contains(&limit.get()));
        }
    }
}

#[test]
fn without_requests_kept_back_it_does_not_rise() {
    let mut limit = PercentileLimit::new(64);
    (0..100).for_each(|at| limit.on_slow((Time(at), Time(at)), false, 64));
    (0..10_000).for_each(|_| limit.on_quick());
    assert_eq!(limit.get(), 1);
    (0..10_000).for_each(|_| {
        limit.on_full();
        limit.on_quick();
    });
    assert_eq!(limit.get(), 64);
}
