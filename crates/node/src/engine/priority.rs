//! The I/O priority of plain calls, which the kernel takes from the calling thread.

use tidegate_model::Class;

/// `IOPRIO_WHO_PROCESS`, which means a thread; zero is the caller.
const WHO_THREAD: libc::c_int = 1;

/// The class whose priority the calling thread has.
#[derive(Debug, Default)]
pub(super) struct ThreadPriority(Option<Class>);

impl ThreadPriority {
    /// From now on the thread's calls have the priority of `class`. A thread mostly serves one
    /// class after another of the same kind, so that few jobs cost a system call.
    pub(super) fn set(&mut self, class: Class) {
        if self.0.replace(class) == Some(class) {
            return;
        }
        let priority = libc::c_int::from(class.io_priority());
        // SAFETY: the call takes three numbers, and changes the caller's own priority only. Every
        // thread may have a best-effort priority; if the kernel refuses, the old one stays.
        unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_THREAD, 0, priority) };
    }
}
