//! DSFQ simulation: the worst unfairness of a run, beside the bound of the paper.

/// State of one of the two streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) weight: u64,
    /// On how many bricks it has data: N_f.
    pub(super) brick_count: u64,
    /// Bytes that it was served on all bricks.
    pub(super) served: u64,
    /// The most bytes of one of its requests to the brick: cost_max.
    pub(super) cost_most: u64,
    /// The most bytes between two of its requests to the brick, as one coordinator counts, the
    /// later of the two included: batchcost_max of theorem 4.
    pub(super) batch_most: u64,
}

/// The unfairness between two streams at a brick, in the whole run: the largest difference, per
/// unit of weight, of what the two were served on *all* bricks, over all intervals in which both
/// had requests waiting at *this* one (Eq. 1 of the paper).
///
/// The difference as a function of time, from the moment on from which both wait to the one at
/// which one of them no longer does, has a largest and a smallest value. The two lie at the ends of
/// the worst interval, so following both costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unfairness {
    pub(super) sides: [Side; 2],
    /// Requests that are at the disks of the brick at most: D.
    pub(super) depth: u64,
    /// The most requests that ever waited at a brick: D_SFQ.
    pub(super) waiting_most: u64,
    /// The smallest and the largest difference since both wait, if they do; times both weights.
    span: Option<(i128, i128)>,
    worst: i128,
}

impl Unfairness {
    pub(super) fn between(sides: [Side; 2], depth: u32) -> Self {
        Self { sides, depth: depth.into(), ..Self::default() }
    }

    /// Forgets the differences so far.
    pub(crate) fn restart(&mut self) {
        (self.span, self.worst) = (None, 0);
    }

    /// Updates the difference, after every change of it or of the streams that wait.
    pub(super) fn update(&mut self, both_wait: bool) {
        if !both_wait {
            self.span = None;
            return;
        }
        let [f, g] = self.sides;
        let difference = i128::from(f.served) * i128::from(g.weight)
            - i128::from(g.served) * i128::from(f.weight);
        let (least, most) = self.span.unwrap_or((difference, difference));
        let (least, most) = (least.min(difference), most.max(difference));
        self.span = Some((least, most));
        self.worst = self.worst.max(most - least);
    }

    fn weights(&self) -> f64 {
        self.sides.iter().map(|side| side.weight as f64).product()
    }

    /// Returns the measured unfairness, in bytes per unit of weight.
    pub fn measured(&self) -> f64 {
        self.worst as f64 / self.weights()
    }

    /// Returns the bound of theorem 2 (and 4), Eq. 8, in bytes per unit of weight: the sum over
    /// both of ((D + D_SFQ) · N + 1) · cost_max / φ + (D_SFQ + 1) · batchcost_max / φ.
    pub fn bound(&self) -> f64 {
        let (depth, waiting) = (self.depth as f64, self.waiting_most as f64);
        let share = |side: &Side| {
            let requests = (depth + waiting) * side.brick_count as f64 + 1.0;
            let bytes = requests * side.cost_most as f64 + (waiting + 1.0) * side.batch_most as f64;
            bytes / side.weight as f64
        };
        self.sides.iter().map(share).sum()
    }

    /// D, D_SFQ, and of each of the two streams N, cost_max and batchcost_max.
    pub fn parameters(&self) -> (u64, u64, [[u64; 3]; 2]) {
        let of = |side: Side| [side.brick_count, side.cost_most, side.batch_most];
        (self.depth, self.waiting_most, self.sides.map(of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The oracle looks at every interval.
        #[test]
        fn the_worst_of_all_intervals(
            steps in prop::collection::vec((0usize..2, 0u64..100, any::<bool>()), 0..40),
            weights in (1u64..5, 1u64..5),
        ) {
            let side = |weight| Side { weight, ..Side::default() };
            let mut unfairness = Unfairness::between([side(weights.0), side(weights.1)], 1);
            let mut points = Vec::new();
            for (side, bytes, both_wait) in steps {
                unfairness.sides[side].served += bytes;
                unfairness.update(both_wait);
                let [f, g] = unfairness.sides.map(|side| side.served as f64);
                let difference = f / weights.0 as f64 - g / weights.1 as f64;
                points.push(both_wait.then_some(difference));
            }
            let mut worst = 0.0f64;
            for run in points.split(Option::is_none) {
                for one in run.iter().flatten() {
                    run.iter().flatten().for_each(|other| worst = worst.max(one - other));
                }
            }
            prop_assert!((unfairness.measured() - worst).abs() < 1e-6);
        }
    }

    #[test]
    fn the_bound_is_equation_8() {
        let side = |weight, brick_count, batch_most| Side {
            weight,
            brick_count,
            served: 0,
            cost_most: 10,
            batch_most,
        };
        let mut unfairness = Unfairness::between([side(1, 1, 10), side(2, 2, 100)], 4);
        unfairness.waiting_most = 6;
        let expected = 11.0 * 10.0 + 7.0 * 10.0 + (21.0 * 10.0 + 7.0 * 100.0) / 2.0;
        assert_eq!(unfairness.bound(), expected);
    }
}
