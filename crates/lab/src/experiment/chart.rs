//! A chart of one set-up: bandwidth over time as in the paper's figure 10, and below it a strip for
//! each tenant that shows when its promise was kept.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use tidegate_model::{Rate, Span, Time};

use super::plan::{ExperimentPlan, KEPT_PERMILLE, MIB, grouped};
use super::plot::{self, Area, Drawn, GREY, INK, LABELS, Panel, RIGHT, Series, color, px, text};
use super::recording::{Recording, SAMPLE_INTERVAL, Window};
use super::score::Score;
use super::summary::share;

/// The picture and its field with axes, in units of layout.
const WIDTH: i32 = 1060;
const FIELD: i32 = 320;
/// A strip, and the distance between two.
const STRIP: i32 = 11;
const STRIP_STEP: i32 = 16;
/// The edge of a box that stands for what was missed, in units of the picture.
const EDGE: i32 = px(2);
const MISSED: RGBColor = RGBColor(0xd1, 0x2a, 0x2a);

/// The axes that all pictures of a report share, so that readers can compare them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    seconds: f64,
    mib: f64,
}

impl Scale {
    /// The scale for pictures of these recordings.
    pub(crate) fn new<'a>(
        plan: &ExperimentPlan,
        recordings: impl IntoIterator<Item = &'a Recording>,
    ) -> Self {
        let courses = recordings.into_iter().flat_map(|recording| &recording.courses);
        let last = courses.map(|course| course.ended).max().unwrap_or_default();
        let seconds = seconds(last);
        // Room for a label behind the longest strip, and for what a disk delivers in a second
        // beyond what it is held at.
        Self { seconds: (seconds + seconds / 10.0).ceil(), mib: mib(Rate(plan.disk.0 / 16 * 17)) }
    }

    /// Where a time lies in the picture. Nothing leaves the field.
    fn x(self, at: Time) -> i32 {
        let part = (seconds(at) / self.seconds).min(1.0);
        px(LABELS) + (f64::from(px(WIDTH - LABELS - RIGHT)) * part) as i32
    }
}

fn seconds(at: Time) -> f64 {
    at.since(Time::ZERO).as_seconds()
}

fn mib(rate: Rate) -> f64 {
    rate.0 as f64 / MIB as f64
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
    let high = FIELD + STRIP_STEP * recording.courses.len() as i32;
    plot::canvas(&title, (WIDTH, high), |root| {
        let (field, strips) = root.split_vertically(px(FIELD));
        panel(plan, recording, &windows, scale).draw(&field, 0)?;
        draw_strips(recording, score, &windows, scale, &strips)
    })
}

/// Rates of all tenants as lines, their promises as dashes from start to end, and their sum as a
/// shade. Bandwidth between the shade and the budget was idle.
fn panel(plan: &ExperimentPlan, recording: &Recording, windows: &[Window], scale: Scale) -> Panel {
    let point = |window: &Window, rate: Rate| (seconds(window.middle()), mib(rate).min(scale.mib));
    let sum = windows.iter().map(|window| point(window, recording.sum(*window)));
    let mut series = vec![Series::shade("", sum.collect())];
    for (index, course) in recording.courses.iter().enumerate() {
        let [from, to] = [course.started, course.ended];
        let promise = [from, to].map(|at| (seconds(at), mib(course.promise)));
        series.push(Series::dashed("", promise.into()).colored(color(index)));
        let within = windows.iter().filter(|one| from < one.middle() && one.middle() < to);
        let within = within.map(|window| point(window, recording.rate(index, *window)));
        let ends = [from, to].map(|at| (seconds(at), 0.0));
        let points = [ends[0]].into_iter().chain(within).chain([ends[1]]);
        series.push(Series::line("", points.collect()).colored(color(index)));
    }
    let budget = format!("budget {}", grouped((plan.budget.0 + MIB / 2) / MIB));
    Panel::new("", ["seconds", "MiB/s (all together: shade)"], series)
        .with_levels(vec![(budget, mib(plan.budget))])
        .with_extent(scale.seconds, scale.mib)
}

/// For each tenant when it had its promise, and the share of the time that counted.
fn draw_strips(
    recording: &Recording,
    score: &Score,
    windows: &[Window],
    scale: Scale,
    area: &Area<'_>,
) -> Drawn {
    let tenants = recording.courses.iter().zip(&score.tenant_scores);
    for (index, (course, tenant)) in tenants.enumerate() {
        let top = px(STRIP_STEP * index as i32);
        let bottom = top + px(STRIP);
        let name = format!("{}: {}", course.name, grouped((course.promise.0 + MIB / 2) / MIB));
        let label = |label: String, x: i32, side: HPos, color: RGBColor| {
            let style = text().color(&color).pos(Pos::new(side, VPos::Center));
            area.draw(&Text::new(label, (x, top + px(STRIP) / 2), style))
        };
        label(name, px(LABELS - 8), HPos::Right, color(index))?;
        let corners = |from, to| [(scale.x(from), top), (scale.x(to), bottom)];
        let whole = corners(course.started, course.ended);
        area.draw(&Rectangle::new(whole, GREY.mix(0.2).filled()))?;
        for (standing, from, to) in intervals(index, recording, windows) {
            let (from, to) = (from.max(course.started), to.min(course.ended));
            // A missed promise is a hollow box, so that readers know it without its colour.
            let [(left, top), (right, bottom)] = corners(from, to);
            match standing {
                Standing::Kept if from < to => {
                    area.draw(&Rectangle::new(corners(from, to), color(index).filled()))?;
                }
                Standing::Missed if from < to => {
                    let [left, top] = [left + EDGE / 2, top + EDGE / 2];
                    let [right, bottom] = [right - EDGE / 2, bottom - EDGE / 2];
                    let edge = [(left, top), (right, top), (right, bottom), (left, bottom)];
                    let closed = edge.into_iter().cycle().take(6).collect::<Vec<_>>();
                    area.draw(&PathElement::new(closed, MISSED.stroke_width(EDGE as u32)))?;
                }
                _ => {}
            }
        }
        let had = format!("had it {}", share(tenant.promise_kept));
        label(had, scale.x(course.ended) + px(8), HPos::Left, INK)?;
    }
    Ok(())
}

/// How a tenant stood at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It ran, but others had started or ended just before, or it had nothing more to ask.
    Uncounted,
    Kept,
    Missed,
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

    /// The elements of the picture that have this attribute.
    fn elements<'a>(svg: &'a str, name: &str, attribute: &str) -> Vec<&'a str> {
        let is_wanted = |line: &&str| line.starts_with(name) && line.contains(attribute);
        svg.lines().filter(is_wanted).collect()
    }

    #[test]
    fn all_pictures_have_one_scale() {
        let (.., scale) = drawn(Control::None);
        // The longest set-up takes 50 s.
        assert_eq!((scale.seconds, scale.mib), (55.0, 1088.0));
        let [left, right] = [px(LABELS), px(WIDTH - RIGHT)];
        assert_eq!((scale.x(Time::ZERO), scale.x(Time::MAX)), (left, right));
    }

    #[test]
    fn lines_lie_on_promises_under_static_limits() {
        let (svg, ..) = drawn(Control::Static);
        let lines = elements(&svg, "<polyline", "stroke=\"#0072B2\" stroke-width=\"8\"");
        let [line] = lines[..] else { panic!("{lines:?}") };
        let (_, points) = line.split_once("points=\"").unwrap();
        let heights = points.split_whitespace().filter_map(|point| point.split_once(','));
        let heights: Vec<&str> = heights.map(|(_, y)| y).collect();
        let promises = elements(&svg, "<polyline", "stroke=\"#0072B2\" stroke-width=\"6\"");
        let promise = promises[0].split_once(',').unwrap().1.split_once(' ').unwrap().0;
        let on = heights.iter().filter(|y| **y == promise).count();
        assert!(on > 190 && heights.len() - on < 10, "{on} of {}", heights.len());
    }

    #[test]
    fn strips_show_when_promises_were_missed() {
        let (svg, recording, _) = drawn(Control::None);
        let missed = |svg: &str| elements(svg, "<polyline", "stroke=\"#D12A2A\"").len();
        assert_eq!(missed(&svg), 2, "the two largest promises, each once");
        assert_eq!(svg.matches("had it 100 %").count(), 2, "the share stands beside each strip");
        let windows: Vec<_> = recording.windows().collect();
        let interval = intervals(3, &recording, &windows)
            .into_iter()
            .find(|(standing, ..)| *standing == Standing::Missed);
        let (_, from, to) = interval.unwrap();
        // All four run from 9 s on; it counts from 11 s on, until the first of them ends.
        assert_eq!(from.0, 11_375 * Span::MILLISECOND.0);
        assert!(to < recording.courses[0].ended && to.0 > 15 * Span::SECOND.0);
        let (svg, ..) = drawn(Control::Tidegate);
        assert_eq!(missed(&svg), 0);
    }
}
