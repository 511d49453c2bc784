//! A link that carries messages late, twice, out of order, or not at all.
//!
//! The simulation keeps the message; a link only decides when copies of it arrive. Messages
//! overtake each other only where the link's [`Conduct`] says so: otherwise an earlier one that was
//! slow holds up those behind it, as on a connection.

use crate::rng::Stream;
use crate::time::Picoseconds;

/// How a link behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conduct {
    /// The shortest time that a message takes.
    pub least: Picoseconds,
    /// The longest; each in between is equally likely.
    pub most: Picoseconds,
    /// Of a million messages, how many are lost.
    pub lost: u32,
    /// Of a million messages, how many arrive twice.
    pub doubled: u32,
    /// Of a million messages, how many may be overtaken, and take up to ten times as long.
    pub stray: u32,
    /// From when to when nothing arrives that is sent or would arrive then.
    pub cuts: Vec<(Picoseconds, Picoseconds)>,
    /// From when on messages are neither lost nor doubled nor overtaken; none for never.
    pub calm: Option<Picoseconds>,
}

impl Conduct {
    /// A link on which every message takes as long as every other, and arrives.
    pub fn steady(latency: Picoseconds) -> Self {
        Self { least: latency, most: latency, ..Self::default() }
    }

    /// Whether the link is cut at this moment.
    pub fn is_cut(&self, at: Picoseconds) -> bool {
        self.cuts.iter().any(|(from, to)| (*from..*to).contains(&at))
    }
}

/// One direction of a link.
#[derive(Clone, Debug)]
pub struct Link {
    conduct: Conduct,
    random: Stream,
    /// When the last message arrives that may not be overtaken.
    last: Picoseconds,
}

impl Link {
    /// A link that behaves as configured, with a stream of random numbers of its own.
    pub const fn new(conduct: Conduct, random: Stream) -> Self {
        Self { conduct, random, last: Picoseconds::ZERO }
    }

    /// How it behaves.
    pub const fn conduct(&self) -> &Conduct {
        &self.conduct
    }

    /// Changes how it behaves.
    pub fn set(&mut self, conduct: Conduct) {
        self.conduct = conduct;
    }

    /// From now on nothing arrives, or messages arrive again.
    pub fn cut(&mut self, now: Picoseconds, is_cut: bool) {
        match is_cut {
            true => self.conduct.cuts.push((now, Picoseconds::MAX)),
            false => self.conduct.cuts.iter_mut().for_each(|(_, to)| *to = now.min(*to)),
        }
    }

    /// When the copies of a message arrive that is sent now: none, one or two of them.
    pub fn send(&mut self, now: Picoseconds) -> impl Iterator<Item = Picoseconds> {
        let is_calm = self.conduct.calm.is_some_and(|calm| calm <= now);
        let mut happens = |per_million| !is_calm && self.random.happens(per_million);
        let is_lost = happens(self.conduct.lost) || self.conduct.is_cut(now);
        let is_doubled = happens(self.conduct.doubled) && !is_lost;
        let strays = [happens(self.conduct.stray), happens(self.conduct.stray)];
        let first = (!is_lost).then(|| self.arrival(now, strays[0]));
        let second = is_doubled.then(|| self.arrival(now, strays[1]));
        let conduct = &self.conduct;
        first.into_iter().chain(second).filter(|at| !conduct.is_cut(*at))
    }

    fn arrival(&mut self, now: Picoseconds, is_stray: bool) -> Picoseconds {
        let Conduct { least, most, .. } = self.conduct;
        let latency = Picoseconds(self.random.within(least.0, most.0));
        if is_stray {
            return now.after(Picoseconds(latency.0.saturating_mul(self.random.within(1, 10))));
        }
        self.last = self.last.max(now.after(latency));
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(conduct: Conduct, count: u64) -> Vec<Vec<u64>> {
        let mut link = Link::new(conduct, Stream::new(5, "link", 0));
        (0..count).map(|n| link.send(Picoseconds(n * 10)).map(|at| at.0).collect()).collect()
    }

    #[test]
    fn a_steady_link() {
        assert_eq!(sent(Conduct::steady(Picoseconds(7)), 3), [[7], [17], [27]]);
    }

    #[test]
    fn in_order_however_late() {
        let conduct =
            Conduct { least: Picoseconds(1), most: Picoseconds(99), ..Conduct::default() };
        let arrivals = sent(conduct, 1_000).concat();
        assert_eq!(arrivals.len(), 1_000);
        assert!(arrivals.is_sorted());
    }

    #[test]
    fn as_many_as_configured() {
        let steady = Conduct::steady(Picoseconds(50));
        let lossy = Conduct { lost: 100_000, doubled: 200_000, ..steady };
        let arrivals = sent(lossy, 10_000);
        let lost = arrivals.iter().filter(|copies| copies.is_empty()).count();
        let doubled = arrivals.iter().filter(|copies| copies.len() == 2).count();
        assert!(lost.abs_diff(1_000) < 100 && doubled.abs_diff(1_800) < 120, "{lost} {doubled}");
    }

    #[test]
    fn strays_are_overtaken() {
        let conduct = Conduct { stray: 100_000, ..Conduct::steady(Picoseconds(50)) };
        assert!(!sent(conduct, 1_000).concat().is_sorted());
    }

    #[test]
    fn nothing_passes_a_cut() {
        let cuts = vec![(Picoseconds(20), Picoseconds(40))];
        let conduct = Conduct { cuts, ..Conduct::steady(Picoseconds(15)) };
        // Sent at 0, 10, …: the one from 10 would arrive within the cut.
        let passed: Vec<usize> = sent(conduct, 6).iter().map(Vec::len).collect();
        assert_eq!(passed, [1, 0, 0, 0, 1, 1]);
    }
}
