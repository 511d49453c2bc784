//! The testbed of the capacity benchmark: a file on a disk of its own, fio alone on it, and fio
//! under a measured capacity.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;

use tidegate_model::{Rate, Span, Time};
use tidegate_proto::controller::status::Status;
use tidegate_proto::message::OperatorRequest;
use tidegate_stage::Segment;

use super::CapacityPlan;
use super::loads::{AloneRun, CapacityLoad, DEPTHS, SIZE_MIB, fill};
use super::score::{CapacitySample, CapacityTrace};
use crate::bench::mounted_disk::{MountedDisk, disk_folder};
use crate::experiment::cgroup::{Group, IoLimits, Throttle};
use crate::experiment::child::{Child, Start};
use crate::experiment::controller::Controller;
use crate::experiment::fio::senseless;
use crate::experiment::remains::RunFolder;
use crate::experiment::scratch::Scratch;
use crate::experiment::stage_segment;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::operator::Operator;

/// The size of the file system: the file, its journal and more.
const BYTES: u64 = (2 * SIZE_MIB) << 20;
/// A sample in every interval of the search.
const SAMPLE_INTERVAL: Span = Span(100 * Span::MILLISECOND.0);
/// How long a program may take until it has a segment.
const STARTS: Span = Span(10 * Span::SECOND.0);
const POLL_INTERVAL: Span = Span(5 * Span::MILLISECOND.0);
/// The kernel's limit while the device stands still: a request in a second.
const STALLED: IoLimits = IoLimits { bandwidth: Rate(4 << 10), iops: 1 };

/// The device below the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CapacityDevice {
    /// A file system on the disk of this machine, without other limits.
    Disk,
    /// The same, of which the kernel gives fio no more than a limit.
    Limited(IoLimits),
}

/// A change of the device below the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CapacityEvent {
    /// The device stands still for [`CapacityPlan::stall`].
    Stall,
    /// It has half of its limit.
    Halved,
    /// It has its limit again.
    Doubled,
}

impl CapacityEvent {
    pub(super) const ALL: [Self; 3] = [Self::Stall, Self::Halved, Self::Doubled];
}

/// A run, and the times in it.
pub(super) struct MeasuredRun {
    pub(super) trace: CapacityTrace,
    /// When the search has had its time, and until when nothing changes.
    pub(super) steady: (Time, Time),
    /// From when on the device is as the event leaves it, and until when it stays so.
    pub(super) events: Vec<(CapacityEvent, (Time, Time))>,
}

/// A file on a disk, and what limits it. Fields are dropped in order.
pub(super) struct CapacityTestbed<'a> {
    plan: CapacityPlan,
    device: CapacityDevice,
    interrupt: &'a Interrupt,
    group: Option<Group>,
    throttle: Option<Throttle>,
    scratch: Scratch,
    disk: MountedDisk,
    _work: RunFolder,
}

fn refused(why: String) -> Failure {
    Failure::new(Code::Failure, why)
}

fn unread(error: io::Error) -> Failure {
    Failure::new(Code::Failure, "the counters of a run cannot be read").cause(error)
}

impl<'a> CapacityTestbed<'a> {
    /// Makes the disk and writes the file.
    ///
    /// # Errors
    /// If we are not root, or something else is missing.
    pub(super) fn new(plan: CapacityPlan, interrupt: &'a Interrupt) -> Result<Self, Failure> {
        let work = std::env::current_dir()
            .and_then(|directory| disk_folder(&directory, ".tidegate-bench-capacity-"))
            .map_err(|error| Failure::new(Code::Failure, "there are no files here").cause(error))?;
        let scratch = Scratch::new()?;
        let disk = MountedDisk::make(&work, BYTES, interrupt)?;
        let (group, throttle, device) = (None, None, CapacityDevice::Disk);
        let testbed = Self { plan, device, interrupt, group, throttle, scratch, disk, _work: work };
        let words = fill(&testbed.file(), &testbed.output());
        Child::start(&fio(words), testbed.scratch.path())?.wait(interrupt)?;
        Ok(testbed)
    }

    /// Puts another device below the file.
    pub(super) fn change_device(&mut self, device: CapacityDevice) -> Result<(), Failure> {
        self.group = None;
        self.device = device;
        if let CapacityDevice::Limited(limits) = device {
            let throttle = Throttle::new(self.disk.disk.clone()).map_err(refused)?;
            self.group = Some(throttle.limited("device", limits).map_err(refused)?);
            self.throttle = Some(throttle);
        }
        Ok(())
    }

    fn file(&self) -> PathBuf {
        self.disk.join("file")
    }

    fn output(&self) -> PathBuf {
        self.scratch.join("fio.json")
    }

    fn inside(&self, start: Start) -> Start {
        match &self.group {
            Some(group) => start.entering(&group.processes()),
            None => start,
        }
    }

    /// fio without Tidegate, at each depth.
    pub(super) fn alone(&self, load: CapacityLoad) -> Result<Vec<AloneRun>, Failure> {
        DEPTHS.iter().map(|depth| self.alone_at(load, *depth)).collect()
    }

    fn alone_at(&self, load: CapacityLoad, depth: u32) -> Result<AloneRun, Failure> {
        let output = self.output();
        // The report of the run before is none of this one.
        let _ = fs::remove_file(&output);
        let words = load.arguments(&self.file(), depth, self.plan.alone, &output);
        Child::start(&self.inside(fio(words)), self.scratch.path())?.wait(self.interrupt)?;
        let text = fs::read_to_string(&output).unwrap_or_default();
        AloneRun::parse(&text, depth).ok_or_else(senseless)
    }

    /// fio under a controller that finds the capacity within `bound`.
    pub(super) fn measured(&self, load: CapacityLoad, bound: Span) -> Result<MeasuredRun, Failure> {
        let folder = self.disk.path();
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let policy = format!(
            "[[resource]]\nname = \"disk\"\npath = \"{}/**\"\ncapacity = \"measured\"\n\
             latency = \"p99 < {}us\"\n[[tenant]]\nname = \"fio\"\n",
            folder.display(),
            bound.0 / Span::MICROSECOND.0,
        );
        let controller = Controller::start("capacity", &policy, &self.scratch, self.interrupt)?;
        let events = match self.device {
            CapacityDevice::Disk => &[][..],
            CapacityDevice::Limited(_) => &CapacityEvent::ALL[..],
        };
        let plan = self.plan;
        let length = plan.search.0 + plan.steady.0 + events.len() as u64 * plan.event.0;
        // fio is ended by us, behind the last sample.
        let length = Span(length + STARTS.0 + plan.stall.0);
        let depth = DEPTHS[DEPTHS.len() - 1];
        let words = load.arguments(&self.file(), depth, length, &self.output());
        let start = self.inside(controller.run("fio", fio(words)));
        let process = Child::start(&start, self.scratch.path())?;
        let operator = Operator::connect(controller.socket())?;
        let mut sampler = Sampler {
            segment: self.segment_of(&process)?,
            process,
            operator,
            clock: Clock::start(),
            trace: CapacityTrace::default(),
            testbed: self,
        };
        let begin = sampler.until(Time(plan.search.0))?;
        let steady = (begin, sampler.until(begin.after(plan.steady))?);
        let mut happened = Vec::new();
        for event in events {
            let begin = sampler.begin(*event)?;
            happened.push((*event, (begin, sampler.until(begin.after(plan.event))?)));
        }
        Ok(MeasuredRun { trace: sampler.trace, steady, events: happened })
    }

    fn segment_of(&self, process: &Child) -> Result<Segment, Failure> {
        let clock = Clock::start();
        loop {
            match stage_segment::attach(process) {
                Ok(segment) => return Ok(segment),
                Err(error) if clock.now().0 > STARTS.0 => return Err(unread(error)),
                Err(_) => self.interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?,
            }
        }
    }

    /// Gives the device other limits.
    fn limit(&self, limits: IoLimits) -> Result<(), Failure> {
        match (&self.throttle, &self.group) {
            (Some(throttle), Some(group)) => throttle.change(group, limits).map_err(refused),
            _ => Err(refused("the device has no limit".into())),
        }
    }
}

/// fio under way, and its samples.
struct Sampler<'a> {
    process: Child,
    operator: Operator,
    segment: Segment,
    clock: Clock,
    trace: CapacityTrace,
    testbed: &'a CapacityTestbed<'a>,
}

impl Sampler<'_> {
    /// Samples until a moment, and returns it.
    fn until(&mut self, end: Time) -> Result<Time, Failure> {
        while self.clock.now() < end {
            let due = self.clock.now().after(SAMPLE_INTERVAL).min(end);
            self.testbed.interrupt.sleep_until(self.clock, due)?;
            self.process.has_ended()?;
            let status: Status = self.operator.call_as(&OperatorRequest::Status)?;
            self.trace.0.push(CapacitySample {
                at: self.clock.now(),
                completed: self.testbed.disk.disk.completed().map_err(unread)?,
                times: self.segment.storage.service.counts(),
                budget: status.budget_operations_per_second.unwrap_or(0),
            });
        }
        Ok(end)
    }

    /// Lets something happen, and returns when it was over.
    fn begin(&mut self, event: CapacityEvent) -> Result<Time, Failure> {
        let CapacityDevice::Limited(usual) = self.testbed.device else {
            return Ok(self.clock.now());
        };
        let half = IoLimits { bandwidth: Rate(usual.bandwidth.0 / 2), iops: usual.iops / 2 };
        match event {
            CapacityEvent::Stall => {
                self.testbed.limit(STALLED)?;
                let end = self.clock.now().after(self.testbed.plan.stall);
                let sampled = self.until(end);
                // Requests of a program that is ended would wait a second each.
                self.testbed.limit(usual)?;
                sampled?;
            }
            CapacityEvent::Halved => self.testbed.limit(half)?,
            CapacityEvent::Doubled => self.testbed.limit(usual)?,
        }
        Ok(self.clock.now())
    }
}

fn fio(arguments: Vec<OsString>) -> Start {
    Start { name: "fio".into(), program: "fio".into(), arguments, ..Start::default() }
}
