//! The streaming reader: any ResourceSync document or sitemap (feeds and texts too), entry by entry, in bounded memory.
//!
//! `bytes -> input (inflate, decode, mend) -> events (quick_xml) -> namespace, element, feed, text, reference -> draft -> Entry`, and
//! with it `rules`, which counts what the document breaks. Most entries are found by `plain` at once, with no event. An entry that cannot be understood is skipped and counted;
//! XML that is not well-formed, or that ends before its root element does, fails the document.

mod draft;
mod element;
mod entry;
mod error;
mod events;
mod feed;
mod input;
mod namespace;
mod plain;
mod reference;
mod root;
mod rules;
mod text;

#[cfg(test)]
mod tests;

pub use error::DocumentError;

use super::{Deviations, Entry, Header, Rule, Uri};
use element::{Context, Metadata};
use events::Events;
use namespace::Bindings;
use rules::DocumentRules;
use std::collections::VecDeque;
use std::io::BufRead;

/// One tag, comment or text may be so many times longer than `Limits::text` before the document fails: attributes that
/// are too long can be skipped, and a long comment does no harm.
const MARKUP_PER_TEXT: u64 = 256;

/// The links of one entry may together be so many times longer: entries are held some hundred at a time.
const LINKS_PER_TEXT: u64 = 16;

/// Bounds on what a document may ask of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes after decompression.
    pub document: u64,
    /// Bytes of one element's text or one attribute.
    pub text: usize,
    /// Depth of nested elements.
    pub depth: usize,
    /// Links of one entry.
    pub links: usize,
}

impl Limits {
    /// 16 GiB: over a hundred times the largest list seen.
    pub const DOCUMENT: u64 = 16 << 30;
    /// 64 KiB: eight times what servers take as a URI.
    pub const TEXT: usize = 64 << 10;
    /// A ResourceSync document has 3, extensions a few more.
    pub const DEPTH: usize = 64;
    /// A resource with so many mirrors or versions publishes them elsewhere.
    pub const LINKS: usize = 1_000;

    /// Bytes of the tags of one entry's links together: 1 MiB, unless `text` is another.
    fn all_links(&self) -> u64 {
        (self.text as u64).saturating_mul(LINKS_PER_TEXT)
    }

    /// Bytes of one tag, comment or text.
    fn markup(&self) -> u64 {
        (self.text as u64).saturating_mul(MARKUP_PER_TEXT)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { document: Limits::DOCUMENT, text: Limits::TEXT, depth: Limits::DEPTH, links: Limits::LINKS }
    }
}

/// The place where the reader stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderPhase {
    /// Between children of the root.
    Root,
    /// Behind the start tag of an entry; whether it is a list.
    Entry(bool),
    /// Between two lines of a text.
    Lines,
    /// Behind the document.
    Finished,
    /// At an error: nothing more is read.
    Failed,
}

/// Reads one document. Compression (gzip by magic) and encodings (BOM, XML declaration) are undone on the way.
pub struct Reader<R> {
    events: Events<R>,
    /// The text of the current element.
    text: String,
    context: Context,
    /// Open elements.
    depth: usize,
    header: Header,
    header_metadata: Metadata,
    /// Bytes of the tags of the header's links.
    header_link_bytes: u64,
    rules: DocumentRules,
    /// `true` while the prefixes stand for what [`plain`] takes them for.
    is_plain: bool,
    /// The elements of the plain entry being read.
    parts: Vec<plain::PlainElement>,
    /// Entries that others name besides themselves, and the first lines of a text.
    further: VecDeque<Entry>,
    /// Entries begun.
    entries: u64,
    /// Entries that could not be understood.
    skipped: u64,
    /// Entries whose address cannot be a file's.
    elsewhere: u64,
    /// Elements that may be entries and cannot be understood, outside of entries or within one that can.
    hidden: u64,
    phase: ReaderPhase,
}

impl<R: BufRead> Reader<R> {
    /// Reads up to the first entry. `base` is the document's final URI, `None` for a file on disk.
    ///
    /// # Errors
    /// Whatever is wrong up to there: above all [`DocumentError::NotXml`] and [`DocumentError::NotADocument`].
    pub fn new(input: R, base: Option<Uri>, limits: Limits) -> Result<Reader<R>, DocumentError> {
        let mut reader = Reader {
            events: Events::new(input, limits)?,
            text: String::new(),
            context: Context { bindings: Bindings::of(base), limits, notes: Deviations::default() },
            depth: 0,
            header: Header::default(),
            header_metadata: Metadata::default(),
            header_link_bytes: 0,
            rules: DocumentRules::default(),
            is_plain: false,
            parts: Vec::new(),
            further: VecDeque::new(),
            entries: 0,
            skipped: 0,
            elsewhere: 0,
            hidden: 0,
            phase: ReaderPhase::Failed,
        };
        if let Some(encoding) = &reader.events.input().unknown_encoding {
            reader.context.notes.add(Rule::EncodingUnknown, encoding);
        }
        reader.phase = if reader.events.is_text { reader.read_first_lines()? } else { reader.read_prolog()? };
        if reader.phase == ReaderPhase::Root {
            reader.phase = reader.read_to_entry()?;
        }
        Ok(reader)
    }

    /// The next entry that can be understood; `None` after the closing root element. A document that ends
    /// before its closing root element is an error.
    ///
    /// # Errors
    /// Any [`DocumentError`]; after one, every further call answers [`DocumentError::Truncated`].
    pub fn next_entry(&mut self) -> Result<Option<Entry>, DocumentError> {
        loop {
            if let Some(entry) = self.further.pop_front() {
                return Ok(Some(entry));
            }
            let phase = std::mem::replace(&mut self.phase, ReaderPhase::Failed);
            match phase {
                ReaderPhase::Root => match self.read_plain_entry() {
                    Some(entry) => {
                        self.phase = ReaderPhase::Root;
                        if entry.is_some() {
                            return Ok(entry);
                        }
                    }
                    None => self.phase = self.read_to_entry()?,
                },
                ReaderPhase::Lines => {
                    self.phase = if self.read_line()?.is_some() { ReaderPhase::Lines } else { ReaderPhase::Finished };
                }
                ReaderPhase::Entry(is_list) => {
                    let entry = self.read_entry(is_list)?;
                    self.phase = ReaderPhase::Root;
                    if entry.is_some() {
                        return Ok(entry);
                    }
                }
                ReaderPhase::Finished => {
                    self.phase = ReaderPhase::Finished;
                    return Ok(None);
                }
                ReaderPhase::Failed => return Err(DocumentError::Truncated { position: self.events.position() }),
            }
        }
    }

    /// The elements below the root that were read: complete when `next_entry` has returned `None`
    /// (normally complete before the first entry).
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The deviations of the document, in what was read.
    pub fn deviations(&self) -> &Deviations {
        &self.context.notes
    }

    /// Entries begun so far, those that were skipped included.
    pub fn entries(&self) -> u64 {
        self.entries + self.hidden
    }

    /// Entries skipped so far, because they cannot be understood: an index with one has children that are not known. Those that lie
    /// where no file can are understood, but a document of nothing else lists nothing.
    pub fn skipped(&self) -> u64 {
        let skipped = self.skipped + self.hidden;
        if skipped + self.elsewhere == self.entries() { self.entries() } else { skipped }
    }
}
