//! Aligned columns of text. The last column is cut where the screen ends, so that no line wraps.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr;

use crate::output::{Paint, Tone, on_one_line};

/// Blanks between two columns.
const GAP: usize = 2;

/// On which side the text of a column is flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Flush left, as text is.
    Left,
    /// Flush right, as numbers are.
    Right,
}

/// One cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A cell that stands out.
    pub fn toned(tone: Tone, text: impl Into<String>) -> Self {
        Self { text: on_one_line(&text.into()), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::toned(Tone::Plain, text)
    }
}

/// A table under construction.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

#[derive(Clone, Debug)]
struct Column {
    head: Cow<'static, str>,
    align: Align,
    width: usize,
}

impl Table {
    /// A table without columns.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a column whose text is flush left.
    #[must_use]
    pub fn left(self, head: &'static str) -> Self {
        self.column(head, Align::Left, 0)
    }

    /// Adds a column whose text is flush right, for what is compared down the page.
    #[must_use]
    pub fn right(self, head: &'static str) -> Self {
        self.column(head, Align::Right, 0)
    }

    /// The same under a head that is known only when it is printed.
    #[must_use]
    pub fn right_of(mut self, head: String) -> Self {
        let (align, width) = (Align::Right, head.width());
        self.columns.push(Column { head: head.into(), align, width });
        self
    }

    /// Adds a column that is flush left for each of these heads.
    #[must_use]
    pub fn each_left(self, heads: impl IntoIterator<Item = &'static str>) -> Self {
        heads.into_iter().fold(self, Self::left)
    }

    /// Adds a column that is flush right for each of these heads.
    #[must_use]
    pub fn each_right(self, heads: impl IntoIterator<Item = &'static str>) -> Self {
        heads.into_iter().fold(self, Self::right)
    }

    /// Adds a column that is at least `width` wide, for tables that are printed in pieces.
    #[must_use]
    pub fn column(mut self, head: &'static str, align: Align, width: usize) -> Self {
        let width = width.max(head.len());
        self.columns.push(Column { head: head.into(), align, width });
        self
    }

    /// Adds a row, which has as many cells as there are columns.
    pub fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        let cells = cells.into();
        assert_eq!(cells.len(), self.columns.len(), "a row fills every column");
        for (column, cell) in self.columns.iter_mut().zip(&cells) {
            column.width = column.width.max(cell.text.width());
        }
        self.rows.push(cells);
    }

    /// The heads as one line.
    pub fn head(&self, paint: Paint) -> String {
        let cell = |column: &Column| Cell::toned(Tone::Faint, column.head.as_ref());
        self.line(&self.columns.iter().map(cell).collect::<Vec<_>>(), paint, usize::MAX)
    }

    /// The rows, one line each, of at most `width` columns.
    pub fn body(&self, paint: Paint, width: usize) -> String {
        self.rows.iter().map(|row| self.line(row, paint, width)).collect()
    }

    /// Everything.
    pub fn render(&self, paint: Paint, width: usize) -> String {
        self.head(paint) + &self.body(paint, width)
    }

    fn line(&self, cells: &[Cell], paint: Paint, width: usize) -> String {
        let mut line = String::new();
        let mut used = 0;
        let last = cells.len().saturating_sub(1);
        for (index, (column, cell)) in self.columns.iter().zip(cells).enumerate() {
            let available = width.saturating_sub(used);
            let text = if index == last { cut(&cell.text, available) } else { cell.text.clone() };
            let blanks = " ".repeat(column.width.saturating_sub(text.width()));
            let painted = paint.tone(cell.tone, &text);
            match column.align {
                Align::Left if index == last => line += &painted,
                Align::Left => line += &(painted + &blanks),
                Align::Right => line += &(blanks + &painted),
            }
            if index != last {
                line += &" ".repeat(GAP);
            }
            used += column.width + GAP;
        }
        let end = line.trim_end_matches(' ').len();
        line.truncate(end);
        line.push('\n');
        line
    }
}

/// The beginning of `text` that fits `width` columns, with a mark where something is missing.
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for character in text.chars() {
        let mut longer = short.clone();
        longer.push(character);
        // Two columns for the mark, in ASCII because not every terminal has an ellipsis.
        if longer.width() + 2 > width {
            break;
        }
        short = longer;
    }
    short + ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_flush_and_the_last_one_is_cut() {
        let mut table = Table::new().left("NAME").right("RATE").left("COMMAND");
        table.row(["oltp".into(), "350 MiB/s".into(), "fio jobs/oltp.fio".into()]);
        table.row(["ü".into(), Cell::toned(Tone::Bad, "5"), "tar".into()]);
        insta::assert_snapshot!(table.render(Paint::none(), 30), @r"
        NAME       RATE  COMMAND
        oltp  350 MiB/s  fio jobs/ol..
        ü             5  tar
        ");
    }
}
