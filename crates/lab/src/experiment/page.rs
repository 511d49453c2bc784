//! Pages of results: HTML files that need nothing else, neither files nor network. They are
//! well-formed XML, too.

use std::fmt::Write;

const STYLE: &str = include_str!("report.css");

/// A part of a page. Text becomes one by `from`, which escapes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Html(String);

impl From<&str> for Html {
    fn from(text: &str) -> Self {
        Self(escaped(text))
    }
}

impl From<String> for Html {
    fn from(text: String) -> Self {
        Self(escaped(&text))
    }
}

impl Html {
    /// HTML that is written out, and an SVG.
    pub(crate) fn raw(html: impl Into<String>) -> Self {
        Self(html.into())
    }

    /// An element of this class of the style sheet.
    pub(crate) fn element(name: &str, class: &str, content: impl Into<Self>) -> Self {
        Self(format!("<{name} class=\"{}\">{}</{name}>", escaped(class), content.into().0))
    }

    /// A link to a heading of the same page.
    pub(crate) fn link(id: &str, text: &str) -> Self {
        Self(format!("<a href=\"#{}\">{}</a>", escaped(id), escaped(text)))
    }

    /// Text that readers open if they want it.
    pub(crate) fn details(summary: &str, content: impl Into<Self>) -> Self {
        let (summary, content) = (escaped(summary), content.into().0);
        Self(format!("<details><summary>{summary}</summary>\n{content}</details>"))
    }

    pub(crate) fn and(self, other: impl Into<Self>) -> Self {
        Self(self.0 + &other.into().0)
    }
}

/// A row of a table, and its class in the style sheet.
pub(crate) struct HtmlRow {
    pub(crate) class: String,
    pub(crate) cells: Vec<Html>,
}

/// A page under construction.
#[derive(Debug)]
pub(crate) struct HtmlPage(String);

impl HtmlPage {
    /// A page that begins with its title, and with a sentence that says what was done.
    pub(crate) fn new(title: &str, lead: impl Into<Html>) -> Self {
        let title = escaped(title);
        let mut page = Self(format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <title>{title}: Tidegate</title>\n<style>\n{STYLE}</style>\n<main>\n<h1>{title}</h1>\n"
        ));
        page.add(Html::element("p", "lead", lead));
        page
    }

    pub(crate) fn add(&mut self, html: impl Into<Html>) {
        self.0 += &html.into().0;
        self.0.push('\n');
    }

    pub(crate) fn heading(&mut self, text: impl Into<Html>) {
        self.add(Html::raw("<h2>").and(text).and(Html::raw("</h2>")));
    }

    /// A heading that links lead to.
    pub(crate) fn anchor(&mut self, id: &str, text: &str) {
        self.add(Html::raw(format!("<h2 id=\"{}\">{}</h2>", escaped(id), escaped(text))));
    }

    /// A paragraph of this class of the style sheet.
    pub(crate) fn paragraph(&mut self, class: &str, text: impl Into<Html>) {
        self.add(Html::element("p", class, text));
    }

    pub(crate) fn figure(&mut self, svg: &str) {
        self.add(Html::raw(format!("<figure>\n{svg}</figure>")));
    }

    pub(crate) fn table(&mut self, heads: &[&str], rows: impl IntoIterator<Item = HtmlRow>) {
        let cells = |name: &str, cells: &mut dyn Iterator<Item = Html>| {
            cells.map(|cell| format!("<{name}>{}</{name}>", cell.0)).collect::<String>()
        };
        let head = cells("th", &mut heads.iter().map(|head| Html::from(*head)));
        let mut html =
            format!("<div class=\"table\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n");
        for row in rows {
            let (class, cells) = (escaped(&row.class), cells("td", &mut row.cells.into_iter()));
            let _ = writeln!(html, "<tr class=\"{class}\">{cells}</tr>");
        }
        self.add(Html::raw(html + "</tbody></table></div>"));
    }

    /// Names and their values.
    pub(crate) fn facts<'a>(&mut self, facts: impl IntoIterator<Item = (&'a str, String)>) {
        let one = |(name, value): (&str, String)| {
            format!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(&value))
        };
        self.add(Html::raw(format!(
            "<dl>\n{}</dl>",
            facts.into_iter().map(one).collect::<String>()
        )));
    }

    /// The whole page.
    pub(crate) fn finish(self) -> String {
        self.0 + "</main>\n</html>\n"
    }
}

/// Text as HTML, also in attributes.
pub(crate) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// `2026-11-21 04:46 UTC`.
pub(crate) fn date(unix_ms: u64) -> String {
    let minutes = unix_ms / 60_000;
    let (days, minute) = (minutes / 1440, minutes % 1440);
    // The civil calendar, counted in days from 0000-03-01 so that leap days come last.
    let day = days + 719_468;
    let era = day / 146_097;
    let of_era = day % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", minute / 60, minute % 60)
}

#[cfg(test)]
pub(crate) mod tests {
    use roxmltree::{Document, ParsingOptions};

    use super::*;

    /// Asserts that the page is well-formed, and that it needs nothing else.
    pub(crate) fn assert_whole(page: &str) {
        let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
        Document::parse_with_options(page, options).unwrap();
        let rest = page.replace("http://www.w3.org/2000/svg", "").replace("href=\"#", "");
        for outside in ["http", "href", "src=", "<link", "@import", "url(", "<script", "NaN"] {
            assert!(!rest.contains(outside), "{outside}");
        }
    }

    #[test]
    fn text_is_escaped_and_elements_are_closed() {
        let mut page = HtmlPage::new("a < b", Html::element("b", "good", "c & d"));
        page.anchor("e \"f\"", "<e>");
        page.paragraph("means", Html::from("g ").and(Html::link("e", "<h>")));
        page.table(&["<i>"], [HtmlRow { class: "all".into(), cells: vec!["<j>".into()] }]);
        page.facts([("<k>", "<l>".to_owned())]);
        page.add(Html::details("<m>", Html::element("pre", "", "<n>")));
        let page = page.finish();
        assert_whole(&page);
        for text in "ehijklmn".chars() {
            assert!(page.contains(&format!("&lt;{text}&gt;")), "{text}");
        }
        assert!(page.contains("<b class=\"good\">c &amp; d</b>"));
    }

    #[test]
    fn dates_are_the_calendars() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_320_933_000), "2026-11-22 04:15 UTC");
    }
}
