//! The hooks: functions that a program calls instead of the C library's.
//!
//! Each hook is a line of a table: its name, its arguments, and its wrapper in `ops`. Functions and
//! types are `extern "C-unwind"`, because glibc cancels a thread by unwinding it, out of the very
//! calls that are hooked here; with `extern "C"` that would end the process.
//!
//! Where a function exists under several names (`pread64`, `__pread64_chk`), each name is a hook of
//! its own in front of its own function. They may share a wrapper only where `off_t` has
//! 64 bits under every name; on other machines this library does not compile.

#![allow(clippy::missing_safety_doc, reason = "the contract is that of the C function's manual")]
#![allow(clippy::too_many_arguments, reason = "so has the C library")]
#![allow(clippy::unused_unit, reason = "every line of a table names its result")]

/// The function that is called in place of a missing one.
macro_rules! fallback {
    ($result:ty) => {
        <$result as crate::real::CallResult>::FALLBACK
    };
    ($result:ty, $fallback:ident) => {
        crate::real::$fallback as *const ()
    };
}

/// Hooks for functions with a fixed number of arguments. A line reads
///
/// ```text
/// fn name(argument: type, …) -> result
///     = wrapper[its inputs] |what it may change| or what_if_it_is_missing;
/// ```
///
/// and the wrapper is called with its inputs and a closure that makes the real call, which takes as
/// arguments what the wrapper may change. The last two parts may be left out.
macro_rules! hooks {
    ($(
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty
            = $($wrapper:ident)::+ [$($known:expr),* $(,)?] $(|$($changed:ident),+|)?
            $(or $fallback:ident)?;
    )*) => {$(
        #[doc = concat!("Hook for `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            #[used]
            #[unsafe(link_section = "tidegate_real")]
            static REAL: crate::real::Real<unsafe extern "C-unwind" fn($($type),*) -> $result> =
                crate::real::Real::new(
                    concat!(stringify!($name), "\0"),
                    fallback!($result $(, $fallback)?),
                );
            // SAFETY: the type is the one that the C library declares; the caller keeps the
            // function's contract, and the real call is made with its arguments.
            unsafe {
                let real = REAL.get();
                $($wrapper)::+($($known,)* move |$($($changed),+)?| real($($argument),*))
            }
        }
    )*};
}

/// The same for functions that are declared with `...`. Those arguments that the C library may look
/// at are written after a semicolon. A caller may have passed fewer: then what is passed on is what
/// happened to be in the register, and as little looked at as without the shim.
macro_rules! variadic_hooks {
    ($(
        fn $name:ident($($argument:ident: $type:ty),*; $($more:ident: $more_type:ty),+)
            -> $result:ty = $($wrapper:ident)::+ [$($known:expr),* $(,)?] $(|$($changed:ident),+|)?;
    )*) => {$(
        #[doc = concat!("Hook for `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            $($argument: $type,)* $($more: $more_type),+
        ) -> $result {
            #[used]
            #[unsafe(link_section = "tidegate_real")]
            static REAL: crate::real::Real<
                unsafe extern "C-unwind" fn($($type,)* ...) -> $result,
            > = crate::real::Real::new(
                concat!(stringify!($name), "\0"),
                <$result as crate::real::CallResult>::FALLBACK,
            );
            // SAFETY: as for `hooks!`.
            unsafe {
                let real = REAL.get();
                $($wrapper)::+(
                    $($known,)* move |$($($changed),+)?| real($($argument,)* $($more),+)
                )
            }
        }
    )*};
}

pub mod copies;
pub mod data;
pub mod files;
pub mod lifecycle;
#[cfg(target_arch = "x86_64")]
pub mod lists;
pub mod memory;
pub mod metadata;
#[cfg(target_arch = "x86_64")]
pub mod printf;
pub mod rings;
pub mod stdio;
pub mod syscalls;
