//! Charts: panels side by side, each with two axes and some series, as one SVG file that needs
//! nothing else and can be read on a light and on a dark screen.

use std::fmt::Write;

mod pixels;

pub(crate) use pixels::png;

/// A panel's field, and the room around it, in the picture's own units.
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// A line of the legend.
const LINE: f64 = 16.0;
/// Panels in a row at most, and where there are four.
const COLUMNS: usize = 3;
const COLUMNS_OF_FOUR: usize = 2;
/// Marks along an axis, about.
const TICKS: f64 = 5.0;

/// Told apart by people who see no red or green, and visible on white and on black (Okabe and Ito).
const COLORS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a"];

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Points joined by a line.
    Line,
    /// Strokes that stand on those of the series before.
    Stack,
}

/// Some points with a name.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Series {
    pub(crate) fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), shape: Shape::Line, points }
    }

    /// Strokes that stand on those of the series before.
    pub(crate) fn stack(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), shape: Shape::Stack, points }
    }
}

/// Two axes, and what is drawn between them. Both begin at zero.
#[derive(Clone, Debug, Default)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) series: Vec<Series>,
    /// Levels with a name, as dashed lines.
    pub(crate) levels: Vec<(String, f64)>,
}

impl Panel {
    /// A panel whose axes have these names.
    pub(crate) fn new(
        title: impl Into<String>,
        [x, y]: [&'static str; 2],
        series: impl IntoIterator<Item = Series>,
    ) -> Self {
        let series = series.into_iter().collect();
        Self { title: title.into(), x, y, series, levels: Vec::new() }
    }

    pub(crate) fn with_levels(self, levels: Vec<(String, f64)>) -> Self {
        Self { levels, ..self }
    }

    /// The largest values on both axes.
    fn extent(&self) -> (f64, f64) {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = points().map(|point| point.0).fold(0.0, f64::max);
        let lines = self.series.iter().filter(|series| series.shape == Shape::Line);
        let mut y = lines.flat_map(|series| &series.points).map(|p| p.1).fold(0.0, f64::max);
        y = self.stacked().into_iter().fold(y, f64::max);
        y = self.levels.iter().map(|level| level.1).fold(y, f64::max);
        let positive = |value: f64| if value > 0.0 { value } else { 1.0 };
        (positive(x), positive(y) * 1.05)
    }

    /// How high the strokes at each place reach together.
    fn stacked(&self) -> Vec<f64> {
        let mut sums: Vec<f64> = Vec::new();
        for series in self.series.iter().filter(|series| series.shape == Shape::Stack) {
            sums.resize(sums.len().max(series.points.len()), 0.0);
            sums.iter_mut().zip(&series.points).for_each(|(sum, point)| *sum += point.1);
        }
        sums
    }

    fn draw(&self, (left, top): (f64, f64)) -> String {
        let (x_most, y_most) = self.extent();
        let x = |value: f64| left + LEFT + WIDTH * value / x_most;
        let y = |value: f64| top + TOP + HEIGHT * (1.0 - value / y_most);
        let (middle, right) = (left + LEFT + WIDTH / 2.0, left + LEFT + WIDTH);
        let mut svg = format!(
            "<text class=\"title\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            left + LEFT,
            top + 16.0,
            escaped(&self.title)
        );
        for value in ticks(y_most) {
            let (at, from) = (y(value), left + LEFT);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{from:.1} {at:.1}H{right:.1}\"/>\
                 <text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                from - 6.0,
                at + 4.0,
                formatted(value)
            );
        }
        for value in ticks(x_most) {
            let (at, bottom) = (x(value), y(0.0));
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{at:.1} {bottom:.1}v5\"/>\
                 <text class=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 18.0,
                formatted(value)
            );
        }
        let _ = writeln!(
            svg,
            "<text class=\"middle\" x=\"{middle:.1}\" y=\"{:.1}\">{}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            y(0.0) + 36.0,
            escaped(self.x),
            left + LEFT,
            top + TOP - 6.0,
            escaped(self.y)
        );
        for (name, level) in &self.levels {
            let _ = writeln!(
                svg,
                "<path class=\"level\" d=\"M{:.1} {at:.1}H{right:.1}\"/>\
                 <text class=\"end\" x=\"{right:.1}\" y=\"{:.1}\">{}</text>",
                left + LEFT,
                y(*level) - 4.0,
                escaped(name),
                at = y(*level),
            );
        }
        let mut below: Vec<f64> = Vec::new();
        for (number, series) in self.series.iter().enumerate() {
            svg += &self.one(series, COLORS[number % COLORS.len()], &mut below, (&x, &y));
        }
        svg + &self.legend(left, y(0.0) + BOTTOM)
    }

    fn one(
        &self,
        series: &Series,
        color: &str,
        below: &mut Vec<f64>,
        (x, y): (&dyn Fn(f64) -> f64, &dyn Fn(f64) -> f64),
    ) -> String {
        let mut path = String::new();
        match series.shape {
            Shape::Line => {
                for (number, point) in series.points.iter().enumerate() {
                    let character = if number == 0 { 'M' } else { 'L' };
                    let _ = write!(path, "{character}{:.1} {:.1}", x(point.0), y(point.1));
                }
                let dots = series.points.iter().map(|point| {
                    let (x, y) = (x(point.0), y(point.1));
                    format!("<circle fill=\"{color}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>")
                });
                // So many that they would be a line by themselves.
                let dots: String =
                    if series.points.len() < 40 { dots.collect() } else { "".into() };
                format!("<path class=\"line\" stroke=\"{color}\" d=\"{path}\"/>{dots}\n")
            }
            Shape::Stack => {
                below.resize(below.len().max(series.points.len()), 0.0);
                for (point, below) in series.points.iter().zip(below) {
                    let (from, to) = (*below, *below + point.1);
                    *below = to;
                    if point.1 > 0.0 {
                        let _ = write!(path, "M{:.1} {:.1}V{:.1}", x(point.0), y(from), y(to));
                    }
                }
                format!("<path class=\"stack\" stroke=\"{color}\" d=\"{path}\"/>\n")
            }
        }
    }

    fn legend(&self, left: f64, top: f64) -> String {
        let mut svg = String::new();
        let named = self.series.iter().enumerate().filter(|(_, series)| !series.name.is_empty());
        for (line, (number, series)) in named.enumerate() {
            let (x, y) = (left + LEFT, top + LINE * line as f64);
            let _ = writeln!(
                svg,
                "<rect fill=\"{}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"8\"/>\
                 <text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
                COLORS[number % COLORS.len()],
                y - 8.0,
                x + 18.0,
                escaped(&series.name)
            );
        }
        svg
    }
}

pub(crate) fn draw(title: &str, panels: &[Panel]) -> String {
    let named = |panel: &Panel| panel.series.iter().filter(|s| !s.name.is_empty()).count();
    let lines = panels.iter().map(named).max().unwrap_or(0);
    let (wide, high) = (LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM + LINE * lines as f64 + 8.0);
    let most = if panels.len() == 4 { COLUMNS_OF_FOUR } else { COLUMNS };
    let columns = panels.len().clamp(1, most);
    let rows = panels.len().div_ceil(columns).max(1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {:.0}\" role=\"img\" \
         aria-label=\"{}\">\n<style>{STYLE}</style>\n",
        wide * columns as f64,
        high * rows as f64,
        escaped(title)
    );
    for (number, panel) in panels.iter().enumerate() {
        let (column, row) = (number % columns, number / columns);
        svg += &panel.draw((wide * column as f64, high * row as f64));
    }
    svg + "</svg>\n"
}

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#444}.title{font-weight:600}\
    .end{text-anchor:end}.middle{text-anchor:middle}path{fill:none}\
    .grid{stroke:#8884;stroke-width:1}.level{stroke:#888;stroke-dasharray:5 4}\
    .line{stroke-width:2;stroke-linejoin:round}.stack{stroke-width:1.6}\
    @media(prefers-color-scheme:dark){text{fill:#ccc}}";

/// Round values from zero to `most`.
fn ticks(most: f64) -> Vec<f64> {
    let rough = most / TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
    let step = step.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(rough);
    (0..=(most / step + 1e-9) as u32).map(|number| f64::from(number) * step).collect()
}

/// As short as can be.
fn formatted(value: f64) -> String {
    match value {
        _ if value >= 10_000.0 => format!("{}k", (value / 100.0).round() / 10.0),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(1.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(104_000.0), [0.0, 50_000.0, 100_000.0]);
        assert_eq!(
            (formatted(50_000.0), formatted(0.6000000000000001)),
            ("50k".into(), "0.6".into())
        );
    }

    #[test]
    fn stacked_strokes_and_lines_end_at_their_values() {
        let panel = Panel {
            title: "a < b".into(),
            series: vec![
                Series::stack("one", vec![(1.0, 3.0)]),
                Series::stack("two", vec![(1.0, 4.0)]),
                Series::line("", vec![(0.0, 0.0), (2.0, 7.0)]),
            ],
            levels: vec![("limit".into(), 5.0)],
            ..Panel::default()
        };
        assert_eq!(panel.extent(), (2.0, 7.0 * 1.05));
        let svg = draw("picture", &[panel]);
        let y = |value: f64| TOP + HEIGHT * (1.0 - value / 7.35);
        let stroke = format!("M{:.1} {:.1}V{:.1}", LEFT + WIDTH / 2.0, y(3.0), y(7.0));
        assert!(svg.contains(&stroke), "{svg}");
        assert!(svg.contains(&format!("L{:.1} {:.1}\"", LEFT + WIDTH, y(7.0))), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.matches("<rect").count() == 2);
    }

    #[test]
    fn a_picture_needs_nothing_else() {
        let svg = draw("none", &[Panel::default(), Panel::default()]);
        let rest = svg.replace("http://www.w3.org/2000/svg", "");
        for outside in ["http", "href", "@import", "url(", "<script", "NaN", "inf"] {
            assert!(!rest.contains(outside), "{outside}");
        }
    }
}
