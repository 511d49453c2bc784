//! Golden bytes: the replies, byte for byte, to the bytes of stock clients.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use super::client::{context_data, export_data, options};
use super::constants::{command, command_flag, option};
use super::*;

pub(super) fn parser() -> RequestParser<Vec<u8>> {
    RequestParser::new(|length| vec![0; length])
}

pub(super) struct Two;

pub(super) fn export(name: &str, read_only: bool) -> Export<u32> {
    Export {
        name: name.into(),
        description: "a volume".into(),
        size: 0x0010_0000,
        read_only,
        target: 7,
    }
}

impl Exports for Two {
    type Target = u32;

    fn find(&self, name: &str) -> Result<Export<u32>, ExportError> {
        match name {
            "disk" | "" => Ok(export("disk", false)),
            "rom" => Ok(export("rom", true)),
            "secret" => Err(ExportError::Denied("no".into())),
            _ => Err(ExportError::Unknown),
        }
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        each("disk", "a volume");
        each("rom", "");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes that the server sends after the greeting, and the handshake's last step.
fn shake(bytes: &[u8]) -> (String, Result<HandshakeStep<u32>, HandshakeError>) {
    shake_with(Tls::Off, bytes)
}

fn shake_with(tls: Tls, bytes: &[u8]) -> (String, Result<HandshakeStep<u32>, HandshakeError>) {
    let mut output = Vec::new();
    let mut handshake = Handshake::begin(tls, &mut output);
    assert_eq!(hex(&output), "4e42444d4147494349484156454f50540003");
    output.clear();
    let step = handshake.on_bytes(&mut &bytes[..], &Two, &mut output);
    (hex(&output), step)
}

fn negotiated(name: &str, structured: bool, base_allocation: bool) -> HandshakeStep<u32> {
    let export = export(name, name == "rom");
    HandshakeStep::Negotiated(Box::new(Negotiated { export, structured, base_allocation }))
}

/// An answer: its magic number, option, kind and data.
fn answer(option: u32, kind: u32, data: &str) -> String {
    let length = data.len() / 2;
    format!("0003e889045565a9{option:08x}{kind:08x}{length:08x}{data}")
}

fn text(kind: u32, option: u32, message: &str) -> String {
    answer(option, 1 << 31 | kind, &hex(message.as_bytes()))
}

#[test]
fn the_old_way_in_with_and_without_zeros() {
    let (output, step) = shake(&options(3, &[(option::EXPORT_NAME, b"disk")]));
    assert_eq!(
        (output.as_str(), step),
        ("0000000000100000056d", Ok(negotiated("disk", false, false)))
    );
    let (output, step) = shake(&options(0, &[(option::EXPORT_NAME, b"rom")]));
    assert_eq!(output, format!("0000000000100000050f{}", "00".repeat(124)));
    assert_eq!(step, Ok(negotiated("rom", false, false)));
}

#[test]
fn the_new_way_in_with_everything() {
    let (output, step) = shake(&options(
        3,
        &[
            (option::STARTTLS, b""),
            (option::STRUCTURED_REPLY, b""),
            (option::SET_META_CONTEXT, &context_data("disk", &["qemu:dirty", "base:allocation"])),
            (option::GO, &export_data("disk", &[3, 1, 2])),
        ],
    ));
    let golden = [
        text(1, 5, "this port is not encrypted"),
        answer(8, 1, ""),
        answer(10, 4, &format!("00000001{}", hex(b"base:allocation"))),
        answer(10, 1, ""),
        answer(7, 3, &format!("0001{}", hex(b"disk"))),
        answer(7, 3, &format!("0002{}", hex(b"a volume"))),
        answer(7, 3, "0003000000010000100002000000"),
        answer(7, 3, "0000000000000010000005ed"),
        answer(7, 1, ""),
    ];
    assert_eq!(output, golden.concat());
    assert_eq!(step, Ok(negotiated("disk", true, true)));
}

#[test]
fn encryption_begins_the_haggling_anew() {
    let mut output = Vec::new();
    let mut handshake = Handshake::begin(Tls::Selective, &mut output);
    output.clear();
    let clear = options(
        3,
        &[
            (option::STARTTLS, b"x"),
            (option::STRUCTURED_REPLY, b""),
            (option::SET_META_CONTEXT, &context_data("disk", &["base:allocation"])),
            (option::STARTTLS, b""),
        ],
    );
    let step = handshake.on_bytes(&mut &clear[..], &Two, &mut output);
    let golden = [
        text(3, 5, "this option has no data"),
        answer(8, 1, ""),
        answer(10, 4, &format!("00000001{}", hex(b"base:allocation"))),
        answer(10, 1, ""),
        answer(5, 1, ""),
    ];
    assert_eq!((hex(&output), step), (golden.concat(), Ok(HandshakeStep::StartTls)));
    // Inside, neither flags nor greeting come again, and nothing holds that was agreed outside.
    output.clear();
    let inside =
        &options(0, &[(option::STARTTLS, b""), (option::GO, &export_data("disk", &[]))])[4..];
    let step = handshake.on_bytes(&mut &inside[..], &Two, &mut output);
    let golden = [
        text(3, 5, "the connection is encrypted"),
        answer(7, 3, "00000000000000100000056d"),
        answer(7, 1, ""),
    ];
    assert_eq!((hex(&output), step), (golden.concat(), Ok(negotiated("disk", false, false))));
}

#[test]
fn where_encryption_is_required_nothing_else_is_answered() {
    let required = |requested: &[(u32, &[u8])]| shake_with(Tls::Forced, &options(3, requested));
    let refused = |option| text(5, option, "ask for encryption first");
    let (output, step) = required(&[
        (option::LIST, b""),
        (option::STRUCTURED_REPLY, b""),
        (option::GO, &export_data("disk", &[])),
        (option::SET_META_CONTEXT, &context_data("disk", &["base:allocation"])),
        (99, b"what"),
        (option::STARTTLS, b""),
    ]);
    let golden = [3, 8, 7, 10, 99].map(refused).concat() + &answer(5, 1, "");
    assert_eq!((output, step), (golden, Ok(HandshakeStep::StartTls)));
    assert_eq!(required(&[(option::ABORT, b"")]), (answer(2, 1, ""), Ok(HandshakeStep::Aborted)));
    let (output, step) = required(&[(option::EXPORT_NAME, b"disk")]);
    assert_eq!((output.as_str(), step), ("", Err(HandshakeError::TlsRequired)));
    // Plain bytes behind `STARTTLS`, as an attacker may add them, are not taken for bytes inside
    // TLS.
    let (_, step) = required(&[(option::STARTTLS, b""), (option::STRUCTURED_REPLY, b"")]);
    assert_eq!(step, Err(HandshakeError::Plaintext(16)));
}

#[test]
fn asking_is_not_entering_and_leaving_is_answered() {
    let (output, step) = shake(&options(
        3,
        &[
            (option::LIST, b""),
            (option::LIST, b"x"),
            (option::INFO, &export_data("none", &[])),
            (option::INFO, &export_data("secret", &[])),
            (option::INFO, &export_data("", &[])),
            (option::INFO, b"\0\0\0\x09disk\0\0"),
            (option::LIST_META_CONTEXT, &context_data("disk", &[])),
            (99, b"what"),
            (option::ABORT, b""),
        ],
    ));
    let golden = [
        answer(3, 2, &format!("00000004{}{}", hex(b"disk"), hex(b"a volume"))),
        answer(3, 2, &format!("00000003{}", hex(b"rom"))),
        answer(3, 1, ""),
        text(3, 3, "this option has no data"),
        text(6, 6, "there is no export \"none\""),
        text(2, 6, "no"),
        answer(6, 3, "00000000000000100000056d"),
        answer(6, 1, ""),
        text(3, 6, "this is no name and list of numbers"),
        text(3, 9, "this needs structured replies"),
        text(1, 99, "this option is not known"),
        answer(2, 1, ""),
    ];
    assert_eq!(output, golden.concat());
    assert_eq!(step, Ok(HandshakeStep::Aborted));
}

#[test]
fn contexts_are_chosen_by_their_whole_name_for_one_export() {
    let mut requested = vec![(option::STRUCTURED_REPLY, Vec::new())];
    for queries in [&["base:"][..], &[], &["base"]] {
        requested.push((option::LIST_META_CONTEXT, context_data("disk", queries)));
        requested.push((option::SET_META_CONTEXT, context_data("disk", queries)));
    }
    requested.push((option::SET_META_CONTEXT, context_data("rom", &["base:allocation"])));
    requested.push((option::GO, export_data("disk", &[])));
    let requested: Vec<(u32, &[u8])> =
        requested.iter().map(|(o, data)| (*o, data.as_slice())).collect();
    let (output, step) = shake(&options(3, &requested));
    let name = hex(b"base:allocation");
    let listed = answer(9, 4, &format!("00000000{name}")) + &answer(9, 1, "");
    let golden = [
        answer(8, 1, ""),
        listed.clone() + &answer(10, 1, ""),
        listed + &answer(10, 1, ""),
        text(3, 9, "this is no name and list of contexts"),
        text(3, 10, "this is no name and list of contexts"),
        answer(10, 4, &format!("00000001{name}")) + &answer(10, 1, ""),
        answer(7, 3, "0000000000000010000005ed") + &answer(7, 1, ""),
    ];
    assert_eq!(output, golden.concat());
    assert_eq!(step, Ok(negotiated("disk", true, false)), "chosen for one, entered another");
}

/// A client that asks for lists and does not read them makes the server keep a bounded amount.
#[test]
fn options_wait_until_long_replies_are_sent() {
    let (mut output, one) = (Vec::new(), options(0, &[(option::LIST, &[])]).split_off(4));
    let mut handshake = Handshake::begin(Tls::Off, &mut output);
    let bytes = [options(1, &[]), one.repeat(1_000)].concat();
    let mut rest = &bytes[..];
    let mut sent = 0;
    while !rest.is_empty() {
        output.clear();
        assert!(matches!(
            handshake.on_bytes(&mut rest, &Two, &mut output),
            Ok(HandshakeStep::More)
        ));
        assert!(output.len() < (64 << 10) + 200, "{} bytes", output.len());
        sent += output.len();
    }
    let all: usize = {
        output.clear();
        let mut handshake = Handshake::begin(Tls::Off, &mut Vec::new());
        let mut bytes = &bytes[..4 + one.len()];
        assert!(handshake.on_bytes(&mut bytes, &Two, &mut output).is_ok());
        1_000 * output.len()
    };
    assert_eq!(sent, all, "every option is answered");
}

#[test]
fn a_context_that_is_only_listed_or_that_is_not_known_is_not_chosen() {
    for (option, query, is_chosen) in [
        (option::SET_META_CONTEXT, "base:allocation", true),
        (option::LIST_META_CONTEXT, "base:allocation", false),
        (option::SET_META_CONTEXT, "base:unknown", false),
    ] {
        let (requested, go) = (context_data("disk", &[query]), export_data("disk", &[]));
        let bytes = options(3, &[(8, b""), (option, &requested), (option::GO, &go)]);
        assert_eq!(shake(&bytes).1, Ok(negotiated("disk", true, is_chosen)), "{option} {query}");
    }
}

#[test]
fn a_client_that_breaks_the_handshake_is_refused_with_a_reason() {
    let end = |bytes: &[u8]| shake(bytes).1.unwrap_err().to_string();
    assert!(end(&options(4, &[])).starts_with("handshake flags 0x4,"));
    assert!(
        end(b"\0\0\0\x03GET / HTTP/1.1\r\n")
            .starts_with("malformed option: it begins with 0x47455420")
    );
    assert!(end(&options(2, &[(option::LIST, b"")])).contains("without fixed newstyle"));
    assert!(end(&options(3, &[(1, b"none")])).contains("there is no export \"none\""));
    assert!(end(&options(3, &[(3, &[0; (64 << 10) + 1])])).contains("the limit is 65536"));
    assert!(end(&options(3, &[(99, &b"x"[..]); 1025])).contains("1024 options"));
    // As many options as may be, and as long a one as may be.
    let unknown = |count: usize| text(1, 99, "this option is not known").repeat(count);
    let most = options(3, &[(99, &b"x"[..]); 1024]);
    assert_eq!(shake(&most), (unknown(1024), Ok(HandshakeStep::More)));
    let longest = options(3, &[(99, &[0; 64 << 10])]);
    assert_eq!(shake(&longest), (unknown(1), Ok(HandshakeStep::More)));
    // A name that is too long is only refused where that can be said.
    let (output, step) =
        shake(&options(3, &[(option::INFO, &export_data(&"n".repeat(4097), &[]))]));
    assert_eq!((output, step), (text(9, 6, "the name is too long"), Ok(HandshakeStep::More)));
}

pub(super) fn request(command: u16, flags: u16, offset: u64, length: u32) -> Vec<u8> {
    client::request(command, flags, 0x0102_0304_0506_0708, offset, length).to_vec()
}

#[test]
fn a_request_is_read_field_by_field() {
    let mut bytes = request(1, 1, 0x1122_3344_5566_7788, 5);
    bytes.extend(b"helloREST");
    let mut rest = &bytes[..];
    let read = parser().next_admitted(&mut rest, |_| true).unwrap().unwrap();
    let Request { cookie, command, flags, offset, length, payload } = read;
    assert_eq!((cookie, command, flags), (0x0102_0304_0506_0708, 1, 1));
    assert_eq!((offset, length), (0x1122_3344_5566_7788, 5));
    assert_eq!((&payload[..], rest), (&b"hello"[..], &b"REST"[..]));
    let end = |bytes: &[u8]| parser().next_admitted(&mut &bytes[..], |_| true).unwrap_err();
    assert_eq!(end(&[0x20; 28]), RequestError::Magic(0x2020_2020));
    assert_eq!(end(&request(1, 0, 0, (32 << 20) + 1)), RequestError::TooLong((32 << 20) + 1));
    let longest = request(1, 0, 0, 32 << 20);
    assert!(parser().next_admitted(&mut &longest[..], |_| true).unwrap().is_none(), "no data yet");
}

#[test]
fn the_data_of_a_request_is_what_it_reads_or_writes() {
    let most = 32 << 20;
    for (command, length, weight) in [
        (command::WRITE, 5, 5),
        (command::WRITE, most, most),
        (command::READ, 5, 5),
        (command::READ, most, most),
        (command::READ, most + 1, 0),
        (command::TRIM, 5, 0),
        (command::FLUSH, 0, 0),
    ] {
        let (cookie, flags, offset, payload) = (1, 0, 0, Vec::<u8>::new());
        let request = Request { cookie, command, flags, offset, length, payload };
        assert_eq!(request.data_length(), weight as usize, "{command} {length}");
    }
}

#[test]
fn a_large_write_takes_up_memory_as_it_arrives() {
    let length = (32 << 20) - 5;
    let mut parser = parser();
    assert!(parser.next_admitted(&mut &request(1, 0, 0, length)[..], |_| true).unwrap().is_none());
    assert_eq!(parser.reserved(), length as usize, "all of it was admitted");
    let mut lengths = Vec::new();
    let mut sent = 0_u8;
    let whole = loop {
        lengths.push(parser.unfilled().len());
        let chunk = vec![sent; 3 << 18];
        sent += 1;
        // Bytes behind the write are left.
        let mut bytes = &chunk[..];
        if let Some(whole) = parser.next_admitted(&mut bytes, |_| true).unwrap() {
            assert_eq!(bytes.len(), 43 * chunk.len() - length as usize);
            break whole;
        }
    };
    assert_eq!(parser.reserved(), 0);
    assert_eq!(lengths[..3], [1 << 20, 1 << 18, (4 << 20) - (6 << 18)]);
    let right = |(at, byte): (usize, &u8)| usize::from(*byte) == at / (3 << 18);
    assert!(whole.payload.len() == length as usize && whole.payload.iter().enumerate().all(right));
}

#[test]
fn the_numbers_are_those_of_the_protocol() {
    use constants::{Errno, command_flag, transmission_flag};
    let exports = [
        transmission_flag::HAS_FLAGS,
        transmission_flag::READ_ONLY,
        transmission_flag::FLUSH,
        transmission_flag::FUA,
        transmission_flag::TRIM,
        transmission_flag::WRITE_ZEROES,
        transmission_flag::DF,
        transmission_flag::MULTI_CONN,
        transmission_flag::CACHE,
    ];
    assert_eq!(exports, [1, 2, 4, 8, 32, 64, 128, 256, 1024]);
    let flags = [
        command_flag::FUA,
        command_flag::NO_HOLE,
        command_flag::DF,
        command_flag::REQ_ONE,
        command_flag::FAST_ZERO,
    ];
    assert_eq!(flags, [1, 2, 4, 8, 16]);
    let errors = [
        Errno::Perm,
        Errno::Io,
        Errno::Invalid,
        Errno::NoSpace,
        Errno::Overflow,
        Errno::Unsupported,
        Errno::Shutdown,
    ];
    assert_eq!(errors.map(|errno| errno as u32), [1, 5, 22, 28, 75, 95, 108]);
}

#[test]
fn every_command_is_admitted_or_refused() {
    let HandshakeStep::Negotiated(disk) = negotiated("disk", true, true) else { unreachable!() };
    let rom = Negotiated { export: export("rom", true), ..(*disk).clone() };
    let plain = Negotiated { structured: false, base_allocation: false, ..(*disk).clone() };
    let at = |negotiated: &Negotiated<u32>, command, flags, offset, length| {
        let bytes = request(command, flags, offset, length);
        let payload = vec![0; if command == 1 { length as usize } else { 0 }];
        let head = request(if command == 1 { 0 } else { command }, flags, offset, length);
        let read = parser().next_admitted(&mut &head[..], |_| true).unwrap().unwrap();
        assert_eq!(bytes.len(), head.len());
        negotiated.admit(&Request { command, payload, ..read }).map_err(|refusal| refusal.errno)
    };
    let submit = |command| Ok(Action::Submit(command));
    let zero = |no_hole, fua| submit(Command::WriteZeroes { no_hole, fua });
    let size = 0x0010_0000;
    let big = (32 << 20) + 1;
    assert_eq!(at(&disk, 0, 0, size - 512, 512), submit(Command::Read));
    assert_eq!(at(&disk, 0, command_flag::DF, 0, 512), submit(Command::Read));
    assert_eq!(at(&plain, 0, command_flag::DF, 0, 512), Err(Errno::Invalid));
    assert_eq!(at(&disk, 0, 0, size, 1), Err(Errno::Invalid));
    assert_eq!(at(&disk, 0, 0, u64::MAX, 1), Err(Errno::Invalid));
    assert_eq!(at(&disk, 0, 0, size, 0), Ok(Action::Acknowledge));
    let mut huge = (*disk).clone();
    huge.export.size = 1 << 40;
    assert_eq!(at(&huge, 0, 0, 0, big), Err(Errno::Invalid));
    assert_eq!(at(&huge, 0, command_flag::DF, 0, big), Err(Errno::Overflow));
    assert_eq!(at(&huge, 4, 0, 0, u32::MAX), submit(Command::Trim { fua: false }));
    assert_eq!(at(&disk, 1, 0, 0, 512), submit(Command::Write { fua: false }));
    assert_eq!(at(&disk, 1, command_flag::FUA, 0, 512), submit(Command::Write { fua: true }));
    assert_eq!(at(&disk, 1, 0, size - 1, 2), Err(Errno::NoSpace));
    assert_eq!(at(&disk, 2, 0, 0, 0), Ok(Action::Disconnect));
    assert_eq!(at(&disk, 3, command_flag::FUA, 0, 0), submit(Command::Flush));
    assert_eq!(at(&disk, 3, 0, 0, 1), Err(Errno::Invalid));
    assert_eq!(at(&disk, 5, 0, 0, 512), Ok(Action::Acknowledge));
    assert_eq!(at(&disk, 5, 0, size, 512), Err(Errno::Invalid));
    assert_eq!(at(&disk, 6, 0, 0, 512), zero(false, false));
    assert_eq!(at(&disk, 6, command_flag::NO_HOLE | command_flag::FUA, 0, 512), zero(true, true));
    assert_eq!(at(&disk, 6, command_flag::FAST_ZERO, 0, 512), Err(Errno::Invalid));
    assert_eq!(at(&disk, 6, 0, size, 512), Err(Errno::NoSpace));
    let extents = |one| submit(Command::BlockStatus { one });
    assert_eq!(at(&disk, 7, command_flag::REQ_ONE, 0, 512), extents(true));
    assert_eq!(at(&disk, 7, 0, 0, 512), extents(false));
    assert_eq!(at(&disk, 7, 0, 0, 0), Err(Errno::Invalid));
    assert_eq!(at(&plain, 7, 0, 0, 512), Err(Errno::Invalid));
    assert_eq!(at(&disk, 8, 0, 0, 0), Err(Errno::Invalid));
    for command in [1, 4, 6] {
        assert_eq!(at(&rom, command, 0, 0, 512), Err(Errno::Perm), "{command}");
    }
    assert_eq!(at(&rom, 0, 0, 0, 512), submit(Command::Read));
}

#[test]
fn replies_byte_for_byte() {
    let refusal = Refusal { errno: Errno::NoSpace, message: "full" };
    let (simple, chunked) = ("67446698", "668e33ef0001");
    let cookie = "00000000000000aa";
    assert_eq!(hex(&reply::success(0xaa)), format!("{simple}00000000{cookie}"));
    let failed = |structured| {
        let (header, message) = reply::error(structured, 0xaa, refusal);
        hex(&[&header, message.as_bytes()].concat())
    };
    assert_eq!(failed(false), format!("{simple}0000001c{cookie}"));
    assert_eq!(failed(true), format!("{chunked}8001{cookie}0000000a0000001c000466756c6c"));
    let data = |structured, bytes: &[u8]| {
        hex(&[&reply::data(structured, 0xaa, 0x1000, bytes.len()), bytes].concat())
    };
    assert_eq!(data(false, &[1, 2, 3]), format!("{simple}00000000{cookie}010203"));
    let golden = format!("{chunked}0001{cookie}0000000b0000000000001000010203");
    assert_eq!(data(true, &[1, 2, 3]), golden);
    assert_eq!(data(true, &[]), format!("{chunked}0000{cookie}00000000"));
    let extents = [(4096, 0), (512, 3)].map(|(length, flags)| reply::extent(length, flags));
    let extents = hex(&[&reply::block_status(0xaa, 2), extents.as_flattened()].concat());
    let golden = "00000014000000010000100000000000".to_owned() + "0000020000000003";
    assert_eq!(extents, format!("{chunked}0005{cookie}{golden}"));
}
