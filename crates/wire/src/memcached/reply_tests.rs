//! Replies as memcached gives them, and any cut of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use alloc::string::String;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

fn length(shape: Shape, input: &[u8]) -> Result<Option<usize>, MalformedReply> {
    Boundary::new(shape).find(input).map(|whole| whole.map(|whole| whole.length))
}

#[test]
fn a_reply_ends_where_memcached_ends_it() {
    for (shape, reply) in [
        (Shape::Line, "STORED\r\n"),
        (Shape::Line, "SERVER_ERROR object too large for cache\r\n"),
        (Shape::Values, "END\r\n"),
        (Shape::Values, "VALUE a 0 2\r\n\r\n\r\nEND\r\n"),
        (Shape::Values, "VALUE a 0 5 3\r\nEND\r\n\r\nVALUE b 1 0 9\r\n\r\nEND\r\n"),
        (Shape::Values, "CLIENT_ERROR invalid exptime argument\r\n"),
        (Shape::Meta, "EN\r\n"),
        (Shape::Meta, "HD f0 t-1\r\n"),
        (Shape::Meta, "VA 2 s2 f5\r\nhi\r\n"),
        (Shape::Meta, "VA 2\r\nhi\r\n"),
    ] {
        let input = [reply, "VALUE more\r\n"].concat();
        assert_eq!(length(shape, input.as_bytes()), Ok(Some(reply.len())), "{reply}");
    }
}

#[test]
fn a_quiet_request_is_over_when_the_barrier_answers() {
    for reply in ["", "EN\r\n", "VA 12 f1\r\nVERSION 1\r\n\n\r\n", "ERROR\r\nHD\r\n"] {
        let input = [reply, "VERSION 1.6.18\r\n", "HD\r\n"].concat();
        let whole = Whole { length: reply.len(), with_barrier: reply.len() + 16 };
        assert_eq!(Boundary::new(Shape::Quiet).find(input.as_bytes()), Ok(Some(whole)));
    }
}

#[test]
fn replies_that_no_memcached_sends_are_detected() {
    for (shape, reply) in [
        (Shape::Values, "STORED\r\n"),
        (Shape::Values, "VALUE a 0\r\n"),
        (Shape::Values, "VALUE a 0 x\r\n"),
        (Shape::Values, "VALUE a 0 99999999999\r\n"),
        (Shape::Values, "VALUE a 0 1\r\n123\r\n"),
        (Shape::Meta, "VA -1\r\n"),
        (Shape::Line, "STORED\n"),
    ] {
        assert_eq!(length(shape, reply.as_bytes()), Err(MalformedReply), "{reply}");
    }
    assert_eq!(length(Shape::Line, &[b'x'; LINE_MAX]), Err(MalformedReply));
}

#[test]
fn a_block_is_its_line_the_announced_bytes_and_a_line_end() {
    for length in [0, 1, 2, 3, 255] {
        let line = alloc::format!("VALUE k 0 {length}\r\n");
        // Bytes that could be taken for the end of a line.
        let whole = [line.as_bytes(), &alloc::vec![b'\n'; length], b"\r\n"].concat();
        let more = [&whole[..], b"END\r\n"].concat();
        assert_eq!(block(Shape::Values, &more), Ok(Some(whole.len())));
        for cut in 0..whole.len() {
            assert_eq!(block(Shape::Values, &whole[..cut]), Ok(None), "{cut} of {length}");
        }
        for last in [1, 2] {
            let mut other = whole.clone();
            other[whole.len() - last] = b'x';
            assert_eq!(block(Shape::Values, &other), Err(MalformedReply), "{length}");
        }
    }
}

#[test]
fn a_reply_has_an_early_minimum_length() {
    let least = |shape, input: &[u8]| {
        let mut boundary = Boundary::new(shape);
        assert_eq!(boundary.find(input), Ok(None));
        boundary.min_length(input)
    };
    assert_eq!(least(Shape::Values, b"VALUE a 0 1000"), b"END\r\n".len(), "no line is whole");
    let whole = b"VALUE a 0 1000\r\n".len() + 1000 + b"\r\nEND\r\n".len();
    assert_eq!(least(Shape::Values, b"VALUE a 0 1000\r\nxx"), whole);
    let two = b"VALUE a 0 1\r\nx\r\nVALUE b 0 1000\r\n";
    assert_eq!(least(Shape::Values, two), two.len() + 1000 + b"\r\nEND\r\n".len());
    assert_eq!(least(Shape::Meta, b"VA 1000\r\nx"), b"VA 1000\r\n".len() + 1000 + 2);
}

proptest! {
    #[test]
    fn a_boundary_that_grows_with_its_input_is_the_same(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..5),
        step in 1usize..9,
    ) {
        let mut reply = Vec::new();
        for value in &values {
            let line = alloc::format!("VALUE key 0 {}\r\n", value.len());
            reply.extend([line.as_bytes(), value, b"\r\n"].concat());
        }
        reply.extend_from_slice(b"END\r\n");
        let mut boundary = Boundary::new(Shape::Values);
        for end in (0..reply.len()).step_by(step) {
            prop_assert_eq!(boundary.find(&reply[..end]), Ok(None));
        }
        let whole = Whole { length: reply.len(), with_barrier: reply.len() };
        prop_assert_eq!(boundary.find(&reply), Ok(Some(whole)));
    }

    #[test]
    fn no_bytes_are_too_strange(input in "((VA|VALUE|END|HD|k|9| )*\r?\n?)*") {
        let bytes = String::into_bytes(input);
        for shape in [Shape::Line, Shape::Values, Shape::Meta, Shape::Quiet] {
            if let Ok(Some(whole)) = Boundary::new(shape).find(&bytes) {
                prop_assert!(whole.length <= whole.with_barrier);
                prop_assert!(whole.with_barrier <= bytes.len());
            }
        }
    }
}
