//! Where things lie in a store: golden bytes of its header, and that nothing overlaps.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use alloc::string::ToString;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::super::slot::{IndexSlot, VERSION_MAX};
use super::*;

const AREA: Area = Area { at: 128, length: 1 << 20 };

fn layout() -> Layout {
    Layout::new(AREA, 0x0102_0304_0506_0708, 5, 24).unwrap()
}

#[test]
fn golden_bytes_of_a_header_of_layout_two() {
    let header = layout().header();
    let golden = b"TIDEGTKV\x02\0\0\0\x40\x10\0\0\x08\x07\x06\x05\x04\x03\x02\x01\
        \0\0\x10\0\0\0\0\0\x05\0\0\0\x18\0\0\0";
    assert_eq!(&header[..40], golden);
    assert!(header[40..60].iter().all(|byte| *byte == 0));
    assert_eq!(Layout::read(128, &header), Ok(layout()));
}

#[test]
fn a_header_with_any_byte_changed_is_refused() {
    for at in 0..HEADER {
        let mut header = layout().header();
        header[at] ^= 1;
        let wanted = match at {
            0..8 => LayoutError::NoStore,
            8..12 => LayoutError::Version { found: 2 ^ 1 << (8 * (at - 8)) },
            _ => LayoutError::Damaged,
        };
        assert_eq!(Layout::read(128, &header), Err(wanted), "byte {at}");
    }
    // A checksum that is right does not make a block of another size one of ours.
    let mut header = layout().header();
    header[12] ^= 1;
    let sum = crc_fast::crc32_iscsi(&header[..60]);
    header[60..].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(Layout::read(128, &header), Err(LayoutError::Damaged));
}

#[test]
fn a_store_has_a_shape_that_fits_its_area() {
    let new = |at, length, buckets, blocks| Layout::new(Area { at, length }, 1, buckets, blocks);
    // Header and pool, census, two buckets, one word of the ring to a whole line, one block.
    let least = 128 + 2048 + 2 * 64 + 64 + 4160;
    assert!(new(0, least, 2, 1).is_ok() && new(64, least, 2, 1).is_ok());
    let too_small = LayoutError::TooSmall { needed_bytes: least, bytes: least - 1 };
    assert_eq!(new(64, least - 1, 2, 1), Err(too_small));
    assert_eq!(new(8, least, 2, 1), Err(LayoutError::Unaligned));
    for (buckets, blocks) in [(1, 1), (0, 1), (2, 0), (2, BLOCKS_MAX + 1)] {
        assert_eq!(new(0, u64::MAX / 2, buckets, blocks), Err(LayoutError::Shape));
    }
    let whole = layout();
    assert_eq!(whole.check(AREA.at + AREA.length), Ok(()));
    let (needed_bytes, bytes) = (AREA.at + AREA.length, AREA.at + AREA.length - 1);
    assert_eq!(whole.check(bytes), Err(LayoutError::TooSmall { needed_bytes, bytes }));
    assert_eq!((whole.area(), whole.slots(), whole.blocks()), (AREA, 40, 24));
}

#[test]
fn everything_lies_behind_what_is_before_it() {
    let layout = layout();
    assert_eq!([layout.round(), layout.taken(), layout.given()], [192, 200, 208]);
    assert_eq!([0, 255].map(|number| layout.holder(SessionSlot(number))), [256, 256 + 255 * 8]);
    assert_eq!([layout.bucket(0), layout.bucket(4)], [128 + 2176, 128 + 2176 + 4 * 64]);
    assert_eq!([layout.slot(0), layout.slot(9)], [layout.bucket(0), layout.bucket(1) + 8]);
    assert_eq!([layout.ring(0), layout.ring(23)], [layout.bucket(5), layout.bucket(5) + 23 * 8]);
    assert_eq!([layout.block(0), layout.block(1)], [2816, 2816 + 4160]);
    assert!(layout.block(0).is_multiple_of(64) && layout.block(0) >= layout.ring(24));
    assert_eq!((POOL_WORDS, POOL_AND_CENSUS), (24, 64 + 2048));
}

#[test]
fn errors_state_the_given_and_the_needed_size() {
    let error = LayoutError::TooSmall { needed_bytes: 9, bytes: 7 }.to_string();
    assert!(error.contains("takes 9 bytes, and there are 7"), "{error}");
    let error = LayoutError::Version { found: 3 }.to_string();
    assert!(error.contains("layout 3") && error.contains("layout 2"), "{error}");
}

#[test]
fn golden_words_of_slots() {
    let slot = IndexSlot::new(0xabc, 0x123, 65, 7);
    assert_eq!(slot.0, 0xabc1_2382_0000_0007);
    assert_eq!((slot.fingerprint(), slot.version(), slot.lines()), (0xabc, 0x123, 65));
    assert_eq!((slot.length(), slot.block()), (4160, 7));
    assert_eq!((slot.claim().0, slot.expelled().0), (0xabc1_2382_8000_0007, 0xabc1_2383_0000_0007));
    assert_eq!(slot.claim().expelled().claim().valid(), slot);
    let states = [slot, slot.claim(), slot.expelled(), IndexSlot::EMPTY];
    assert_eq!(states.map(IndexSlot::has_value), [true, false, false, false]);
    assert_eq!(states.map(IndexSlot::is_claim), [false, true, false, false]);
    let all = IndexSlot::new(0xfff, VERSION_MAX, 0x7f, BLOCKS_MAX);
    assert_eq!((all.fingerprint(), all.version(), all.lines()), (0xfff, 0xfff, 0x7f));
    assert_eq!(all.block(), BLOCKS_MAX);
}

#[test]
fn a_slot_is_believed_if_a_client_can_have_written_it() {
    let is_of = |version, lines, block| IndexSlot::new(1, version, lines, block).is_of(24);
    assert!(is_of(1, 1, 0) && is_of(VERSION_MAX, 65, 23));
    assert!(!is_of(1, 1, 24) && !is_of(1, 0, 0) && !is_of(1, 66, 0) && !is_of(0, 1, 0));
    let slot = IndexSlot::new(1, 1, 1, 0);
    assert!(slot.claim().is_of(24) && slot.expelled().is_of(24));
    assert!(!IndexSlot(slot.0 | 3 << 31).is_of(24), "no state has both bits");
}

proptest! {
    #[test]
    fn an_area_is_filled_but_not_beyond_its_end(
        at in (0_u64..1 << 20).prop_map(|at| at * 64), length in 8_192_u64..1 << 32,
    ) {
        let layout = Layout::fill(Area { at, length }, 1).unwrap();
        let end = layout.block(layout.blocks());
        prop_assert!(end <= at + length);
        // Another group of blocks and buckets has no room, but for what rounding takes.
        prop_assert!(at + length - end < 2 * (4160 + 8) + 4 * 64, "{} left", at + length - end);
        let (slots, blocks) = (layout.slots() as f64, f64::from(layout.blocks()));
        prop_assert!(blocks / slots <= 0.6 && (blocks < 1_000.0 || blocks / slots > 0.58));
    }

    #[test]
    fn a_key_has_two_buckets_and_sixteen_slots_of_them(key: Vec<u8>, buckets in 2_u32..100) {
        let layout = Layout::new(AREA, 9, buckets, 24).unwrap();
        let home = layout.home(&key);
        let [first, second] = home.buckets;
        prop_assert!(first != second && first < buckets && second < buckets);
        prop_assert!(home.fingerprint() <= 0xfff);
        for index in 0..16 {
            let bucket = if index < 8 { first } else { second };
            let slot = u64::from(bucket) * 8 + index as u64 % 8;
            prop_assert_eq!(home.slot(index), slot);
            prop_assert_eq!(layout.slot(home.slot(index)) & !63, layout.bucket(bucket));
        }
    }

    #[test]
    fn a_ring_word_names_its_block(
        block in 0_u32..24, index in 0_u32..24, version in 1_u16..=VERSION_MAX, round: u64,
    ) {
        let free = Free { block, mark: block::swept(version, round) };
        prop_assert_eq!(Free::read(free.word(index, 24), index, 24), free);
        // Zeros name each block once.
        prop_assert_eq!(Free::read(0, index, 24), Free { block: index, mark: 0 });
    }

    #[test]
    fn a_mark_names_the_state_and_the_version_of_a_block(
        hash: u64, version in 1_u16..=VERSION_MAX, round: u64,
    ) {
        let words = [
            block::mark(hash, version), block::unmarked(version), block::swept(version, round),
            block::kept(version, round),
        ];
        prop_assert!(words.iter().all(|word| block::version(*word) == version));
        let kinds = words.map(|word| word >> 61);
        prop_assert!(kinds[0] >= 4 && kinds[1..] == [0, 2, 1]);
        let (above, low) = (!u64::from(VERSION_MAX), u64::from(VERSION_MAX));
        prop_assert_eq!(words[0] & above, hash & above | 1 << 63);
        prop_assert_eq!(words[2] >> 12 & 0xf_ffff, round.wrapping_add(1) & 0xf_ffff);
        prop_assert_eq!(words[3] >> 12 & ((1 << 49) - 1), round & ((1 << 49) - 1));
        prop_assert_eq!(words[3] & low, u64::from(version));
        prop_assert_eq!(block::swept_again(words[2] as u32), words[2]);
    }
}
