//! Mutants that change nothing that a test could see, each with the reason.
//!
//! A mutant is named by its file, by how cargo-mutants describes it, and by code on its line, for
//! line numbers change.

/// A mutant that no test can notice.
pub(super) struct Equivalent {
    pub(super) file: &'static str,
    /// How its description begins.
    pub(super) mutation: &'static str,
    /// Code on the line that it is in.
    pub(super) code: &'static str,
    /// Why it changes nothing.
    pub(super) reason: &'static str,
}

pub(super) const EQUIVALENT: &[Equivalent] = &[
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in Pool::word",
        code: "epoch << LOW | EMPTY",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in Grant::words",
        code: "let flags = self.is_void as u64 |",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in Grant::words",
        code: "let head = flags << 16 |",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in Grant::words",
        code: "epoch | head,",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in Grant::words",
        code: "epoch | fit(self.promise.reservation, LOW)",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in Grant::words",
        code: "epoch | fit(self.promise.limit, LOW)",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in report",
        code: "| (report.is_starved as u64) << 1",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in report",
        code: "| (report.is_limited as u64) << 2",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in report",
        code: "| (report.is_leaving as u64) << 3",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in report",
        code: "fit(report.residual, COUNT) << COUNT |",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in report",
        code: "| fit(report.in_hand, 20) << 32",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in report",
        code: "| fit(report.in_flight, 12) << 20",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in report",
        code: "| flags << 16",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in report",
        code: "| beat as u64",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in report",
        code: "fit(report.obtained, COUNT) << COUNT |",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in rough",
        code: "<< DIGITS | bits(count >> shift",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in count",
        code: "(1 << DIGITS | digits)",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in last",
        code: "| unmet << (16 + COUNT)",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in last",
        code: "| fit(outcome.completed, COUNT) << 16",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in last",
        code: "| (outcome.starved as u64) << 8",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/haechi/words.rs",
        mutation: "replace | with ^ in last",
        code: "| outcome.backlogged as u64",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/kv/block.rs",
        mutation: "replace | with ^ in mark",
        code: "| version as u64",
        reason: "the lowest bits of the hash are cleared",
    },
    Equivalent {
        file: "crates/proto/src/kv/block.rs",
        mutation: "replace | with ^ in swept",
        code: "SWEPT | (round.wrapping_add(1) << 12)",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/kv/block.rs",
        mutation: "replace | with ^ in swept_again",
        code: "SWEPT | half as u64",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/kv/block.rs",
        mutation: "replace | with ^ in kept",
        code: "KEPT | (round << 12)",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/kv/layout.rs",
        mutation: "replace | with ^ in Free::word",
        code: "<< 32 | distance",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/kv/slot.rs",
        mutation: "replace | with ^ in Slot::new",
        code: "(fingerprint as u64) << 12 | version",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/kv/slot.rs",
        mutation: "replace | with ^ in Slot::new",
        code: "head << 40 | (lines as u64) << 33 | block",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/proto/src/kv/slot.rs",
        mutation: "replace | with ^ in Slot::claim",
        code: "self.valid().0 | Self::CLAIM",
        reason: "the bits of the state are cleared before",
    },
    Equivalent {
        file: "crates/proto/src/kv/slot.rs",
        mutation: "replace | with ^ in Slot::expelled",
        code: "self.valid().0 | Self::EXPELLED",
        reason: "the bits of the state are cleared before",
    },
    Equivalent {
        file: "crates/fabric/src/trusted.rs",
        mutation: "replace | with ^ in Folder::begin",
        code: "OFlags::",
        reason: "flags of different bits: or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/fabric/src/unix.rs",
        mutation: "replace | with ^ in Link<In>::interest",
        code: "PollFlags::IN | PollFlags::OUT",
        reason: "flags of different bits: or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/fabric/src/trusted.rs",
        mutation: "replace | with ^ in Folder::opened",
        code: "OFlags::",
        reason: "flags of different bits: or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/fabric/src/trusted.rs",
        mutation: "replace | with ^ in Folder::opened",
        code: "| match access",
        reason: "flags of different bits: or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/algo/src/queue.rs",
        mutation: "replace < with == in State<L>::has_headroom",
        code: "used as usize + FLOWS * own < Self::SLOTS",
        reason: "the shortcut only saves the exact count that follows it, and is taken more rarely",
    },
    Equivalent {
        file: "crates/algo/src/queue.rs",
        mutation: "replace < with <= in State<L>::has_headroom",
        code: "used as usize + FLOWS * own < Self::SLOTS",
        reason: "with so many slots used, the exact count that follows says the same",
    },
    Equivalent {
        file: "crates/algo/src/queue.rs",
        mutation: "replace + with * in State<L>::has_headroom",
        code: "used as usize + FLOWS * own < Self::SLOTS",
        reason: "the shortcut only saves the exact count that follows it, and is taken more rarely",
    },
    Equivalent {
        file: "crates/algo/src/queue.rs",
        mutation: "replace < with <= in State<L>::finish_having_used",
        code: "used < request.cost",
        reason: "of a request that used all, nothing is given back",
    },
    Equivalent {
        file: "crates/algo/src/queue.rs",
        mutation: "replace | with ^ in State<L>::from_words",
        code: "u128::from(word(index))",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/algo/src/queue.rs",
        mutation: "replace | with ^ in State<L>::to_words",
        code: "u64::from(low) | u64::from(high) << 32",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/stage/src/lease.rs",
        mutation: "replace | with ^ in Permit::to_word",
        code: "u64::from(self.queue.get()) |",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/stage/src/lease.rs",
        mutation: "replace | with ^ in claim_word",
        code: "u64::from(claims) << 32 | u64::from(owner)",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/stage/src/lease.rs",
        mutation: "replace > with >= in Line<'a>::tell_of_room",
        code: "self.cell.outside.load(Ordering::SeqCst) > 0",
        reason: "a wake-up that no thread waits for changes nothing",
    },
    Equivalent {
        file: "crates/stage/src/record.rs",
        mutation: "replace | with ^ in owner",
        code: "turn << NUMBER_BITS | number as u32",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/stage/src/record.rs",
        mutation: "replace | with ^ in borrow",
        code: "u64::from(process) << 32 | u64::from(thread)",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/stage/src/layout.rs",
        mutation: "replace > with >= in Lane::moved",
        code: "if bytes > 0",
        reason: "to add no bytes changes nothing",
    },
    Equivalent {
        file: "crates/stage/src/files/entry.rs",
        mutation: "replace | with ^ in Entry<WORDS>::take",
        code: "Self::changed(seen) | TAKEN",
        reason: "the state of an unknown descriptor has no kind",
    },
    Equivalent {
        file: "crates/stage/src/files/entry.rs",
        mutation: "replace | with ^ in Entry<WORDS>::give",
        code: "taken & CHANGES | kind |",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/stage/src/files/entry.rs",
        mutation: "replace | with ^ in Entry<WORDS>::forget",
        code: "Self::changed(state) | taken",
        reason: "the state of an unknown descriptor has no kind",
    },
    Equivalent {
        file: "crates/node/src/store/incarnation.rs",
        mutation: "replace | with ^ in of_file",
        code: "StatxFlags::BASIC_STATS | StatxFlags::MNT_ID",
        reason: "flags of different bits: or and exclusive or are the same",
    },
    Equivalent {
        file: "crates/node/src/store/directory.rs",
        mutation: "delete ! in Directory::opened",
        code: "if !files.is_direct()",
        reason: "only a line of the log depends on it",
    },
    Equivalent {
        file: "crates/node/src/volumes.rs",
        mutation: "replace | with ^ in random",
        code: "bytes[6] & 0x0f | 0x40",
        reason: "the bits that are set are cleared before",
    },
];
