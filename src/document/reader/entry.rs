//! Entries, read by what is plain or by the events of the XML reader.

use super::draft::Draft;
use super::element::{Context, RsTag};
use super::events::name;
use super::feed::FeedLink;
use super::namespace::ElementKind;
use super::reference::{judge_attributes, judge_references, push_text};
use super::rules::without_address;
use super::{DocumentError, Reader, plain};
use crate::document::{Entry, Rule, Uri};
use quick_xml::events::Event;
use std::io::BufRead;

impl<R: BufRead> Reader<R> {
    /// Reads the next entry where it is plain and all of it is in memory; `Some(None)` where it cannot be understood. Else
    /// nothing is read. To be called between two entries.
    pub(super) fn read_plain_entry(&mut self) -> Option<Option<Entry>> {
        // Behind the start tag of the root the XML reader may be in the midst of its text.
        if !self.is_plain || self.entries == 0 {
            return None;
        }
        let window = self.events.input().window();
        let end = plain::find(window, self.context.limits.text, &mut self.parts)?;
        let window = self.events.input().text(end)?;
        self.entries += 1;
        self.context.notes.entry = self.entries;
        let mut draft = Draft::default();
        for plain::PlainElement { kind, place } in self.parts.drain(..) {
            let part = window.get(place).unwrap_or_default();
            match kind {
                ElementKind::Metadata | ElementKind::Link => draft.set_tag(kind, RsTag::Plain(part), &mut self.context),
                _ => draft.set_text(kind, part, true, &mut self.context),
            }
        }
        self.events.pass_by(end);
        Some(self.judge(draft))
    }

    /// Reads an entry from behind its start tag through its end tag; `None` where it cannot be understood.
    pub(super) fn read_entry(&mut self, is_list: bool) -> Result<Option<Entry>, DocumentError> {
        let mut draft = Draft::default();
        draft.is_list = is_list;
        let replaced_before = self.events.input().replaced;
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
                    self.context.bindings.leave(self.depth);
                    self.depth -= 1;
                    continue;
                }
                _ => continue,
            };
            let Context { bindings, notes, .. } = &mut self.context;
            let kind = bindings.open(&element, self.depth + 1, notes);
            match kind {
                ElementKind::Loc | ElementKind::LastMod | ElementKind::ChangeFreq if group.is_none() => {
                    self.read_text_into(kind, empty, &mut draft)?;
                    continue;
                }
                ElementKind::Media => {
                    self.read_text_into(kind, empty, &mut draft)?;
                    continue;
                }
                ElementKind::FeedLink | ElementKind::Guid | ElementKind::Enclosure => {
                    let link = FeedLink::read(&element, &mut self.context);
                    if let Some(kind) = link.add_to(&mut draft, kind, self.header.root, &mut self.context) {
                        self.read_text_into(kind, empty, &mut draft)?;
                        continue;
                    }
                }
                ElementKind::Metadata | ElementKind::Link => {
                    draft.set_tag(kind, RsTag::Xml(&element), &mut self.context);
                }
                // Elements of an entry within an entry belong to the outer one.
                ElementKind::Entry(_) | ElementKind::MediaGroup if !empty => {
                    if kind == ElementKind::MediaGroup {
                        group = group.or(Some(self.depth + 1));
                    } else {
                        notes.add(Rule::EntryElement, name(&element));
                    }
                    self.enter()?;
                    continue;
                }
                _ if !bindings.declares_entities => judge_attributes(&element, notes),
                _ => {}
            }
            self.close_or_skip(empty)?;
        }
        if self.events.input().replaced != replaced_before {
            let seen = draft.loc.as_ref().map(Uri::as_str).unwrap_or_default();
            self.context.notes.add(Rule::IllFormedEncoding, seen);
        }
        Ok(self.judge(draft))
    }

    /// Reads the text of the element whose start tag was just read, and gives it to `draft`.
    pub(super) fn read_text_into(
        &mut self,
        kind: ElementKind,
        empty: bool,
        draft: &mut Draft,
    ) -> Result<(), DocumentError> {
        self.text.clear();
        let understood = empty || self.read_text()?;
        draft.set_text(kind, &self.text, understood, &mut self.context);
        if empty {
            self.context.bindings.leave(self.depth + 1);
        }
        Ok(())
    }

    /// Makes an entry of a draft, if it has a URI and all of it could be understood; else counts it as skipped, unless its
    /// address is where no file can.
    pub(super) fn judge(&mut self, draft: Draft) -> Option<Entry> {
        let notes = &mut self.context.notes;
        self.rules.judge_entry(&self.header, draft.lastmod, draft.metadata.as_ref(), notes);
        if draft.is_placeless(self.header.root) {
            notes.add(without_address(self.header.root), "");
        }
        notes.entry = 0;
        let is_elsewhere = draft.is_elsewhere();
        let entry = draft.finish(&self.header, &mut self.further, &mut self.hidden);
        *(if is_elsewhere { &mut self.elsewhere } else { &mut self.skipped }) += u64::from(entry.is_none());
        entry
    }

    /// Reads text into `self.text` from behind a start tag through its end tag, leaving out elements within; whether
    /// it can be understood.
    pub(super) fn read_text(&mut self) -> Result<bool, DocumentError> {
        let mut understood = true;
        let within = self.depth + 1;
        self.depth = within;
        loop {
            let event = self.events.next()?;
            match event {
                Event::Start(_) if self.depth >= self.context.limits.depth => return Err(self.too_deep()),
                Event::Start(_) => self.depth += 1,
                Event::End(_) => {
                    self.depth -= 1;
                    if self.depth < within {
                        self.context.bindings.leave(within);
                        return Ok(understood);
                    }
                }
                event if self.depth == within && understood => {
                    let Context { bindings, limits, notes } = &mut self.context;
                    understood = push_text(&mut self.text, &event, limits.text, bindings.declares_entities, notes);
                }
                _ => {}
            }
        }
    }

    /// Leaves the element whose tag was just read at `self.depth + 1`, with all that is within it.
    pub(super) fn close_or_skip(&mut self, empty: bool) -> Result<(), DocumentError> {
        let outside = self.depth;
        if !empty {
            self.depth += 1;
        }
        while self.depth > outside {
            let event = self.events.next()?;
            let Context { bindings, notes, .. } = &mut self.context;
            judge_references(&event, bindings.declares_entities, notes);
            match event {
                Event::Start(_) if self.depth >= self.context.limits.depth => return Err(self.too_deep()),
                Event::Start(_) => self.depth += 1,
                Event::End(_) => self.depth -= 1,
                _ => {}
            }
        }
        self.context.bindings.leave(outside + 1);
        Ok(())
    }

    /// Goes into the element whose start tag was just read.
    pub(super) fn enter(&mut self) -> Result<(), DocumentError> {
        if self.depth >= self.context.limits.depth {
            return Err(self.too_deep());
        }
        self.depth += 1;
        Ok(())
    }

    fn too_deep(&self) -> DocumentError {
        DocumentError::TooDeep { position: self.events.position(), limit: self.context.limits.depth }
    }
}
