//! The streaming reader: any ResourceSync document or sitemap (feeds and texts too), entry by entry, in bounded memory.
//!
//! `bytes -> input (inflate, decode, mend) -> events (quick_xml) -> namespace, element, feed, text, reference -> draft -> Entry`, and
//! with it `rules`, which counts what the document breaks. Most entries are found by `plain` at once, with no event. An entry that cannot be understood is skipped and counted;
//! XML that is not well-formed, or that ends before its root element does, fails the document.

mod draft;
mod element;
mod error;
mod events;
mod feed;
mod input;
mod namespace;
mod plain;
mod reference;
mod rules;
mod text;

#[cfg(test)]
mod tests;

pub use error::DocumentError;

use super::{Deviations, Entry, Header, Link, Root, Rule, Uri};
use draft::{Draft, add_link};
use element::{Context, Metadata, Tag};
use error::quoted;
use events::{Behind, Events, name, utf8};
use feed::FeedLink;
use namespace::{Bindings, Kind};
use quick_xml::events::Event;
use reference::{judge_attributes, judge_references, push_text};
use rules::{DocumentRules, without_address};
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

/// Where deviations of one entry are noted.
struct Notes<'a> {
    deviations: &'a mut Deviations,
    /// 0 for the document itself.
    entry: u64,
}

impl Notes<'_> {
    #[cold]
    fn add(&mut self, rule: Rule, seen: &str) {
        self.deviations.add(rule, self.entry, seen);
    }
}

/// Where the reader stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
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
    limits: Limits,
    /// Open elements.
    depth: usize,
    bindings: Bindings,
    header: Header,
    header_metadata: Metadata,
    /// Bytes of the tags of the header's links.
    header_link_bytes: u64,
    rules: DocumentRules,
    deviations: Deviations,
    /// Whether the prefixes stand for what [`plain`] takes them for.
    is_plain: bool,
    /// The elements of the plain entry being read.
    parts: Vec<plain::Part>,
    /// What entries name besides themselves, and the first lines of a text.
    further: VecDeque<Entry>,
    /// Entries begun.
    entries: u64,
    /// Entries that could not be understood.
    skipped: u64,
    /// Entries that lie where no file can.
    elsewhere: u64,
    /// What may be entries and cannot be understood, outside of entries or within one that can.
    hidden: u64,
    phase: Phase,
}

impl<R: BufRead> Reader<R> {
    /// Reads up to the first entry. `base` is the document's final URI, `None` for a file on disk.
    ///
    /// # Errors
    /// Whatever is wrong up to there: above all [`DocumentError::NotXml`] and [`DocumentError::NotADocument`].
    pub fn new(input: R, base: Option<Uri>, limits: Limits) -> Result<Reader<R>, DocumentError> {
        let header = Header {
            root: Root::UrlSet,
            capability: None,
            at: None,
            completed: None,
            from: None,
            until: None,
            links: Vec::new(),
        };
        let mut reader = Reader {
            events: Events::new(input, limits)?,
            text: String::new(),
            limits,
            depth: 0,
            bindings: Bindings::of(base),
            header,
            header_metadata: Metadata::default(),
            header_link_bytes: 0,
            rules: DocumentRules::default(),
            deviations: Deviations::default(),
            is_plain: false,
            parts: Vec::new(),
            further: VecDeque::new(),
            entries: 0,
            skipped: 0,
            elsewhere: 0,
            hidden: 0,
            phase: Phase::Failed,
        };
        if let Some(encoding) = reader.events.unknown_encoding() {
            reader.deviations.add(Rule::EncodingUnknown, 0, encoding);
        }
        reader.phase = if reader.events.is_text { reader.read_first_lines()? } else { reader.read_prolog()? };
        if reader.phase == Phase::Root {
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
            let phase = std::mem::replace(&mut self.phase, Phase::Failed);
            match phase {
                Phase::Root => match self.read_plain_entry() {
                    Some(entry) => {
                        self.phase = Phase::Root;
                        if entry.is_some() {
                            return Ok(entry);
                        }
                    }
                    None => self.phase = self.read_to_entry()?,
                },
                Phase::Lines => {
                    self.phase = if self.read_line()?.is_some() { Phase::Lines } else { Phase::Finished };
                }
                Phase::Entry(is_list) => {
                    let entry = self.read_entry(is_list)?;
                    self.phase = Phase::Root;
                    if entry.is_some() {
                        return Ok(entry);
                    }
                }
                Phase::Finished => {
                    self.phase = Phase::Finished;
                    return Ok(None);
                }
                Phase::Failed => return Err(DocumentError::Truncated { position: self.events.position() }),
            }
        }
    }

    /// What stands below the root, of what was read: complete when `next_entry` has returned `None`
    /// (normally complete before the first entry).
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Where the document broke rules, in what was read.
    pub fn deviations(&self) -> &Deviations {
        &self.deviations
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

    /// Reads up to the start tag of the root element and through it.
    fn read_prolog(&mut self) -> Result<Phase, DocumentError> {
        let mut blank = true;
        loop {
            let (root, empty) = match self.events.next() {
                Ok(Event::Start(root)) => (root, false),
                Ok(Event::Empty(root)) => (root, true),
                Ok(Event::Text(text)) if utf8(&text).trim().is_empty() => continue,
                Ok(Event::Text(text)) => return Err(DocumentError::NotXml { seen: quoted(&text) }),
                Ok(event) => {
                    let declares = matches!(&event, Event::DocType(declared) if utf8(declared).contains("<!ENTITY"));
                    self.bindings.declares_entities |= declares;
                    blank = false;
                    continue;
                }
                Err(DocumentError::Truncated { .. }) if blank => return Err(DocumentError::Empty),
                Err(error) => return Err(error),
            };
            let mut notes = Notes { deviations: &mut self.deviations, entry: 0 };
            self.header.root = self
                .bindings
                .open_root(&root, &mut notes)
                .map_err(|root| DocumentError::NotADocument { root: quoted(root.as_bytes()) })?;
            if empty {
                self.bindings.leave(1);
                return self.read_behind_root();
            }
            self.depth = 1;
            self.look_at_names();
            return Ok(Phase::Root);
        }
    }

    /// To be called whenever the names of the elements between entries may stand for something else.
    fn look_at_names(&mut self) {
        self.is_plain = self.header.root == Root::UrlSet && self.bindings.are_usual();
    }

    /// Reads children of the root: through the start tag of the next entry, or through the end of the document.
    fn read_to_entry(&mut self) -> Result<Phase, DocumentError> {
        loop {
            let event = self.events.next()?;
            let (element, empty) = match event {
                Event::Start(element) => (element, false),
                Event::Empty(element) => (element, true),
                Event::End(_) => {
                    self.bindings.leave(self.depth);
                    self.depth -= 1;
                    if self.depth == 0 {
                        return self.read_behind_root();
                    }
                    self.look_at_names();
                    continue;
                }
                _ => continue,
            };
            let mut notes = Notes { deviations: &mut self.deviations, entry: 0 };
            let kind = self.bindings.open(&element, self.depth + 1, &mut notes);
            match kind {
                Kind::Nested => {
                    if self.header.root != Root::Rss {
                        notes.add(Rule::EntryElement, name(&element));
                    }
                    if !empty {
                        self.enter()?;
                        self.look_at_names();
                        continue;
                    }
                }
                // No element is around it: it is an entry that says nothing else.
                Kind::Loc => {
                    notes.add(Rule::EntryElement, name(&element));
                    self.entries += 1;
                    let mut draft = Draft::default();
                    self.read_text_into(kind, empty, &mut draft)?;
                    let entry = self.judge(draft);
                    self.further.extend(entry);
                    return Ok(Phase::Root);
                }
                Kind::FeedLink => {
                    let mut context = Context { bindings: &self.bindings, limits: &self.limits, notes };
                    let link = FeedLink::read(&element, &mut context);
                    if let (Some("next"), Some(next)) = (link.rel.as_deref(), link.target) {
                        if self.header.links.is_empty() {
                            self.header.links.push(Link::new("next", next));
                        }
                    }
                }
                Kind::Entry(root) => {
                    self.entries += 1;
                    let mut notes = Notes { deviations: &mut self.deviations, entry: self.entries };
                    if root != self.header.root {
                        notes.add(Rule::EntryElement, name(&element));
                    }
                    if !empty {
                        self.depth += 1;
                        return Ok(Phase::Entry(root == Root::SitemapIndex));
                    }
                    notes.add(without_address(self.header.root), "");
                    self.skipped += 1;
                }
                Kind::Metadata | Kind::Link => {
                    if self.entries > 0 {
                        notes.add(Rule::HeaderAfterEntries, name(&element));
                    }
                    let mut context = Context { bindings: &self.bindings, limits: &self.limits, notes };
                    if kind == Kind::Link {
                        let tag = Tag::Xml(&element);
                        add_link(&mut self.header.links, &mut self.header_link_bytes, tag, &mut context);
                    } else {
                        // What was not understood has been noted; the rest stays.
                        let _ = self.header_metadata.read(Tag::Xml(&element), &mut context);
                        self.header.capability.clone_from(&self.header_metadata.capability);
                        self.header.at = self.header_metadata.at;
                        self.header.completed = self.header_metadata.completed;
                        self.header.from = self.header_metadata.from;
                        self.header.until = self.header_metadata.until;
                        self.rules.header_is(&self.header);
                    }
                }
                // It has been noted, and may be an entry that is misspelt.
                Kind::Unknown if !empty => self.hidden += 1,
                _ if !self.bindings.declares_entities => judge_attributes(&element, &mut notes),
                _ => {}
            }
            self.close_or_skip(empty)?;
        }
    }

    /// Reads the next entry where it is plain and all of it is in memory; `Some(None)` where it cannot be understood. Else
    /// nothing is read. To be called between two entries.
    fn read_plain_entry(&mut self) -> Option<Option<Entry>> {
        // Behind the start tag of the root the XML reader may be in the midst of its text.
        if !self.is_plain || self.entries == 0 {
            return None;
        }
        let window = self.events.window();
        let end = plain::find(window, self.limits.text, &mut self.parts)?;
        let window = self.events.text(end)?;
        self.entries += 1;
        let mut draft = Draft::default();
        let notes = Notes { deviations: &mut self.deviations, entry: self.entries };
        let mut context = Context { bindings: &self.bindings, limits: &self.limits, notes };
        for plain::Part { kind, place } in self.parts.drain(..) {
            let part = window.get(place).unwrap_or_default();
            match kind {
                Kind::Metadata | Kind::Link => draft.set_tag(kind, Tag::Plain(part), &mut context),
                _ => draft.set_text(kind, part, true, &mut context),
            }
        }
        self.events.pass_by(end);
        Some(self.judge(draft))
    }

    /// Reads an entry from behind its start tag through its end tag; `None` where it cannot be understood.
    fn read_entry(&mut self, is_list: bool) -> Result<Option<Entry>, DocumentError> {
        let mut draft = Draft::default();
        draft.is_list = is_list;
        let replaced_before = self.events.replaced();
        let within = self.depth;
        // Depth of the image or video that is open.
        let mut group = None;
        while self.depth >= within {
            let event = self.events.next()?;
            let (element, empty) = match event {
                Event::Start(element) => (element, false),
                Event::Empty(element) => (element, true),
                Event::End(_) => {
                    group = group.filter(|group| *group < self.depth);
                    self.bindings.leave(self.depth);
                    self.depth -= 1;
                    continue;
                }
                _ => continue,
            };
            let mut notes = Notes { deviations: &mut self.deviations, entry: self.entries };
            let kind = self.bindings.open(&element, self.depth + 1, &mut notes);
            match kind {
                Kind::Loc | Kind::LastMod | Kind::ChangeFreq if group.is_none() => {
                    self.read_text_into(kind, empty, &mut draft)?;
                    continue;
                }
                Kind::Media => {
                    self.read_text_into(kind, empty, &mut draft)?;
                    continue;
                }
                Kind::FeedLink | Kind::Guid | Kind::Enclosure => {
                    let mut context = Context { bindings: &self.bindings, limits: &self.limits, notes };
                    let link = FeedLink::read(&element, &mut context);
                    if let Some(kind) = link.add_to(&mut draft, kind, self.header.root, &mut context) {
                        self.read_text_into(kind, empty, &mut draft)?;
                        continue;
                    }
                }
                Kind::Metadata | Kind::Link => {
                    let mut context = Context { bindings: &self.bindings, limits: &self.limits, notes };
                    draft.set_tag(kind, Tag::Xml(&element), &mut context);
                }
                // What stands in an entry within an entry belongs to the outer one.
                Kind::Entry(_) | Kind::MediaGroup if !empty => {
                    if kind == Kind::MediaGroup {
                        group = group.or(Some(self.depth + 1));
                    } else {
                        notes.add(Rule::EntryElement, name(&element));
                    }
                    self.enter()?;
                    continue;
                }
                _ if !self.bindings.declares_entities => judge_attributes(&element, &mut notes),
                _ => {}
            }
            self.close_or_skip(empty)?;
        }
        if self.events.replaced() != replaced_before {
            let mut notes = Notes { deviations: &mut self.deviations, entry: self.entries };
            notes.add(Rule::IllFormedEncoding, draft.loc.as_ref().map(Uri::as_str).unwrap_or_default());
        }
        Ok(self.judge(draft))
    }

    /// Reads the text of the element whose start tag was just read, and gives it to `draft`.
    fn read_text_into(&mut self, kind: Kind, empty: bool, draft: &mut Draft) -> Result<(), DocumentError> {
        self.text.clear();
        let understood = empty || self.read_text()?;
        let notes = Notes { deviations: &mut self.deviations, entry: self.entries };
        let mut context = Context { bindings: &self.bindings, limits: &self.limits, notes };
        draft.set_text(kind, &self.text, understood, &mut context);
        if empty {
            self.bindings.leave(self.depth + 1);
        }
        Ok(())
    }

    /// Makes an entry of a draft, if it has a URI and all of it could be understood; else counts it as skipped, unless it lies where
    /// no file can.
    fn judge(&mut self, draft: Draft) -> Option<Entry> {
        let mut notes = Notes { deviations: &mut self.deviations, entry: self.entries };
        self.rules.judge_entry(draft.lastmod, draft.metadata.as_ref(), &mut notes);
        if draft.is_placeless(self.header.root) {
            notes.add(without_address(self.header.root), "");
        }
        let is_elsewhere = draft.is_elsewhere();
        let entry = draft.finish(&self.header, &mut self.further, &mut self.hidden);
        *(if is_elsewhere { &mut self.elsewhere } else { &mut self.skipped }) += u64::from(entry.is_none());
        entry
    }

    /// Reads text into `self.text` from behind a start tag through its end tag, leaving out elements within; whether
    /// it can be understood.
    fn read_text(&mut self) -> Result<bool, DocumentError> {
        let mut understood = true;
        let within = self.depth + 1;
        self.depth = within;
        loop {
            let event = self.events.next()?;
            match event {
                Event::Start(_) if self.depth >= self.limits.depth => return Err(self.too_deep()),
                Event::Start(_) => self.depth += 1,
                Event::End(_) => {
                    self.depth -= 1;
                    if self.depth < within {
                        self.bindings.leave(within);
                        return Ok(understood);
                    }
                }
                event if self.depth == within && understood => {
                    let mut notes = Notes { deviations: &mut self.deviations, entry: self.entries };
                    let is_own = self.bindings.declares_entities;
                    understood = push_text(&mut self.text, &event, self.limits.text, is_own, &mut notes);
                }
                _ => {}
            }
        }
    }

    /// Leaves the element whose tag was just read at `self.depth + 1`, with all that is within it.
    fn close_or_skip(&mut self, empty: bool) -> Result<(), DocumentError> {
        let outside = self.depth;
        if !empty {
            self.depth += 1;
        }
        while self.depth > outside {
            let event = self.events.next()?;
            let mut notes = Notes { deviations: &mut self.deviations, entry: self.entries };
            judge_references(&event, self.bindings.declares_entities, &mut notes);
            match event {
                Event::Start(_) if self.depth >= self.limits.depth => return Err(self.too_deep()),
                Event::Start(_) => self.depth += 1,
                Event::End(_) => self.depth -= 1,
                _ => {}
            }
        }
        self.bindings.leave(outside + 1);
        Ok(())
    }

    /// Goes into the element whose start tag was just read.
    fn enter(&mut self) -> Result<(), DocumentError> {
        if self.depth >= self.limits.depth {
            return Err(self.too_deep());
        }
        self.depth += 1;
        Ok(())
    }

    fn too_deep(&self) -> DocumentError {
        DocumentError::TooDeep { position: self.events.position(), limit: self.limits.depth }
    }

    /// Reads what follows a root element: the entries of another count too. At the end the document is judged.
    fn read_behind_root(&mut self) -> Result<Phase, DocumentError> {
        self.depth = 0;
        let mut is_over = true;
        while let Some(behind) = self.events.behind_root()? {
            let mut notes = Notes { deviations: &mut self.deviations, entry: 0 };
            let is_empty = match behind {
                Behind::Element(root, is_empty) => {
                    notes.add(Rule::ContentAfterRoot, name(&root));
                    let is_list =
                        matches!(self.bindings.open_root(&root, &mut notes), Ok(root) if !root.is_feed_or_text());
                    (is_list && !self.header.root.is_feed_or_text()).then_some(is_empty)
                }
                Behind::Stray(stray) => {
                    notes.add(Rule::ContentAfterRoot, &stray);
                    None
                }
            };
            match is_empty {
                Some(true) => self.bindings.leave(1),
                Some(false) => {
                    self.depth = 1;
                    self.look_at_names();
                    return Ok(Phase::Root);
                }
                None => {
                    self.events.drain()?;
                    is_over = false;
                    break;
                }
            }
        }
        let mut notes = Notes { deviations: &mut self.deviations, entry: 0 };
        if let Some(seen) = self.events.controls().filter(|_| is_over) {
            notes.add(Rule::ControlCharacter, &seen);
        }
        self.rules.judge_document(&self.header, &mut notes);
        Ok(Phase::Finished)
    }
}
