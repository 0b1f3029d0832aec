//! An entry while it is read.

use super::element::{Context, Metadata, RsTag, read_link, read_time, read_uri};
use super::namespace::ElementKind;
use crate::document::{Capability, ChangeFrequency, Entry, Header, Link, Root, Rule, Timestamp, Uri};
use std::collections::VecDeque;

/// The parts of an entry that have been read so far.
#[derive(Default)]
pub(super) struct Draft {
    pub is_list: bool,
    pub loc: Option<Uri>,
    /// `<loc>` was there, whether it could be understood or not.
    located: bool,
    /// Other resources that it names: by each further `<loc>`, and ([`ElementKind::Media`]) the images, videos and enclosures of a page.
    further: Vec<(ElementKind, Entry)>,
    /// Further ones that cannot be understood, or are too many: by `<loc>`, and of media.
    hidden: u64,
    hidden_media: u64,
    /// Bytes of the URIs of `further`.
    further_bytes: u64,
    /// The address of an item of RSS that has no link.
    guid: Option<Uri>,
    pub lastmod: Option<Timestamp>,
    changefreq: Option<ChangeFrequency>,
    /// `None` without any `rs:md`.
    pub metadata: Option<Metadata>,
    links: Vec<Link>,
    /// Bytes of the tags of `links`.
    link_bytes: u64,
    /// Something in it cannot be understood.
    unusable: bool,
    /// True with an address that is not a file's: of mail, of a script.
    is_elsewhere: bool,
}

impl Draft {
    /// Takes the text of an element; it is not `understood` where a reference in it was undefined, or it was too long.
    #[inline]
    pub fn set_text(&mut self, kind: ElementKind, text: &str, understood: bool, context: &mut Context) {
        let text = text.trim_ascii();
        if kind == ElementKind::Loc && context.bindings.is_feed && understood && text.is_empty() {
            return;
        }
        if kind == ElementKind::Media || kind == ElementKind::Loc && self.located {
            return self.set_further(kind, text, understood, context);
        }
        self.located |= kind == ElementKind::Loc;
        if !understood {
            self.unusable = true;
            return;
        }
        let notes = &mut context.notes;
        match kind {
            ElementKind::Loc => match read_uri(text, context) {
                Ok(uri) => self.loc = Some(uri),
                Err(error) if error.is_of_other_scheme() => self.set_elsewhere(text, context),
                Err(_) => context.notes.add(Rule::LocMalformed, text),
            },
            // Feeds write times as mail does, and that is right there.
            ElementKind::LastMod if context.bindings.is_feed && Timestamp::parse(text).is_some() => {
                self.lastmod = self.lastmod.or(Timestamp::parse(text));
            }
            ElementKind::LastMod => self.lastmod = self.lastmod.or(read_time(text, notes)),
            ElementKind::ChangeFreq => {
                self.changefreq = self.changefreq.or(ChangeFrequency::parse(text));
                if self.changefreq.is_none() {
                    notes.add(Rule::ChangeFrequencyUnknown, text);
                }
            }
            // An identifier need not be a URI.
            ElementKind::Guid => self.guid = Uri::parse(text).ok(),
            _ => {}
        }
    }

    /// Takes what an entry names besides its first `<loc>`.
    #[cold]
    fn set_further(&mut self, kind: ElementKind, text: &str, understood: bool, context: &mut Context) {
        if kind == ElementKind::Loc {
            context.notes.add(Rule::LocRepeated, text);
        }
        match (read_uri(text, context), kind) {
            (Ok(uri), ElementKind::Loc) if understood && self.loc.as_ref() == Some(&uri) => {}
            (Ok(uri), _) if understood => self.add_further(kind, Entry::new(uri), context),
            (Err(error), _) if understood && error.is_of_other_scheme() => context.notes.add(Rule::OtherScheme, text),
            _ => {
                context.notes.add(Rule::LocMalformed, text);
                // An empty element names nothing.
                if !understood || !text.is_empty() {
                    self.hide(kind);
                }
            }
        }
    }

    /// Counts one that it names and that cannot be understood.
    pub fn hide(&mut self, kind: ElementKind) {
        *(if kind == ElementKind::Loc { &mut self.hidden } else { &mut self.hidden_media }) += 1;
    }

    /// Adds what it names besides itself, within the bounds of its links.
    pub fn add_further(&mut self, kind: ElementKind, entry: Entry, context: &mut Context) {
        self.further_bytes += entry.loc.as_str().len() as u64;
        if self.further.len() < context.limits.links && self.further_bytes <= context.limits.markup() {
            self.further.push((kind, entry));
        } else {
            context.notes.add(Rule::TooManyLinks, entry.loc.as_str());
            self.hide(kind);
        }
    }

    /// Takes an `rs:md` or `rs:ln`.
    #[inline]
    pub fn set_tag(&mut self, kind: ElementKind, tag: RsTag<'_, '_>, context: &mut Context) {
        if kind == ElementKind::Link {
            return add_link(&mut self.links, &mut self.link_bytes, tag, context);
        }
        if self.metadata.is_some() {
            context.notes.add(Rule::RepeatedMetadata, tag.attributes());
        }
        let metadata = self.metadata.get_or_insert_default();
        self.unusable |= metadata.read(tag, context).is_err();
    }

    /// Takes its address from a link of a feed.
    pub fn set_loc(&mut self, loc: Uri) {
        (self.loc, self.located) = (Some(loc), true);
    }

    /// Notes an address that is not a file's.
    pub fn set_elsewhere(&mut self, address: &str, context: &mut Context) {
        context.notes.add(Rule::OtherScheme, address);
        self.is_elsewhere = true;
    }

    /// True if the draft has no address. An item of a feed may have that of its enclosure.
    pub fn is_placeless(&self, root: Root) -> bool {
        let has_enclosure = root.is_feed_or_text() && self.further.iter().any(|(kind, _)| *kind == ElementKind::Media);
        !self.located && self.guid.is_none() && !has_enclosure && !self.is_elsewhere
    }

    /// True if the draft is understood and its address cannot be a file's. The entries of a document there are not known.
    pub fn is_elsewhere(&self) -> bool {
        let is_document = self.is_list || self.metadata.as_ref().is_some_and(|metadata| metadata.capability.is_some());
        self.is_elsewhere && !self.unusable && !is_document
    }

    /// The entry, if it has a URI and all of it could be understood; what else it names goes to `further`, or is counted in
    /// `hidden`.
    #[inline]
    pub fn finish(mut self, header: &Header, further: &mut VecDeque<Entry>, hidden: &mut u64) -> Option<Entry> {
        let another = self.further.iter().rposition(|(kind, _)| *kind == ElementKind::Loc);
        // A first `<loc>` that cannot be understood.
        self.hidden += u64::from(self.loc.is_none() && another.is_some() && !self.is_elsewhere);
        let mut entry = match (self.loc.take(), another) {
            (None, Some(another)) => Some(self.further.remove(another).1),
            (loc, _) => loc.or(self.guid.take()).map(Entry::new),
        };
        if entry.is_none() && header.root.is_feed_or_text() {
            if self.further.is_empty() {
                // It counts once, as an item that cannot be understood.
                return None;
            }
            entry = Some(self.further.remove(0).1);
            self.hidden += u64::from(self.located && !self.is_elsewhere);
        }
        *hidden += self.hidden;
        let lists_resources = matches!(header.capability, None | Some(Capability::ResourceList | Capability::Other(_)));
        let says_more = self.metadata.as_ref().is_some_and(|it| it.change.is_some() || it.capability.is_some());
        let (media, others): (Vec<_>, Vec<_>) =
            self.further.into_iter().partition(|(kind, _)| *kind == ElementKind::Media);
        if lists_resources && !says_more && !self.is_list {
            *hidden += self.hidden_media;
            let is_other = |media: &Entry| entry.as_ref().is_none_or(|entry| entry.loc != media.loc);
            further.extend(media.into_iter().map(|(_, media)| media).filter(is_other));
        }
        let mut entry = entry.filter(|_| !self.unusable)?;
        (entry.is_list, entry.lastmod, entry.changefreq) = (self.is_list, self.lastmod, self.changefreq);
        entry.links = self.links;
        if let Some(metadata) = self.metadata {
            let Metadata { change, datetime, hashes, length, media_type, encoding, path, .. } = metadata;
            let Metadata { capability, at, completed, from, until, .. } = metadata;
            entry = Entry { change, datetime, hashes, length, media_type, encoding, path, ..entry };
            entry = Entry { capability, at, completed, from, until, ..entry };
        }
        for (_, other) in others {
            // Bytes are described once, and whose they are is not known: they are taken for those of the first.
            let Entry { lastmod, changefreq, change, datetime, is_list, .. } = entry;
            let capability = entry.capability.clone();
            further.push_back(Entry { lastmod, changefreq, change, datetime, is_list, capability, ..other });
        }
        Some(entry)
    }
}

/// Adds an `rs:ln` to `links`, whose tags have `bytes` so far. It is left out where it cannot be understood or is one
/// too many.
pub(super) fn add_link(links: &mut Vec<Link>, bytes: &mut u64, tag: RsTag<'_, '_>, context: &mut Context) {
    // Values that cannot be understood have been noted where they were read.
    let Ok(Some(link)) = read_link(tag, context) else { return };
    *bytes += tag.len() as u64;
    if links.len() < context.limits.links && *bytes <= context.limits.all_links() {
        links.push(link);
    } else {
        context.notes.add(Rule::TooManyLinks, link.href.as_str());
    }
}
