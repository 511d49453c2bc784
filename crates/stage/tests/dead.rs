//! Recovery after processes and threads that end in the middle of a request, with and without an
//! agent that keeps the stage.
#![cfg(feature = "agent")]
#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidegate_model::gate::{Burst, Throughput};
use tidegate_model::{Bytes, ChannelSpec, Class, GateSpec, Operation, Rate, TenantId};
use tidegate_proto::message::Rule;
use tidegate_stage::{Request, Settings, Stage, StageAgent};

/// A stage with one gate, where every request goes.
fn stage_with(spec: GateSpec) -> StageAgent {
    let socket = "/nonexistent/controller.sock".into();
    let agent = StageAgent::start(Settings { socket, ..Settings::default() }).unwrap();
    let channel = ChannelSpec {
        name: "c".into(),
        tenant: TenantId(1),
        class: Class::Medium,
        gates: vec!["g".into()],
    };
    let rules = vec![Rule::gate("g", spec), Rule::channel(channel), Rule::default_channel("c")];
    agent.apply(rules).unwrap();
    agent
}

fn request(bytes: u64) -> Request<'static> {
    Request::new(Operation::Write, bytes)
}

/// Waits until `condition` holds; fails after a minute.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "waited a minute for {what}");
        std::thread::yield_now();
    }
}

fn passed(stage: &Stage) -> u64 {
    stage.layout().channels[0].passed.operations()
}

/// A process that makes a request and then does nothing until it is killed. It does not join the
/// stage: a child of `fork` that only calls the library has not.
struct Child(libc::pid_t);

impl Child {
    fn with_request(stage: &Stage, bytes: u64) -> Self {
        Self::that(|| std::mem::forget(stage.enforce(&request(bytes))))
    }

    /// Whether the kernel has it asleep. One that ends between taking its tokens and the table of
    /// waiters loses them; one that sleeps is in the table.
    fn sleeps(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap();
        // The state follows the name, which is in parentheses.
        stat.rsplit_once(") ").unwrap().1.starts_with('S')
    }

    /// A process that does this, which ends no thread, and then nothing until it is killed.
    fn that(does: impl FnOnce()) -> Self {
        // SAFETY: the child allocates nothing and takes no lock but those of the stage, which are
        // made for it; it never returns from here.
        match unsafe { libc::fork() } {
            0 => {
                does();
                loop {
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                }
            }
            child => Self(child),
        }
    }

    /// Kills it, and leaves it a zombie.
    fn kill(&self) {
        // SAFETY: it is a child of this process that was not waited for.
        assert_eq!(unsafe { libc::kill(self.0, libc::SIGKILL) }, 0);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        // SAFETY: as above.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// Whether the one permit of a stage comes back when a process is killed that has it.
fn a_killed_process_gives_up_its_permit(stage: &Stage) {
    let before = passed(stage);
    let child = Child::with_request(stage, 1);
    eventually("it is in service", || passed(stage) == before + 1);
    std::thread::scope(|scope| {
        scope.spawn(|| stage.enforce(&request(1)).complete(1));
        eventually("another one waits", || stage.waiting_in_queue(0) == 1);
        child.kill();
    });
    assert_eq!((passed(stage), stage.waiting_in_queue(0)), (before + 2, 0));
}

#[test]
fn a_permit_comes_back_from_a_killed_process() {
    let agent = stage_with(GateSpec::Concurrency { depth: 1 });
    a_killed_process_gives_up_its_permit(agent.stage());
}

#[test]
fn a_permit_comes_back_without_an_agent() {
    let agent = stage_with(GateSpec::Concurrency { depth: 1 });
    let stage = agent.stage().clone();
    drop(agent);
    a_killed_process_gives_up_its_permit(&stage);
    a_killed_process_gives_up_its_permit(&stage);
}

#[test]
fn a_permit_comes_back_from_a_thread_that_ended() {
    let agent = stage_with(GateSpec::Concurrency { depth: 1 });
    let stage = agent.stage();
    std::thread::scope(|scope| {
        scope.spawn(|| std::mem::forget(stage.enforce(&request(1))));
    });
    stage.enforce(&request(1)).complete(1);
    assert_eq!(passed(stage), 2);
}

#[test]
fn more_threads_than_slots_all_pass() {
    let agent = stage_with(GateSpec::Concurrency { depth: 1 });
    let stage = agent.stage();
    let first = stage.enforce(&request(1));
    std::thread::scope(|scope| {
        for _ in 0..600 {
            scope.spawn(|| stage.enforce(&request(1)).complete(1));
        }
        let outside = &stage.layout().queues[0].outside;
        eventually("some find no slot", || outside.load(Ordering::Relaxed) > 0);
        first.complete(1);
    });
    assert_eq!(passed(stage), 601);
    // A thread that comes late, or is slow to sleep, may find its permit there.
    let delayed = stage.layout().gates[0].delayed.load(Ordering::Relaxed);
    let waits = stage.layout().channels[0].waiting.counts().total();
    assert!((1..=600).contains(&delayed) && delayed == waits, "{delayed} at the gate, {waits}");
    assert_eq!(stage.layout().bypasses[tidegate_stage::Bypass::QueueFull as usize].operations(), 0);
}

#[test]
fn a_killed_sleeper_is_forgotten() {
    let rate = Throughput::Bandwidth(Rate(1));
    let agent = stage_with(GateSpec::TokenBucket { rate, burst: Burst::Size(Bytes(1)) });
    let stage = agent.stage();
    stage.enforce(&request(1 << 30)).complete(1 << 30);
    let child = Child::with_request(stage, 1);
    let sleepers = &stage.layout().gates[0].sleepers;
    eventually("it sleeps", || sleepers.load(Ordering::Relaxed) == 1);
    child.kill();
    eventually("nobody sleeps", || sleepers.load(Ordering::Relaxed) == 0);
}

/// A stage whose bucket earns 1,000 bytes a second.
fn stage_with_bucket() -> StageAgent {
    let rate = Throughput::Bandwidth(Rate(1_000));
    stage_with(GateSpec::TokenBucket { rate, burst: Burst::Size(Bytes(1)) })
}

/// Processes are killed that wait for tokens of 12 days each. The next request waits for none of
/// them.
fn killed_waiters_give_their_tokens_back(stage: &Stage) {
    let sleepers = &stage.layout().gates[0].sleepers;
    // Goes at once, and leaves a debt in which the children wait until they are killed.
    let first = stage.enforce(&request(1 << 30));
    let children: Vec<_> = (0..20).map(|_| Child::with_request(stage, 1 << 30)).collect();
    eventually("they wait", || sleepers.load(Ordering::Relaxed) == 20);
    eventually("they sleep", || children.iter().all(Child::sleeps));
    children.iter().for_each(Child::kill);
    first.complete(0);
    stage.enforce(&request(1)).complete(1);
    assert_eq!(passed(stage), 2);
    assert_eq!(sleepers.load(Ordering::Relaxed), 0, "the dead are counted no more");
}

#[test]
fn killed_waiters_give_their_tokens_back_with_an_agent() {
    killed_waiters_give_their_tokens_back(stage_with_bucket().stage());
}

#[test]
fn killed_waiters_give_their_tokens_back_without_an_agent() {
    let agent = stage_with_bucket();
    let stage = agent.stage().clone();
    drop(agent);
    killed_waiters_give_their_tokens_back(&stage);
}

/// A process is stopped while it waits, and its lease ends. It goes when it runs again, and pays.
#[test]
fn a_stopped_waiter_takes_its_tokens_anew() {
    let agent = stage_with_bucket();
    let stage = agent.stage();
    let sleepers = &stage.layout().gates[0].sleepers;
    let first = stage.enforce(&request(1 << 30));
    let child = Child::with_request(stage, 1 << 30);
    eventually("it waits", || sleepers.load(Ordering::Relaxed) == 1);
    eventually("it sleeps", || child.sleeps());
    // SAFETY: it is a child of this process that was not waited for.
    assert_eq!(unsafe { libc::kill(child.0, libc::SIGSTOP) }, 0);
    eventually("its lease ends", || sleepers.load(Ordering::Relaxed) == 0);
    first.complete(0);
    let level = || stage.layout().gates[0].bucket.level(stage.now());
    eventually("its tokens are back", || level() >= 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::kill(child.0, libc::SIGCONT) }, 0);
    eventually("it goes", || passed(stage) == 2);
    assert!(level() < 0, "it has paid");
}

/// A request at a storage whose capacity is measured does not make the storage look as if it stood
/// still when the request's process is killed.
#[test]
fn a_request_of_a_killed_process_is_not_at_the_storage() {
    let agent = stage_with(GateSpec::LatencyProbe);
    let stage = agent.stage();
    let storage = &stage.layout().storage;
    let lost = || storage.lost.load(Ordering::Relaxed);
    let [killed, lives] = [1, 2].map(|bytes| {
        Child::that(move || {
            stage.join();
            std::mem::forget(stage.enforce(&request(bytes)));
        })
    });
    eventually("both have begun", || storage.begun.operations() == 2);
    stage.enforce(&request(5)).complete(5);
    assert_eq!((storage.writes.operations(), lost()), (1, 0), "none is given up that may end");
    killed.kill();
    eventually("one is given up", || lost() > 0);
    assert_eq!((storage.begun.operations(), lost()), (3, 1), "and the other is not");
    drop(lives);
    eventually("both are given up", || lost() == 2);
}

#[test]
fn what_is_known_of_one_stage_is_not_taken_for_another() {
    let tenant_of = |tenant| {
        let agent = stage_with(GateSpec::NoOp);
        let channel = ChannelSpec {
            name: "data".into(),
            tenant: TenantId(tenant),
            class: Class::Medium,
            gates: vec![],
        };
        let path = vec![if tenant == 7 { "/**" } else { "/nowhere" }.into()];
        let conditions = tidegate_model::Conditions { path, ..Default::default() };
        agent.apply(vec![Rule::channel(channel), Rule::insert(0, conditions, "data")]).unwrap();
        agent
    };
    let file = std::fs::File::open("Cargo.toml").unwrap();
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
    let request = request(1).on(tidegate_stage::Subject::Descriptor(descriptor));
    let (all, nothing) = (tenant_of(7), tenant_of(8));
    for _ in 0..2 {
        assert_eq!(all.stage().classify(&request).tenant, TenantId(7));
        assert_eq!(nothing.stage().classify(&request).tenant, TenantId(1));
    }
}
