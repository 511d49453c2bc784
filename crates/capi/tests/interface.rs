//! The interface as C calls it: what works, what is refused, and that nothing goes up in smoke.
#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::{MaybeUninit, size_of};
use std::ptr::{null, null_mut};

use tidegate::admission::*;
use tidegate::layered::*;
use tidegate::rules::*;
use tidegate::scopes::*;
use tidegate::stage::*;
use tidegate::status::*;

/// An open stage that no controller reaches, with one key called `k`.
struct Open(*mut StageHandle);

impl Open {
    fn new() -> Self {
        let key = Key { name: c"k".as_ptr(), bytes: [7u8; 32].as_ptr() };
        let settings = Settings {
            size: size_of::<Settings>(),
            socket: c"/nonexistent/controller.sock".as_ptr(),
            layered: 1,
            key_count: 1,
            keys: &raw const key,
            tenant: null(),
            command: null(),
        };
        let mut stage = null_mut();
        // SAFETY: everything outlives the call.
        let status = unsafe { tidegate_stage_open(&raw const settings, &raw mut stage) };
        assert_eq!(status, TIDEGATE_OK, "{}", detail());
        Self(stage)
    }

    fn gate(&self, name: &CStr, gate: &Gate) -> c_int {
        // SAFETY: everything outlives the call.
        unsafe { tidegate_set_gate(self.0, name.as_ptr(), gate) }
    }

    /// Makes `gates` the way of every request.
    fn with(&self, gates: &[(&CStr, Gate)]) -> &Self {
        for (name, gate) in gates {
            assert_eq!(self.gate(name, gate), TIDEGATE_OK, "{}", detail());
        }
        let names: Vec<*const c_char> = gates.iter().map(|(name, _)| name.as_ptr()).collect();
        // SAFETY: everything outlives the calls.
        let statuses = unsafe {
            let (name, count) = (c"c".as_ptr(), names.len());
            let made = tidegate_set_channel(self.0, name, 7, TIDEGATE_HIGH, names.as_ptr(), count);
            [made, tidegate_set_default(self.0, name)]
        };
        assert_eq!(statuses, [TIDEGATE_OK; 2], "{}", detail());
        self
    }

    fn enforce(&self, operation: u32, bytes: u64) -> Result<Admission, c_int> {
        let mut admission = MaybeUninit::<Admission>::uninit();
        // SAFETY: the place has room for an admission, and is initialised if all went well.
        unsafe {
            match tidegate_enforce(self.0, operation, bytes, null(), admission.as_mut_ptr()) {
                TIDEGATE_OK => Ok(admission.assume_init()),
                status => Err(status),
            }
        }
    }

    fn collect(&self) -> (u64, u64) {
        let mut counters = MaybeUninit::<Counters>::uninit();
        let mut count = 0;
        // SAFETY: there is room for one, and it is read only if it was filled.
        unsafe {
            let status = tidegate_collect(self.0, counters.as_mut_ptr(), 1, &raw mut count);
            assert_eq!((status, count), (TIDEGATE_OK, 1));
            let counters = counters.assume_init();
            (counters.operations, counters.bytes)
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: opened above, and no test has calls under way here.
        assert_eq!(unsafe { tidegate_stage_close(self.0) }, TIDEGATE_OK);
    }
}

fn detail() -> String {
    // SAFETY: never null, and read at once.
    unsafe { CStr::from_ptr(tidegate_error_detail()) }.to_string_lossy().into_owned()
}

fn kind(kind: u32) -> Gate {
    Gate { size: size_of::<Gate>(), kind, depth: 0, rate: 0, burst: 0, level: 0, key: null() }
}

fn complete(admission: &mut Admission, bytes: u64) -> c_int {
    // SAFETY: it is an admission, or at least memory of one.
    unsafe { tidegate_complete(admission, bytes) }
}

#[test]
fn a_request_passes_is_tagged_and_counted_once() {
    let open = Open::new();
    open.with(&[(c"g", kind(TIDEGATE_GATE_OPEN))]);
    let mut admission = open.enforce(TIDEGATE_WRITE, 4_096).unwrap();
    let mut tag = MaybeUninit::<Tag>::uninit();
    // SAFETY: the tag is read only if it was filled.
    let tag = unsafe {
        assert_eq!(tidegate_admission_tag(&admission, tag.as_mut_ptr()), TIDEGATE_OK);
        tag.assume_init()
    };
    assert_eq!((tag.tenant, tag.operation, tag.cost, tag.channel), (7, 1, 4_096, 0));
    assert_eq!(u32::from(tag.urgency), TIDEGATE_HIGH);
    assert_eq!(complete(&mut admission, 100), TIDEGATE_OK);
    assert_eq!(complete(&mut admission, 100), TIDEGATE_INVALID, "it was completed before");
    assert_eq!(open.collect(), (1, 100));
}

#[test]
fn without_rules_requests_pass_and_belong_nowhere() {
    let open = Open::new();
    let mut admission = open.enforce(TIDEGATE_SCAN, u64::MAX).unwrap();
    let mut tag = MaybeUninit::<Tag>::uninit();
    // SAFETY: the tag is read only if it was filled.
    unsafe {
        assert_eq!(tidegate_admission_tag(&admission, tag.as_mut_ptr()), TIDEGATE_OK);
        assert_eq!(tag.assume_init().channel, -1);
    }
    assert_eq!(complete(&mut admission, 1), TIDEGATE_OK);
}

#[test]
fn scopes_distinguish_contexts() {
    let open = Open::new();
    open.with(&[(c"g", kind(TIDEGATE_GATE_OPEN))]);
    // SAFETY: texts are constant, and everything else outlives its call.
    unsafe {
        let outer = tidegate_scope_enter(c"flush".as_ptr());
        let inner = tidegate_scope_enter(c"sync".as_ptr());
        assert_eq!(inner, tidegate_intern(c"flush".as_ptr()), "what was left is given back");
        tidegate_scope_leave(inner);
        let admission = open.enforce(TIDEGATE_READ, 1).unwrap();
        let mut tag = MaybeUninit::<Tag>::uninit();
        assert_eq!(tidegate_admission_tag(&admission, tag.as_mut_ptr()), TIDEGATE_OK);
        assert_eq!(tag.assume_init().context, tidegate_intern(c"flush".as_ptr()));
        tidegate_scope_leave(outer);
        assert_eq!(tidegate_intern(null()), 0);
        assert_eq!(tidegate_intern(c"\xff".as_ptr()), 0, "not UTF-8");
    }
}

/// Writes `content` for `pointer` and says what is to be written.
fn written(open: &Open, content: &[u8], pointer: &[u8], capacity: usize) -> Result<Vec<u8>, c_int> {
    let mut buffer = vec![0; capacity];
    let mut result = Bytes { data: null(), length: 0 };
    let mut admission = MaybeUninit::<Admission>::uninit();
    let request = request();
    // SAFETY: everything outlives the calls, and results are read only if there are any.
    unsafe {
        let status = tidegate_write(
            open.0,
            &raw const request,
            Bytes { data: content.as_ptr(), length: content.len() },
            Bytes { data: pointer.as_ptr(), length: pointer.len() },
            Buffer { data: buffer.as_mut_ptr(), capacity },
            &raw mut result,
            admission.as_mut_ptr(),
        );
        if status != TIDEGATE_OK {
            return Err(status);
        }
        assert_eq!(tidegate_complete(admission.as_mut_ptr(), content.len() as u64), TIDEGATE_OK);
        Ok(std::slice::from_raw_parts(result.data, result.length).to_vec())
    }
}

fn request() -> LayeredRequest {
    LayeredRequest {
        size: size_of::<LayeredRequest>(),
        operation: TIDEGATE_PUT,
        reserved: 0,
        path: null(),
    }
}

/// Reads what was written.
fn restored(
    open: &Open,
    content: &[u8],
    pointer: &[u8],
    capacity: usize,
) -> Result<Vec<u8>, c_int> {
    let mut admission = open.enforce(TIDEGATE_GET, content.len() as u64)?;
    let mut buffer = vec![0; capacity];
    let mut result = Bytes { data: null(), length: 0 };
    // SAFETY: everything outlives the calls, and results are read only if there are any.
    unsafe {
        let status = tidegate_restore(
            open.0,
            &admission,
            Bytes { data: content.as_ptr(), length: content.len() },
            Bytes { data: pointer.as_ptr(), length: pointer.len() },
            Buffer { data: buffer.as_mut_ptr(), capacity },
            &raw mut result,
        );
        assert_eq!(complete(&mut admission, content.len() as u64), TIDEGATE_OK);
        match status {
            TIDEGATE_OK => Ok(std::slice::from_raw_parts(result.data, result.length).to_vec()),
            status => Err(status),
        }
    }
}

#[test]
fn content_is_transformed_and_restored() {
    let open = Open::new();
    let secret = Gate { key: c"k".as_ptr(), ..kind(TIDEGATE_GATE_ENCRYPT) };
    open.with(&[(c"small", kind(TIDEGATE_GATE_COMPRESS)), (c"secret", secret)]);
    let content = b"tide ".repeat(2_000);
    let bound = tidegate_bound(content.len());
    let stored = written(&open, &content, b"block 9", bound).unwrap();
    assert!(stored.len() < 200, "compressed before it is encrypted");
    let (largest, small) = (content.len(), content.len() - 1);
    assert_eq!(restored(&open, &stored, b"block 9", largest).unwrap(), content);
    assert_eq!(restored(&open, &stored, b"block 8", largest), Err(TIDEGATE_NOT_AUTHENTIC));
    assert_eq!(restored(&open, &stored, b"block 9", small), Err(TIDEGATE_TOO_SMALL));
    assert_eq!(written(&open, &content, b"block 9", 10), Err(TIDEGATE_TOO_SMALL));
    assert!(detail().contains("the buffer 10"), "{}", detail());
    let other = Gate { key: c"other".as_ptr(), ..kind(TIDEGATE_GATE_ENCRYPT) };
    open.with(&[(c"other", other)]);
    assert_eq!(written(&open, &content, b"", bound), Err(TIDEGATE_NO_KEY));
}

#[test]
fn the_bound_holds_for_what_cannot_be_made_smaller() {
    let open = Open::new();
    let secret = Gate { key: c"k".as_ptr(), ..kind(TIDEGATE_GATE_ENCRYPT) };
    let names = [c"0", c"1", c"2", c"3", c"4", c"5", c"6", c"7"];
    let compress = |name| (name, kind(TIDEGATE_GATE_COMPRESS));
    let encrypt = |name| (name, secret);
    let content: Vec<u8> = (0..100_000u64).map(|n| (n.pow(3) ^ n << 7 ^ n >> 3) as u8).collect();
    for gates in [names.map(compress), names.map(encrypt)] {
        open.with(&gates);
        for length in [0, 1, 100, 10_000, 100_000] {
            let content = &content[..length];
            let bound = tidegate_bound(length);
            let stored = written(&open, content, b"", bound).unwrap();
            assert_eq!(restored(&open, &stored, b"", bound).unwrap(), content);
        }
        // SAFETY: the stage is open.
        assert_eq!(unsafe { tidegate_clear_rules(open.0) }, TIDEGATE_OK);
    }
}

#[test]
fn content_that_no_gate_transforms_stays_where_it_is() {
    let open = Open::new();
    open.with(&[(c"g", kind(TIDEGATE_GATE_OPEN))]);
    let stored = written(&open, b"as it is", b"", 0).unwrap();
    assert_eq!(stored, b"as it is", "although there is no buffer");
    assert_eq!(restored(&open, &stored, b"", 0).unwrap(), b"as it is");
}

#[test]
fn what_makes_no_sense_is_invalid() {
    let open = Open::new();
    let mut admission = Admission { opaque: [0; 20] };
    assert_eq!(complete(&mut admission, 0), TIDEGATE_INVALID);
    assert_eq!(open.enforce(13, 0).err(), Some(TIDEGATE_INVALID));
    assert!(detail().contains("no operation 13"), "{}", detail());
    assert_eq!(open.gate(c"g", &kind(99)), TIDEGATE_INVALID);
    let short = Gate { size: 3, ..kind(TIDEGATE_GATE_OPEN) };
    assert_eq!(open.gate(c"g", &short), TIDEGATE_INVALID);
    let latin = CString::new(vec![0xe9]).unwrap();
    assert_eq!(open.gate(&latin, &kind(TIDEGATE_GATE_OPEN)), TIDEGATE_INVALID);
    // SAFETY: null pointers are what is tried; everything else outlives its call.
    unsafe {
        let no_stage = null_mut();
        assert_eq!(tidegate_stage_open(null(), null_mut()), TIDEGATE_INVALID);
        assert_eq!(tidegate_stage_close(null_mut()), TIDEGATE_OK);
        let statuses = [
            tidegate_enforce(no_stage, 0, 0, null(), &raw mut admission),
            tidegate_enforce(open.0, 0, 0, null(), null_mut()),
            tidegate_enforce(open.0, 0, 0, latin.as_ptr(), &raw mut admission),
            tidegate_enforce_descriptor(no_stage, 0, 0, 0, &raw mut admission),
            tidegate_complete(null_mut(), 0),
            tidegate_admission_tag(null(), null_mut()),
            tidegate_stage_info(open.0, null_mut()),
            tidegate_collect(open.0, null_mut(), 1, null_mut()),
            tidegate_set_gate(open.0, null(), null()),
            tidegate_set_channel(open.0, c"c".as_ptr(), 0, 9, null(), 0),
            tidegate_set_channel(open.0, c"c".as_ptr(), 0, 0, null(), 1),
            tidegate_set_default(open.0, null()),
            tidegate_add_rule(open.0, null(), c"c".as_ptr()),
            tidegate_set_rate(no_stage, c"g".as_ptr(), 1),
            tidegate_clear_rules(no_stage),
        ];
        assert_eq!(statuses, [TIDEGATE_INVALID; 15]);
    }
}

#[test]
fn rules_that_cannot_hold_are_refused() {
    let open = Open::new();
    // SAFETY: texts are constant.
    let missing = unsafe { tidegate_set_default(open.0, c"nowhere".as_ptr()) };
    assert_eq!(missing, TIDEGATE_REFUSED);
    assert!(detail().contains("nowhere"), "{}", detail());
    // SAFETY: texts are constant.
    let missing = unsafe { tidegate_set_rate(open.0, c"nothing".as_ptr(), 1) };
    assert_eq!(missing, TIDEGATE_REFUSED);
}

#[test]
fn a_newer_caller_may_pass_more_as_long_as_it_is_zero() {
    #[repr(C)]
    struct Newer {
        gate: Gate,
        added: u64,
    }
    let open = Open::new();
    let size = size_of::<Newer>();
    let mut newer = Newer { gate: Gate { size, ..kind(TIDEGATE_GATE_OPEN) }, added: 0 };
    let set = |newer: &Newer| {
        // SAFETY: the structure is as long as it says.
        unsafe { tidegate_set_gate(open.0, c"g".as_ptr(), std::ptr::from_ref(newer).cast()) }
    };
    assert_eq!(set(&newer), TIDEGATE_OK);
    newer.added = 1;
    assert_eq!(set(&newer), TIDEGATE_INVALID);
    assert!(detail().contains("more than this library knows"), "{}", detail());
}

#[test]
fn a_bucket_takes_its_rate_in_its_own_unit() {
    let open = Open::new();
    let mut slow = kind(TIDEGATE_GATE_OPERATIONS);
    (slow.rate, slow.burst) = (1_000, 1);
    open.with(&[(c"slow", slow)]);
    let begin = std::time::Instant::now();
    for _ in 0..11 {
        complete(&mut open.enforce(TIDEGATE_STAT, 0).unwrap(), 0);
    }
    assert!(begin.elapsed().as_millis() >= 9, "ten after the first");
    // SAFETY: texts are constant.
    assert_eq!(unsafe { tidegate_set_rate(open.0, c"slow".as_ptr(), 1 << 40) }, TIDEGATE_OK);
    let mut info = Info { size: size_of::<Info>(), ..EMPTY };
    // SAFETY: the structure is ours.
    assert_eq!(unsafe { tidegate_stage_info(open.0, &raw mut info) }, TIDEGATE_OK);
    assert_eq!(info.generation, 3, "the gate, the channel and the default; a rate makes no table");
}

const EMPTY: Info = Info { size: 0, generation: 0, reserved: 0, not_storage: 0, queue_full: 0 };

#[test]
fn every_status_has_a_name() {
    for status in [-1, TIDEGATE_OK, TIDEGATE_STAGE_REFUSED, TIDEGATE_STAGE_REFUSED + 1] {
        // SAFETY: never null, and constant.
        let text = unsafe { CStr::from_ptr(tidegate_strerror(status)) };
        assert!(!text.is_empty());
    }
}

#[test]
fn a_stage_without_rules_says_why() {
    let open = Open::new();
    // SAFETY: the stage is open.
    let ready = || unsafe { tidegate_stage_ready(open.0) };
    let begin = std::time::Instant::now();
    while !(ready() == TIDEGATE_NO_RULES && detail().contains("nothing listens at")) {
        assert!(begin.elapsed().as_secs() < 60, "{}", detail());
        std::thread::yield_now();
    }
    assert!(detail().contains("/nonexistent/controller.sock"), "{}", detail());
    open.with(&[(c"g", kind(TIDEGATE_GATE_OPEN))]);
    assert_eq!(ready(), TIDEGATE_OK, "these are the program's own");
}

/// The same address and one byte.
fn askew<T>(pointer: *mut T) -> *mut T {
    pointer.wrapping_byte_add(1)
}

#[test]
fn misaligned_pointers_are_invalid_and_nothing_is_written_there() {
    let open = Open::new();
    open.with(&[(c"g", kind(TIDEGATE_GATE_OPEN))]);
    let mut admission = open.enforce(TIDEGATE_READ, 1).unwrap();
    let mut memory = [0u64; 40];
    let pointer = memory.as_mut_ptr();
    let (mut count, nothing) = (0, Bytes { data: null(), length: 0 });
    let buffer = Buffer { data: null_mut(), capacity: 0 };
    let (stage, request) = (askew(open.0), request());
    // SAFETY: misaligned pointers are what is tried, and there is room behind each of them;
    // everything else outlives its call.
    let statuses = unsafe {
        let (own, result) = (&raw mut admission, askew(pointer).cast::<Bytes>());
        [
            tidegate_stage_open(null(), askew(pointer).cast()),
            tidegate_stage_close(stage),
            tidegate_stage_info(stage, pointer.cast()),
            tidegate_stage_ready(stage),
            tidegate_stage_info(open.0, askew(pointer).cast()),
            tidegate_collect(stage, null_mut(), 0, &raw mut count),
            tidegate_collect(open.0, null_mut(), 0, askew(pointer).cast()),
            tidegate_collect(open.0, askew(pointer).cast(), 1, &raw mut count),
            tidegate_enforce(stage, TIDEGATE_READ, 1, null(), pointer.cast()),
            tidegate_enforce(open.0, TIDEGATE_READ, 1, null(), askew(pointer).cast()),
            tidegate_enforce_descriptor(stage, TIDEGATE_READ, 1, 0, pointer.cast()),
            tidegate_complete(askew(own), 1),
            tidegate_admission_tag(own, askew(pointer).cast()),
            tidegate_admission_tag(askew(own), pointer.cast()),
            tidegate_write(
                open.0,
                &raw const request,
                nothing,
                nothing,
                buffer,
                result,
                pointer.cast(),
            ),
            tidegate_write(
                stage,
                &raw const request,
                nothing,
                nothing,
                buffer,
                result,
                pointer.cast(),
            ),
            tidegate_restore(open.0, own, nothing, nothing, buffer, result),
            tidegate_set_default(stage, c"c".as_ptr()),
            tidegate_clear_rules(stage),
        ]
    };
    assert_eq!(statuses, [TIDEGATE_INVALID; 19]);
    assert_eq!(memory, [0; 40], "nothing was written");
    assert!(detail().contains("stage is null or misaligned"), "{}", detail());
    assert_eq!(complete(&mut admission, 1), TIDEGATE_OK, "the request is still under way");
    assert_eq!(open.collect(), (1, 1), "and was the only one");
}

#[test]
fn a_write_that_is_refused_is_not_charged() {
    let open = Open::new();
    let mut slow = kind(TIDEGATE_GATE_BYTES);
    (slow.rate, slow.burst) = (1, 1_000);
    let other = Gate { key: c"other".as_ptr(), ..kind(TIDEGATE_GATE_ENCRYPT) };
    open.with(&[(c"slow", slow), (c"other", other)]);
    let begin = std::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(written(&open, &[1; 1_000], b"", 2_000), Err(TIDEGATE_NO_KEY));
    }
    assert!(begin.elapsed().as_secs() < 500, "each finds the bucket full");
    assert_eq!(open.collect().1, 0, "no byte was written");
}

#[test]
fn channels_that_would_wait_for_each_other_are_refused() {
    let open = Open::new();
    let one = Gate { depth: 1, ..kind(TIDEGATE_GATE_CONCURRENCY) };
    open.with(&[(c"a", one), (c"b", one)]);
    let set = |gates: [&CStr; 2]| {
        let gates = gates.map(CStr::as_ptr);
        // SAFETY: everything outlives the call.
        unsafe { tidegate_set_channel(open.0, c"d".as_ptr(), 1, TIDEGATE_LOW, gates.as_ptr(), 2) }
    };
    assert_eq!(set([c"b", c"a"]), TIDEGATE_REFUSED);
    assert!(detail().contains(r#"channel "d""#), "{}", detail());
    assert!(detail().contains(r#"channel "c""#), "{}", detail());
    assert_eq!(set([c"a", c"a"]), TIDEGATE_REFUSED);
    assert!(detail().contains("twice"), "{}", detail());
    assert_eq!(set([c"a", c"b"]), TIDEGATE_OK);
}
