//! Hooks of the C library's streams (stdio).

use libc::{FILE, c_char, c_int, c_long, c_void, off_t, off64_t, size_t, ssize_t};

use crate::ops::files::{gate_open_stream, track_close_range};
use crate::ops::stdio::Lock::{Caller, Own};
use crate::ops::stdio::{
    byte, charge_descriptor_print, charge_fseek, charge_stream_print, gate_fclose, gate_fflush,
    gate_fread, gate_freopen, gate_fwrite, gate_stream_read, gate_stream_write, until,
};
use crate::raw::{path, text as text_of};
use crate::stream::StdioStream;

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
}

type Text = *const c_char;
/// A list of arguments. On our targets it is passed as the address of one.
type VaList = *mut c_void;

/// How long a string is.
unsafe fn text_length(text: Text) -> u64 {
    // SAFETY: as the hook's caller promises.
    unsafe { text_of(text) }.map_or(0, |text| text.count_bytes() as u64)
}

/// How many bytes a line has that was read, if one was.
unsafe fn line_length(result: *mut c_char) -> u64 {
    // SAFETY: null or the line's buffer.
    unsafe { text_length(result) }
}

/// One byte, if there is no error.
fn one_unless_eof(result: &c_int) -> u64 {
    u64::from(*result != libc::EOF)
}

/// So many bytes, if there is no error.
fn unless_eof(length: u64) -> impl Fn(&c_int) -> u64 {
    move |result| if *result == libc::EOF { 0 } else { length }
}

/// How many bytes a call reports to have moved.
fn returned_length(result: &ssize_t) -> u64 {
    u64::try_from(*result).unwrap_or(0)
}

hooks! {
    fn fopen(name: Text, mode: Text) -> *mut FILE = gate_open_stream[path(name)];
    fn fopen64(name: Text, mode: Text) -> *mut FILE = gate_open_stream[path(name)];
    fn tmpfile() -> *mut FILE = gate_open_stream[Some(c"/tmp/")];
    fn tmpfile64() -> *mut FILE = gate_open_stream[Some(c"/tmp/")];
    fn freopen(name: Text, mode: Text, stream: *mut FILE) -> *mut FILE
        = gate_freopen[StdioStream::of(stream), path(name)];
    fn freopen64(name: Text, mode: Text, stream: *mut FILE) -> *mut FILE
        = gate_freopen[StdioStream::of(stream), path(name)];
    fn fclose(stream: *mut FILE) -> c_int = gate_fclose[StdioStream::of(stream)];
    fn pclose(stream: *mut FILE) -> c_int = gate_fclose[StdioStream::of(stream)];
    fn fcloseall() -> c_int = track_close_range[0, u32::MAX];
    fn fflush(stream: *mut FILE) -> c_int = gate_fflush[StdioStream::of(stream), Own];
    fn fflush_unlocked(stream: *mut FILE) -> c_int = gate_fflush[StdioStream::of(stream), Caller];
    fn fseek(stream: *mut FILE, offset: c_long, whence: c_int) -> c_int
        = charge_fseek[StdioStream::of(stream)];
    fn fseeko(stream: *mut FILE, offset: off_t, whence: c_int) -> c_int
        = charge_fseek[StdioStream::of(stream)];
    fn fseeko64(stream: *mut FILE, offset: off64_t, whence: c_int) -> c_int
        = charge_fseek[StdioStream::of(stream)];
    fn fsetpos(stream: *mut FILE, position: *const c_void) -> c_int
        = charge_fseek[StdioStream::of(stream)];
    fn fsetpos64(stream: *mut FILE, position: *const c_void) -> c_int
        = charge_fseek[StdioStream::of(stream)];
    fn rewind(stream: *mut FILE) -> () = charge_fseek[StdioStream::of(stream)];
}

hooks! {
    fn fread(buffer: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t
        = gate_fread[StdioStream::of(stream), Own, (size, count)] |size, count|;
    fn fread_unlocked(
        buffer: *mut c_void, size: size_t, count: size_t, stream: *mut FILE,
    ) -> size_t = gate_fread[StdioStream::of(stream), Caller, (size, count)] |size, count|;
    fn __fread_chk(
        buffer: *mut c_void, capacity: size_t, size: size_t, count: size_t, stream: *mut FILE,
    ) -> size_t = gate_fread[StdioStream::of(stream), Own, (size, count)] |size, count|;
    fn __fread_unlocked_chk(
        buffer: *mut c_void, capacity: size_t, size: size_t, count: size_t, stream: *mut FILE,
    ) -> size_t = gate_fread[StdioStream::of(stream), Caller, (size, count)] |size, count|;
    fn fgets(buffer: *mut c_char, size: c_int, stream: *mut FILE) -> *mut c_char
        = gate_stream_read[
            StdioStream::of(stream), Own, until(10, line_max(size)), |read| line_length(*read),
        ];
    fn fgets_unlocked(buffer: *mut c_char, size: c_int, stream: *mut FILE) -> *mut c_char
        = gate_stream_read[
            StdioStream::of(stream), Caller, until(10, line_max(size)), |read| line_length(*read),
        ];
    fn __fgets_chk(buffer: *mut c_char, capacity: size_t, size: c_int, stream: *mut FILE)
        -> *mut c_char
        = gate_stream_read[
            StdioStream::of(stream), Own, until(10, line_max(size)), |read| line_length(*read),
        ];
    fn __fgets_unlocked_chk(buffer: *mut c_char, capacity: size_t, size: c_int, stream: *mut FILE)
        -> *mut c_char
        = gate_stream_read[
            StdioStream::of(stream), Caller, until(10, line_max(size)), |read| line_length(*read),
        ];
    fn getline(text: *mut *mut c_char, size: *mut size_t, stream: *mut FILE) -> ssize_t
        = gate_stream_read[StdioStream::of(stream), Own, until(10, u64::MAX), returned_length];
    fn getdelim(text: *mut *mut c_char, size: *mut size_t, delimiter: c_int, stream: *mut FILE)
        -> ssize_t
        = gate_stream_read[
            StdioStream::of(stream), Own, until(delimiter, u64::MAX), returned_length,
        ];
    fn __getdelim(text: *mut *mut c_char, size: *mut size_t, delimiter: c_int, stream: *mut FILE)
        -> ssize_t
        = gate_stream_read[
            StdioStream::of(stream), Own, until(delimiter, u64::MAX), returned_length,
        ];
    fn fgetc(stream: *mut FILE) -> c_int
        = gate_stream_read[StdioStream::of(stream), Own, byte(), one_unless_eof];
    fn getc(stream: *mut FILE) -> c_int
        = gate_stream_read[StdioStream::of(stream), Own, byte(), one_unless_eof];
    fn _IO_getc(stream: *mut FILE) -> c_int
        = gate_stream_read[StdioStream::of(stream), Own, byte(), one_unless_eof];
    fn getchar() -> c_int = gate_stream_read[StdioStream::of(stdin), Own, byte(), one_unless_eof];
    fn fgetc_unlocked(stream: *mut FILE) -> c_int
        = gate_stream_read[StdioStream::of(stream), Caller, byte(), one_unless_eof];
    fn getc_unlocked(stream: *mut FILE) -> c_int
        = gate_stream_read[StdioStream::of(stream), Caller, byte(), one_unless_eof];
    fn getchar_unlocked() -> c_int
        = gate_stream_read[StdioStream::of(stdin), Caller, byte(), one_unless_eof];
    // Called by `getc_unlocked` compiled into a program, when the buffer is empty.
    fn __uflow(stream: *mut FILE) -> c_int
        = gate_stream_read[StdioStream::of(stream), Caller, byte(), one_unless_eof];
    fn __underflow(stream: *mut FILE) -> c_int
        = gate_stream_read[StdioStream::of(stream), Caller, byte(), |_: &c_int| 0];
}

/// How many characters fit into a line's buffer.
fn line_max(size: c_int) -> u64 {
    u64::try_from(size).unwrap_or(0).saturating_sub(1)
}

hooks! {
    fn fwrite(buffer: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t
        = gate_fwrite[StdioStream::of(stream), Own, (size, count)] |size, count|;
    fn fwrite_unlocked(
        buffer: *const c_void, size: size_t, count: size_t, stream: *mut FILE,
    ) -> size_t = gate_fwrite[StdioStream::of(stream), Caller, (size, count)] |size, count|;
    fn fputs(text: Text, stream: *mut FILE) -> c_int
        = gate_stream_write[
            StdioStream::of(stream), Own, text_length(text), unless_eof(text_length(text)),
        ];
    fn fputs_unlocked(text: Text, stream: *mut FILE) -> c_int
        = gate_stream_write[
            StdioStream::of(stream), Caller, text_length(text), unless_eof(text_length(text)),
        ];
    fn puts(text: Text) -> c_int
        = gate_stream_write[
            StdioStream::of(stdout), Own, text_length(text) + 1, unless_eof(text_length(text) + 1),
        ];
    fn fputc(character: c_int, stream: *mut FILE) -> c_int
        = gate_stream_write[StdioStream::of(stream), Own, 1, one_unless_eof];
    fn putc(character: c_int, stream: *mut FILE) -> c_int
        = gate_stream_write[StdioStream::of(stream), Own, 1, one_unless_eof];
    fn _IO_putc(character: c_int, stream: *mut FILE) -> c_int
        = gate_stream_write[StdioStream::of(stream), Own, 1, one_unless_eof];
    fn putchar(character: c_int) -> c_int
        = gate_stream_write[StdioStream::of(stdout), Own, 1, one_unless_eof];
    fn fputc_unlocked(character: c_int, stream: *mut FILE) -> c_int
        = gate_stream_write[StdioStream::of(stream), Caller, 1, one_unless_eof];
    fn putc_unlocked(character: c_int, stream: *mut FILE) -> c_int
        = gate_stream_write[StdioStream::of(stream), Caller, 1, one_unless_eof];
    fn putchar_unlocked(character: c_int) -> c_int
        = gate_stream_write[StdioStream::of(stdout), Caller, 1, one_unless_eof];
    // Called by `putc_unlocked` compiled into a program, when the buffer is full.
    fn __overflow(stream: *mut FILE, character: c_int) -> c_int
        = gate_stream_write[StdioStream::of(stream), Caller, 1, one_unless_eof];

    // Printing with a list of arguments; without one, see `printf`.
    fn vfprintf(stream: *mut FILE, format: Text, arguments: VaList) -> c_int
        = charge_stream_print[StdioStream::of(stream)];
    fn __vfprintf_chk(stream: *mut FILE, flag: c_int, format: Text, arguments: VaList) -> c_int
        = charge_stream_print[StdioStream::of(stream)];
    fn vprintf(format: Text, arguments: VaList) -> c_int
        = charge_stream_print[StdioStream::of(stdout)];
    fn __vprintf_chk(flag: c_int, format: Text, arguments: VaList) -> c_int
        = charge_stream_print[StdioStream::of(stdout)];
    fn vdprintf(fd: c_int, format: Text, arguments: VaList) -> c_int = charge_descriptor_print[fd];
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: Text, arguments: VaList) -> c_int
        = charge_descriptor_print[fd];
}
