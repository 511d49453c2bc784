//! One run of a set-up, from the first start to the last end. The run owns the disk and the
//! tenants' processes; its loop starts them, samples them and notices their end.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use tidegate_model::{Span, Time};

use super::cgroup::{Group, Throttle};
use super::child::{Child, Start, tree};
use super::controller::Controller;
use super::files::Files;
use super::fio;
use super::live::Live;
use super::machine;
use super::others::OthersTime;
use super::plan::{ExperimentPlan, Mib, PlannedTenant};
use super::policies;
use super::pulse::Pulse;
use super::recording::{Control, Course, Recording, SAMPLE_INTERVAL, Sample};
use super::scratch::Scratch;
use super::training::TenantProgram;
use super::witness::{Seen, Witness};
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// How often to check whether a tenant has ended.
const STEP: Span = Span(10 * Span::MILLISECOND.0);

/// A sample takes less than this, or it is taken again, but no more often than that: in two
/// milliseconds a tenant reads less than half a per cent of a second's worth.
const SAMPLE_SPAN_MAX: Span = Span(2 * Span::MILLISECOND.0);
const SAMPLE_TRIES_MAX: u32 = 8;

/// A set-up that takes this many times longer than it should is given up.
const PATIENCE: u64 = 5;

/// Everything that set-ups have in common.
#[derive(Debug)]
pub(crate) struct Testbed {
    pub(crate) program: TenantProgram,
    pub(crate) plan: ExperimentPlan,
    pub(crate) files: Files,
    pub(crate) scratch: Scratch,
    /// The kernel's limits, or why they are not used.
    pub(crate) throttle: Result<Throttle, String>,
    pub(crate) interrupt: Interrupt,
}

/// The processes and groups that limit the disk and the tenants in one set-up. Fields are dropped
/// in their order: processes in a group end before the group is removed.
#[derive(Debug, Default)]
struct Means {
    /// For people.
    description: Vec<String>,
    /// Holds one stage open, for all tenants to join.
    _holder: Option<Child>,
    controller: Option<Controller>,
    /// One for each tenant, or one for all.
    groups: Vec<Group>,
    /// Whether each tenant runs under the controller by itself.
    is_gated: bool,
    /// Added to the environment of tenants.
    environment: Vec<(OsString, OsString)>,
}

/// A tenant that has started.
#[derive(Debug)]
struct StartedTenant {
    process: Child,
    witness: Witness,
    started: Time,
    /// The file that appears before its first read. Until then it has not started.
    awaited: Option<PathBuf>,
    ended: Option<Time>,
    command: String,
}

impl Testbed {
    /// Runs one set-up, showing how it goes.
    pub(crate) fn run(&self, control: Control, live: &mut Live) -> Result<Recording, Failure> {
        let load_percent = machine::load_percent();
        let means = self.means(control)?;
        let pulse = self.program.reads_disk().then(|| self.pulse()).transpose()?;
        let (testbed, running) = (self, Vec::new());
        let mut stage = Stage { testbed, control, means: &means, pulse, running };
        let samples = stage.play(live)?;
        let courses = stage.courses()?;
        drop(stage);
        Ok(Recording { control, means: means.description, load_percent, courses, samples })
    }

    fn pulse(&self) -> Result<Pulse, Failure> {
        Pulse::feel(&self.files.path(ExperimentPlan::NAMES[0])).map_err(|error| {
            Failure::new(Code::Failure, "cannot feel the disk's pulse").cause(error)
        })
    }

    /// Sees whether a program can be run under a controller here, before minutes have passed.
    pub(crate) fn rehearse(&self) -> Result<(), Failure> {
        let policy = policies::shared(&self.plan);
        let controller = Controller::start("rehearsal", &policy, &self.scratch, &self.interrupt)?;
        let tenant = self.plan.tenants[0].name;
        let command = Start {
            name: "a rehearsal of `tidegate run`".into(),
            program: "true".into(),
            ..Start::default()
        };
        let mut start = controller.run(tenant, command);
        // So that its error can be reported again.
        start.arguments.insert(0, "--json".into());
        Child::start(&start, self.scratch.path())?.wait(&self.interrupt)
    }

    /// Starts the processes and makes the groups that the set-up needs.
    fn means(&self, control: Control) -> Result<Means, Failure> {
        match (control, &self.throttle) {
            (Control::None, Ok(throttle)) => self.disk_group(throttle),
            (Control::None, Err(why)) => self.disk_bucket(why),
            (Control::Static, Ok(throttle)) => self.tenant_groups(throttle),
            (Control::Static, Err(why)) => {
                let mut means = self.gated(&policies::limits(&self.plan))?;
                means.description = vec![format!(
                    "tenants held by Tidegate's buckets at what they are promised, and nothing \
                     shared ({why})"
                )];
                Ok(means)
            }
            (Control::Tidegate, Ok(throttle)) => {
                let disk = self.disk_group(throttle)?;
                let mut means = self.gated(&policies::shared(&self.plan))?;
                means.groups = disk.groups;
                means.description = [disk.description, vec![self.budget_description()]].concat();
                Ok(means)
            }
            (Control::Tidegate, Err(why)) => {
                let mut means = self.gated(&policies::shared(&self.plan))?;
                means.description = vec![
                    self.budget_description(),
                    format!("the disk by itself is not held ({why})"),
                ];
                Ok(means)
            }
        }
    }

    fn budget_description(&self) -> String {
        format!("tenants held by Tidegate within a budget of {}", Mib(self.plan.budget))
    }

    /// The disk held by the kernel, for all tenants together.
    fn disk_group(&self, throttle: &Throttle) -> Result<Means, Failure> {
        let limit = self.plan.disk;
        let group = throttle.group("all", limit).map_err(|why| refused(&why))?;
        let description =
            format!("disk held at {} by one {} for all", Mib(limit), throttle.description());
        Ok(Means { description: vec![description], groups: vec![group], ..Means::default() })
    }

    /// Every tenant held by the kernel.
    fn tenant_groups(&self, throttle: &Throttle) -> Result<Means, Failure> {
        let group = |tenant: &PlannedTenant| throttle.group(tenant.name, tenant.promise);
        let groups: Result<Vec<_>, _> = self.plan.tenants.iter().map(group).collect();
        let groups = groups.map_err(|why| refused(&why))?;
        let description =
            format!("tenants held at what they are promised, each by a {}", throttle.description());
        Ok(Means { description: vec![description], groups, ..Means::default() })
    }

    /// Every tenant under a controller with this policy.
    fn gated(&self, policy: &str) -> Result<Means, Failure> {
        let controller = Controller::start("controller", policy, &self.scratch, &self.interrupt)?;
        Ok(Means { controller: Some(controller), is_gated: true, ..Means::default() })
    }

    /// The disk imitated by one bucket, which all tenants take from in the order in which they
    /// come.
    ///
    /// A program that only waits is run under it; what makes it belong to its stage is in its
    /// environment, and with the same in theirs the tenants belong to it too.
    fn disk_bucket(&self, why: &str) -> Result<Means, Failure> {
        let policy = policies::disk(&self.plan);
        let controller = Controller::start("controller", &policy, &self.scratch, &self.interrupt)?;
        let name = "holder".into();
        let waiting = Start { name, program: "cat".into(), ..Start::default() };
        let mut holder =
            Child::start(&controller.run(policies::DISK, waiting), self.scratch.path())?;
        let clock = Clock::start();
        let environment = loop {
            let found = tree(holder.pid()).into_iter().skip(1).find_map(stage_of);
            if let Some(environment) = found {
                break environment;
            }
            holder.has_ended()?;
            self.interrupt.sleep_until(clock, clock.now().after(STEP))?;
        };
        let description = vec![format!(
            "disk imitated by one of Tidegate's buckets with {} for all ({why})",
            Mib(self.plan.disk)
        )];
        let (_holder, controller) = (Some(holder), Some(controller));
        Ok(Means { description, _holder, controller, environment, ..Means::default() })
    }
}

/// The environment variables that make a process belong to a stage, if it has all of them.
fn stage_of(pid: u32) -> Option<Vec<(OsString, OsString)>> {
    use std::os::unix::ffi::OsStringExt;
    const NEEDED: [&str; 2] = ["LD_PRELOAD", "TIDEGATE_SEGMENT"];
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let found = environment.split(|byte| *byte == 0).filter_map(|entry| {
        let equals = entry.iter().position(|byte| *byte == b'=')?;
        let name = NEEDED.iter().find(|name| name.as_bytes() == &entry[..equals])?;
        Some((OsString::from(name), OsString::from_vec(entry[equals + 1..].to_vec())))
    });
    let found: Vec<_> = found.collect();
    (found.len() == NEEDED.len()).then_some(found)
}

fn refused(why: &str) -> Failure {
    Failure::new(Code::Failure, why).help("leave control groups out with --no-cgroups")
}

/// A set-up that is under way.
struct Stage<'a> {
    testbed: &'a Testbed,
    control: Control,
    means: &'a Means,
    /// None if tenants read no disk.
    pulse: Option<Pulse>,
    /// Those that have started, in the order of the plan.
    running: Vec<StartedTenant>,
}

impl Stage<'_> {
    /// Starts the tenants in time and samples them until all have ended.
    fn play(&mut self, live: &mut Live) -> Result<Vec<Sample>, Failure> {
        let plan = &self.testbed.plan;
        let patience = Time(plan.expected().0 * PATIENCE);
        let clock = Clock::start();
        let (mut samples, mut next_sample) = (Vec::new(), Time::ZERO);
        loop {
            let now = clock.now();
            while let Some(tenant) = plan.tenants.get(self.running.len())
                && tenant.starts.0 <= now.0
            {
                self.start(tenant, clock)?;
            }
            let is_over = self.record_changes(clock)? && self.running.len() == plan.tenants.len();
            if now >= next_sample || is_over {
                next_sample = next_sample.after(SAMPLE_INTERVAL);
                samples.push(self.sample(clock));
                live.show(plan, self.control, &samples, &self.states())?;
            }
            if is_over {
                return Ok(samples);
            }
            if now > patience {
                return Err(self.given_up());
            }
            let next = plan.tenants.get(self.running.len()).map_or(Time::MAX, |t| Time(t.starts.0));
            let due = clock.now().after(STEP).min(next_sample).min(next);
            self.testbed.interrupt.sleep_until(clock, due)?;
        }
    }

    fn start(&mut self, tenant: &PlannedTenant, clock: Clock) -> Result<(), Failure> {
        let Testbed { program, plan, files, scratch, .. } = self.testbed;
        let awaited = program.started_path(tenant.name, scratch);
        // The one of the set-up before.
        awaited.iter().for_each(|path| drop(fs::remove_file(path)));
        let mut start = program.start(tenant, plan.block, &files.path(tenant.name), scratch);
        start.environment.extend_from_slice(&self.means.environment);
        if self.means.is_gated
            && let Some(controller) = &self.means.controller
        {
            start = controller.run(tenant.name, start);
        }
        let groups = &self.means.groups;
        let own = groups.get(self.running.len().min(groups.len().saturating_sub(1)));
        start.group = own.map(Group::processes);
        let command = fio::command_line([&start.program].into_iter().chain(&start.arguments));
        let process = Child::start(&start, scratch.path())?;
        let witness = Witness::new(process.pid(), program.counted());
        let (started, ended) = (clock.now(), None);
        self.running.push(StartedTenant { process, witness, started, awaited, ended, command });
        Ok(())
    }

    /// Takes note of first reads and of ends. Returns whether all that have started have ended.
    fn record_changes(&mut self, clock: Clock) -> Result<bool, Failure> {
        for running in &mut self.running {
            if running.awaited.as_ref().is_some_and(|path| path.exists()) {
                running.awaited = None;
                running.started = clock.now();
            }
            // The kernel forgets the bytes since the last sample once the end is noticed.
            if running.process.is_ending() {
                running.witness.sample();
            }
            if running.ended.is_none() && running.process.has_ended()? {
                running.ended = Some(clock.now());
            }
        }
        Ok(self.running.iter().all(|running| running.ended.is_some()))
    }

    /// Samples all tenants as fast as possible, because a tenant that is counted later has read
    /// more.
    fn sample(&mut self, clock: Clock) -> Sample {
        let (others, mut tries) = (OthersTime::now(), 0);
        loop {
            tries += 1;
            let begin = clock.now();
            let seen = self.running.iter_mut().map(|running| running.witness.sample());
            let mut seen: Vec<Seen> = seen.collect();
            let length = clock.now().since(begin);
            // On a busy machine another process may have had the processor in between.
            if length <= SAMPLE_SPAN_MAX || tries == SAMPLE_TRIES_MAX {
                seen.resize(self.testbed.plan.tenants.len(), Seen::default());
                let pulse = self.pulse.as_ref().map_or(Span::ZERO, Pulse::longest);
                return Sample { at: begin.after(Span(length.0 / 2)), seen, pulse, others };
            }
        }
    }

    /// When each has started and ended, so far.
    fn states(&self) -> Vec<(Time, Option<Time>)> {
        self.running.iter().map(|running| (running.started, running.ended)).collect()
    }

    fn courses(&self) -> Result<Vec<Course>, Failure> {
        let course = |(tenant, running): (&PlannedTenant, &StartedTenant)| {
            let Testbed { program, scratch, .. } = self.testbed;
            Ok(Course {
                name: tenant.name,
                promise: tenant.promise,
                work: tenant.work,
                command: running.command.clone(),
                started: running.started,
                ended: running.ended.unwrap_or(Time::MAX),
                reported_bytes: program.reported_bytes(tenant.name, scratch)?,
            })
        };
        self.testbed.plan.tenants.iter().zip(&self.running).map(course).collect()
    }

    fn given_up(&self) -> Failure {
        let title = self.control.title();
        Failure::new(Code::Failure, format!("the set-up with {title} takes too long; given up"))
            .help("see whether something else keeps the disk busy, or use a longer --seconds")
    }
}
