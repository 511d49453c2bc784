//! Requests against what memcached 1.6.18 says and where it cuts, and against any cut of our own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

/// The steps for all of `input`, in words: requests with their bytes, and refusals.
fn story(mut input: &[u8], value_max: u32) -> Vec<String> {
    let mut story = Vec::new();
    while !input.is_empty() {
        let length = match parse(input, value_max) {
            Parsed::Incomplete { needed } => {
                assert!(needed > input.len());
                story.push(format!("{} more", needed - input.len()));
                break;
            }
            Parsed::Close { text, reason } => {
                story.extend([text.trim_end().into(), reason.to_string()]);
                story.retain(|entry| !entry.is_empty());
                break;
            }
            Parsed::Refused { text, length } => {
                story.push(text.trim_end().into());
                length as usize
            }
            Parsed::TooLarge { request, text, length } => {
                assert_eq!(input[..request.bytes.len()].last(), Some(&b'\n'));
                story.push(format!("{} {}", text, request.deletion().escape_ascii()));
                length as usize
            }
            Parsed::Request(request) => {
                let keys: Vec<_> = request.keys().map(String::from_utf8_lossy).collect();
                let quiet = if request.quiet { " quietly" } else { "" };
                story.push(format!("{:?}{quiet} {}", request.command, keys.join("+")));
                assert_eq!(request.keys as usize, keys.len());
                request.bytes.len()
            }
        };
        input = &input[length.min(input.len())..];
    }
    story
}

#[track_caller]
fn assert_story(input: &str, expected: &[&str]) {
    assert_eq!(story(input.as_bytes(), VALUE_MAX_DEFAULT), expected, "{input:?}");
}

#[test]
fn every_command_is_understood() {
    assert_story("get a\r\nget  a  b \nget a b\n", &["Get a", "Get a+b", "Get a+b"]);
    assert_story("gets a\r\ngat -1 a b\r\ngats 9 a\r\n", &["Gets a", "Gat a+b", "Gats a"]);
    assert_story("set a 0 0 1\r\n1\r\nadd a 4294967295 -1 0\r\n\r\n", &["Set a", "Add a"]);
    assert_story("append a 0 0 2 noreply\r\n\r\n\r\n", &["Append quietly a"]);
    assert_story("prepend a 0 0 1\n1\r\nreplace a 1 2 1\r\n2\r\n", &["Prepend a", "Replace a"]);
    assert_story(
        "cas a 0 0 1 7\r\n1\r\ncas a 0 0 1 7 noreply\r\n1\r\n",
        &["Cas a", "Cas quietly a"],
    );
    assert_story("delete a\r\ndelete a 0 noreply\r\n", &["Delete a", "Delete quietly a"]);
    assert_story("incr a 1\r\ndecr a x noreply\r\n", &["Increment a", "Decrement quietly a"]);
    assert_story("touch a 5\r\nquit\r\n", &["Touch a", "Quit "]);
    assert_story("flush_all\r\nflush_all 5 noreply\r\n", &["FlushAll ", "FlushAll quietly "]);
    assert_story(
        "version\r\nverbosity 1\r\nstats\r\nmn\r\n",
        &["Version ", "Verbosity ", "Stats ", "MetaNoop "],
    );
    assert_story(
        "mg a\r\nmg a v q Oq\r\nme a\r\n",
        &["MetaGet a", "MetaGet quietly a", "MetaDebug a"],
    );
    assert_story("ms a 1 T0 q\r\n1\r\nms a 1\r\n1\r\n", &["MetaSet quietly a", "MetaSet a"]);
    assert_story("md a quack\r\nma a N0 J5\r\n", &["MetaDelete quietly a", "MetaArithmetic a"]);
}

const BAD: &str = "CLIENT_ERROR bad command line format";

/// Each line is what memcached 1.6.18 was seen to answer.
#[test]
fn malformed_requests_get_the_errors_of_memcached() {
    let long = "k".repeat(251);
    assert_story("get\r\nget \r\ng\r\n\r\n\nGET a\r\nmx a\r\n", &["ERROR"; 7]);
    assert_story(&format!("get {long}\r\nget a {long}\r\n"), &[BAD, BAD]);
    let chunk = "CLIENT_ERROR bad data chunk";
    assert_story("set a 0 0 5\r\nhelloXX\r\nversion\r\n", &[chunk, "ERROR", "Version "]);
    assert_story("set a 0 0 5 noreply\r\nhelloXX\r\nversion\r\n", &["", "ERROR", "Version "]);
    assert_story("delete\r\ndelete a b c d\r\nincr a\r\ntouch a\r\ngat\r\n", &["ERROR"; 5]);
    assert_story(
        "delete a 5\r\ndelete a 0 b\r\ndelete a 5 noreply\r\n",
        &[BAD_DELETE.trim_end(), BAD_DELETE.trim_end(), ""],
    );
    assert_story(&format!("delete {long} noreply\r\nincr {long} 1\r\n"), &["", BAD]);
    assert_story("gat 0\r\ngat x a\r\n", &["END", "CLIENT_ERROR invalid exptime argument"]);
    assert_story(
        "flush_all x\r\nflush_all a b c\r\n",
        &["CLIENT_ERROR invalid exptime argument", "ERROR"],
    );
    assert_story(
        "verbosity\r\nverbosity x\r\nverbosity noreply\r\n",
        &["ERROR", BAD, "Verbosity quietly "],
    );
    assert_story("mg\r\nmd \r\nma\r\nme\r\n", &["ERROR", "ERROR", "ERROR", BAD]);
    assert_story("ms a 1 q\r\n1XXversion\r\n", &[chunk, "Version "]);
    assert_story(&format!("mg {long} v\r\n"), &[BAD]);
    assert_story("GET / HTTP/1.1\r\nHost: x\r\n", &["a request of HTTP"]);
}

/// The value here is a command, and a server that goes on behind the line carries it out.
#[test]
fn a_refused_line_does_not_run_its_value_as_commands() {
    let long = "k".repeat(251);
    let flags = "abcdefghijklmnopz".chars().map(|flag| format!(" {flag}")).collect::<String>();
    let many = "CLIENT_ERROR options flags too long";
    let skipped = [
        (format!("set {long} 0 0 9"), BAD),
        (format!("add {long} 0 0 9 noreply"), ""),
        ("set a 4294967296 0 9".into(), BAD),
        ("set a 18446744073709551616 0 9".into(), BAD),
        ("set a -1 0 9".into(), BAD),
        ("append a x 0 9".into(), BAD),
        ("set a 0 x 9".into(), BAD),
        ("set a 0 2147483648 9 noreply".into(), ""),
        ("cas a 0 0 9 x".into(), BAD),
        ("cas a 0 0 9 18446744073709551616 noreply".into(), ""),
        (format!("ms {long} 9"), BAD),
        (format!("ms {long} 9 q"), BAD),
        (format!("ms a 9{flags}"), many),
    ];
    for (line, entry) in &skipped {
        assert_story(&format!("{line}\r\nflush_all\r\nversion\r\n"), &[entry, "Version "]);
        assert_story(&format!("{line}\nflush_all\r\nversion\r\n"), &[entry, "Version "]);
    }
    // A client that can put a blank into a key moves every word behind it: no length is to be
    // believed.
    let closed = [
        ("set a 0 0", "ERROR"),
        ("set  0 0 9", "ERROR"),
        ("set a b 0 0 9", BAD),
        ("set a 0 0 0 9", BAD),
        ("set a 0 0 5 0 0 9", "ERROR"),
        ("set a 0 0 9 foo", BAD),
        ("set a 0 0 9 noreply x", "ERROR"),
        ("set a 0 0 x", BAD),
        ("set a 0 0 x noreply", ""),
        ("set a 0 0 -9", BAD),
        ("set a 0 0 +9", BAD),
        ("set a 0 0 2147483647", BAD),
        ("set a 0 0 4294967305", BAD),
        ("cas a 0 0 9", "ERROR"),
        ("cas a b 0 0 9 1", BAD),
        ("ms", "ERROR"),
        ("ms a", BAD),
        ("ms a x", BAD),
        ("ms a -9", BAD),
        ("ms a S9", BAD),
        ("ms a 1 9", BAD),
        ("ms a 4294967305", BAD),
    ];
    let end = CloseReason::ValueLength.to_string();
    for (line, entry) in closed {
        let expected: Vec<_> =
            [entry, &end].into_iter().filter(|entry| !entry.is_empty()).collect();
        assert_story(&format!("{line}\r\nflush_all\r\nversion\r\n"), &expected);
    }
}

#[test]
fn a_value_that_is_too_large_is_skipped() {
    let large = "SERVER_ERROR object too large for cache";
    // The old value is deleted where memcached does.
    for (line, answer, deletion) in [
        ("set a 0 0 9\r\n", large, "delete a"),
        ("set a 0 0 9 noreply\r\n", "", "delete a"),
        ("ms a 9 q\r\n", large, "delete a"),
        ("ms YQ== 9 b\r\n", large, "md YQ== b"),
        ("add a 0 0 9\r\n", large, ""),
        ("replace a 0 0 9 noreply\r\n", "", ""),
        ("append a 0 0 9\r\n", large, ""),
        ("prepend a 0 0 9\r\n", large, ""),
        ("cas a 0 0 9 1\r\n", large, ""),
    ] {
        let answer = match deletion {
            "" => answer.to_owned(),
            deletion if answer.is_empty() => format!(" {deletion}\\r\\n"),
            deletion => format!("{answer}\r\n {deletion}\\r\\n"),
        };
        let input = format!("{line}123456789\r\nversion\r\n");
        assert_eq!(story(input.as_bytes(), 8), [&*answer, "Version "]);
        // The client gets it before the value has come.
        let (Parsed::Refused { length, .. } | Parsed::TooLarge { length, .. }) =
            parse(line.as_bytes(), 8)
        else {
            panic!()
        };
        assert_eq!(length, line.len() as u64 + 11);
        assert_ne!(story(input.as_bytes(), 9), [&*answer, "Version "]);
    }
}

/// A server may stop at such bytes or treat them as blanks; what comes behind must not become a
/// command for one and a value for the other.
#[test]
fn odd_blanks_are_refused_with_what_follows_them() {
    for byte in ["\0", "\t", "\x0b", "\x0c", "\r"] {
        assert_story(&format!("get a{byte}b\r\n"), &[BAD]);
        assert_story(
            &format!("set a{byte} 0 0 8\r\nquit\r\n..\r\nversion\r\n"),
            &[BAD, "Version "],
        );
        assert_story(&format!("ms a 8 q{byte}\r\nquit\r\n..\r\nversion\r\n"), &[BAD, "Version "]);
        assert_story(&format!("delete a{byte}\r\nversion\r\n"), &[BAD, "Version "]);
    }
    for byte in ["ä", "\u{7fff}", "\x01", "\x08", "\x0e", "\x10", "\x1f", "\x7f"] {
        assert_story(&format!("get a{byte}\r\n"), &[&format!("Get a{byte}")]);
        assert_story(&format!("set {byte} 0 0 1\r\n1\r\n"), &[&format!("Set {byte}")]);
    }
}

#[test]
fn lines_have_an_end() {
    fn step(text: &str) -> Parsed<'_> {
        parse(text.as_bytes(), VALUE_MAX_DEFAULT)
    }
    assert_eq!(parse(b"\x80", 9), Parsed::close(CloseReason::Binary), "whatever follows");
    let long = "x".repeat(2_100);
    assert_eq!(step(&long), Parsed::close(CloseReason::LineTooLong));
    assert_eq!(step(&format!("mg a {long}\r\n")), Parsed::close(CloseReason::LineTooLong));
    assert_eq!(step(&"x".repeat(2_047)), Parsed::Incomplete { needed: 2_048 });
    let keys = "get ".to_owned() + &"x ".repeat(1_500);
    assert_eq!(step(&keys), Parsed::Incomplete { needed: 3_005 });
    let keys = keys + "\r\n";
    let Parsed::Request(get) = step(&keys) else { panic!() };
    assert_eq!(get.keys, 1_500);
    let keys = format!("get {}", "x ".repeat(1 << 19));
    assert_eq!(step(&keys), Parsed::close(CloseReason::LineTooLong));
}

#[test]
fn a_key_in_base64_is_the_key_that_it_means() {
    let mut space = [0; KEY_MAX];
    for (text, key) in [
        ("mg Zm9vYmFy b\r\n", "foobar"),
        ("mg Zm9vYmE= v b\r\n", "fooba"),
        ("mg Zm9vYg== b\r\n", "foob"),
        ("mg Zm9vYg== v\r\n", "Zm9vYg=="),
        ("mg Zm9v? b\r\n", "Zm9v?"),
        ("ms Zm9v 1 b\r\n1\r\n", "foo"),
    ] {
        let Parsed::Request(request) = parse(text.as_bytes(), 9) else { panic!("{text}") };
        assert_eq!(request.stored_key(&mut space), key.as_bytes());
    }
}

/// A request as it should be found, with its text.
fn request() -> impl Strategy<Value = (String, Vec<u8>)> {
    let key = || "[!-~]{1,12}";
    let value = || prop::collection::vec(any::<u8>(), 0..40);
    let line = |text: &str, value: &[u8]| [text.as_bytes(), b"\r\n", value, b"\r\n"].concat();
    prop_oneof![
        prop::collection::vec(key(), 1..6).prop_map(|keys| {
            (format!("Get {}", keys.join("+")), format!("get {}\r\n", keys.join(" ")).into())
        }),
        (key(), value(), any::<bool>()).prop_map(move |(key, value, quiet)| {
            let (word, entry) = if quiet { (" noreply", " quietly") } else { ("", "") };
            let text = format!("set {key} 1 2 {}{word}", value.len());
            (format!("Set{entry} {key}"), line(&text, &value))
        }),
        (key(), value()).prop_map(move |(key, value)| {
            let text = format!("ms {key} {} T9", value.len());
            (format!("MetaSet {key}"), line(&text, &value))
        }),
        key().prop_map(|key| (format!("MetaGet {key}"), format!("mg {key} v\r\n").into())),
        key().prop_map(|key| (format!("Touch {key}"), format!("touch {key} 3\r\n").into())),
    ]
}

#[test]
fn a_key_in_base64_is_as_long_as_a_key_may_be_and_whole() {
    let decoded = |length: usize| {
        let mut space = [0; KEY_MAX];
        decode_base64(&vec![b'A'; length], &mut space)
    };
    assert_eq!([4, 8, 248].map(decoded), [Some(3), Some(6), Some(186)]);
    for length in [1, 2, 3, 5, 249, 250, 251, 252, 256, 1_000] {
        assert_eq!(decoded(length), None, "{length}");
    }
}

proptest! {
    #[test]
    fn requests_are_found_where_they_were_put(
        requests in prop::collection::vec(request(), 0..12),
    ) {
        let (entry, bytes): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        prop_assert_eq!(story(&bytes.concat(), VALUE_MAX_DEFAULT), entry);
    }

    #[test]
    fn more_bytes_change_nothing_that_was_found(
        input in prop_oneof![
            prop::collection::vec(request(), 1..4).prop_map(|requests| {
                requests.into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<u8>>()
            }),
            "((get|set|ms|mg|gat|cas|incr|delete|x)( [a-z0-9]{0,3}){0,6}\r?\n){1,3}"
                .prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..60),
        ],
    ) {
        let whole = parse(&input, 20);
        for length in 0..input.len() {
            let step = parse(&input[..length], 20);
            match step {
                Parsed::Incomplete { needed } => {
                    prop_assert!(needed > length);
                    // Nothing is found before there are as many bytes as were asked for.
                    let found = needed > input.len() || length + 1 == needed
                        || matches!(parse(&input[..needed - 1], 20), Parsed::Incomplete { .. });
                    prop_assert!(found);
                }
                step => prop_assert_eq!(step, whole),
            }
        }
    }

    #[test]
    fn numbers_are_read_as_rust_reads_them(word in "[0-9+x-]{0,22}", max in any::<u64>()) {
        let read = word.parse::<u64>().ok().filter(|number| *number <= max);
        let read = read.filter(|_| !word.starts_with('+') && word.len() <= 20);
        prop_assert_eq!(number(word.as_bytes(), max), read);
    }
}

#[test]
fn a_number_is_as_large_as_its_type() {
    assert_eq!(number(b"18446744073709551615", u64::MAX), Some(u64::MAX));
    assert_eq!(number(b"18446744073709551616", u64::MAX), None);
    assert_eq!([&b"-5"[..], b"2147483648", b"-", b""].map(is_exptime), [true, false, false, false]);
    assert_eq!(vec![number(b"10", 9), number(b"9", 9)], [None, Some(9)]);
}
