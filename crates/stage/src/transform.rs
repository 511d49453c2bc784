//! The layered interface: requests that carry their content, so that gates may transform it
//! (PAIO §5: a request goes in, a *result* with its new content and size comes out).
//!
//! Content is copied only by a gate that transforms it. Without such a gate in its channel, a
//! request costs the same whatever its size, and what comes out is what went in.
//!
//! What is written passes the channel's gates in order; what is read passes them in reverse, so
//! that a channel that compresses and then encrypts restores what it made.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use tidegate_model::GateSpec;

use crate::stage::{Admission, Request, Stage};

/// Transforming gates by number, as the keeper knows them.
pub(crate) type Transforms = Arc<RwLock<BTreeMap<u8, GateSpec>>>;

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

/// Why content could not be transformed. The request has passed its gates and is not to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransformError {
    /// An `encrypt` gate names a key that the program did not give.
    NoKey(String),
    /// What was read is not what an `encrypt` gate with this key and this associated data wrote.
    NotAuthentic,
    /// What was read is not what a `compress` gate wrote.
    NotCompressed,
    /// What was read would be larger than the caller allows.
    TooLarge,
    /// The system has no random numbers.
    NoRandomness,
}

impl fmt::Display for TransformError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKey(name) => {
                write!(f, "the policy encrypts with key {name:?}, which the program did not give")
            }
            Self::NotAuthentic => f.write_str(
                "the content was changed, or was written with another key or for another place",
            ),
            Self::NotCompressed => f.write_str("the content was not written by a compress gate"),
            Self::TooLarge => f.write_str("the content is larger than its reader allows"),
            Self::NoRandomness => f.write_str("the system has no random numbers"),
        }
    }
}

impl std::error::Error for TransformError {}

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
    /// If a key is missing.
    pub fn write<'c>(
        &self,
        request: &Request<'_>,
        content: &'c [u8],
        associated: &[u8],
    ) -> Result<(Admission<'_>, Cow<'c, [u8]>), TransformError> {
        let admission = self.stage.enforce(request);
        let mut result = Cow::Borrowed(content);
        for spec in self.transforms_of(&admission) {
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
        Ok((admission, result))
    }

    /// Restores what [`Self::write`] gave, for a request that has passed its gates and was read.
    /// The result is at most `largest` bytes.
    ///
    /// # Errors
    /// If the content is not what this channel's gates wrote.
    pub fn restore<'c>(
        &self,
        admission: &Admission<'_>,
        content: &'c [u8],
        associated: &[u8],
        largest: usize,
    ) -> Result<Cow<'c, [u8]>, TransformError> {
        let mut result = Cow::Borrowed(content);
        for spec in self.transforms_of(admission).into_iter().rev() {
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

    fn transforms_of(&self, admission: &Admission<'_>) -> Vec<GateSpec> {
        // A poisoned lock still guards a whole map: writers replace it in one step.
        let transforms = self.transforms.read().unwrap_or_else(PoisonError::into_inner);
        admission.gates().filter_map(|gate| transforms.get(&gate).cloned()).collect()
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
    // The frame says how large the content is; it is not believed beyond what the caller allows.
    let size = zstd::zstd_safe::get_frame_content_size(content);
    let size = size.ok().flatten().ok_or(TransformError::NotCompressed)?;
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if size > largest {
        return Err(TransformError::TooLarge);
    }
    zstd::bulk::decompress(content, size).map_err(|_| TransformError::NotCompressed)
}
