//! XML events from octets, within the reader's limits.

use super::Limits;
use super::error::{DocumentError, quoted};
use super::input::{Exceeded, Input};
use quick_xml::errors::{Error as XmlError, IllFormedError};
use quick_xml::events::Event;
use std::io::{self, BufRead};

/// A buffer that one long tag or comment has grown past this is given back.
const LARGE_BUFFER: usize = 1 << 20;

/// The events of one document, up to the end of its root element and behind it.
pub(super) struct Events<R> {
    xml: quick_xml::Reader<Input<R>>,
    /// Holds the current event.
    buffer: Vec<u8>,
    limits: Limits,
}

impl<R: BufRead> Events<R> {
    /// Judges by the first octets whether this is XML, so that a package or a log file is not searched for a tag.
    pub(super) fn new(octets: R, limits: Limits) -> Result<Events<R>, DocumentError> {
        let of_input = |error| DocumentError::of_input(error, 0);
        let mut input = Input::new(octets, limits.document).map_err(of_input)?;
        let front = input.fill_buf().map_err(of_input)?;
        let text = front.trim_ascii_start();
        if front.is_empty() {
            return Err(DocumentError::Empty);
        }
        if !text.is_empty() && !text.starts_with(b"<") {
            return Err(DocumentError::NotXml { seen: quoted(text) });
        }
        let mut xml = quick_xml::Reader::from_reader(input);
        xml.config_mut().allow_dangling_amp = true;
        Ok(Events { xml, buffer: Vec::with_capacity(4096), limits })
    }

    /// The next event within the root element, or before it. The end of the octets is an error.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Event<'_>, DocumentError> {
        self.begin();
        match self.xml.read_event_into(&mut self.buffer) {
            Ok(Event::Eof) => Err(DocumentError::Truncated { position: self.xml.buffer_position() }),
            Ok(event) => Ok(event),
            Err(error) => Err(document_error(&mut self.xml, error, &self.limits)),
        }
    }

    /// Reads what follows the root element, so that damage to the end of a compressed document is found: what stands
    /// there though nothing should.
    pub(super) fn finish(&mut self) -> Result<Option<String>, DocumentError> {
        let stray = loop {
            self.begin();
            match self.xml.read_event_into(&mut self.buffer) {
                Ok(Event::Eof) => return Ok(None),
                Ok(Event::Comment(_) | Event::PI(_)) => {}
                Ok(Event::Text(text)) if text.trim().is_empty() => {}
                Ok(event) => break quoted(event.as_bytes()),
                Err(error @ XmlError::Io(_)) => return Err(document_error(&mut self.xml, error, &self.limits)),
                Err(error) => break error.to_string(),
            }
        };
        let input = self.xml.get_mut();
        input.begin_markup(u64::MAX);
        match io::copy(input, &mut io::sink()) {
            Ok(_) => Ok(Some(stray)),
            Err(_) if input.exceeded().is_some() => Err(DocumentError::TooLong { limit: self.limits.document }),
            Err(error) => Err(DocumentError::of_input(error, self.xml.buffer_position())),
        }
    }

    /// What is in memory behind the last event; it may end anywhere.
    #[inline]
    pub(super) fn window(&self) -> &[u8] {
        self.xml.get_ref().window()
    }

    /// So many octets of the window, where they begin with a character and end with one of ASCII.
    #[inline]
    pub(super) fn text(&self, octets: usize) -> Option<&str> {
        self.xml.get_ref().text(octets)
    }

    /// Passes by so many octets of the window: whole elements, behind an end tag.
    #[inline]
    pub(super) fn pass_by(&mut self, octets: usize) {
        self.xml.stream().consume(octets);
    }

    /// Octets read so far, after decompression.
    pub(super) fn position(&self) -> u64 {
        self.xml.buffer_position()
    }

    /// How many ill-formed sequences of octets have been read as U+FFFD.
    pub(super) fn replaced(&self) -> u64 {
        self.xml.get_ref().replaced()
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

#[cold]
fn document_error<R: BufRead>(
    xml: &mut quick_xml::Reader<Input<R>>,
    error: XmlError,
    limits: &Limits,
) -> DocumentError {
    let position = xml.error_position();
    match (xml.get_ref().exceeded(), error) {
        (Some(Exceeded::Document), _) => DocumentError::TooLong { limit: limits.document },
        (Some(Exceeded::Markup), _) => DocumentError::MarkupTooLong { position, limit: limits.markup() },
        (None, XmlError::Io(error)) => {
            DocumentError::of_input(io::Error::new(error.kind(), error), xml.buffer_position())
        }
        // Markup that is not closed is found at the end of the octets alone.
        (None, XmlError::Syntax(_)) if xml.get_mut().fill_buf().is_ok_and(<[u8]>::is_empty) => {
            DocumentError::Truncated { position: xml.buffer_position() }
        }
        (None, XmlError::IllFormed(IllFormedError::UnclosedReference)) => DocumentError::Truncated { position },
        (None, source) => DocumentError::Syntax { position, source },
    }
}
