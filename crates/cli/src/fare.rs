//! How tenants and stages fare: what a status means. `status` and `top` say the same about it.

use tidegate_model::gate::Unit;
use tidegate_proto::controller::status::{StageStatus, Status, TenantStatus};
use tidegate_stage::bypass::BYPASSES;

use crate::amounts;
use crate::output::{Tone, on_one_line};
use crate::table::cut;

/// A promise counts as kept from this share on, in thousandths: counting by the period is never
/// exact, and a tenant that gets 97 % of its promise has nothing to complain about.
const KEPT_PERMILLE: u128 = 970;

/// A share of bytes unseen below this, in thousandths, is noise: the loader's reads, a shell's.
const UNSEEN_PERMILLE: u64 = 10;

/// Nor are fewer unseen bytes than this worth a word.
const UNSEEN_BYTES: u64 = 1 << 20;

/// How much of a command line names a stage in a sentence.
const COMMAND: usize = 40;

const UNITS: [Unit; 2] = [Unit::Bytes, Unit::Operations];

/// The levels of one tenant in one unit, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Levels {
    pub(crate) reservation: Option<u64>,
    pub(crate) limit: Option<u64>,
    pub(crate) allocated: Option<u64>,
    /// None where the tenant may want more than is known.
    pub(crate) demand: Option<u64>,
    /// What flowed in the last period.
    pub(crate) measured: u64,
}

/// The levels of a tenant in `unit`.
pub(crate) fn levels(tenant: &TenantStatus, unit: Unit) -> Levels {
    match unit {
        Unit::Bytes => Levels {
            reservation: tenant.reservation_bytes_per_second,
            limit: tenant.limit_bytes_per_second,
            allocated: tenant.allocated_bytes_per_second,
            demand: tenant.demand_bytes_per_second,
            measured: tenant.period_bytes_per_second,
        },
        Unit::Operations => Levels {
            reservation: tenant.reservation_operations_per_second,
            limit: tenant.limit_operations_per_second,
            allocated: tenant.allocated_operations_per_second,
            demand: tenant.demand_operations_per_second,
            measured: tenant.period_operations_per_second,
        },
    }
}

/// The units in which something is promised or allocated to a tenant; bytes if there is none.
pub(crate) fn units(tenant: &TenantStatus) -> Vec<Unit> {
    let counts = |unit: &Unit| {
        let levels = levels(tenant, *unit);
        levels.reservation.or(levels.limit).or(levels.allocated).is_some()
    };
    let units: Vec<_> = UNITS.into_iter().filter(counts).collect();
    if units.is_empty() { vec![Unit::Bytes] } else { units }
}

/// A level for people.
pub(crate) fn level(unit: Unit, per_second: u64) -> String {
    match unit {
        Unit::Bytes => amounts::bandwidth(per_second),
        Unit::Operations => amounts::iops(per_second),
    }
}

/// One kind of level of a tenant in all of its units, or `none` where it has none.
pub(crate) fn text(
    tenant: &TenantStatus,
    of: impl Fn(Levels) -> Option<u64>,
    none: &str,
) -> String {
    let shown = |unit| of(levels(tenant, unit)).map(|value| level(unit, value));
    let shown: Vec<_> = units(tenant).into_iter().filter_map(shown).collect();
    if shown.is_empty() { none.into() } else { shown.join(", ") }
}

/// Whether a tenant has what it was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// Nothing was promised to it.
    Nothing,
    /// It asks for nothing.
    Idle,
    /// It has its reservation, or all that it asks for.
    Yes,
    /// It is held back below its reservation.
    No,
}

impl Met {
    /// In one word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Nothing => "-",
            Self::Idle => "idle",
            Self::Yes => "yes",
            Self::No => "NO",
        }
    }

    /// How it stands out.
    pub(crate) fn tone(self) -> Tone {
        match self {
            Self::Nothing => Tone::Plain,
            Self::Idle => Tone::Faint,
            Self::Yes => Tone::Good,
            Self::No => Tone::Bad,
        }
    }
}

/// Whether `tenant` has what it was promised, over the last period.
pub(crate) fn met(tenant: &TenantStatus) -> Met {
    if UNITS.into_iter().any(|unit| is_missed(tenant, unit)) {
        return Met::No;
    }
    let promised = UNITS.into_iter().any(|unit| levels(tenant, unit).reservation.is_some());
    let flows = tenant.period_bytes_per_second > 0 || tenant.period_operations_per_second > 0;
    match (promised, flows) {
        (_, false) => Met::Idle,
        (true, true) => Met::Yes,
        (false, true) => Met::Nothing,
    }
}

/// A reservation is missed where less flows although more is asked for. More is asked for where
/// requests wait at the tenant's gates; where none waits, the program or its device is the slow
/// one, and no gate can mend that.
pub(crate) fn is_missed(tenant: &TenantStatus, unit: Unit) -> bool {
    let Levels { reservation, demand, measured, .. } = levels(tenant, unit);
    let Some(reserved) = reservation else { return false };
    let is_less = u128::from(measured) * 1000 < u128::from(reserved) * KEPT_PERMILLE;
    is_less && demand.is_none() && tenant.waiting_permille > 0
}

/// The part of a stage's bytes that passed its gates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Covered {
    pub(crate) seen: u64,
    /// Let through for a reason that somebody could mend.
    pub(crate) passed: u64,
    /// Moved by system calls, and nobody knows which.
    pub(crate) unseen: u64,
}

/// What of a stage's bytes passed its gates.
pub(crate) fn covered(stage: &StageStatus) -> Covered {
    let coverage = &stage.coverage;
    let sum = |is_wanted: fn(&str) -> bool| {
        let wanted = coverage.bypasses.iter().filter(|bypass| is_wanted(&bypass.reason));
        wanted.map(|bypass| bypass.bytes).fold(0, u64::saturating_add)
    };
    let harmless = sum(|reason| reason != "nested" && is_harmless(reason));
    // Page faults are no system calls, so what is mapped is not part of what these moved.
    let passed = sum(|reason| reason != "mapping" && !is_harmless(reason));
    let known = coverage.seen_bytes.saturating_add(harmless).saturating_add(passed);
    Covered {
        seen: coverage.seen_bytes,
        passed,
        unseen: coverage.syscall_bytes.saturating_sub(known),
    }
}

impl Covered {
    /// The part that passed the gates in thousandths; none while nothing moved.
    pub(crate) fn permille(self) -> Option<u64> {
        let all = u128::from(self.seen) + u128::from(self.passed) + u128::from(self.unseen);
        let share = (u128::from(self.seen) * 1000).checked_div(all)?;
        u64::try_from(share).ok()
    }

    /// Whether so much was not seen that somebody should know.
    pub(crate) fn is_much_unseen(self) -> bool {
        let all = self.seen.saturating_add(self.passed).saturating_add(self.unseen);
        self.unseen > UNSEEN_BYTES && self.unseen > all / 1000 * UNSEEN_PERMILLE
    }
}

/// What a user can do about a reason for letting calls through.
fn advice(reason: &str) -> &'static str {
    let known = BYPASSES.iter().find(|(_, name, _)| *name == reason);
    known.map_or("see the release notes of the stage: it is newer", |(_, _, advice)| advice)
}

fn is_harmless(reason: &str) -> bool {
    advice(reason).starts_with("nothing")
}

/// Something that somebody should look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Warning {
    /// What is wrong, and where.
    pub(crate) text: String,
    /// How to mend it.
    pub(crate) help: String,
}

/// Everything that somebody should look at, the worst first.
pub(crate) fn warnings(status: &Status) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |text: String, help: &str| {
        warnings.push(Warning { text: on_one_line(&text), help: help.into() });
    };
    if status.revision == 0 {
        warn("no policy is in force".into(), "apply one with `tidegate apply FILE`");
    }
    for tenant in &status.tenants {
        for unit in UNITS.into_iter().filter(|unit| is_missed(tenant, *unit)) {
            let Levels { reservation, measured, .. } = levels(tenant, unit);
            let (got, promised) = (level(unit, measured), level(unit, reservation.unwrap_or(0)));
            warn(
                format!("{} gets {got} of the {promised} that it is promised", tenant.name),
                "if it stays so, the storage yields less than the budget says: lower the budget",
            );
        }
    }
    for stage in &status.stages {
        warn_of_stage(stage, &mut warn);
    }
    if status.totals.unmatched_bytes > UNSEEN_BYTES {
        let amount = amounts::bytes(status.totals.unmatched_bytes);
        warn(
            format!("{amount} matched no rule and passed unhindered"),
            "add a [[match]] rule to the policy, or name the tenant: `tidegate run --tenant NAME`",
        );
    }
    warnings
}

fn warn_of_stage(stage: &StageStatus, warn: &mut impl FnMut(String, &str)) {
    let name = format!("stage {} ({})", stage.id, cut(&on_one_line(&stage.command), COMMAND));
    if stage.is_silent {
        warn(
            format!("{name} has stopped answering"),
            "see whether its process is stopped; if it is, its share is free soon",
        );
    }
    if let Some(error) = &stage.error {
        warn(
            format!("{name} did not take the last rules: {error}"),
            match stage.revision {
                0 => "it has none and holds nothing back; mend the policy and apply it again",
                _ => "it keeps the ones before; mend the policy and apply it again",
            },
        );
    }
    let covered = covered(stage);
    if covered.is_much_unseen() {
        let (unseen, all) = (covered.unseen, covered.seen + covered.passed + covered.unseen);
        warn(
            format!("{name}: {} of {} were not seen", amounts::bytes(unseen), amounts::bytes(all)),
            "raw system calls or programs without the shim moved them; serve their files otherwise",
        );
    }
    for bypass in stage.coverage.bypasses.iter().filter(|bypass| !is_harmless(&bypass.reason)) {
        let amount = match bypass.bytes {
            0 => String::new(),
            bytes => format!(" with {}", amounts::bytes(bytes)),
        };
        let (reason, calls) = (&bypass.reason, amounts::count(bypass.calls));
        let plural = if bypass.calls == 1 { "" } else { "s" };
        warn(format!("{name}: {calls} call{plural}{amount} passed by ({reason})"), advice(reason));
    }
}

#[cfg(test)]
mod tests {
    use tidegate_proto::controller::status::{BypassStatus, CoverageStatus};

    use super::*;

    fn tenant() -> TenantStatus {
        TenantStatus {
            name: "oltp".into(),
            reservation_bytes_per_second: Some(100 << 20),
            period_bytes_per_second: 60 << 20,
            waiting_permille: 400,
            ..TenantStatus::default()
        }
    }

    #[test]
    fn a_promise_is_missed_only_by_who_waits_for_it() {
        assert_eq!(met(&tenant()), Met::No);
        assert_eq!(met(&TenantStatus { waiting_permille: 0, ..tenant() }), Met::Yes);
        let asks_less = TenantStatus { demand_bytes_per_second: Some(75 << 20), ..tenant() };
        assert_eq!(met(&asks_less), Met::Yes);
        let kept = TenantStatus { period_bytes_per_second: 98 << 20, ..tenant() };
        assert_eq!(met(&kept), Met::Yes);
        let other = TenantStatus { reservation_bytes_per_second: None, ..tenant() };
        assert_eq!(met(&other), Met::Nothing);
        assert_eq!(met(&TenantStatus::default()), Met::Idle);
    }

    #[test]
    fn levels_are_told_in_the_units_of_the_promise() {
        let mut tenant = tenant();
        assert_eq!(text(&tenant, |levels| levels.reservation, "-"), "100 MiB/s");
        assert_eq!(text(&tenant, |levels| levels.limit, "-"), "-");
        tenant.limit_operations_per_second = Some(30_000);
        tenant.period_operations_per_second = 22_700;
        assert_eq!(text(&tenant, |levels| Some(levels.measured), "-"), "60 MiB/s, 22.7k iops");
    }

    fn stage(seen_mib: u64, syscall_mib: u64, bypasses: &[(&str, u64)]) -> StageStatus {
        let bypass = |(reason, mib): &(&str, u64)| BypassStatus {
            reason: (*reason).into(),
            calls: 3,
            bytes: mib << 20,
        };
        let coverage = CoverageStatus {
            seen_bytes: seen_mib << 20,
            syscall_bytes: syscall_mib << 20,
            device_bytes: 0,
            bypasses: bypasses.iter().map(bypass).collect(),
        };
        StageStatus { id: 7, command: "tar".into(), coverage, ..StageStatus::default() }
    }

    fn texts(stage: &StageStatus) -> Vec<String> {
        let mut texts = Vec::new();
        warn_of_stage(stage, &mut |text, _| texts.push(text));
        texts
    }

    #[test]
    fn pipes_and_mappings_are_not_unseen_bytes() {
        let stage = stage(300, 400, &[("not_storage", 100), ("nested", 300)]);
        assert_eq!(covered(&stage).permille(), Some(1000));
        assert_eq!(texts(&stage), [""; 0]);
        let stage = self::stage(300, 300, &[("mapping", 50)]);
        assert_eq!(covered(&stage).unseen, 0);
        assert_eq!(texts(&stage), ["stage 7 (tar): 3 calls with 50 MiB passed by (mapping)"]);
    }

    #[test]
    fn unseen_bytes_are_told() {
        let stage = stage(300, 400, &[]);
        assert_eq!(covered(&stage).permille(), Some(750));
        assert_eq!(texts(&stage), ["stage 7 (tar): 100 MiB of 400 MiB were not seen"]);
        assert_eq!(texts(&self::stage(300, 302, &[])), [""; 0]);
        assert_eq!(covered(&self::stage(0, 0, &[])).permille(), None);
    }
}
