//! The layered interface: requests that carry their content, so that gates may transform it
//! (PAIO §5: a request goes in, a *result* with its new content and size comes out).
//!
//! Content is copied only by a gate that transforms it. Without such a gate in its channel, a
//! request costs the same whatever its size, and what comes out is what went in.
//!
//! Content that is written passes the channel's gates in order; content that is read passes them in
//! reverse. So a channel that compresses and then encrypts restores what it made.
//!
//! Rules change while requests are under way, and a request may wait for long between the moment
//! at which it was sorted and the one at which its content is transformed. It passes what the table
//! that sorted it requested. Where that cannot be known any more the request fails: content that
//! was to be encrypted never comes out as it went in.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock, RwLockReadGuard, TryLockError};

use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use tidegate_model::GateSpec;

use crate::layout::GateKind;
use crate::stage::{Admission, Request, Stage};

/// How often a request is sorted anew if the numbers of its gates got another meaning meanwhile.
/// More than once takes a change of the rules in each of them.
const ATTEMPTS: usize = 3;

/// Transformations of gates, by number, as the agent has them.
///
/// Two copies, written one after the other and neither while a table names what the other does not
/// have yet: a fork takes its copy of this memory at any moment, and at any moment at least one of
/// the two is under no writer's lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transforms(Arc<[RwLock<Arc<Known>>; 2]>);

/// Gates of every table up to one generation.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The newest table whose gates are all here, if there was one.
    generation: Option<u32>,
    /// By number. A number that no table names any more stays: requests that an older table has
    /// sorted may still be in flight.
    gates: BTreeMap<u8, Meaning>,
}

/// The transformation of the gate with some number.
#[derive(Clone, Debug)]
struct Meaning {
    /// The first table in which the number has this meaning, if it had another one before.
    since: Option<u32>,
    /// The transformation, if it is one.
    spec: Option<GateSpec>,
}

/// Whether table `this` was published after table `other`. Generations go round, and none is 0.
fn is_newer(this: u32, other: u32) -> bool {
    this.wrapping_sub(other).cast_signed() > 0
}

impl Transforms {
    /// Notes what `gates` do, by number. To be called with every gate of a table before that is
    /// published with this generation.
    #[cfg(feature = "agent")]
    pub(crate) fn note<'g>(
        &self,
        generation: u32,
        gates: impl Iterator<Item = (u8, &'g GateSpec)>,
    ) {
        let mut known = Known::clone(&self.read());
        known.generation = Some(generation);
        for (number, spec) in gates {
            let spec = spec.transforms().then(|| spec.clone());
            let since = match known.gates.get(&number) {
                Some(old) if old.spec == spec => continue,
                Some(_) => Some(generation),
                None => None,
            };
            known.gates.insert(number, Meaning { since, spec });
        }
        let known = Arc::new(known);
        for copy in &*self.0 {
            // A poisoned lock still guards a whole value: it is replaced in one step.
            *copy.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::clone(&known);
        }
    }

    /// Never waits for longer than a writer takes for one copy.
    fn read(&self) -> RwLockReadGuard<'_, Arc<Known>> {
        loop {
            for copy in &*self.0 {
                match copy.try_read() {
                    Ok(known) => return known,
                    Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) => {}
                }
            }
            std::hint::spin_loop();
        }
    }
}

/// Bytes of a nonce. It is random: after 2^32 requests under one key the chance that two were the
/// same reaches one in 2^33, and the key is to be changed (NIST SP 800-38D, section 8.3).
const NONCE: usize = 12;
/// The first byte of encrypted content.
const VERSION: u8 = 1;

/// Keys by the names that `encrypt` gates use. They stay in the process.
#[derive(Clone, Default)]
pub struct Keys(BTreeMap<String, Aes256Gcm>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Keys {
    /// Adds the 256-bit key that gates call `name`.
    #[must_use]
    pub fn with(mut self, name: &str, key: &[u8; 32]) -> Self {
        self.0.insert(name.into(), Aes256Gcm::new(key.into()));
        self
    }
}

/// Why content could not be transformed. The request is not to be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransformError {
    /// An `encrypt` gate names a key that the program did not give.
    #[error("the policy encrypts with key {0:?}, which the program did not give")]
    NoKey(String),
    /// The content read does not match the output of an `encrypt` gate with this key and this
    /// associated data.
    #[error("the content was changed, or was written with another key or for another place")]
    NotAuthentic,
    /// The content read is not the output of a `compress` gate.
    #[error("the content was not written by a compress gate")]
    NotCompressed,
    /// The content read would be larger than the caller allows, or the content to be written is too
    /// large for its gates.
    #[error("the content is larger than its reader allows")]
    TooLarge,
    /// The system has no random numbers.
    #[error("the system has no random numbers")]
    NoRandomness,
    /// The rules changed while the request was under way, and what its gates were to do to its
    /// content are unknown now. It may be made again.
    #[error(
        "the rules changed while the request was under way, and whether its content is to be \
         encrypted or compressed cannot be told any more; make the request again"
    )]
    RulesChanged,
    /// The rules changed after this process was forked from the one with the agent, and only the
    /// agent has the new ones.
    #[error(
        "the rules changed after this process was forked, and whether they have content encrypted \
         or compressed is known only to the process that opened the stage; open one in this process"
    )]
    Forked,
}

/// A stage for requests with content.
#[derive(Clone, Debug)]
pub struct Layered {
    stage: Stage,
    transforms: Transforms,
    keys: Keys,
}

impl Layered {
    pub(crate) fn new(stage: Stage, transforms: Transforms, keys: Keys) -> Self {
        Self { stage, transforms, keys }
    }

    /// Lets a request pass its gates and gives what is to be written instead of `content`.
    ///
    /// `associated` is data that is not written but must be the same when the content is read:
    /// where it belongs, for example, so that it cannot be moved.
    ///
    /// # Errors
    /// If a key is missing, or the rules changed so that it is not known what is to be done. The
    /// request then counts as one that moved nothing.
    pub fn write<'c>(
        &self,
        request: &Request<'_>,
        content: &'c [u8],
        associated: &[u8],
    ) -> Result<(Admission<'_>, Cow<'c, [u8]>), TransformError> {
        for _ in 0..ATTEMPTS {
            // The table that sorts the request is this one or a newer one.
            let oldest = self.generation();
            let admission = self.stage.enforce(request);
            let specs = self.transforms_of(&admission, Some(oldest));
            match specs.and_then(|specs| self.transformed(specs, content, associated)) {
                Ok(result) => return Ok((admission, result)),
                // Nothing will be written: what the request took goes back.
                Err(TransformError::RulesChanged) => admission.complete(0),
                Err(error) => {
                    admission.complete(0);
                    return Err(error);
                }
            }
            // The agent may be about to publish what it has noted.
            std::thread::yield_now();
        }
        Err(TransformError::RulesChanged)
    }

    fn transformed<'c>(
        &self,
        specs: Vec<GateSpec>,
        content: &'c [u8],
        associated: &[u8],
    ) -> Result<Cow<'c, [u8]>, TransformError> {
        let mut result = Cow::Borrowed(content);
        for spec in specs {
            result = Cow::Owned(match spec {
                // Only invalid parameters and exhausted memory make compression fail; the level is
                // checked with the policy.
                GateSpec::Compress { level } => {
                    zstd::bulk::compress(&result, level).map_err(|_| TransformError::TooLarge)?
                }
                GateSpec::Encrypt { key } => self.encrypt(&key, &result, associated)?,
                _ => continue,
            });
        }
        Ok(result)
    }

    /// Restores what [`Self::write`] gave, for a request that has passed its gates and was read.
    /// The result is at most `largest` bytes.
    ///
    /// # Errors
    /// If the content is not what this channel's gates wrote, or the rules changed so that it is
    /// not known what they were.
    pub fn restore<'c>(
        &self,
        admission: &Admission<'_>,
        content: &'c [u8],
        associated: &[u8],
        largest: usize,
    ) -> Result<Cow<'c, [u8]>, TransformError> {
        let mut result = Cow::Borrowed(content);
        for spec in self.transforms_of(admission, None)?.into_iter().rev() {
            result = Cow::Owned(match spec {
                GateSpec::Compress { .. } => decompress(&result, largest)?,
                GateSpec::Encrypt { key } => self.decrypt(&key, &result, associated)?,
                _ => continue,
            });
        }
        if result.len() > largest { Err(TransformError::TooLarge) } else { Ok(result) }
    }

    /// The stage, for requests without content and for reads before their content is there.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    fn generation(&self) -> u32 {
        self.stage.layout().header.generation.load(Ordering::Acquire)
    }

    /// Returns the transformations of a request's gates, in order. `oldest` is a table no newer
    /// than the one that sorted it, if one is known.
    ///
    /// Without it, a number that was given away since may stand for another transformation, whose
    /// content does not restore; or for one where there was none, with the same effect. It never
    /// stands for no transformation where there was one, for the plan gives the number of one only
    /// to another.
    fn transforms_of(
        &self,
        admission: &Admission<'_>,
        oldest: Option<u32>,
    ) -> Result<Vec<GateSpec>, TransformError> {
        let cells = &self.stage.layout().gates;
        let transforms = |gate: &u8| {
            let kind = cells.get(usize::from(*gate)).map(|cell| cell.kind.load(Ordering::Acquire));
            kind.is_none_or(|kind| kind == GateKind::Transform as u32)
        };
        // The segment has the answer, for every thread without a lock, and in a forked process as
        // well, whose requests without transformations must not fail. A number that has stood for a
        // transformation never stands for anything else (the plan's rule), and the segment has it
        // before a table names it.
        let mut gates = admission.gates().filter(transforms).peekable();
        if gates.peek().is_none() {
            return Ok(Vec::new());
        }
        let in_force = self.generation();
        let known = self.transforms.read();
        // The agent notes first and publishes then; only in another process is there no agent.
        if known.generation.is_none_or(|newest| is_newer(in_force, newest)) {
            return Err(TransformError::Forked);
        }
        let mut specs = Vec::new();
        for gate in gates {
            let meaning = known.gates.get(&gate).ok_or(TransformError::RulesChanged)?;
            let had_another = |since| match oldest {
                Some(0) => true,
                Some(oldest) => is_newer(since, oldest),
                None => false,
            };
            if meaning.since.is_some_and(had_another) {
                return Err(TransformError::RulesChanged);
            }
            specs.extend(meaning.spec.clone());
        }
        Ok(specs)
    }

    fn key(&self, name: &str) -> Result<&Aes256Gcm, TransformError> {
        self.keys.0.get(name).ok_or_else(|| TransformError::NoKey(name.into()))
    }

    fn encrypt(&self, key: &str, msg: &[u8], aad: &[u8]) -> Result<Vec<u8>, TransformError> {
        let mut nonce = [0; NONCE];
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut nonce, flags) {
            Ok(NONCE) => {}
            _ => return Err(TransformError::NoRandomness),
        }
        let sealed = self.key(key)?.encrypt(Nonce::from_slice(&nonce), Payload { msg, aad });
        // Content over 64 GiB is the only other reason.
        let sealed = sealed.map_err(|_| TransformError::TooLarge)?;
        Ok([&[VERSION], &nonce[..], &sealed].concat())
    }

    fn decrypt(&self, key: &str, content: &[u8], aad: &[u8]) -> Result<Vec<u8>, TransformError> {
        let key = self.key(key)?;
        match content.split_at_checked(1 + NONCE) {
            Some((&[VERSION, ref nonce @ ..], msg)) => key
                .decrypt(Nonce::from_slice(nonce), Payload { msg, aad })
                .map_err(|_| TransformError::NotAuthentic),
            _ => Err(TransformError::NotAuthentic),
        }
    }
}

fn decompress(content: &[u8], largest: usize) -> Result<Vec<u8>, TransformError> {
    // The frame declares the content's size; a size beyond the caller's limit is refused.
    let size = zstd::zstd_safe::get_frame_content_size(content);
    let size = size.ok().flatten().ok_or(TransformError::NotCompressed)?;
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if size > largest {
        return Err(TransformError::TooLarge);
    }
    zstd::bulk::decompress(content, size).map_err(|_| TransformError::NotCompressed)
}
