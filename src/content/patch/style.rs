//! How a Source writes JSON: found by writing a document in the common ways until one gives its very bytes.

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};
use std::io::{self, Write};

/// One way of writing JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    layout: Layout,
    /// Whatever is not ASCII is escaped.
    is_ascii: bool,
    /// `/` is escaped.
    escapes_slashes: bool,
    /// What follows the value.
    end: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// No blanks.
    Compact,
    /// A blank behind each comma and colon.
    Spaced,
    /// A line for each value, indented by so much a level.
    Lines(&'static str),
}

const LAYOUTS: [Layout; 5] =
    [Layout::Compact, Layout::Spaced, Layout::Lines("  "), Layout::Lines("    "), Layout::Lines("\t")];

impl Style {
    /// The way in which `bytes` were written, of which `value` was read.
    pub(super) fn of(bytes: &[u8], value: &Value) -> Option<Style> {
        let end = ["\r\n", "\n"].into_iter().find(|end| bytes.ends_with(end.as_bytes())).unwrap_or("");
        let styles = LAYOUTS.into_iter().flat_map(|layout| {
            [(false, false), (true, false), (false, true), (true, true)].map(|(is_ascii, escapes_slashes)| Style {
                layout,
                is_ascii,
                escapes_slashes,
                end,
            })
        });
        styles.into_iter().find(|style| {
            let mut rest = Same { rest: bytes };
            style.write_to(value, &mut rest).is_ok() && rest.rest.is_empty()
        })
    }

    /// `value` written so; `None` where that gives more than `limit` bytes.
    pub(super) fn write(&self, value: &Value, limit: usize) -> Option<Vec<u8>> {
        let mut bytes = AtMost { bytes: Vec::new(), limit };
        self.write_to(value, &mut bytes).ok()?;
        Some(bytes.bytes)
    }

    fn write_to(&self, value: &Value, out: &mut impl Write) -> io::Result<()> {
        let writer = Writer { style: *self, depth: 0, has_value: false };
        value.serialize(&mut Serializer::with_formatter(&mut *out, writer))?;
        out.write_all(self.end.as_bytes())
    }
}

/// Takes only the bytes it was given.
struct Same<'a> {
    rest: &'a [u8],
}

impl Write for Same<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.rest = self.rest.strip_prefix(bytes).ok_or(io::ErrorKind::InvalidData)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes so many bytes and no more.
struct AtMost {
    bytes: Vec<u8>,
    limit: usize,
}

impl Write for AtMost {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes in a style.
struct Writer {
    style: Style,
    depth: usize,
    /// The array or object being written is not empty so far.
    has_value: bool,
}

impl Writer {
    fn begin<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        out.write_all(bracket)
    }

    fn end<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_value {
            self.new_line(out)?;
        }
        // What encloses it has this value.
        self.has_value = true;
        out.write_all(bracket)
    }

    fn separate<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        match (self.style.layout, first) {
            (Layout::Compact, false) => out.write_all(b",")?,
            (Layout::Spaced, false) => out.write_all(b", ")?,
            (Layout::Lines(_), false) => out.write_all(b",")?,
            (_, true) => {}
        }
        self.new_line(out)
    }

    fn new_line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        let Layout::Lines(indent) = self.style.layout else { return Ok(()) };
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(indent.as_bytes()))
    }
}

impl Formatter for Writer {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.separate(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _out: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.separate(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(if self.style.layout == Layout::Compact { b":" } else { b": " })
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _out: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        let Style { is_ascii, escapes_slashes, .. } = self.style;
        let is_escaped = |c: char| (is_ascii && (!c.is_ascii() || c == '\u{7f}')) || (escapes_slashes && c == '/');
        let mut rest = fragment;
        while let Some((at, escaped)) = rest.char_indices().find(|(_, c)| is_escaped(*c)) {
            out.write_all(&rest.as_bytes()[..at])?;
            if escaped == '/' {
                out.write_all(b"\\/")?;
            } else {
                for unit in escaped.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
            rest = &rest[at + escaped.len_utf8()..];
        }
        out.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(text: &str) -> Option<Style> {
        Style::of(text.as_bytes(), &serde_json::from_str(text).unwrap())
    }

    #[test]
    fn the_common_ways_of_writing_are_known_again() {
        for text in [
            r#"{"b":[1,2.50,{"é":"a/b"}],"a":{},"c":[]}"#,
            r#"{"b": [1, 2.50, {"\u00e9": "a/b"}], "a": {}, "c": []}"#,
            "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": []\n}\n",
            "{\n    \"b\": [\n        \"\\ud83d\\ude00 \\/\"\n    ]\n}",
            "{\n\t\"b\": {\n\t\t\"c\": null\n\t}\n}\r\n",
            r#""http:\/\/example.org\/é""#,
            "\"\\u007f\\u001f\\n\\\"\"\n",
            "[1e+400, -0.0, 1e-05, 123456789012345678901234567890]",
        ] {
            let style = style(text).unwrap_or_else(|| panic!("{text}"));
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(style.write(&value, 1000).as_deref(), Some(text.as_bytes()));
            assert_eq!(style.write(&value, text.len() - 1), None);
        }
    }

    #[test]
    fn other_ways_are_not() {
        for text in [r#"{ "a":1}"#, r#"{"a":1,"a":1}"#, "[1 ]", r#""\u0041""#, "[1]\n\n", r#"["\u00E9"]"#] {
            assert_eq!(style(text), None, "{text}");
        }
    }
}
