//! Hooks of the variadic `printf` family.
//!
//! Rust cannot define such functions yet. Each one here does by hand what a C compiler does at the
//! head of a function with `...`: it stores the registers in which arguments may have come, builds
//! the list of their locations, and calls the function that takes a list. Nothing is guessed:
//! registers, offsets and the list are those of the System V ABI for x86-64 (3.5.7). On other
//! machines `fprintf` is not seen; what it leaves in the buffer is, when another call or the end of
//! the stream writes it out.

use std::arch::naked_asm;

use libc::{FILE, c_char, c_int, c_void};

use crate::ops::stdio::{charge_descriptor_print, charge_stream_print};
use crate::real::{CallResult, Real};
use crate::stream::StdioStream;

unsafe extern "C" {
    static mut stdout: *mut FILE;
}

/// The list, behind the last argument that has a name.
type VaList = *mut c_void;

/// Lines of a table: the function, the number of its arguments with a name, the register in which
/// the next one is passed, and the function that takes a list in that place.
macro_rules! printf_hooks {
    ($(fn $name:ident: $named:literal, $next:literal => $with_list:ident;)*) => {$(
        #[doc = concat!("Hook for `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name() -> c_int {
            naked_asm!(
                // For the unwinder: a thread may be cancelled while it prints.
                ".cfi_startproc",
                // 24 bytes for the list, from 8 on; 176 for the registers, from 32 on; and what
                // keeps the stack on a multiple of 16.
                "sub rsp, 216",
                ".cfi_adjust_cfa_offset 216",
                "mov [rsp + 32], rdi",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                // al is not zero if there are floating-point arguments.
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                // Where the next argument in a general register is, and the next in a vector one.
                concat!("mov dword ptr [rsp + 8], ", $named, " * 8"),
                "mov dword ptr [rsp + 12], 48",
                // The rest is on the caller's stack, behind the return address.
                "lea rax, [rsp + 224]",
                "mov [rsp + 16], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 24], rax",
                concat!("lea ", $next, ", [rsp + 8]"),
                "call {with_list}",
                "add rsp, 216",
                ".cfi_adjust_cfa_offset -216",
                "ret",
                ".cfi_endproc",
                with_list = sym $with_list,
            )
        }
    )*};
}

printf_hooks! {
    fn fprintf: 2, "rdx" => to_stream;
    fn __fprintf_chk: 3, "rcx" => to_stream_checked;
    fn printf: 1, "rsi" => to_output;
    fn __printf_chk: 2, "rdx" => to_output_checked;
    fn dprintf: 2, "rdx" => to_descriptor;
    fn __dprintf_chk: 3, "rcx" => to_descriptor_checked;
}

/// Functions that take a list, and their wrappers: as a line of `hooks!`, but without a name
/// outside.
macro_rules! va_list_functions {
    ($(
        fn $name:ident as $real:ident($($argument:ident: $type:ty),*)
            = $wrapper:ident[$known:expr];
    )*) => {$(
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            #[used]
            #[unsafe(link_section = "tidegate_real")]
            static REAL: Real<unsafe extern "C-unwind" fn($($type),*) -> c_int> =
                Real::new(concat!(stringify!($real), "\0"), <c_int as CallResult>::FALLBACK);
            // SAFETY: as for `hooks!`.
            unsafe {
                let real = REAL.get();
                $wrapper($known, move || real($($argument),*))
            }
        }
    )*};
}

va_list_functions! {
    fn to_stream as vfprintf(stream: *mut FILE, format: *const c_char, list: VaList)
        = charge_stream_print[StdioStream::of(stream)];
    fn to_stream_checked as __vfprintf_chk(
        stream: *mut FILE, flag: c_int, format: *const c_char, list: VaList
    ) = charge_stream_print[StdioStream::of(stream)];
    fn to_output as vprintf(format: *const c_char, list: VaList)
        = charge_stream_print[StdioStream::of(stdout)];
    fn to_output_checked as __vprintf_chk(flag: c_int, format: *const c_char, list: VaList)
        = charge_stream_print[StdioStream::of(stdout)];
    fn to_descriptor as vdprintf(fd: c_int, format: *const c_char, list: VaList)
        = charge_descriptor_print[fd];
    fn to_descriptor_checked as __vdprintf_chk(
        fd: c_int, flag: c_int, format: *const c_char, list: VaList
    ) = charge_descriptor_print[fd];
}
