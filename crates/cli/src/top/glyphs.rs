//! Bars and sparklines as text.

use tidegate_model::Time;

use super::history::TRAIL;

/// The characters of which pictures are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Glyphs {
    /// A filled cell of a bar.
    full: char,
    /// The last cell of a bar, by eighths; the first is empty.
    parts: [char; 8],
    /// Where the promise stands.
    promise: char,
    /// A cell of a sparkline, by height; the first is zero.
    heights: [char; 9],
}

impl Glyphs {
    pub(super) const UNICODE: Self = Self {
        full: '█',
        parts: [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'],
        promise: '┃',
        heights: [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
    };

    pub(super) const ASCII: Self = Self {
        full: '#',
        parts: [' ', ' ', ' ', ' ', '#', '#', '#', '#'],
        promise: '|',
        heights: [' ', '_', '_', '.', '.', '-', '-', '=', '#'],
    };

    /// A bar of `width` cells that stands for `scale`, filled up to `value`: the text before the
    /// promise, the mark of the promise, and the text after it.
    pub(super) fn bar(self, bar: Bar, width: usize) -> [String; 3] {
        let Bar { value, promise, scale } = bar;
        let eighths = fraction_of(value, scale, width * 8);
        let cell = |index: usize| match eighths.saturating_sub(index * 8) {
            0 => ' ',
            rest @ 1..8 => self.parts[rest],
            _ => self.full,
        };
        let cells: Vec<char> = (0..width).map(cell).collect();
        let Some(promise) = promise.filter(|_| width > 0) else {
            return [cells.into_iter().collect(), String::new(), String::new()];
        };
        // A promise that is the whole scale stands in the last cell, not behind it.
        let index = fraction_of(promise, scale, width).min(width - 1);
        let text = |cells: &[char]| cells.iter().collect::<String>();
        [text(&cells[..index]), self.promise.into(), text(&cells[index + 1..])]
    }

    /// The last minute of `trail` in `width` cells, the highest of which stands for `scale`. Each
    /// cell shows the last value before its end.
    pub(super) fn sparkline(self, trail: &[(Time, u64)], scale: u64, width: usize) -> String {
        let Some((now, _)) = trail.last() else { return " ".repeat(width) };
        let cell = |index: usize| {
            let age = TRAIL.0 / width as u64 * (width - 1 - index) as u64;
            // Early in the run of the controller there was no such time.
            let end = Time(now.0.checked_sub(age)?);
            trail.iter().rev().find(|(at, _)| *at <= end).map(|(_, value)| *value)
        };
        let draw = |value: Option<u64>| match value {
            None => ' ',
            // Whatever flows is seen, however little.
            Some(value) if value > 0 => self.heights[fraction_of(value, scale, 8).max(1)],
            Some(_) => self.heights[0],
        };
        (0..width).map(cell).map(draw).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bar {
    pub(super) value: u64,
    pub(super) promise: Option<u64>,
    /// The value of the whole bar.
    pub(super) scale: u64,
}

/// `value` as a part of `scale`, in `steps`; no more than all of them.
fn fraction_of(value: u64, scale: u64, steps: usize) -> usize {
    let fraction = u128::from(value) * steps as u128 / u128::from(scale.max(1));
    usize::try_from(fraction).unwrap_or(steps).min(steps)
}

/// `hh:mm:ss` of a day in UTC.
pub(super) fn time_of_day(unix_ms: u64) -> String {
    let seconds = unix_ms / 1_000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use tidegate_model::Span;

    use super::*;

    fn bar(value: u64, promise: Option<u64>, scale: u64) -> String {
        Glyphs::UNICODE.bar(Bar { value, promise, scale }, 8).concat()
    }

    #[test]
    fn a_bar_is_exact_to_an_eighth_and_shows_the_promise() {
        assert_eq!(bar(50, None, 100), "████    ");
        assert_eq!(bar(57, None, 100), "████▌   ");
        assert_eq!(bar(100, Some(50), 100), "████┃███");
        assert_eq!(bar(25, Some(100), 100), "██     ┃");
        assert_eq!(bar(0, None, 0), "        ");
        assert_eq!(
            Glyphs::ASCII.bar(Bar { value: 3, promise: Some(2), scale: 4 }, 4).concat(),
            "##| "
        );
        assert_eq!(
            Glyphs::UNICODE.bar(Bar { value: 3, promise: Some(2), scale: 4 }, 0).concat(),
            ""
        );
    }

    #[test]
    fn a_sparkline_holds_the_last_value() {
        let at = |second: u64, value| (Time(second * Span::SECOND.0), value);
        let draw = |trail: &[_]| Glyphs::UNICODE.sparkline(trail, 80, 6);
        assert_eq!(draw(&[]), "      ");
        assert_eq!(draw(&[at(100, 40), at(120, 80), at(130, 1), at(160, 0)]), "▄█▁▁▁ ");
        assert_eq!(draw(&[at(2, 40)]), "     ▄");
    }

    #[test]
    fn a_day_has_hours() {
        assert_eq!(time_of_day(1_795_320_933_000), "04:15:33");
    }
}
