//! Charts: panels side by side, each with two axes and some series, drawn by [`plotters`] as one
//! SVG that needs nothing else and can be read on a light and on a dark screen.

use std::iter::once;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::page::escaped;

mod pixels;

pub(crate) use pixels::png;

/// Units of the picture in one unit of layout, a pixel of a plain screen: plotters rounds
/// coordinates to whole units, and lines would have visible steps.
const SCALE: i32 = 4;

/// A panel in units of layout: its field with axes, its title and the names of its axes.
const WIDTH: i32 = 466;
const HEIGHT: i32 = 330;
/// The edge of a panel, room for that and the labels of the vertical axis, and beside the field.
const EDGE: i32 = 8;
pub(super) const LABELS: i32 = 70;
pub(super) const RIGHT: i32 = 22;
/// A line of the legend.
const LINE: i32 = 16;
/// Panels in a row at most, and where there are four.
const COLUMNS: usize = 3;
const COLUMNS_OF_FOUR: usize = 2;
/// Marks along an axis at most.
const TICKS: usize = 6;
/// Points of so many are a line by themselves.
const DOTS_MAX: usize = 40;
/// Height of letters. Plotters divides the size of a font by this factor.
const TEXT_HEIGHT: f64 = 12.0 * 1.24;

/// Told apart by people who see no red or green, and visible on white and on black (Okabe and Ito).
const COLORS: [u32; 7] = [0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9, 0x8a8a8a];
pub(super) const INK: RGBColor = RGBColor(0x44, 0x44, 0x44);
pub(super) const GREY: RGBColor = RGBColor(0x88, 0x88, 0x88);

/// Style sheets count for more than the attributes that plotters writes. [`INK`] is no colour on
/// black.
const STYLE: &str = "text{font-family:system-ui,sans-serif}\
    @media(prefers-color-scheme:dark){text[fill=\"#444444\"]{fill:#ccc}}";

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
pub(super) type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Points joined by a line.
    Line,
    Dashed,
    /// A shade from the axis up.
    Shade,
    /// Strokes that stand on those of the series before.
    Stack,
}

/// Some points with a name.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    name: String,
    shape: Shape,
    pub(crate) points: Vec<(f64, f64)>,
    /// In place of the colour of its index in the panel.
    color: Option<RGBColor>,
}

impl Series {
    fn new(name: impl Into<String>, shape: Shape, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), shape, points, color: None }
    }

    pub(crate) fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, Shape::Line, points)
    }

    pub(crate) fn dashed(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, Shape::Dashed, points)
    }

    /// A grey shade from the axis up.
    pub(super) fn shade(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, Shape::Shade, points).colored(GREY)
    }

    /// Strokes that stand on those of the series before.
    pub(crate) fn stack(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self::new(name, Shape::Stack, points)
    }

    pub(super) fn colored(self, color: RGBColor) -> Self {
        Self { color: Some(color), ..self }
    }
}

/// Two axes, and what is drawn between them. Both begin at zero.
#[derive(Clone, Debug, Default)]
pub(crate) struct Panel {
    title: String,
    x: &'static str,
    y: &'static str,
    series: Vec<Series>,
    /// Levels with a name, as dashed lines.
    pub(crate) levels: Vec<(String, f64)>,
    /// The largest values on both axes, if several pictures are to have the same.
    extent: Option<(f64, f64)>,
}

impl Panel {
    /// A panel whose axes have these names.
    pub(crate) fn new(
        title: impl Into<String>,
        [x, y]: [&'static str; 2],
        series: impl IntoIterator<Item = Series>,
    ) -> Self {
        let series = series.into_iter().collect();
        Self { title: title.into(), x, y, series, ..Self::default() }
    }

    pub(crate) fn with_levels(self, levels: Vec<(String, f64)>) -> Self {
        Self { levels, ..self }
    }

    pub(super) fn with_extent(self, x: f64, y: f64) -> Self {
        Self { extent: Some((x, y)), ..self }
    }

    /// The largest values on both axes.
    fn extent(&self) -> (f64, f64) {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = points().map(|point| point.0).fold(0.0, f64::max);
        let others = self.series.iter().filter(|series| series.shape != Shape::Stack);
        let y = others.flat_map(|series| &series.points).map(|point| point.1);
        let y = y.chain(self.levels.iter().map(|level| level.1)).chain(self.stacked());
        let positive = |value: f64| if value > 0.0 { value } else { 1.0 };
        self.extent.unwrap_or((positive(x), positive(y.fold(0.0, f64::max)) * 1.05))
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

    /// Every series with its colour.
    fn colored(&self) -> impl Iterator<Item = (RGBColor, &Series)> {
        (0..).zip(&self.series).map(|(index, one)| (one.color.unwrap_or(color(index)), one))
    }

    /// Those that the legend names.
    fn named(&self) -> impl Iterator<Item = (RGBColor, &Series)> {
        self.colored().filter(|(_, series)| !series.name.is_empty())
    }

    /// Draws the panel on all of an area, with room for so many lines of a legend below.
    pub(super) fn draw(&self, area: &Area<'_>, lines: i32) -> Drawn {
        let (field, legend) =
            area.split_vertically(area.dim_in_pixel().1 as i32 - px(LINE * lines));
        let (x, y) = self.extent();
        let mut chart = ChartBuilder::on(&field)
            .caption(&self.title, font().style(FontStyle::Bold).color(&INK))
            .margin_top(px(8))
            .margin_left(px(EDGE))
            .margin_right(px(RIGHT))
            .x_label_area_size(px(44))
            .y_label_area_size(px(LABELS - EDGE))
            .build_cartesian_2d(0.0..x, 0.0..y)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GREY.mix(0.27).stroke_width(px(1) as u32))
            .axis_style(GREY.stroke_width(px(1) as u32))
            .set_all_tick_mark_size(px(4))
            .x_labels(TICKS)
            .y_labels(TICKS)
            .x_label_formatter(&|value| formatted(*value))
            .y_label_formatter(&|value| formatted(*value))
            .label_style(text())
            .axis_desc_style(text())
            .x_desc(self.x)
            .y_desc(self.y)
            .draw()?;
        self.draw_series(&mut chart)?;
        self.draw_levels(&mut chart, x)?;
        self.draw_legend(&legend)
    }

    fn draw_series(&self, chart: &mut Chart<'_, '_>) -> Drawn {
        let mut below: Vec<f64> = Vec::new();
        for (color, Series { shape, points, .. }) in self.colored() {
            let points = points.iter().copied();
            let thin = color.stroke_width(px(3) as u32 / 2);
            match shape {
                Shape::Line => {
                    let dot = if points.len() < DOTS_MAX { px(5) as u32 / 2 } else { 0 };
                    let style = color.filled().stroke_width(px(2) as u32);
                    chart.draw_series(LineSeries::new(points, style).point_size(dot))?;
                }
                Shape::Dashed => {
                    chart.draw_series(DashedLineSeries::new(points, px(6), px(4), thin))?;
                }
                Shape::Shade => {
                    chart.draw_series(AreaSeries::new(points, 0.0, color.mix(0.2)))?;
                }
                Shape::Stack => {
                    below.resize(below.len().max(points.len()), 0.0);
                    let strokes = points.zip(&mut below).map(|((x, high), below)| {
                        let from = std::mem::replace(below, *below + high);
                        PathElement::new([(x, from), (x, *below)], thin)
                    });
                    chart.draw_series(strokes)?;
                }
            }
        }
        Ok(())
    }

    fn draw_levels(&self, chart: &mut Chart<'_, '_>, x: f64) -> Drawn {
        for (name, level) in &self.levels {
            let style = GREY.stroke_width(px(1) as u32);
            let line = [(0.0, *level), (x, *level)];
            chart.draw_series(DashedLineSeries::new(line, px(5), px(4), style))?;
            let above = text().pos(Pos::new(HPos::Right, VPos::Bottom));
            chart.draw_series(once(Text::new(name.clone(), (x, *level), above)))?;
        }
        Ok(())
    }

    fn draw_legend(&self, area: &Area<'_>) -> Drawn {
        for (line, (color, series)) in (0..).zip(self.named()) {
            let (x, y) = (px(LABELS), px(LINE * line));
            let corners = [(x, y), (x + px(12), y + px(8))];
            area.draw(&Rectangle::new(corners, color.filled()))?;
            let beside = text().pos(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(&*series.name, (x + px(18), y + px(4)), beside))?;
        }
        Ok(())
    }
}

/// The colour of a series by its index, or of a tenant.
pub(super) fn color(index: usize) -> RGBColor {
    let [_, red, green, blue] = COLORS[index % COLORS.len()].to_be_bytes();
    RGBColor(red, green, blue)
}

/// Units of the picture.
pub(super) const fn px(layout: i32) -> i32 {
    layout * SCALE
}

fn font() -> FontDesc<'static> {
    ("sans-serif", TEXT_HEIGHT * f64::from(SCALE)).into_font()
}

pub(super) fn text() -> TextStyle<'static> {
    font().color(&INK)
}

/// As short as can be.
fn formatted(value: f64) -> String {
    match value {
        _ if value >= 10_000.0 => format!("{}k", (value / 100.0).round() / 10.0),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

/// The panels of a figure in rows.
pub(crate) fn draw(title: &str, panels: &[Panel]) -> String {
    let lines = panels.iter().map(|panel| panel.named().count()).max().unwrap_or(0) as i32;
    let most = if panels.len() == 4 { COLUMNS_OF_FOUR } else { COLUMNS };
    let columns = panels.len().clamp(1, most);
    let rows = panels.len().div_ceil(columns).max(1);
    let high = HEIGHT + LINE * lines + EDGE;
    canvas(title, (WIDTH * columns as i32, high * rows as i32), |root| {
        let areas = root.split_evenly((rows, columns));
        panels.iter().zip(&areas).try_for_each(|(panel, area)| panel.draw(area, lines))
    })
}

/// A picture of this size in units of layout, on which `paint` draws.
pub(super) fn canvas(
    title: &str,
    (wide, high): (i32, i32),
    paint: impl FnOnce(&Area<'_>) -> Drawn,
) -> String {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (px(wide) as u32, px(high) as u32));
    let root = root.into_drawing_area();
    paint(&root).and_then(|()| root.present()).expect("a string has room for every picture");
    drop(root);
    // Without a size of its own it is as wide as its place in a page.
    let (_, content) = svg.split_once(" viewBox").unwrap_or_default();
    let head = format!("<svg role=\"img\" aria-label=\"{}\" viewBox", escaped(title));
    head + &content.replacen('>', &format!(">\n<style>{STYLE}</style>"), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_axes_are_short() {
        assert_eq!(
            (formatted(50_000.0), formatted(0.6000000000000001)),
            ("50k".into(), "0.6".into())
        );
    }

    #[test]
    fn stacked_strokes_and_lines_end_at_their_values() {
        let series = [
            Series::stack("one", vec![(1.0, 3.0)]),
            Series::stack("two", vec![(1.0, 4.0)]),
            Series::line("", vec![(0.0, 0.0), (2.0, 7.0)]),
        ];
        let panel =
            Panel::new("a < b", ["x", "y"], series).with_levels(vec![("limit".into(), 5.0)]);
        assert_eq!(panel.extent(), (2.0, 7.0 * 1.05));
        let svg = draw("picture", &[panel]);
        let points = |color: &str| -> Vec<Vec<i32>> {
            let line = svg.lines().find(|line| {
                line.starts_with("<polyline") && line.contains(&format!("stroke=\"{color}\""))
            });
            let (_, points) = line.unwrap().split_once("points=\"").unwrap();
            let pairs = points.split('"').next().unwrap().split_whitespace();
            pairs.map(|pair| pair.split(',').map(|n| n.parse().unwrap()).collect()).collect()
        };
        let [one, two, line] = ["#0072B2", "#D55E00", "#009E73"].map(points);
        assert_eq!(one[1], two[0], "the second stands on the first");
        assert_eq!(two[1][1], line[1][1], "together they are as high as the line");
        // Coordinates are whole numbers.
        assert!((2 * one[0][0] - line[0][0] - line[1][0]).abs() <= 1, "{one:?} {line:?}");
        assert!(svg.contains("a &lt; b") && svg.matches("<rect").count() == 2, "{svg}");
    }

    #[test]
    fn a_picture_needs_nothing_else() {
        let svg = draw("none", &[Panel::default(), Panel::default()]);
        assert!(svg.starts_with("<svg role=\"img\" aria-label=\"none\" viewBox=\"0 0 "), "{svg}");
        let rest = svg.replace("http://www.w3.org/2000/svg", "");
        for outside in ["http", "href", "@import", "url(", "<script", "NaN", "inf"] {
            assert!(!rest.contains(outside), "{outside}");
        }
    }
}
