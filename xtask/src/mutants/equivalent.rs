//! Mutants that change nothing that a test could see, each with the reason.
//!
//! A mutant is named by its file, by how cargo-mutants describes it, and by code on its line, for
//! line numbers change.

/// Mutants of one file that no test can notice, for one reason.
pub(super) struct Equivalent {
    pub(super) file: &'static str,
    /// Why they change nothing.
    pub(super) reason: &'static str,
    /// How the description of each begins, and code on the line that it is in.
    pub(super) mutants: &'static [(&'static str, &'static str)],
}

pub(super) const EQUIVALENT: &[Equivalent] = &[
    Equivalent {
        file: "crates/onesided/src/haechi/words.rs",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
        mutants: &[
            ("replace | with ^ in Pool::word", "epoch << LOW | EMPTY"),
            ("replace | with ^ in Grant::words", "let flags = self.is_void as u64 |"),
            ("replace | with ^ in Grant::words", "let head = flags << 16 |"),
            ("replace | with ^ in Grant::words", "epoch | head,"),
            ("replace | with ^ in Grant::words", "epoch | fit(self.promise.reservation, LOW)"),
            ("replace | with ^ in Grant::words", "epoch | fit(self.promise.limit, LOW)"),
            ("replace | with ^ in report", "| (report.is_starved as u64) << 1"),
            ("replace | with ^ in report", "| (report.is_limited as u64) << 2"),
            ("replace | with ^ in report", "| (report.is_leaving as u64) << 3"),
            ("replace | with ^ in report", "fit(report.residual, COUNT) << COUNT |"),
            ("replace | with ^ in report", "| fit(report.in_hand, 20) << 32"),
            ("replace | with ^ in report", "| fit(report.in_flight, 12) << 20"),
            ("replace | with ^ in report", "| flags << 16"),
            ("replace | with ^ in report", "| beat as u64"),
            ("replace | with ^ in report", "fit(report.obtained, COUNT) << COUNT |"),
            ("replace | with ^ in rough", "<< DIGITS | bits(count >> shift"),
            ("replace | with ^ in count", "(1 << DIGITS | digits)"),
            ("replace | with ^ in last", "| unmet << (16 + COUNT)"),
            ("replace | with ^ in last", "| fit(outcome.completed, COUNT) << 16"),
            ("replace | with ^ in last", "| (outcome.starved as u64) << 8"),
            ("replace | with ^ in last", "| outcome.backlogged as u64"),
        ],
    },
    Equivalent {
        file: "crates/onesided/src/kv/block.rs",
        reason: "the lowest bits of the hash are cleared",
        mutants: &[("replace | with ^ in mark", "| version as u64")],
    },
    Equivalent {
        file: "crates/onesided/src/kv/block.rs",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
        mutants: &[
            ("replace | with ^ in swept", "SWEPT | (round.wrapping_add(1) << 12)"),
            ("replace | with ^ in swept_again", "SWEPT | half as u64"),
            ("replace | with ^ in kept", "KEPT | (round << 12)"),
        ],
    },
    Equivalent {
        file: "crates/onesided/src/kv/layout.rs",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
        mutants: &[("replace | with ^ in Free::word", "<< 32 | distance")],
    },
    Equivalent {
        file: "crates/onesided/src/kv/slot.rs",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
        mutants: &[
            ("replace | with ^ in Slot::new", "(fingerprint as u64) << 12 | version"),
            ("replace | with ^ in Slot::new", "head << 40 | (lines as u64) << 33 | block"),
        ],
    },
    Equivalent {
        file: "crates/onesided/src/kv/slot.rs",
        reason: "the bits of the state are cleared before",
        mutants: &[
            ("replace | with ^ in Slot::claim", "self.valid().0 | Self::CLAIM"),
            ("replace | with ^ in Slot::expelled", "self.valid().0 | Self::EXPELLED"),
        ],
    },
    Equivalent {
        file: "crates/fabric/src/trusted.rs",
        reason: "flags of different bits: or and exclusive or are the same",
        mutants: &[
            ("replace | with ^ in Folder::begin", "OFlags::"),
            ("replace | with ^ in Folder::opened", "OFlags::"),
            ("replace | with ^ in Folder::opened", "| match access"),
        ],
    },
    Equivalent {
        file: "crates/fabric/src/unix.rs",
        reason: "flags of different bits: or and exclusive or are the same",
        mutants: &[(
            "replace | with ^ in MessageLink<In>::interest",
            "PollFlags::IN | PollFlags::OUT",
        )],
    },
    Equivalent {
        file: "crates/wire/src/nbd/admit.rs",
        reason: "flags of different bits: or and exclusive or are the same",
        mutants: &[("replace | with ^ in Negotiated<T>::admit", "command_flag::FUA | allowed")],
    },
    Equivalent {
        file: "crates/wire/src/nbd/constants.rs",
        reason: "a shift by nothing",
        mutants: &[("replace << with >>", "u16 = 1 << 0;")],
    },
    Equivalent {
        file: "crates/wire/src/nbd/handshake.rs",
        reason: "flags of different bits: or and exclusive or are the same",
        mutants: &[
            ("replace | with ^ in Export<T>::flags", "transmission_flag::"),
            (
                "replace | with ^ in Handshake::begin",
                "handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES",
            ),
            (
                "replace | with ^ in Handshake::on_flags",
                "handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES",
            ),
        ],
    },
    Equivalent {
        file: "crates/wire/src/nbd/constants.rs",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
        mutants: &[
            ("replace | with ^", "u16 = 1 << 15 | 1"),
            ("replace | with ^", "u32 = 1 << 31 | "),
        ],
    },
    Equivalent {
        file: "crates/wire/src/nbd/request.rs",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
        mutants: &[("replace | with ^ in parse", "<< 32 | u64::from")],
    },
    Equivalent {
        file: "crates/gateway/src/memcached/connection.rs",
        reason: "what has the least may be given the least again",
        mutants: &[(
            "replace > with >= in Connection::reserve_input",
            "self.input_max > SHARE_MIN",
        )],
    },
    Equivalent {
        file: "crates/algo/src/capacity/device_time.rs",
        reason: "a unit that took as long as before leaves the estimate as it is in either arm",
        mutants: &[("replace < with <= in DeviceTime::sample", "quick if unit < quick =>")],
    },
    Equivalent {
        file: "crates/algo/src/scheduling/scheduler/changes.rs",
        reason: "to take a slot out of its heap and to put it back changes nothing",
        mutants: &[("replace > with >= in Scheduler<J>::cancel", "if cancelled.len() > before")],
    },
    Equivalent {
        file: "crates/algo/src/scheduling/scheduler/heap.rs",
        reason: "no two entries are the same, for a slot is in a heap once",
        mutants: &[
            ("replace < with <= in Heap<K>::restore", "entry < self.entry((index - 1) / 2)"),
            ("replace < with <= in Heap<K>::sink", "self.entry(child + 1) < self.entry(child)"),
        ],
    },
    Equivalent {
        file: "crates/algo/src/shaping/token_bucket.rs",
        reason: "the greater of two equal numbers is either of them",
        mutants: &[("replace > with >= in TokenBucket::forget", "if over > forgotten")],
    },
    Equivalent {
        file: "crates/algo/src/concurrent/versioned.rs",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
        mutants: &[
            (
                "replace | with ^ in Versioned<'_, W>::change",
                "<< BUFFER_BITS | (buffer as u64 + 1)",
            ),
            (
                "replace | with ^ in Versioned<'_, W>::claim",
                "(operation << WRITER_BITS | writer as u64) << HEAD_BITS | head as u64",
            ),
        ],
    },
    Equivalent {
        file: "crates/algo/src/concurrent/versioned.rs",
        reason: "the other arm reads the same word, and takes longer",
        mutants: &[("delete match arm 0 in read", "0 => word.load(Ordering::Acquire)")],
    },
    Equivalent {
        file: "crates/controller/src/store.rs",
        reason: "the library then reads pages again instead of keeping them",
        mutants: &[("replace << with >>", "const CACHE_BYTES: usize = 1 << 20")],
    },
    Equivalent {
        file: "crates/algo/src/allocation/pshift/shift.rs",
        reason: "a search for more roots than there are ends later, with the same levels",
        mutants: &[
            (
                "replace + with - in Shifting::round",
                "let tokens = *excess + signed(configuration.capacities[*server])",
            ),
            ("replace > with >= in Shifting::round", "way.want(**excess) > 0 && (**excess > 0"),
        ],
    },
    Equivalent {
        file: "crates/algo/src/allocation/pshift/shortfall.rs",
        reason: "a level of more bits than are needed divides the same way",
        mutants: &[("replace - with + in pour", "u64::BITS - largest.leading_zeros() + 1")],
    },
    Equivalent {
        file: "crates/algo/src/scheduling/scheduler/tokens.rs",
        reason: "what is served up to the count exactly adds nothing to what is owed",
        mutants: &[(
            "replace > with >= in TokenAccount::spend",
            "if self.served > self.counts.allowed && discipline.observes_promises()",
        )],
    },
    Equivalent {
        file: "crates/algo/src/scheduling/queue.rs",
        reason: "the shortcut only saves the exact count that follows it, and is taken more rarely",
        mutants: &[
            (
                "replace < with == in QueueState<L>::has_headroom",
                "used as usize + FLOWS * own < Self::SLOTS",
            ),
            (
                "replace + with * in QueueState<L>::has_headroom",
                "used as usize + FLOWS * own < Self::SLOTS",
            ),
        ],
    },
    Equivalent {
        file: "crates/algo/src/scheduling/queue.rs",
        reason: "with so many slots used, the exact count that follows says the same",
        mutants: &[(
            "replace < with <= in QueueState<L>::has_headroom",
            "used as usize + FLOWS * own < Self::SLOTS",
        )],
    },
    Equivalent {
        file: "crates/algo/src/scheduling/queue.rs",
        reason: "of a request that used all, nothing is given back",
        mutants: &[(
            "replace < with <= in QueueState<L>::finish_having_used",
            "used < request.cost",
        )],
    },
    Equivalent {
        file: "crates/algo/src/scheduling/queue.rs",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
        mutants: &[
            ("replace | with ^ in QueueState<L>::from_words", "u128::from(word(index))"),
            (
                "replace | with ^ in QueueState<L>::to_words",
                "u64::from(low) | u64::from(high) << 32",
            ),
        ],
    },
    Equivalent {
        file: "crates/stage/src/lease.rs",
        reason: "differs at one nanosecond of a clock that no test can stop",
        mutants: &[("replace > with >= in arrive", ".since(begin) > FULL_AT_MOST")],
    },
    Equivalent {
        file: "crates/stage/src/permit.rs",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
        mutants: &[("replace | with ^ in Permit::to_word", "u64::from(self.queue.get()) |")],
    },
    Equivalent {
        file: "crates/stage/src/lease.rs",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
        mutants: &[(
            "replace | with ^ in claim_word",
            "u64::from(generation) << 32 | u64::from(owner)",
        )],
    },
    Equivalent {
        file: "crates/stage/src/lease.rs",
        reason: "a wake-up that no thread waits for changes nothing",
        mutants: &[(
            "replace > with >= in Line<'a>::wake_slot_waiters",
            "self.cell.outside.load(Ordering::SeqCst) > 0",
        )],
    },
    Equivalent {
        file: "crates/stage/src/record.rs",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
        mutants: &[
            ("replace | with ^ in owner", "generation << NUMBER_BITS | number as u32"),
            ("replace | with ^ in borrow", "u64::from(process) << 32 | u64::from(thread)"),
        ],
    },
    Equivalent {
        file: "crates/stage/src/segment.rs",
        reason: "flags of different bits: or and exclusive or are the same",
        mutants: &[
            ("replace | with ^ in Segment::create", "let flags = OFlags::"),
            ("replace | with ^ in Segment::create", "Mode::RUSR | Mode::WUSR"),
            ("replace | with ^ in Segment::attach", "OFlags::RDWR | OFlags::CLOEXEC"),
        ],
    },
    Equivalent {
        file: "crates/stage/src/record.rs",
        reason: "flags of different bits: or and exclusive or are the same",
        mutants: &[
            ("replace | with ^ in open_proc", "let flags = OFlags::"),
            ("replace | with ^ in file_of", "let flags = OFlags::"),
        ],
    },
    Equivalent {
        file: "crates/stage/src/layout.rs",
        reason: "to add no bytes changes nothing",
        mutants: &[("replace > with >= in CounterShard::moved", "if bytes > 0")],
    },
    Equivalent {
        file: "crates/stage/src/files/entry.rs",
        reason: "the state of an unknown descriptor has no kind",
        mutants: &[
            ("replace | with ^ in Descriptor<WORDS>::take", "Self::changed(seen) | TAKEN"),
            ("replace | with ^ in Descriptor<WORDS>::forget", "Self::changed(state) | taken"),
        ],
    },
    Equivalent {
        file: "crates/stage/src/files/entry.rs",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
        mutants: &[("replace | with ^ in Descriptor<WORDS>::give", "taken & CHANGES | kind |")],
    },
    Equivalent {
        file: "crates/node/src/store/incarnation.rs",
        reason: "the fields have no bit in common, so or and exclusive or are the same",
        mutants: &[(
            "replace | with ^ in device_number",
            "u64::from(major) << 32 | u64::from(minor)",
        )],
    },
    Equivalent {
        file: "crates/wire/src/memcached/request.rs",
        reason: "the longest key has 250 bytes, which is no multiple of four",
        mutants: &[("replace > with >= in decode_base64", "text.len() > KEY_MAX")],
    },
    Equivalent {
        file: "crates/node/src/store/directory.rs",
        reason: "only a line of the log depends on it",
        mutants: &[("delete ! in Directory::opened", "if !files.is_direct()")],
    },
    Equivalent {
        file: "crates/node/src/volumes.rs",
        reason: "the bits that are set are cleared before",
        mutants: &[("replace | with ^ in random", "bytes[6] & 0x0f | 0x40")],
    },
];
