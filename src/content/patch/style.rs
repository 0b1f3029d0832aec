//! How a Source writes JSON: compact, spaced or indented. The way of a document is the one that gives its very bytes.

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};

/// One way of writing JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// No blanks.
    Compact,
    /// A blank behind each comma and colon.
    Spaced,
    /// A line for each value, indented by these bytes a level.
    Indented(Box<[u8]>),
}

impl Style {
    /// The way in which `bytes` were written, of which `value` was read.
    pub(super) fn of(bytes: &[u8], value: &Value) -> Option<Style> {
        let lines = bytes.split(|byte| *byte == b'\n').nth(1);
        let indent = lines.map(|line| line.iter().copied().take_while(|byte| matches!(byte, b' ' | b'\t')).collect());
        let styles = [Style::Compact, Style::Spaced].into_iter().chain(indent.map(Style::Indented));
        styles.into_iter().find(|style| style.write(value, bytes.len()).as_deref() == Some(bytes))
    }

    /// `value` written so; `None` where that takes more than `limit` bytes.
    pub(super) fn write(&self, value: &Value, limit: usize) -> Option<Vec<u8>> {
        // Grows no further: the rest of what a patch asks for fails.
        let mut bytes = vec![0; limit];
        let mut out = &mut bytes[..];
        match self {
            Style::Compact => value.serialize(&mut Serializer::with_formatter(&mut out, CompactFormatter)),
            Style::Spaced => value.serialize(&mut Serializer::with_formatter(&mut out, Spaces)),
            Style::Indented(by) => {
                value.serialize(&mut Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(by)))
            }
        }
        .ok()?;
        let left = out.len();
        bytes.truncate(limit - left);
        Some(bytes)
    }
}

struct Spaces;

impl Formatter for Spaces {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(text: &str) -> Option<Style> {
        Style::of(text.as_bytes(), &serde_json::from_str(text).unwrap())
    }

    #[test]
    fn compact_spaced_and_indented_documents_are_written_as_read() {
        for text in [
            r#"{"b":[1,2.50,{"é":"a/b"}],"a":{},"c":[]}"#,
            r#"{"b": [1, 2.50, {"é": "a/b"}], "a": {}, "c": []}"#,
            "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": []\n}",
            "{\n    \"b\": [\n        \"x\"\n    ]\n}",
            "{\n\t\"b\": {\n\t\t\"c\": null\n\t}\n}",
            "[\n 1\n]",
            "\"\\u001f\\n\\\"\"",
            "[1e+400, -0.0, 1e-05, 123456789012345678901234567890]",
        ] {
            let style = style(text).unwrap_or_else(|| panic!("{text}"));
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(style.write(&value, 1000).as_deref(), Some(text.as_bytes()));
            assert_eq!(style.write(&value, text.len() - 1), None);
        }
    }

    #[test]
    fn other_ways_are_unknown() {
        for text in [r#"{ "a":1}"#, r#"{"a":1,"a":1}"#, "[1 ]", r#""\u0041""#, "[1]\n\n", r#"["\u00e9"]"#, "[\n1\n  ]"]
        {
            assert_eq!(style(text), None, "{text}");
        }
    }
}
