//! Texts with a URI a line, which the Sitemap protocol allows besides its XML.
//!
//! `fetch.txt` of BagIt (RFC 8493, 2.2.3) is such a text too: URL, length or `-`, and path.

use super::element::{Context, read_length, read_uri};
use super::error::quoted;
use super::{DocumentError, Reader, ReaderPhase};
use crate::document::{Entry, Root, Rule, Uri};
use std::io::BufRead;

/// Lines of a text that decide whether it is a list.
const FIRST_LINES: usize = 8;

/// A line of a text.
enum Line {
    /// Blank, or a comment.
    Nothing,
    /// A URI, and whether it is one without doubt: prose may begin with one.
    Entry(Box<Entry>, bool),
    /// An address that is not a file's.
    Elsewhere,
    /// Anything else.
    Unreadable,
}

impl Line {
    /// Understands one line; what is wrong with it is noted.
    fn read(line: &str, fits: bool, context: &mut Context) -> Line {
        let text = line.trim();
        if text.is_empty() {
            return Line::Nothing;
        }
        let is_uri = |text: &str| {
            let begins =
                |scheme: &str| text.get(..scheme.len()).is_some_and(|begins| begins.eq_ignore_ascii_case(scheme));
            begins("http://") || begins("https://")
        };
        if !fits || !is_uri(text) {
            let is_elsewhere = || Uri::parse(text).is_err_and(|error| error.is_of_other_scheme());
            let (rule, line) = match text.contains(char::is_whitespace) {
                _ if !fits => (Rule::TextTooLong, Line::Unreadable),
                _ if text.starts_with('#') => (Rule::LineUnreadable, Line::Nothing),
                false if is_elsewhere() => (Rule::OtherScheme, Line::Elsewhere),
                _ => (Rule::LineUnreadable, Line::Unreadable),
            };
            context.notes.add(rule, text);
            return line;
        }
        let (uri, rest) = fields(text);
        let (length, path) = fields(rest);
        let is_length = length == "-" || !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        let is_fetched = is_length && !path.is_empty();
        let is_sure = is_fetched || !text.contains(char::is_whitespace);
        // A blank may be the URI's own; behind a tab there is another column.
        let loc = if is_fetched { uri } else { text.split('\t').next().unwrap_or(text) };
        match read_uri(loc, context) {
            Ok(loc) => {
                let mut entry = Entry::new(loc);
                if is_fetched {
                    entry.path = Some(path.into());
                    entry.length = if length == "-" { None } else { read_length(length, &mut context.notes) };
                } else if text.contains('\t') {
                    context.notes.add(Rule::LineUnreadable, text);
                }
                Line::Entry(Box::new(entry), is_sure)
            }
            Err(_) => {
                context.notes.add(Rule::LocMalformed, text);
                Line::Unreadable
            }
        }
    }
}

/// The fault of a line of a table of addresses, or of addresses without a scheme; `None` where it is something else.
fn nearly_entry(line: &str) -> Option<&'static str> {
    let address = line.trim_start_matches(['"', '\'', '<', '(', '[', '-', '*', ' ', '\t']);
    let has_scheme = ["http://", "https://"]
        .iter()
        .any(|scheme| address.get(..scheme.len()).is_some_and(|it| it.eq_ignore_ascii_case(scheme)));
    let columns = ['\t', ';', '|', '"', '\'', '>'];
    let (has_columns, is_prose) =
        (address.contains(columns), address.split(columns).next().is_some_and(|it| it.contains(' ')));
    let host = address.split_once('/').map_or("", |(host, _)| host);
    let is_host = host.contains('.') && !host.starts_with('.') && Uri::parse(&format!("http://{host}/")).is_ok();
    match (has_scheme, address.len() < line.len()) {
        (true, true) if !is_prose => Some("does not begin with the URL"),
        (true, false) if has_columns && !is_prose => Some("has more than the URL"),
        (false, false) if is_host && !line.contains(char::is_whitespace) => {
            Some("has no http:// or https:// before the host")
        }
        _ => None,
    }
}

/// The first field of a line, and the others.
fn fields(line: &str) -> (&str, &str) {
    line.split_once([' ', '\t']).map_or((line, ""), |(field, rest)| (field, rest.trim()))
}

impl<R: BufRead> Reader<R> {
    /// Reads the first lines of a text: it is a list where at least half of them are URIs and the first is, or most are.
    pub(super) fn read_first_lines(&mut self) -> Result<ReaderPhase, DocumentError> {
        self.header.root = Root::Text;
        let (mut lines, mut uris, mut begins_with_uri) = (0, 0, false);
        let (mut number, mut nearly, mut cause) = (0, 0, None);
        while lines < FIRST_LINES {
            let Some(line) = self.read_line()? else { break };
            number += 1;
            let Some(is_uri) = line else { continue };
            if let Some(why) = nearly_entry(self.text.trim()).filter(|_| !is_uri) {
                nearly += 1;
                cause.get_or_insert_with(|| (number, quoted(self.text.trim().as_bytes()), why));
            }
            begins_with_uri |= is_uri && lines == 0;
            lines += 1;
            uris += usize::from(is_uri);
        }
        if uris * 2 > lines || uris * 2 == lines && begins_with_uri {
            return Ok(ReaderPhase::Lines);
        }
        match cause.filter(|_| nearly * 2 >= lines) {
            Some((line, seen, why)) => Err(DocumentError::NotLines { line, seen, why }),
            None => Err(DocumentError::NotXml { seen: quoted(&self.events.front) }),
        }
    }

    /// Reads one line of a text; its entry goes to `further`. True if it is a URI without doubt. The inner `None` is an empty line, the outer one the end.
    pub(super) fn read_line(&mut self) -> Result<Option<Option<bool>>, DocumentError> {
        let Some((line, fits)) = self.events.line()? else { return Ok(None) };
        self.text.clear();
        self.text.push_str(&line);
        self.context.notes.entry = self.entries + 1;
        let read = Line::read(&line, fits, &mut self.context);
        if line.contains('\u{fffd}') {
            self.context.notes.add(Rule::IllFormedEncoding, &line);
        }
        let (is_understood, is_sure) = match read {
            Line::Nothing => return Ok(Some(None)),
            Line::Entry(entry, is_sure) => {
                self.further.push_back(*entry);
                (true, is_sure)
            }
            Line::Elsewhere => {
                self.elsewhere += 1;
                (true, false)
            }
            Line::Unreadable => (false, false),
        };
        self.entries += 1;
        self.skipped += u64::from(!is_understood);
        Ok(Some(Some(is_sure)))
    }
}
