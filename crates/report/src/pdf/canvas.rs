//! Drawing backend for plotters: maps its pixels to positions on a page.

use std::convert::Infallible;

use pdf_writer::{Content, Name, Str};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
    FontTransform,
};

use super::font::{Font, encode};
use super::write::{BOLD_NAME, PLAIN_NAME};
use crate::plot::ink::flat;

/// Factor by which plotters makes fonts larger than SVG does.
const POINTS: f64 = 1.24;
/// Control points of a quarter circle, relative to its radius.
const QUARTER: f32 = 0.552_285;
/// Distance from the center of text down to its baseline, relative to its size.
const HALF_X_HEIGHT: f32 = 0.26;
const ASCENT: f32 = 0.76;

/// A part of a page.
pub(super) struct Canvas<'a> {
    pub(super) content: &'a mut Content,
    /// Its upper left corner, in points from the lower left of the page.
    pub(super) corner: (f32, f32),
    /// Points per pixel.
    pub(super) scale: f32,
    /// Size in pixels.
    pub(super) size: (u32, u32),
}

type DrawResult = Result<(), DrawingErrorKind<Infallible>>;

impl Canvas<'_> {
    fn place(&self, at: BackendCoord) -> (f32, f32) {
        #[expect(clippy::cast_precision_loss, reason = "pixels of a picture are few")]
        let (x, y) = (at.0 as f32, at.1 as f32);
        (self.corner.0 + x * self.scale, self.corner.1 - y * self.scale)
    }

    fn fill_colour(&mut self, colour: BackendColor) {
        let [red, green, blue] = shown(colour);
        self.content.set_fill_rgb(red, green, blue);
    }

    fn pen<S: BackendStyle>(&mut self, style: &S) {
        let colour = style.color();
        let [red, green, blue] = shown(colour);
        self.content.set_stroke_rgb(red, green, blue);
        #[expect(clippy::cast_precision_loss, reason = "a few pixels")]
        self.content.set_line_width((style.stroke_width() as f32 * self.scale).max(0.4));
        let dashes = flat(colour.rgb).dashes.iter().map(|length| length * self.scale);
        self.content.set_dash_pattern(dashes, 0.0);
    }

    fn path(&mut self, path: impl IntoIterator<Item = BackendCoord>) -> bool {
        let mut some = false;
        for at in path {
            let (x, y) = self.place(at);
            if some {
                self.content.line_to(x, y);
            } else {
                self.content.move_to(x, y);
            }
            some = true;
        }
        some
    }
}

/// The opaque color of a translucent color over white.
fn shown(colour: BackendColor) -> [f32; 3] {
    #[expect(clippy::cast_possible_truncation, reason = "0 to 1")]
    let alpha = colour.alpha as f32;
    flat(colour.rgb).rgb.map(|part| part * alpha + 1.0 - alpha)
}

fn font_of<S: BackendTextStyle>(style: &S) -> (Font, Name<'static>) {
    match style.style() {
        plotters_backend::FontStyle::Bold => (Font::Bold, Name(BOLD_NAME)),
        _ => (Font::Plain, Name(PLAIN_NAME)),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a font's size")]
fn font_size<S: BackendTextStyle>(style: &S) -> f32 {
    (style.size() / POINTS) as f32
}

impl DrawingBackend for Canvas<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> DrawResult {
        Ok(())
    }

    fn present(&mut self) -> DrawResult {
        Ok(())
    }

    fn draw_pixel(&mut self, point: BackendCoord, colour: BackendColor) -> DrawResult {
        if colour.alpha > 0.0 {
            self.fill_colour(colour);
            let (x, y) = self.place(point);
            self.content.rect(x, y - self.scale, self.scale, self.scale).fill_nonzero();
        }
        Ok(())
    }

    fn draw_line<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
    ) -> DrawResult {
        self.draw_path([from, to], style)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        upper_left: BackendCoord,
        bottom_right: BackendCoord,
        style: &S,
        fill: bool,
    ) -> DrawResult {
        if style.color().alpha == 0.0 {
            return Ok(());
        }
        let (left, top) = self.place(upper_left);
        let (right, bottom) = self.place(bottom_right);
        if fill {
            self.fill_colour(style.color());
            self.content.rect(left, bottom, right - left, top - bottom).fill_nonzero();
        } else {
            self.pen(style);
            self.content.rect(left, bottom, right - left, top - bottom).stroke();
        }
        Ok(())
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> DrawResult {
        if style.color().alpha > 0.0 {
            self.pen(style);
            if self.path(path) {
                self.content.stroke();
            }
        }
        Ok(())
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        center: BackendCoord,
        radius: u32,
        style: &S,
        fill: bool,
    ) -> DrawResult {
        if style.color().alpha == 0.0 {
            return Ok(());
        }
        let (x, y) = self.place(center);
        #[expect(clippy::cast_precision_loss, reason = "a few pixels")]
        let r = radius as f32 * self.scale;
        let k = r * QUARTER;
        if fill {
            self.fill_colour(style.color());
        } else {
            self.pen(style);
        }
        self.content.move_to(x + r, y);
        self.content.cubic_to(x + r, y + k, x + k, y + r, x, y + r);
        self.content.cubic_to(x - k, y + r, x - r, y + k, x - r, y);
        self.content.cubic_to(x - r, y - k, x - k, y - r, x, y - r);
        self.content.cubic_to(x + k, y - r, x + r, y - k, x + r, y);
        if fill {
            self.content.fill_nonzero();
        } else {
            self.content.stroke();
        }
        Ok(())
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        corners: I,
        style: &S,
    ) -> DrawResult {
        if style.color().alpha > 0.0 {
            self.fill_colour(style.color());
            if self.path(corners) {
                self.content.fill_nonzero();
            }
        }
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        at: BackendCoord,
    ) -> DrawResult {
        let colour = style.color();
        if colour.alpha == 0.0 {
            return Ok(());
        }
        let (font, name) = font_of(style);
        let size = font_size(style) * self.scale;
        let along = match style.anchor().h_pos {
            HPos::Left => 0.0,
            HPos::Center => -font.width(text, size) / 2.0,
            HPos::Right => -font.width(text, size),
        };
        let down = size
            * match style.anchor().v_pos {
                VPos::Top => ASCENT,
                VPos::Center => HALF_X_HEIGHT,
                VPos::Bottom => -HALF_X_HEIGHT,
            };
        let (x, y) = self.place(at);
        // Cosine and sine of the counterclockwise rotation.
        let (cos, sin) = match style.transform() {
            FontTransform::Rotate270 => (0.0, 1.0),
            FontTransform::Rotate180 => (-1.0, 0.0),
            FontTransform::Rotate90 => (0.0, -1.0),
            _ => (1.0, 0.0),
        };
        let place = (x + along * cos + down * sin, y + along * sin - down * cos);
        self.fill_colour(colour);
        self.content.begin_text().set_font(name, size);
        self.content.set_text_matrix([cos, sin, -sin, cos, place.0, place.1]);
        self.content.show(Str(&encode(text))).end_text();
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let size = font_size(style);
        let whole = |length: f32| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "pixels of a text"
            )]
            let pixels = length.ceil() as u32;
            pixels
        };
        Ok((whole(font_of(style).0.width(text, size)), whole(size)))
    }
}
