//! The parts around the entries: before the root element, directly below it and behind it.

use super::draft::{Draft, add_link};
use super::element::{Context, Metadata, RsTag};
use super::error::quoted;
use super::events::{Behind, name, utf8};
use super::feed::FeedLink;
use super::namespace::ElementKind;
use super::reference::judge_attributes;
use super::rules::without_address;
use super::{DocumentError, Reader, ReaderPhase};
use crate::document::{Link, Root, Rule};
use quick_xml::events::Event;
use std::io::BufRead;

impl<R: BufRead> Reader<R> {
    /// Reads up to the start tag of the root element and through it.
    pub(super) fn read_prolog(&mut self) -> Result<ReaderPhase, DocumentError> {
        let mut blank = true;
        loop {
            let (root, empty) = match self.events.next() {
                Ok(Event::Start(root)) => (root, false),
                Ok(Event::Empty(root)) => (root, true),
                Ok(Event::Text(text)) if utf8(&text).trim().is_empty() => continue,
                Ok(Event::Text(text)) => return Err(DocumentError::NotXml { seen: quoted(&text) }),
                Ok(event) => {
                    let declares = matches!(&event, Event::DocType(declared) if utf8(declared).contains("<!ENTITY"));
                    self.context.bindings.declares_entities |= declares;
                    blank = false;
                    continue;
                }
                Err(DocumentError::Truncated { .. }) if blank => return Err(DocumentError::Empty),
                Err(error) => return Err(error),
            };
            let Context { bindings, notes, .. } = &mut self.context;
            let root = bindings.open_root(&root, notes);
            self.header.root = root.map_err(|root| DocumentError::NotADocument { root: quoted(root.as_bytes()) })?;
            if empty {
                self.context.bindings.leave(1);
                return self.read_behind_root();
            }
            self.depth = 1;
            self.look_at_names();
            return Ok(ReaderPhase::Root);
        }
    }

    /// To be called whenever the names of the elements between entries may stand for something else.
    pub(super) fn look_at_names(&mut self) {
        self.is_plain = self.header.root == Root::UrlSet && self.context.bindings.are_usual();
    }

    /// Counts an entry, to which belong the deviations that are noted from here on.
    pub(super) fn begin_entry(&mut self) {
        self.entries += 1;
        self.context.notes.entry = self.entries;
    }

    /// Reads children of the root: through the start tag of the next entry, or through the end of the document.
    pub(super) fn read_to_entry(&mut self) -> Result<ReaderPhase, DocumentError> {
        loop {
            let event = self.events.next()?;
            let (element, empty) = match event {
                Event::Start(element) => (element, false),
                Event::Empty(element) => (element, true),
                Event::End(_) => {
                    self.context.bindings.leave(self.depth);
                    self.depth -= 1;
                    if self.depth == 0 {
                        return self.read_behind_root();
                    }
                    self.look_at_names();
                    continue;
                }
                _ => continue,
            };
            let Context { bindings, notes, .. } = &mut self.context;
            let kind = bindings.open(&element, self.depth + 1, notes);
            match kind {
                ElementKind::Nested => {
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
                ElementKind::Loc => {
                    notes.add(Rule::EntryElement, name(&element));
                    self.begin_entry();
                    let mut draft = Draft::default();
                    self.read_text_into(kind, empty, &mut draft)?;
                    let entry = self.judge(draft);
                    self.further.extend(entry);
                    return Ok(ReaderPhase::Root);
                }
                ElementKind::FeedLink => {
                    let link = FeedLink::read(&element, &mut self.context);
                    if let (Some("next"), Some(next)) = (link.rel.as_deref(), link.target) {
                        if self.header.links.is_empty() {
                            self.header.links.push(Link::new("next", next));
                        }
                    }
                }
                ElementKind::Entry(root) => {
                    self.entries += 1;
                    notes.entry = self.entries;
                    if root != self.header.root {
                        notes.add(Rule::EntryElement, name(&element));
                    }
                    if !empty {
                        self.depth += 1;
                        return Ok(ReaderPhase::Entry(root == Root::SitemapIndex));
                    }
                    notes.add(without_address(self.header.root), "");
                    notes.entry = 0;
                    self.skipped += 1;
                }
                ElementKind::Metadata | ElementKind::Link => {
                    if self.entries > 0 {
                        notes.add(Rule::HeaderAfterEntries, name(&element));
                    }
                    let tag = RsTag::Xml(&element);
                    if kind == ElementKind::Link {
                        add_link(&mut self.header.links, &mut self.header_link_bytes, tag, &mut self.context);
                    } else {
                        // Attributes that were not understood have been noted; the rest stays.
                        let _ = self.header_metadata.read(tag, &mut self.context);
                        let Metadata { capability, at, completed, from, until, .. } = &self.header_metadata;
                        self.header.capability.clone_from(capability);
                        (self.header.at, self.header.completed) = (*at, *completed);
                        (self.header.from, self.header.until) = (*from, *until);
                        self.rules.header_is(&self.header);
                    }
                }
                // It has been noted, and may be an entry that is misspelt.
                ElementKind::Unknown if !empty => self.hidden += 1,
                _ if !bindings.declares_entities => judge_attributes(&element, notes),
                _ => {}
            }
            self.close_or_skip(empty)?;
        }
    }

    /// Reads what follows a root element: the entries of another count too. At the end the document is judged.
    fn read_behind_root(&mut self) -> Result<ReaderPhase, DocumentError> {
        self.depth = 0;
        let mut is_over = true;
        while let Some(behind) = self.events.behind_root()? {
            let Context { bindings, notes, .. } = &mut self.context;
            let is_empty = match behind {
                Behind::Element(root, is_empty) => {
                    notes.add(Rule::ContentAfterRoot, name(&root));
                    let is_list = matches!(bindings.open_root(&root, notes), Ok(root) if !root.is_feed_or_text());
                    (is_list && !self.header.root.is_feed_or_text()).then_some(is_empty)
                }
                Behind::Stray(stray) => {
                    notes.add(Rule::ContentAfterRoot, &stray);
                    None
                }
            };
            match is_empty {
                Some(true) => self.context.bindings.leave(1),
                Some(false) => {
                    self.depth = 1;
                    self.look_at_names();
                    return Ok(ReaderPhase::Root);
                }
                None => {
                    self.events.drain()?;
                    is_over = false;
                    break;
                }
            }
        }
        let notes = &mut self.context.notes;
        if let Some(seen) = self.events.controls().filter(|_| is_over) {
            notes.add(Rule::ControlCharacter, &seen);
        }
        self.rules.judge_document(&self.header, notes);
        Ok(ReaderPhase::Finished)
    }
}
