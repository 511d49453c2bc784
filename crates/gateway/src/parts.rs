//! State of a volume's parts in one worker: their incarnations, and whether all belong to one
//! volume.
//!
//! # Problem
//! A client may flush long after it wrote, on another connection or through another gateway, and
//! the node may have lost the writes in between. And parts that were moved, swapped or made anew
//! must not be served as if they were the volume.
//!
//! # Mechanism
//! When a session opens an export it records, for each part, how many incarnations were known. The
//! list of a part only grows, so the recorded number names the incarnation that the session relies
//! on, also where it becomes known only later: a session that is opened while the node is away
//! relies on the incarnation that the part has when the node is back. No worker has to go through
//! the sessions. Each flush carries that incarnation, and the node compares. A part in memory has
//! no data of an earlier incarnation at all, so every request that relies on one fails.
//!
//! A volume is refused as a whole while a part is refused by its node, or while parts have reported
//! different UUIDs or generations. An unreachable node refuses nothing: requests to it wait, and
//! the other parts serve.

use tidegate_fabric::service::{Part, PartState};
use tidegate_model::cluster::VolumeStamp;
use tidegate_model::{Bytes, NodeId};

/// Why a part of a volume cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("volume {volume}, part {index}: {reason}")]
pub struct PartError {
    /// The volume's name, or the pool's.
    pub volume: String,
    /// Which of its parts.
    pub index: u32,
    /// The node's message.
    pub reason: String,
}

/// The parts of one volume, as far as they are known.
#[derive(Debug)]
pub(crate) struct VolumeParts {
    volume: String,
    size: Bytes,
    parts: Vec<KnownPart>,
    /// A part that its node refuses, and why.
    refusal: Option<String>,
    /// How parts differ that are to be of one volume: no node can tell that of its own part.
    mismatch: Option<String>,
}

/// The state of one part.
#[derive(Debug, Default)]
struct KnownPart {
    /// It grows by eight bytes whenever acknowledged writes may have been lost, and whenever the
    /// node is reachable again.
    incarnations: Vec<u64>,
    /// Links over which the part is open now.
    links: u32,
    stamp: Option<VolumeStamp>,
    refusal: Option<String>,
}

/// The incarnations that a session relies on: for each part, the index among the known ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded(Box<[u32]>);

impl VolumeParts {
    pub(crate) fn new(parts: &[(NodeId, Part)]) -> Self {
        let first = parts.first().map(|(_, part)| part);
        Self {
            volume: first.map(|part| part.volume.clone()).unwrap_or_default(),
            size: first.map_or(Bytes::ZERO, |part| part.geometry.size),
            parts: parts.iter().map(|_| KnownPart::default()).collect(),
            refusal: None,
            mismatch: None,
        }
    }

    /// The incarnations that a session relies on if it opens the volume now: for each part the last
    /// known one, or the next one that becomes known if the part is not open.
    pub(crate) fn record(&self) -> Recorded {
        let relied_on = |part: &KnownPart| {
            let known = part.incarnations.len() as u32;
            if part.links == 0 { known } else { known.saturating_sub(1) }
        };
        Recorded(self.parts.iter().map(relied_on).collect())
    }

    /// The incarnation of a part that a session relies on; zero while none is known.
    pub(crate) fn incarnation(&self, recorded: &Recorded, part: u32) -> u64 {
        let part = part as usize;
        let known = recorded.0.get(part).zip(self.parts.get(part));
        let known = known.and_then(|(at, part)| part.incarnations.get(*at as usize));
        known.copied().unwrap_or(0)
    }

    /// Whether all data that a session relies on are gone: the part lies in memory, which another
    /// process of its node began empty. Zero relies on no data.
    pub(crate) fn is_lost(&self, part: u32, incarnation: u64) -> bool {
        let Some(known) = self.parts.get(part as usize) else { return false };
        let is_other = incarnation != 0 && known.incarnations.last() != Some(&incarnation);
        known.stamp.is_none() && is_other
    }

    /// A part is open over one link more, after [`Self::on_open`].
    pub(crate) fn on_link(&mut self, part: u32) {
        let Some(known) = self.parts.get_mut(part as usize) else { return };
        known.links += 1;
    }

    /// A part is open over one link less.
    pub(crate) fn on_link_lost(&mut self, part: u32) {
        let Some(known) = self.parts.get_mut(part as usize) else { return };
        known.links -= 1;
    }

    /// A part is open.
    pub(crate) fn on_open(&mut self, part: u32, state: PartState) {
        let Some(known) = self.parts.get_mut(part as usize) else { return };
        (known.stamp, known.refusal) = (state.identity, None);
        match known.links {
            0 => known.incarnations.push(state.incarnation),
            _ => self.on_incarnation(part, state.incarnation),
        }
        self.judge();
    }

    /// A part is refused by its node.
    pub(crate) fn on_refused(&mut self, part: u32, reason: String) {
        let Some(known) = self.parts.get_mut(part as usize) else { return };
        (known.stamp, known.refusal) = (None, Some(reason));
        self.judge();
    }

    /// A part has this incarnation from now on.
    pub(crate) fn on_incarnation(&mut self, part: u32, incarnation: u64) {
        let Some(known) = self.parts.get_mut(part as usize) else { return };
        if known.incarnations.last() != Some(&incarnation) {
            known.incarnations.push(incarnation);
        }
    }

    /// Why the volume is not served; none if it is.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.refusal.as_deref().or(self.mismatch())
    }

    /// How its parts differ; none if they belong together.
    pub(crate) fn mismatch(&self) -> Option<&str> {
        self.mismatch.as_deref()
    }

    fn judge(&mut self) {
        let mut parts = (0..).zip(&self.parts);
        let refused =
            parts.find_map(|(index, part): (u32, _)| Some((index, part.refusal.as_ref()?)));
        self.refusal = refused.map(|(index, reason)| format!("part {index}: {reason}"));
        self.mismatch = self.difference();
    }

    /// How parts differ that are to be of one volume.
    fn difference(&self) -> Option<String> {
        let mut stamps = (0..)
            .zip(&self.parts)
            .filter_map(|(index, part): (u32, &KnownPart)| Some((index, part.stamp?)));
        let (first, stamp) = stamps.next()?;
        let (index, other) = stamps.find(|(_, other)| *other != stamp)?;
        let [one, another] = [stamp.generation, other.generation];
        let (behind, latest) = if one < another { (first, another) } else { (index, one) };
        let (volume, size) = (&self.volume, self.size);
        Some(match other.uuid == stamp.uuid {
            true => format!(
                "part {first} has generation {one} and part {index} has {another}: the volume was \
                 not resized in the same steps everywhere; stop the node of part {behind}, and run \
                 `tidegate volume resize CLUSTER {volume} {size} --generation {latest}` on its \
                 machine, with --node for the nodes there"
            ),
            false => format!(
                "part {first} is of the volume with UUID {} and part {index} of the one with {}; \
                 bring back the part that belongs here",
                stamp.uuid, other.uuid
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use tidegate_model::cluster::{Geometry, Uuid};

    use super::*;

    fn volume(count: u32) -> VolumeParts {
        let geometry = Geometry { count, stripe: Bytes(4096), size: Bytes(1 << 20) };
        let part = |index| Part {
            volume: "v".into(),
            index,
            length: geometry.part_length(index),
            offset: Bytes::ZERO,
            geometry,
        };
        let parts: Vec<_> = (0..count).map(|index| (NodeId(0), part(index))).collect();
        VolumeParts::new(&parts)
    }

    fn state(incarnation: u64, uuid: u8, generation: u64) -> PartState {
        let stamp = VolumeStamp { uuid: Uuid([uuid; 16]), generation };
        PartState { incarnation, identity: Some(stamp) }
    }

    #[test]
    fn a_session_relies_on_what_was_known_when_it_came() {
        let mut parts = volume(2);
        let early = parts.record();
        assert_eq!(parts.incarnation(&early, 0), 0, "none is known");
        parts.on_open(0, state(5, 1, 1));
        parts.on_link(0);
        let middle = parts.record();
        parts.on_open(0, state(5, 1, 1));
        parts.on_incarnation(0, 6);
        let late = parts.record();
        parts.on_open(1, state(9, 1, 1));
        let of = |recorded: &Recorded| [0, 1].map(|part| parts.incarnation(recorded, part));
        assert_eq!([of(&early), of(&middle), of(&late)], [[5, 9], [5, 9], [6, 9]]);
        assert_eq!(parts.incarnation(&Recorded::default(), 0), 0);
    }

    #[test]
    fn a_session_that_is_opened_while_the_node_is_away_relies_on_what_it_brings_back() {
        let mut parts = volume(1);
        let open = |parts: &mut VolumeParts, incarnation| {
            parts.on_open(0, PartState { incarnation, identity: None });
            parts.on_link(0);
        };
        open(&mut parts, 5);
        let before = parts.record();
        // A second link, of which one is lost: the part is still open.
        open(&mut parts, 5);
        parts.on_link_lost(0);
        assert_eq!(parts.record(), before);
        parts.on_link_lost(0);
        let away = parts.record();
        assert_eq!(parts.incarnation(&away, 0), 0, "none is known");
        open(&mut parts, 6);
        assert_eq!([&before, &away].map(|it| parts.incarnation(it, 0)), [5, 6]);
        assert_eq!([5, 6, 0].map(|it| parts.is_lost(0, it)), [true, false, false]);
        // The same process is back.
        parts.on_link_lost(0);
        let later = parts.record();
        open(&mut parts, 6);
        parts.on_incarnation(0, 7);
        assert_eq!([&away, &later].map(|it| parts.incarnation(it, 0)), [6, 6]);
        assert!(parts.is_lost(0, 6));
    }

    #[test]
    fn parts_of_two_volumes_or_two_generations_are_refused_and_named() {
        let mut parts = volume(3);
        parts.on_open(1, state(1, 7, 1));
        assert_eq!(parts.fault(), None, "the others are away");
        assert_eq!(parts.mismatch(), None);
        parts.on_open(2, state(1, 7, 2));
        let mismatch = parts.mismatch().unwrap_or_default();
        assert!(mismatch.contains("CLUSTER v 1MiB --generation 2"), "{mismatch}");
        assert!(
            parts.fault().is_some_and(|fault| fault.contains("part 1 has generation 1 and part 2"))
        );
        parts.on_open(2, state(1, 8, 1));
        assert!(
            parts.fault().is_some_and(|fault| fault.contains("part 2 of the one with 08080808-"))
        );
        parts.on_open(2, state(1, 7, 1));
        assert_eq!((parts.fault(), parts.mismatch()), (None, None));
        parts.on_refused(0, "it is not there".into());
        assert_eq!(parts.fault(), Some("part 0: it is not there"));
        assert_eq!(parts.mismatch(), None, "that its node can tell");
        let memory = PartState { incarnation: 1, identity: None };
        parts.on_open(0, memory);
        assert_eq!(parts.fault(), None, "memory has no identity");
    }
}
