//! A key-value store in the memory of a data node, whose processor takes no part in it.
//!
//! # Problem
//! Clients get, put and delete values of up to 4 KiB by one-sided operations alone. They take no
//! locks, as a client may stop or die between any two operations. A read of more than a word can
//! show half of a write, so clients must see to it that no torn value is ever returned; that a get
//! takes one read wherever possible; and that two clients that insert the same key leave one entry
//! for it.
//!
//! # Model
//! The index has buckets of eight slots, and a slot is one word. A key's hash chooses two buckets;
//! one slot of them points to the *block* with its value. ([RACE] has this shape. How keys are
//! inserted and how a value is known to be current is our own.) Keys have 1 to [`KEY_MAX`] bytes,
//! values up to [`VALUE_MAX`], both together up to [`ENTRY_MAX`]: a value of 4,096 bytes leaves 48
//! for its key. Whole keys are compared, so keys of equal hash are never mixed up.
//!
//! ```text
//! index   bucket 17: [ .  .  fingerprint, version 7, block 4  .  . ]    changed by swaps
//!                                                         │
//! blocks  4: [ mark | sum | lengths | key value ]         written before a slot points to it,
//!                                                         then only the mark is taken off
//! ```
//!
//! # Mechanism
//! **Put of a key that is there.** The value is written to a free block, then the slot is swapped
//! from the old block to the new one. Readers see either. If the swap fails, another put or delete
//! has come first; this put counts as the one just before it, and is done. So no put of a key that
//! stays ever tries again.
//!
//! **Get.** *Cold*, both buckets are read at once, then the block. *Hot*, with the slot's word in
//! the location cache, only the block is read. Its sum shows that it is whole, and of the version
//! that the word names. Whether it is still the key's value, the *mark* shows: each put and delete
//! takes the mark off the old block before it swaps the slot. While the mark is there, no such swap
//! has been made, so the value was the key's at the moment when the mark was read. Without a mark
//! the get goes the cold way, where the slot decides: the client that took the mark off may have
//! died before its swap.
//!
//! **Put of a new key** takes two swaps: an empty slot becomes a *claim*, and the claim becomes
//! valid. Only valid slots have a value. A client that makes a claim valid, its owner or not, must
//! have read both buckets once with the claim already in them, and found no other slot for the key.
//! If there are several claims, a client that sees them expels all but the one in the first slot,
//! or takes its own back. No client waits for another: a client that needs the key makes a claim
//! that is alone valid, and then replaces it like any value.
//!
//! *Why a key never has two valid slots.* Say it has, and the claim of one, s, was made before that
//! of the other, t. The client that made t valid had read both buckets when t was claimed, thus
//! when s was, and would have seen s. That s was taken away meanwhile and came back cannot be, as
//! each claim is made with a version of its own.
//!
//! *Why a key that stays is always found.* From when its slot is valid until the key is deleted it
//! is the same slot, and a get reads every slot where it can be. So one reading of the index is
//! enough, though not all words are read at once.
//!
//! *Why the owner of a claim can tell its fate.* An expelled claim stays in its slot, as such,
//! until its owner empties that. If the slot has anything else than the claim, expelled or not,
//! then the claim was made valid, and the put is done.
//!
//! **Versions.** A block's version grows with each use; it is in the slot and changes the sum. A
//! word comes back to a slot only after 4,095 uses of one block, with a rest before each. With a
//! rest of two seconds, an operation would have to be under way for more than two hours to take it
//! for what it was. A client that stops is to be fenced off long before that.
//!
//! **Torn blocks.** The sum (CRC-32C) of each block that is returned or that decides anything is
//! compared. If it is wrong and the slot has changed meanwhile, the operation reads again; if the
//! slot has not, the block is *corrupt*, as no client writes to a block that a slot points to. Of
//! 2^32 torn blocks one would pass.
//!
//! # Bound
//! A hot get takes 1 read in 1 round trip, a cold one 3 in 2. A put of a key whose slot was seen
//! takes 1 write, 1 short read and 2 swaps in 2 round trips; elsewhere 3 reads, in 3. A new key
//! takes 1 write, 4 reads and 2 swaps in 4. Blocks come from the store's pool in 3 round trips, as
//! many as a client is likely to use. Deletes, and puts of a key that is being inserted or deleted,
//! may have to read again: 32 times, then they fail as contended.
//!
//! A client that dies leaves each key as it was or with what it was putting. The blocks that it
//! had, and a slot with a claim of it, are brought back by a [`Sweep`], if there is one: a client
//! then announces in a word of the store what it may be writing, for an operation per rest. A value
//! whose mark it took off is read the cold way until it is put anew.
//!
//! # Example
//! ```
//! # use std::{cell::RefCell, rc::Rc};
//! # use tidegate_model::{Span, Time};
//! # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kv/double.rs")); }
//! use tidegate_onesided::kv::{Answer, Area, ClientSettings, Layout, Opening};
//!
//! // The data node makes an empty store: zeros, and a header.
//! let area = Area { at: 0, length: 1 << 20 };
//! let mut region = vec![0; 1 << 20];
//! region[..64].copy_from_slice(&Layout::fill(area, 0x5eed)?.header());
//!
//! // A client opens it by any remote; here by one over plain bytes.
//! # let memory = Rc::new(RefCell::new(region));
//! # let remote = double::Double::new(&memory, 8);
//! let mut opening = Opening::new(remote, 0);
//! while !opening.poll(Time(0))? {}
//! let (session_slot, rest) = (None, Span(2_000_000_000));
//! let (outstanding, locations, extent) = (4, 1024, 16);
//! let mut client =
//!     opening.client(ClientSettings { outstanding, locations, extent, session_slot, rest })?;
//!
//! let mut outcomes = Vec::new();
//! client.put(b"name", b"value", 1)?;
//! while client.outstanding() > 0 {
//!     client.poll(Time(0), &mut outcomes)?;
//! }
//! assert_eq!(outcomes.remove(0).answer, Answer::Stored);
//!
//! client.get(b"name", 2)?;
//! while client.outstanding() > 0 {
//!     client.poll(Time(0), &mut outcomes)?;
//! }
//! let Answer::Found(found) = outcomes.remove(0).answer else { panic!("it was stored") };
//! assert_eq!(client.value(&found), b"value");
//! client.release(found);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [RACE]: https://www.usenix.org/conference/atc21/presentation/zuo
pub use block::{ENTRY_MAX, KEY_MAX, VALUE_MAX};
pub use client::{Answer, Client, ClientSettings, EXTENT_MAX, OperationOutcome, Refused, Value};
pub use inspect::Inspector;
pub use layout::{Area, BLOCK, HEADER, HOLDERS, LAYOUT_VERSION, Layout, LayoutError};
pub use opening::{OpenError, Opening};
pub use sweep::{Pass, Stock, Sweep};

mod block;
mod bytes;
mod client;
mod inspect;
mod layout;
mod locations;
mod opening;
mod slot;
mod supply;
mod sweep;
