//! Evaluates a seccomp filter for a system call, before the program installs the filter.
//!
//! A filter is a program of classic BPF that the kernel runs for each call. This module interprets
//! the filter for a call whose number is known and whose arguments may be unknown. A value that
//! depends on an unknown value is unknown, too; a jump on an unknown value takes both ways. So
//! "passes" means that the call passes for all values of the unknown arguments. A filter with too
//! many steps or jumps does not pass.

use std::ffi::c_long;

use crate::raw;

/// The kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    operand: u32,
}

/// The kernel's `struct sock_fprog`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct BpfProgram {
    length: u16,
    instructions: *const Instruction,
}

impl BpfProgram {
    /// Its instructions; none if the kernel will refuse it.
    ///
    /// # Safety
    /// The pointer points to the stated number of instructions, for as long as its use, or to where
    /// not all of them can be read.
    pub(crate) unsafe fn instructions(&self) -> &[Instruction] {
        // SAFETY: as the caller promises.
        unsafe { raw::values(self.instructions, self.length.into()) }.unwrap_or_default()
    }
}

/// A system call: its number, and the lower halves of those arguments that are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: c_long,
    pub(crate) arguments: [Option<u32>; 2],
}

/// How the kernel calls this machine: `AUDIT_ARCH_X86_64` and so on. None where it is unknown.
const MACHINE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};

/// Answers of a filter that let a call go on as if there were no filter. All others end the
/// program, fail the call, or show it to another process.
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;

/// The length of what a filter sees of a call, the kernel's `struct seccomp_data`.
const DATA: u32 = 64;

/// The most instructions that are examined for one call: sixteen times the longest filter.
const STEPS_MAX: u32 = 1 << 16;
/// The most jumps of one way whose other side is still to be examined.
const BRANCHES_MAX: u32 = 64;

/// Whether a call passes a filter, whatever is not known of it.
pub(crate) fn passes(program: &[Instruction], call: &Call) -> bool {
    let mut steps = STEPS_MAX;
    FilterMachine {
        accumulator: Some(0),
        index: Some(0),
        memory: [Some(0); 16],
        program_counter: 0,
    }
    .run(program, call, &mut steps, BRANCHES_MAX)
}

#[derive(Clone, Copy)]
struct FilterMachine {
    accumulator: Option<u32>,
    index: Option<u32>,
    memory: [Option<u32>; 16],
    program_counter: usize,
}

impl FilterMachine {
    /// Runs to the end on every way that may be taken. Jumps only go forward.
    fn run(mut self, program: &[Instruction], call: &Call, steps: &mut u32, branches: u32) -> bool {
        loop {
            let Some(instruction) = program.get(self.program_counter) else { return false };
            *steps = steps.saturating_sub(1);
            if *steps == 0 {
                return false;
            }
            self.program_counter += 1;
            let operand = instruction.operand;
            match instruction.code {
                // ret, of a constant and of the accumulator.
                0x06 => return is_allowed(Some(operand)),
                0x16 => return is_allowed(self.accumulator),
                // ja, and the jumps that compare.
                0x05 => {
                    self.program_counter = self.program_counter.saturating_add(operand as usize)
                }
                0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                    let (yes, no) = (instruction.if_true, instruction.if_false);
                    match self.compare(*instruction) {
                        Some(true) => self.program_counter += usize::from(yes),
                        Some(false) => self.program_counter += usize::from(no),
                        None if branches == 0 => return false,
                        None => {
                            let other = Self {
                                program_counter: self.program_counter + usize::from(yes),
                                ..self
                            };
                            if !other.run(program, call, steps, branches - 1) {
                                return false;
                            }
                            self.program_counter += usize::from(no);
                        }
                    }
                }
                _ => {
                    if self.compute(*instruction, call).is_none() {
                        return false;
                    }
                }
            }
        }
    }

    /// The result of a jump's comparison, if both of its sides are known.
    fn compare(&self, instruction: Instruction) -> Option<bool> {
        let right = if instruction.code & 8 == 0 { Some(instruction.operand) } else { self.index };
        let (left, right) = (self.accumulator?, right?);
        Some(match instruction.code & 0xf0 {
            0x10 => left == right,
            0x20 => left > right,
            0x30 => left >= right,
            _ => left & right != 0,
        })
    }

    /// Loads, stores, calculates. None for what the kernel will refuse.
    fn compute(&mut self, instruction: Instruction, call: &Call) -> Option<()> {
        let operand = instruction.operand;
        let cell = operand as usize;
        match instruction.code {
            0x20 => self.accumulator = call.word(operand),
            0x80 => self.accumulator = Some(DATA),
            0x81 => self.index = Some(DATA),
            0x00 => self.accumulator = Some(operand),
            0x01 => self.index = Some(operand),
            0x60 => self.accumulator = *self.memory.get(cell)?,
            0x61 => self.index = *self.memory.get(cell)?,
            0x02 => *self.memory.get_mut(cell)? = self.accumulator,
            0x03 => *self.memory.get_mut(cell)? = self.index,
            0x07 => self.index = self.accumulator,
            0x87 => self.accumulator = self.index,
            0x84 => self.accumulator = self.accumulator.map(u32::wrapping_neg),
            code if code & 0x07 == 0x04 => {
                let right = if code & 8 == 0 { Some(operand) } else { self.index };
                let calculation = calculation(code & 0xf0)?;
                self.accumulator = self.accumulator.zip(right).and_then(calculation);
            }
            _ => return None,
        }
        Some(())
    }
}

/// An arithmetic instruction of a filter, on two known values.
type Calculation = fn((u32, u32)) -> Option<u32>;

/// A calculation by its number; it gives nothing where the kernel would end the filter.
fn calculation(number: u16) -> Option<Calculation> {
    Some(match number {
        0x00 => |(left, right)| Some(left.wrapping_add(right)),
        0x10 => |(left, right)| Some(left.wrapping_sub(right)),
        0x20 => |(left, right)| Some(left.wrapping_mul(right)),
        0x30 => |(left, right)| left.checked_div(right),
        0x40 => |(left, right)| Some(left | right),
        0x50 => |(left, right)| Some(left & right),
        0x60 => |(left, right)| left.checked_shl(right),
        0x70 => |(left, right)| left.checked_shr(right),
        0xa0 => |(left, right)| Some(left ^ right),
        _ => return None,
    })
}

impl Call {
    /// The word at this offset of `struct seccomp_data`: the call's number, the machine or the
    /// lower half of a known argument. None for all other words, which are unknown.
    fn word(&self, offset: u32) -> Option<u32> {
        match offset {
            0 => u32::try_from(self.number).ok(),
            4 => MACHINE,
            // The lower halves of the first arguments; our targets have the lower half first.
            16 => self.arguments[0],
            24 => self.arguments[1],
            _ => None,
        }
    }
}

/// Whether an answer lets the call go on.
fn is_allowed(answer: Option<u32>) -> bool {
    answer.is_some_and(|answer| matches!(answer & 0xffff_0000, ALLOW | LOG))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL: u32 = 0x8000_0000;

    fn step(code: u16, operand: u32, if_true: u8, if_false: u8) -> Instruction {
        Instruction { code, if_true, if_false, operand }
    }

    fn ret(answer: u32) -> Instruction {
        step(0x06, answer, 0, 0)
    }

    fn call(number: c_long) -> Call {
        Call { number, arguments: [None; 2] }
    }

    #[test]
    fn a_list_of_numbers_allows_those_on_it() {
        let list = [
            step(0x20, 4, 0, 0),
            step(0x15, MACHINE.unwrap(), 1, 0),
            ret(KILL),
            step(0x20, 0, 0, 0),
            step(0x15, 7, 2, 0),
            step(0x15, 9, 1, 0),
            ret(KILL),
            ret(ALLOW),
        ];
        assert!(passes(&list, &call(7)) && passes(&list, &call(9)));
        assert!(!passes(&list, &call(8)));
    }

    #[test]
    fn what_depends_on_an_unknown_argument_has_to_pass_either_way() {
        let by_argument = |yes, no| {
            [step(0x20, 24, 0, 0), step(0x54, 0x7f, 0, 0), step(0x15, 1, 0, 1), ret(yes), ret(no)]
        };
        let known = |argument| Call { number: 1, arguments: [None, Some(argument)] };
        assert!(passes(&by_argument(ALLOW, LOG), &call(1)));
        assert!(!passes(&by_argument(ALLOW, KILL), &call(1)));
        assert!(!passes(&by_argument(KILL, ALLOW), &call(1)));
        assert!(passes(&by_argument(ALLOW, KILL), &known(0x81)));
        assert!(!passes(&by_argument(ALLOW, KILL), &known(2)));
    }

    #[test]
    fn answers_that_another_process_sees_are_no() {
        // kill a thread, trap, fail with an errno, ask a listener, tell a tracer.
        for answer in [0, 0x0003_0000, 0x0005_0001, 0x7fc0_0000, 0x7ff0_0000] {
            assert!(!passes(&[ret(answer)], &call(1)), "{answer:#x}");
        }
        assert!(passes(&[ret(ALLOW)], &call(1)));
        assert!(passes(&[step(0x00, ALLOW, 0, 0), step(0x16, 0, 0, 0)], &call(1)));
    }

    #[test]
    fn values_go_through_memory_and_arithmetic() {
        let sum = [
            step(0x20, 0, 0, 0),
            step(0x02, 3, 0, 0),
            step(0x01, 5, 0, 0),
            step(0x0c, 0, 0, 0),
            step(0x07, 0, 0, 0),
            step(0x60, 3, 0, 0),
            step(0x3d, 0, 1, 0),
            step(0x25, 6, 1, 0),
            ret(KILL),
            ret(ALLOW),
        ];
        assert!(passes(&sum, &call(7)), "12 is more than 7, and 7 is more than 6");
        assert!(!passes(&sum, &call(6)));
    }

    #[test]
    fn what_cannot_be_seen_through_is_no() {
        assert!(!passes(&[], &call(1)));
        assert!(!passes(&[step(0x20, 0, 0, 0)], &call(1)), "no end");
        assert!(!passes(&[step(0x28, 0, 0, 0), ret(ALLOW)], &call(1)), "half a word");
        assert!(!passes(&[step(0x02, 16, 0, 0), ret(ALLOW)], &call(1)), "beyond the memory");
        assert!(!passes(&[step(0x05, u32::MAX, 0, 0), ret(ALLOW)], &call(1)));
        // Forks at each step: 2 to the power of 2000 ways, all of which would pass.
        let mut tangled = vec![step(0x20, 8, 0, 0)];
        tangled.extend([step(0x15, 1, 1, 0); 2000]);
        tangled.extend([ret(ALLOW), ret(ALLOW)]);
        assert!(!passes(&tangled, &call(1)));
    }
}
