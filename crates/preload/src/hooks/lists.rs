//! Hooks of the variadic exec calls: `execl`, `execlp`, `execle`.
//!
//! The C library makes the system call by itself in these, past the hooks of `execve` and its kin.
//! Rust cannot define functions with `...` yet, so each one here does by hand what is needed: it
//! pushes the registers in which arguments may have come, so that they and those on the caller's
//! stack are one array, which ends with a null pointer as the array of `execv` does. Registers are
//! those of the System V ABI for x86-64 (3.5.7); on other machines these functions are not seen.

use std::arch::naked_asm;
use std::ffi::c_char;

use libc::c_int;

use super::lifecycle::{execv, execve, execvp};

type Arguments = *const *const c_char;

/// Lines of a table: the function, and what takes the array in the place of the arguments.
macro_rules! exec_list_hooks {
    ($(fn $name:ident => $array:ident;)*) => {$(
        #[doc = concat!("Hook for `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name() -> c_int {
            naked_asm!(
                ".cfi_startproc",
                // The return address makes room for the last of the registers, below the caller's
                // arguments, and goes to the end.
                "pop rax",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_register rip, rax",
                "push r9",
                ".cfi_adjust_cfa_offset 8",
                "push r8",
                ".cfi_adjust_cfa_offset 8",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "mov rsi, rsp",
                "push rax",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_rel_offset rip, 0",
                // The stack is on a multiple of 16 again.
                "call {array}",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_register rip, rcx",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_rel_offset rip, 0",
                "ret",
                ".cfi_endproc",
                array = sym $array,
            )
        }
    )*};
}

exec_list_hooks! {
    fn execl => execv;
    fn execlp => execvp;
    fn execle => with_environment;
}

/// `execve`, with the environment behind the null pointer that ends the arguments.
unsafe extern "C-unwind" fn with_environment(name: *const c_char, arguments: Arguments) -> c_int {
    // SAFETY: as the caller of `execle` promises.
    unsafe {
        let mut end = arguments;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(name, arguments, end.add(1).read().cast())
    }
}
