//! A chart of one set-up: bandwidth over time as in the paper's figure 10, and below it a strip for
//! each tenant that shows when its promise was kept.
//!
//! A picture is SVG that stands in the report. Colours are the report's: elements name what they
//! are (`i1`, `promise`, `missed`), and its style sheet paints them for light and dark screens.

use std::fmt::Write;

use tidegate_model::{Rate, Span, Time};

use super::plan::{ExperimentPlan, KEPT_PERMILLE, MIB, grouped};
use super::recording::{Course, Recording, SAMPLE_INTERVAL, Window};
use super::score::{Score, TenantScore};
use super::summary::share;

/// The picture's size and the edges of its field, in its own units.
const WIDTH: f64 = 1060.0;
const HEIGHT: f64 = 378.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 962.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 270.0;

/// Strips lie below the axis of time.
const STRIPS: f64 = 314.0;
const STRIP: f64 = 11.0;
const STRIP_STEP: f64 = 15.0;
/// How thick the edge of a box is that stands for what was missed.
const EDGE: f64 = 2.0;

/// Marks of starts and ends, above the field, and how close two may lie in one row.
const MARK: f64 = 7.0;
const MARK_NEAR: f64 = 16.0;
const MARK_ROWS: usize = 2;

/// Labels of promises beside the field, and how close two may lie.
const LABEL_NEAR: f64 = 14.0;

/// The axes that all pictures of a report share, so that readers can compare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    /// Length of the time axis.
    span: Span,
    top: Rate,
    /// Distance between two lines of the grid.
    step: Rate,
}

impl Scale {
    /// The scale for pictures of these recordings.
    pub(crate) fn new<'a>(
        plan: &ExperimentPlan,
        recordings: impl IntoIterator<Item = &'a Recording>,
    ) -> Self {
        let last = recordings
            .into_iter()
            .flat_map(|recording| recording.courses.iter().map(|course| course.ended.0))
            .max()
            .unwrap_or(0);
        let grain = grain(last);
        let span = Span((last / grain.0 + 1) * grain.0);
        // Room for what a disk delivers in a second beyond what it is held at.
        Self { span, top: Rate(plan.disk.0 / 16 * 17), step: Rate((plan.budget.0 / 4).max(1)) }
    }

    fn x(self, at: Time) -> f64 {
        LEFT + (RIGHT - LEFT) * at.0 as f64 / self.span.0 as f64
    }

    fn y(self, rate: Rate) -> f64 {
        let part = rate.0.min(self.top.0) as f64 / self.top.0.max(1) as f64;
        BOTTOM - (BOTTOM - TOP) * part
    }
}

/// The time between two marks of the axis, so that there are about ten.
fn grain(span: u64) -> Span {
    let fit = |seconds: &u64| span / (seconds * Span::SECOND.0) <= 12;
    let seconds = [1, 2, 5, 10, 15, 30, 60, 120, 300].into_iter().find(fit).unwrap_or(600);
    Span(seconds * Span::SECOND.0)
}

/// The picture of a recording and of what it is worth.
pub(crate) fn draw(
    plan: &ExperimentPlan,
    recording: &Recording,
    score: &Score,
    scale: Scale,
) -> String {
    let windows: Vec<Window> = recording.windows().collect();
    let title = format!("Bandwidth over time: {}", recording.control.title());
    let mut svg =
        format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n");
    svg += &axes(plan, scale);
    svg += &area(recording, &windows, scale);
    for (index, course) in recording.courses.iter().enumerate() {
        svg += &promise(index, course, scale);
    }
    for index in 0..recording.courses.len() {
        svg += &line(index, recording, &windows, scale);
    }
    svg += &area_label(plan, &recording.courses, scale);
    svg += &labels(&recording.courses, scale);
    svg += &marks(&recording.courses, scale);
    let _ = writeln!(
        svg,
        "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">had it</text>",
        RIGHT + 8.0,
        STRIPS - 8.0
    );
    for (index, tenant) in score.tenant_scores.iter().enumerate() {
        svg += &strip(index, recording, &windows, scale);
        svg += &had(index, tenant);
    }
    svg + "</svg>\n"
}

/// Axes with their units, the grid, and the budget.
fn axes(plan: &ExperimentPlan, scale: Scale) -> String {
    let mut svg = String::new();
    let mut rate = Rate::ZERO;
    while rate <= scale.top {
        let (y, formatted) = (scale.y(rate), grouped((rate.0 + MIB / 2) / MIB));
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>\
             <text class=\"tick end\" x=\"{:.1}\" y=\"{:.1}\">{formatted}</text>",
            LEFT - 8.0,
            y + 4.0
        );
        rate = Rate(rate.0 + scale.step.0);
    }
    let grain = grain(scale.span.0);
    for step in 0..=scale.span.0 / grain.0 {
        let at = Time(step * grain.0);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{0:.1} {BOTTOM}v5\"/>\
             <text class=\"tick middle\" x=\"{0:.1}\" y=\"{1:.1}\">{2}</text>",
            scale.x(at),
            BOTTOM + 18.0,
            at.0 / Span::SECOND.0
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"unit end\" x=\"{:.1}\" y=\"{:.1}\">MiB/s</text>\
         <text class=\"unit middle\" x=\"{:.1}\" y=\"{:.1}\">seconds</text>\
         <path class=\"budget\" d=\"M{LEFT} {budget:.1}H{RIGHT}\"/>\
         <text class=\"label muted\" x=\"{label:.1}\" y=\"{:.1}\">budget {}</text>",
        LEFT - 8.0,
        scale.y(plan.budget) + 19.0,
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 31.0,
        scale.y(plan.budget) + 4.0,
        grouped((plan.budget.0 + MIB / 2) / MIB),
        budget = scale.y(plan.budget),
        label = RIGHT + 8.0,
    );
    svg
}

/// Draws the rate of all tenants together as a shade. Bandwidth between the shade and the budget
/// was idle.
fn area(recording: &Recording, windows: &[Window], scale: Scale) -> String {
    let (Some(first), Some(last)) = (windows.first(), windows.last()) else {
        return String::new();
    };
    let mut path = format!("M{:.1} {BOTTOM}", scale.x(first.middle()));
    for window in windows {
        let (x, y) = (scale.x(window.middle()), scale.y(recording.sum(*window)));
        let _ = write!(path, "L{x:.1} {y:.1}");
    }
    let _ = write!(path, "L{:.1} {BOTTOM}Z", scale.x(last.middle()));
    format!("<path class=\"sum\" d=\"{path}\"/>\n")
}

/// Draws the label of the shade, where the last tenant starts: the tenants' lines lie far below.
fn area_label(plan: &ExperimentPlan, courses: &[Course], scale: Scale) -> String {
    let last = courses.iter().map(|course| course.started).max().unwrap_or(Time::ZERO);
    format!(
        "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">all together</text>\n",
        scale.x(last) + 8.0,
        scale.y(plan.budget) + 19.0
    )
}

/// Draws one tenant's promise, from its start to its end.
fn promise(index: usize, course: &Course, scale: Scale) -> String {
    format!(
        "<path class=\"promise {}\" d=\"M{:.1} {:.1}H{:.1}\"/>\n",
        class(index),
        scale.x(course.started),
        scale.y(course.promise),
        scale.x(course.ended)
    )
}

/// Draws one tenant's read rate, from its start to its end.
fn line(index: usize, recording: &Recording, windows: &[Window], scale: Scale) -> String {
    let course = &recording.courses[index];
    let mut path = format!("M{:.1} {BOTTOM}", scale.x(course.started));
    for window in windows {
        let at = window.middle();
        if course.started < at && at < course.ended {
            let y = scale.y(recording.rate(index, *window));
            let _ = write!(path, "L{:.1} {y:.1}", scale.x(at));
        }
    }
    let _ = write!(path, "L{:.1} {BOTTOM}", scale.x(course.ended));
    format!("<path class=\"line {}\" d=\"{path}\"/>\n", class(index))
}

/// Draws the promises as text beside the field, at the height of their lines or a little lower.
fn labels(courses: &[Course], scale: Scale) -> String {
    let mut svg = String::new();
    // From the top down.
    let mut order: Vec<usize> = (0..courses.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(courses[*index].promise));
    let mut lowest = f64::NEG_INFINITY;
    for index in order {
        let Course { name, promise, .. } = courses[index];
        let y = scale.y(promise).max(lowest + LABEL_NEAR);
        if lowest == f64::NEG_INFINITY {
            let (x, y) = (RIGHT + 8.0, y + 4.0 - LABEL_NEAR);
            let _ = writeln!(svg, "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\">promised</text>");
        }
        lowest = y;
        let formatted = grouped((promise.0 + MIB / 2) / MIB);
        let _ = writeln!(
            svg,
            "<text class=\"label {}\" x=\"{:.1}\" y=\"{:.1}\">{name}: {formatted}</text>",
            class(index),
            RIGHT + 8.0,
            y + 4.0
        );
    }
    svg
}

/// When tenants started and ended: full and hollow marks above the field, and lines down from them.
fn marks(courses: &[Course], scale: Scale) -> String {
    let mut changes: Vec<(Time, usize, &str)> = Vec::new();
    for (index, course) in courses.iter().enumerate() {
        changes.push((course.started, index, "starts"));
        changes.push((course.ended, index, "ends"));
    }
    changes.sort();
    let mut svg = String::new();
    let mut rows = [f64::NEG_INFINITY; MARK_ROWS];
    for (at, index, what) in changes {
        let x = scale.x(at);
        let free = rows.iter().position(|last| x - last >= MARK_NEAR);
        // Where all rows are full, the one whose last mark lies farthest back.
        let row = free.unwrap_or_else(|| {
            (0..MARK_ROWS).min_by(|a, b| rows[*a].total_cmp(&rows[*b])).unwrap_or(0)
        });
        rows[row] = x;
        let y = TOP - 12.0 - row as f64 * (2.0 * MARK + 3.0);
        let name = courses[index].name;
        let _ = writeln!(
            svg,
            "<g class=\"mark {what} {}\"><title>{name} {what} at {:.1} s</title>\
             <path d=\"M{x:.1} {:.1}V{BOTTOM}\"/><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{MARK}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\">{}</text></g>",
            class(index),
            at.0 as f64 / Span::SECOND.0 as f64,
            y + MARK,
            y + 3.5,
            name.trim_start_matches('I')
        );
    }
    svg
}

/// How a tenant stood at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It ran, but others had started or ended just before, or it had nothing more to ask.
    Uncounted,
    Kept,
    Missed,
}

impl Standing {
    fn class(self) -> &'static str {
        match self {
            Self::Uncounted => "uncounted",
            Self::Kept => "kept",
            Self::Missed => "missed",
        }
    }
}

/// When one tenant had its promise, as a strip below the field.
fn strip(index: usize, recording: &Recording, windows: &[Window], scale: Scale) -> String {
    let course = &recording.courses[index];
    let y = STRIPS + index as f64 * STRIP_STEP;
    let mut svg = format!(
        "<text class=\"tick end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n\
         <rect class=\"uncounted\" x=\"{:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{STRIP}\"/>\n",
        LEFT - 8.0,
        y + STRIP - 2.0,
        course.name,
        scale.x(course.started),
        scale.x(course.ended) - scale.x(course.started),
    );
    for (standing, from, to) in intervals(index, recording, windows) {
        let (from, to) = (from.max(course.started), to.min(course.ended));
        if standing != Standing::Uncounted && from < to {
            // A missed promise is a hollow box, so that readers know it without its colour. The
            // stroke stands on the edge, so the box is smaller by its width.
            let edge = if standing == Standing::Missed { EDGE } else { 0.0 };
            let _ = writeln!(
                svg,
                "<rect class=\"{} {}\" x=\"{:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{}\"/>",
                standing.class(),
                class(index),
                scale.x(from) + edge / 2.0,
                y + edge / 2.0,
                (scale.x(to) - scale.x(from) - edge).max(0.5),
                STRIP - edge,
            );
        }
    }
    svg
}

/// For which share of the time that counted one tenant had its promise, at the end of its strip.
fn had(index: usize, tenant: &TenantScore) -> String {
    let tone = if tenant.promise_kept.is_kept() { "good" } else { "bad" };
    format!(
        "<text class=\"label {tone}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
        RIGHT + 8.0,
        STRIPS + index as f64 * STRIP_STEP + STRIP - 1.0,
        share(tenant.promise_kept)
    )
}

/// Times of equal standing, one after the other. A window stands for the time around its middle.
fn intervals(
    index: usize,
    recording: &Recording,
    windows: &[Window],
) -> Vec<(Standing, Time, Time)> {
    let promise = recording.courses[index].promise;
    let mut intervals: Vec<(Standing, Time, Time)> = Vec::new();
    for window in windows {
        let counts = recording.is_settled(*window) && recording.has_demand(index, *window);
        let rate = recording.rate(index, *window);
        let standing = match rate.0 * 1000 >= promise.0 * KEPT_PERMILLE {
            _ if !counts => Standing::Uncounted,
            true => Standing::Kept,
            false => Standing::Missed,
        };
        let half = Span(SAMPLE_INTERVAL.0 / 2);
        let from = Time(window.middle().0.saturating_sub(half.0));
        let to = window.middle().after(half);
        match intervals.last_mut() {
            Some((last, _, end)) if *last == standing => *end = to,
            Some((_, _, end)) => {
                // No gap where a sample was late.
                *end = from;
                intervals.push((standing, from, to));
            }
            None => intervals.push((standing, from, to)),
        }
    }
    intervals
}

/// The tenant's name in the style sheet.
pub(crate) fn class(index: usize) -> String {
    format!("i{}", index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::recording::{Control, fluid};

    fn drawn(control: Control) -> (String, Recording, Scale) {
        let plan = fluid::plan();
        let recordings = Control::ALL.map(|control| fluid::recording(&plan, control));
        let scale = Scale::new(&plan, &recordings);
        let recording = recordings.into_iter().find(|r| r.control == control).unwrap();
        let score = Score::new(&plan, &recording);
        (draw(&plan, &recording, &score, scale), recording, scale)
    }

    #[test]
    fn all_pictures_have_one_scale() {
        let (.., scale) = drawn(Control::None);
        // The longest set-up takes 50 s; the axis has marks every 5 s.
        assert_eq!(scale.span, Span(55 * Span::SECOND.0));
        assert_eq!(scale.step, Rate(250 * MIB));
        assert_eq!((scale.x(Time::ZERO), scale.x(Time(scale.span.0))), (LEFT, RIGHT));
        assert_eq!((scale.y(Rate::ZERO), scale.y(scale.top)), (BOTTOM, TOP));
        assert_eq!(scale.y(Rate::MAX), TOP, "nothing leaves the field");
    }

    #[test]
    fn lines_are_drawn_at_their_values() {
        let (svg, recording, scale) = drawn(Control::Static);
        let flat = format!("{:.1}", scale.y(Rate(150 * MIB)));
        let line = svg.lines().find(|line| line.contains("class=\"line i1\"")).unwrap();
        let heights: Vec<&str> = line
            .split(['L', 'M', 'Z', '"'])
            .filter_map(|point| point.split_once(' ').map(|(_, y)| y))
            .filter(|y| y.parse::<f64>().is_ok())
            .collect();
        let on = heights.iter().filter(|y| **y == flat).count();
        assert!(on > 190 && heights.len() - on < 8, "{on} of {}", heights.len());
        let promise = format!(
            "<path class=\"promise i4\" d=\"M{:.1} {:.1}H{:.1}\"/>",
            scale.x(recording.courses[3].started),
            scale.y(Rate(350 * MIB)),
            scale.x(recording.courses[3].ended)
        );
        assert!(svg.contains(&promise), "{promise}");
    }

    #[test]
    fn strips_show_when_promises_were_missed() {
        let (svg, recording, _) = drawn(Control::None);
        let missed = |class: &str| {
            svg.lines().filter(|l| l.contains(&format!("class=\"missed {class}\""))).count()
        };
        assert_eq!(["i1", "i2", "i3", "i4"].map(missed), [0, 0, 1, 1]);
        let formatted = |tone: &str| svg.matches(&format!("class=\"label {tone}\"")).count();
        assert_eq!(
            (formatted("good"), formatted("bad")),
            (2, 2),
            "its share stands at the end of each"
        );
        let windows: Vec<_> = recording.windows().collect();
        let missed = intervals(3, &recording, &windows)
            .into_iter()
            .find(|(standing, ..)| *standing == Standing::Missed);
        let (_, from, to) = missed.unwrap();
        // All four run from 9 s on; it counts from 11 s on, until the first of them ends.
        assert_eq!(from.0, 11_375 * Span::MILLISECOND.0);
        assert!(to < recording.courses[0].ended && to.0 > 15 * Span::SECOND.0);
        let (svg, ..) = drawn(Control::Tidegate);
        assert!(!svg.contains("\"missed"));
    }

    #[test]
    fn close_marks_are_stacked() {
        let (svg, ..) = drawn(Control::Tidegate);
        let row = |y: f64| svg.matches(&format!("cy=\"{y:.1}\"")).count();
        assert_eq!(row(TOP - 12.0) + row(TOP - 12.0 - 17.0), 8);
        assert!(row(TOP - 12.0 - 17.0) > 0);
        let (_, recording, scale) = drawn(Control::Static);
        insta::assert_snapshot!(marks(&recording.courses[..1], scale), @r#"
        <g class="mark starts i1"><title>I1 starts at 0.0 s</title><path d="M62.0 39.0V270"/><circle cx="62.0" cy="32.0" r="7"/><text x="62.0" y="35.5">1</text></g>
        <g class="mark ends i1"><title>I1 ends at 50.0 s</title><path d="M880.2 39.0V270"/><circle cx="880.2" cy="32.0" r="7"/><text x="880.2" y="35.5">1</text></g>
        "#);
    }
}
