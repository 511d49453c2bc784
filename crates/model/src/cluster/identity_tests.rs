#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use alloc::string::ToString;

use proptest::prelude::*;

use super::*;

fn label() -> Label {
    let stamp = VolumeStamp { uuid: Uuid(*b"0123456789abcdef"), generation: 7 };
    let geometry = Geometry { count: 3, stripe: Bytes(65536), size: Bytes(6 << 20) };
    let identity =
        PartIdentity { volume: "db".into(), index: 2, offset: Bytes(4096), geometry, stamp };
    let error = Some(SyncError { errno: 28, at_seconds: 1_700_000_000 });
    Label { sequence: 9, error, error_count: 4, is_marked: true, ..Label::new(identity) }
}

#[test]
fn golden_bytes_of_a_label_of_version_one() {
    let bytes = label().to_bytes();
    let golden = b"TIDEPART\x01\0\x02\0\x02\0\0\0\x03\0\0\0\x1c\0\0\0\x09\0\0\0\0\0\0\0\
        0123456789abcdef\x07\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x60\0\0\0\0\0\
        \0\x10\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x00\xf1\x53\x65\0\0\0\0db";
    assert_eq!(&bytes[..golden.len()], golden);
    assert!(bytes[golden.len()..296].iter().all(|byte| *byte == 0));
    assert!(bytes[296] == 2 && bytes[297..508].iter().all(|byte| *byte == 0));
    assert_eq!(checksum(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
    assert_eq!(Label::parse(&bytes), Ok(label()));
}

#[test]
fn a_torn_write_leaves_the_copy_before() {
    let (old, mut new) = (label(), label());
    new.sequence += 1;
    new.error = None;
    let (old_bytes, new_bytes) = (old.to_bytes(), new.to_bytes());
    for cut in 0..Label::LENGTH {
        let mut torn = old_bytes;
        torn[..cut].copy_from_slice(&new_bytes[..cut]);
        let found = Label::latest([Label::parse(&old_bytes), Label::parse(&torn)]).unwrap();
        assert!(found == old || found == new);
    }
    let both = [Label::parse(&new_bytes), Label::parse(&old_bytes)];
    assert_eq!(Label::latest(both), Ok(new));
    let none = [Err(LabelError::Absent), Err(LabelError::Damaged)];
    assert_eq!(Label::latest(none), Err(LabelError::Damaged));
    let mut later = old_bytes;
    later[8] = 2;
    assert_eq!(Label::parse(&later), Err(LabelError::Version(2)));
}

#[test]
fn a_uuid_is_read_as_it_is_written() {
    let uuid = Uuid(*b"0123456789abcdef");
    assert_eq!(uuid.to_string(), "30313233-3435-3637-3839-616263646566");
    assert_eq!(uuid.to_string().parse(), Ok(uuid));
    for wrong in ["", "30313233", "30313233-3435-3637-3839-6162636465660", "x".repeat(32).as_str()]
    {
        assert_eq!(wrong.parse::<Uuid>(), Err(NoUuid));
    }
}

/// A label of which one field is changed, with a checksum that is right.
fn forged(at: usize, field: &[u8]) -> Result<Label, LabelError> {
    let mut bytes = label().to_bytes();
    bytes[at..at + field.len()].copy_from_slice(field);
    let sum = checksum(&bytes[..Label::LENGTH - 4]);
    bytes[Label::LENGTH - 4..].copy_from_slice(&sum.to_le_bytes());
    Label::parse(&bytes)
}

#[test]
fn a_label_whose_fields_cannot_be_is_damaged_whatever_its_checksum() {
    let (count, name_length) = (16, 10);
    assert_eq!(forged(count, &3_u32.to_le_bytes()), Ok(label()), "nothing is changed");
    let stripe = |bytes: u64| forged(56, &bytes.to_le_bytes());
    assert_eq!(stripe(4096).map(|label| label.identity.geometry.stripe), Ok(Bytes(4096)));
    for (wrong, why) in [
        (forged(12, &3_u32.to_le_bytes()), "part 3 of 3"),
        (forged(count, &2_u32.to_le_bytes()), "part 2 of 2"),
        (forged(count, &0_u32.to_le_bytes()), "no parts"),
        (stripe(0), "no stripe"),
        (stripe(2048), "a stripe below a page"),
        (stripe(12_288), "a stripe that is no power of two"),
        (forged(64, &0_u64.to_le_bytes()), "a volume of nothing"),
        (forged(name_length, &201_u16.to_le_bytes()), "a name longer than its space"),
        (forged(96, b"\xff"), "a name that is no text"),
    ] {
        assert_eq!(wrong, Err(LabelError::Damaged), "{why}");
    }
}

#[test]
fn a_geometry_can_be_if_a_layout_can_have_it() {
    let least = Geometry { count: 1, stripe: Bytes(4096), size: Bytes(1) };
    assert!(least.is_possible() && label().identity.geometry.is_possible());
    assert!(!Geometry { count: 0, ..least }.is_possible());
    assert!(!Geometry { size: Bytes::ZERO, ..least }.is_possible());
    for stripe in [0, 1, 2048, 6144] {
        assert!(!Geometry { stripe: Bytes(stripe), ..least }.is_possible(), "{stripe}");
    }
    // Stripes 0 to 4 of 64 KiB are dealt to three parts; the last one is half as long.
    let five = Geometry { count: 3, stripe: Bytes(65_536), size: Bytes(9 * 32_768) };
    let lengths = [0, 1, 2, 3].map(|index| five.part_length(index).0 / 32_768);
    assert_eq!(lengths, [4, 3, 2, 0]);
    let last = PartIdentity { geometry: five, index: 1, ..label().identity };
    assert_eq!(last.length(), Bytes(3 * 32_768));
}

#[test]
fn data_fit_a_label_if_they_bear_its_volume_and_index() {
    let label = label();
    let stamp = label.identity.stamp;
    // `c`, `d`, `e` and `f` differ from these in the bits of the index.
    assert_eq!(stamp.mark(0x0102_0408).0, *b"0123456789abbfan");
    assert_eq!(stamp.mark(0), stamp.uuid);
    assert_eq!(VolumeStamp { uuid: stamp.mark(5), generation: 7 }.mark(5), stamp.uuid);
    assert!(label.fits_mark(Some(stamp.mark(2))));
    assert!(!label.fits_mark(Some(stamp.mark(1))), "another part of the volume");
    assert!(!label.fits_mark(Some(Uuid([7; 16]))), "another volume");
    // Where the file system had no mark to give, none is expected, and a wrong one is still wrong.
    let unmarked = Label { is_marked: false, ..label.clone() };
    assert!(unmarked.fits_mark(None) && !label.fits_mark(None));
    assert!(unmarked.fits_mark(Some(stamp.mark(2))) && !unmarked.fits_mark(Some(stamp.mark(0))));
}

#[test]
fn the_later_whole_copy_counts_wherever_it_is() {
    use LabelError::{Absent, Damaged, Version};
    let old = label();
    let new = Label { sequence: old.sequence + 1, ..old.clone() };
    assert_eq!(Label::latest([Ok(new.clone()), Ok(old.clone())]), Ok(new.clone()));
    assert_eq!(Label::latest([Ok(old.clone()), Ok(new.clone())]), Ok(new.clone()));
    for error in [Absent, Damaged, Version(2)] {
        assert_eq!(Label::latest([Ok(old.clone()), Err(error)]), Ok(old.clone()));
        assert_eq!(Label::latest([Err(error), Ok(old.clone())]), Ok(old.clone()));
        assert_eq!(Label::latest([Err(error), Err(Absent)]), Err(error));
        assert_eq!(Label::latest([Err(Absent), Err(error)]), Err(error));
    }
}

#[test]
fn what_people_read_names_the_volume_and_what_is_wrong() {
    let several = label().identity.geometry;
    assert_eq!(several.to_string(), "6MiB in 3 parts with stripes of 64KiB");
    assert_eq!(Geometry::single(Bytes(4096)).to_string(), "4KiB in one part");
    assert!(NoUuid.to_string().contains("32 hexadecimal digits"));
    assert!(LabelError::Version(2).to_string().contains("version 2"));
    assert!(LabelError::Absent.to_string().contains("no label"));
    assert!(LabelError::Damaged.to_string().contains("damaged"));
}

proptest! {
    #[test]
    fn a_label_with_any_bit_flipped_is_refused(at in 0..Label::LENGTH, bit in 0_u32..8) {
        let mut bytes = label().to_bytes();
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(Label::parse(&bytes).is_err());
    }

    #[test]
    fn any_label_is_read_as_it_was_written(
        name in "[a-z0-9._-]{1,200}", index in 0_u32..9, generation: u64, sequence: u64,
        size in 1_u64..1 << 40, errno in 0_i32..200, error_count: u64, uuid: [u8; 16],
        is_pending: bool, is_marked: bool,
    ) {
        let geometry = Geometry { count: 9, stripe: Bytes(4096), size: Bytes(size * 4096) };
        let stamp = VolumeStamp { uuid: Uuid(uuid), generation };
        let offset = Bytes(generation);
        let identity = PartIdentity { volume: name, index, offset, geometry, stamp };
        let error = (errno != 0).then_some(SyncError { errno, at_seconds: sequence });
        let label = Label { sequence, identity, error, error_count, is_pending, is_marked };
        prop_assert_eq!(Label::parse(&label.to_bytes()), Ok(label));
    }
}
