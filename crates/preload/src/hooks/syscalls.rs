//! The hook of `syscall`: system calls by number.

use libc::c_long;

use crate::ops::syscalls::{Arguments, gate_system_call};
use crate::real::{CallResult, Real};

type Function = unsafe extern "C-unwind" fn(c_long, ...) -> c_long;

/// Hook for `syscall`. The last argument lies on the caller's stack, or what else is there; the C
/// library's own function reads all of them as well.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    #[used]
    #[unsafe(link_section = "tidegate_real")]
    static REAL: Real<Function> = Real::new("syscall\0", <c_long as CallResult>::FALLBACK);
    // SAFETY: as for `hooks!`.
    unsafe {
        let real = REAL.get();
        gate_system_call(
            number,
            [first, second, third, fourth, fifth, sixth],
            |[a, b, c, d, e, f]: Arguments| real(number, a, b, c, d, e, f),
        )
    }
}
