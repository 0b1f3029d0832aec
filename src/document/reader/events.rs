//! XML events, or lines, from bytes, within the reader's limits.

use super::Limits;
use super::error::{DocumentError, format_of_text, quoted};
use super::input::{Exceeded, Input};
use memchr::memchr2;
use quick_xml::errors::{Error as XmlError, IllFormedError, SyntaxError};
use quick_xml::events::{BytesStart, Event};
use std::borrow::Cow;
use std::io::{self, BufRead};
use std::sync::Arc;

/// A buffer that one long tag or comment has grown past this is given back.
const LARGE_BUFFER: usize = 1 << 20;

/// Bytes of a text that an error may quote.
const SHOWN: usize = 256;

/// The events of one document, up to the end of its root element and behind it.
pub(super) struct Events<R> {
    xml: quick_xml::Reader<Input<R>>,
    /// Holds the current event.
    buffer: Vec<u8>,
    limits: Limits,
    /// How a text begins, for an error that says so.
    pub front: Vec<u8>,
    /// The document begins with no tag: it has lines rather than events.
    pub is_text: bool,
}

/// Content behind a root element.
pub(super) enum Behind {
    /// A tag, and whether it is an empty one.
    Element(BytesStart<'static>, bool),
    /// Anything else.
    Stray(String),
}

impl<R: BufRead> Events<R> {
    /// Judges by the first bytes whether this is XML, so that a package or a log file is not searched for a tag.
    pub(super) fn new(bytes: R, limits: Limits) -> Result<Events<R>, DocumentError> {
        let of_input = |error| DocumentError::of_input(error, 0);
        let mut input = Input::new(bytes, limits.document).map_err(of_input)?;
        let front = input.fill_buf().map_err(of_input)?;
        let text = front.trim_ascii_start();
        if front.is_empty() {
            return Err(DocumentError::Empty);
        }
        let is_text = !text.is_empty() && !text.starts_with(b"<");
        if is_text {
            if let Some(name) = format_of_text(text) {
                return Err(DocumentError::OtherFormat { name });
            }
        }
        if is_text && text.contains(&0) {
            return Err(DocumentError::NotXml { seen: quoted(text) });
        }
        let front = if is_text { text.get(..SHOWN).unwrap_or(text).to_vec() } else { Vec::new() };
        let mut xml = quick_xml::Reader::from_reader(input);
        xml.config_mut().allow_dangling_amp = true;
        Ok(Events { xml, buffer: Vec::with_capacity(4096), limits, front, is_text })
    }

    /// The next line of a text, without its end, and true if it fits the limit of a text; else it is cut.
    pub(super) fn line(&mut self) -> Result<Option<(Cow<'_, str>, bool)>, DocumentError> {
        self.begin();
        let limit = self.limits.text;
        let mut fits = true;
        loop {
            let mut stream = self.xml.stream();
            let window = match stream.fill_buf() {
                Ok(window) => window,
                Err(error) => {
                    return Err(document_error(&mut self.xml, XmlError::Io(Arc::new(error)), &self.limits));
                }
            };
            let end = memchr2(b'\n', b'\r', window);
            if window.is_empty() && self.buffer.is_empty() {
                return Ok(None);
            }
            let length = end.unwrap_or(window.len());
            let room = limit - self.buffer.len();
            fits &= length <= room;
            self.buffer.extend_from_slice(&window[..length.min(room)]);
            let is_last = window.is_empty() || end.is_some();
            stream.consume(length + usize::from(end.is_some()));
            if is_last {
                return Ok(Some((String::from_utf8_lossy(&self.buffer), fits)));
            }
        }
    }

    /// The next event within the root element, or before it. The end of the bytes is an error.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Event<'_>, DocumentError> {
        self.begin();
        match self.xml.read_event_into(&mut self.buffer) {
            Ok(Event::Eof) => Err(DocumentError::Truncated { position: self.xml.buffer_position() }),
            Ok(event) => Ok(event),
            Err(error) => Err(document_error(&mut self.xml, error, &self.limits)),
        }
    }

    /// Content behind the root element, though there should be none; `None` at the end.
    pub(super) fn behind_root(&mut self) -> Result<Option<Behind>, DocumentError> {
        loop {
            self.begin();
            let found = match self.xml.read_event_into(&mut self.buffer) {
                Ok(Event::Eof) => return Ok(None),
                Ok(Event::Comment(_) | Event::PI(_) | Event::Decl(_) | Event::DocType(_)) => continue,
                Ok(Event::Text(text)) if utf8(&text).trim().is_empty() => continue,
                Ok(Event::Start(element)) => Behind::Element(element.into_owned(), false),
                Ok(Event::Empty(element)) => Behind::Element(element.into_owned(), true),
                Ok(event) => Behind::Stray(quoted(&event)),
                Err(error @ XmlError::Io(_)) => return Err(document_error(&mut self.xml, error, &self.limits)),
                // It may be the root of one more list.
                Err(XmlError::Syntax(
                    SyntaxError::UnclosedTag
                    | SyntaxError::UnclosedSingleQuotedAttributeValue
                    | SyntaxError::UnclosedDoubleQuotedAttributeValue,
                )) => {
                    return Err(DocumentError::Truncated { position: self.xml.buffer_position() });
                }
                Err(error) => Behind::Stray(error.to_string()),
            };
            return Ok(Some(found));
        }
    }

    /// Reads to the end of the bytes without a look at them, so that damage to the end of a compressed document is found.
    pub(super) fn drain(&mut self) -> Result<(), DocumentError> {
        let input = self.xml.get_mut();
        input.begin_markup(u64::MAX);
        match io::copy(input, &mut io::sink()) {
            Ok(_) => Ok(()),
            Err(_) if input.exceeded.is_some() => Err(DocumentError::TooLong { limit: self.limits.document }),
            Err(error) => Err(DocumentError::of_input(error, self.xml.buffer_position())),
        }
    }

    /// The bytes of the document.
    #[inline]
    pub(super) fn input(&self) -> &Input<R> {
        self.xml.get_ref()
    }

    /// Passes by so many bytes of the window: whole elements, behind an end tag.
    #[inline]
    pub(super) fn pass_by(&mut self, bytes: usize) {
        self.xml.stream().consume(bytes);
    }

    /// Bytes read so far, after decompression.
    pub(super) fn position(&self) -> u64 {
        self.xml.buffer_position()
    }

    /// The first control character that XML does not allow, where it stands, and how many there are.
    pub(super) fn controls(&self) -> Option<String> {
        self.input().controls.map(|(count, byte, position)| match count {
            1 => format!("U+{byte:04X} at byte {position}"),
            _ => format!("U+{byte:04X} at byte {position}, the first of {count}"),
        })
    }

    /// Makes room for an event, and no more than it may have.
    #[inline]
    fn begin(&mut self) {
        self.buffer.clear();
        if self.buffer.capacity() > LARGE_BUFFER {
            self.buffer.shrink_to(LARGE_BUFFER);
        }
        self.xml.get_mut().begin_markup(self.limits.markup());
    }
}

/// A part of an event as text: it is UTF-8 because [`Input`] is, and because events and their parts end at characters of ASCII.
#[inline]
pub(super) fn utf8(part: &[u8]) -> &str {
    std::str::from_utf8(part).unwrap_or_default()
}

/// The name of an element as it stands there, prefix included.
pub(super) fn name<'a>(element: &'a BytesStart<'_>) -> &'a str {
    utf8(element.name().into_inner())
}

#[cold]
fn document_error<R: BufRead>(
    xml: &mut quick_xml::Reader<Input<R>>,
    error: XmlError,
    limits: &Limits,
) -> DocumentError {
    let position = xml.error_position();
    match (xml.get_ref().exceeded, error) {
        (Some(Exceeded::Document), _) => DocumentError::TooLong { limit: limits.document },
        (Some(Exceeded::Markup), _) => DocumentError::MarkupTooLong { position, limit: limits.markup() },
        (None, XmlError::Io(error)) => {
            DocumentError::of_input(io::Error::new(error.kind(), error), xml.buffer_position())
        }
        // Markup that is not closed is found at the end of the bytes alone.
        (None, XmlError::Syntax(_)) if xml.get_mut().fill_buf().is_ok_and(<[u8]>::is_empty) => {
            DocumentError::Truncated { position: xml.buffer_position() }
        }
        (None, XmlError::IllFormed(IllFormedError::UnclosedReference)) => DocumentError::Truncated { position },
        (None, source) => DocumentError::Syntax { position, source },
    }
}
