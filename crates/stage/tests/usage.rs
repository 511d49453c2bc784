//! Whether a segment is in use. In a process of its own: one in which a thread has had a record
//! keeps its segments mapped to its end.

use tidegate_stage::Segment;

#[test]
fn a_mapping_is_a_use_though_no_descriptor_is_open() {
    let (segment, path) = Segment::create().unwrap();
    assert_eq!(segment.is_used_by_others(), Some(false), "its own is none");
    let attached = Segment::attach(&path).unwrap();
    assert_eq!(segment.is_used_by_others(), Some(true));
    drop(attached);
    assert_eq!(segment.is_used_by_others(), Some(false));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(Segment::private().unwrap().is_used_by_others(), None, "there is no file");
}
