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
