//! Raster output of the charts, for viewers without SVG.
//!
//! The letters are those of the font that comes with this program, and no other is looked for: a
//! machine may have none, and the picture of a run is to be the same everywhere.

use std::sync::Arc;

use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

/// Latin, Greek and Cyrillic letters of DejaVu Sans; its licence lies beside it.
const FONT: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/fonts/DejaVuSans.ttf"));
const FAMILY: &str = "DejaVu Sans";

/// Pixels of one of the picture's own units, two of a unit of layout: letters of 12 units can be
/// read on paper, too.
const SCALE: f32 = 2.0 / super::SCALE as f32;

/// A picture as PNG, on white.
///
/// # Errors
/// If the picture cannot be read or drawn, with the cause. Tests see that ours can.
pub(crate) fn png(svg: &str) -> Result<Vec<u8>, String> {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(FONT.to_vec());
    fonts.set_sans_serif_family(FAMILY);
    let (fontdb, font_family) = (Arc::new(fonts), FAMILY.to_owned());
    let options = Options { fontdb, font_family, ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(|error| error.to_string())?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or("the picture has no size")?;
    let pixels = Pixmap::new(size.width(), size.height());
    let mut pixels = pixels.ok_or("the picture is too large")?;
    pixels.fill(Color::WHITE);
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::{Panel, Series, draw};
    use super::*;

    fn pixels(title: &str) -> Pixmap {
        let series = vec![Series::line("", vec![(0.0, 0.0), (2.0, 7.0)])];
        let panel = Panel { title: title.into(), series, ..Panel::default() };
        Pixmap::decode_png(&png(&draw("picture", &[panel])).unwrap()).unwrap()
    }

    #[test]
    fn text_is_drawn_with_the_bundled_font() {
        let [none, some, other] = ["", "iii", "WWW"].map(pixels);
        assert_eq!((none.width(), none.height()), (some.width(), some.height()));
        let dark =
            |pixels: &Pixmap| pixels.pixels().iter().filter(|pixel| pixel.red() < 160).count();
        let (few, many) = (dark(&some) - dark(&none), dark(&other) - dark(&none));
        assert!(few > 10 && many > 2 * few, "{few} and {many} pixels are letters");
        // Letters that people have in their names.
        let unknown = pixels("\u{4e00}");
        for character in "äßčøλЖ".chars() {
            let drawn = pixels(&character.to_string());
            let count = dark(&drawn) - dark(&none);
            assert!(count > 10 && drawn.data() != unknown.data(), "{character}: {count}");
        }
    }

    #[test]
    fn lines_have_their_colours() {
        let picture = pixels("");
        let blue = picture
            .pixels()
            .iter()
            .filter(|pixel| (pixel.red(), pixel.green(), pixel.blue()) == (0x00, 0x72, 0xb2));
        assert!(blue.count() > 500, "the line is not there");
        assert_eq!(picture.pixels()[0].red(), 255);
    }

    #[test]
    fn what_is_no_picture_is_an_error() {
        assert!(png("<svg").is_err());
    }
}
