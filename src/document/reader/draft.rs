//! An entry while it is read.

use super::element::{Context, Metadata, Tag, read_link, read_time, read_uri};
use super::namespace::Kind;
use crate::document::{Capability, ChangeFrequency, Entry, Header, Link, Root, Rule, Timestamp, Uri};
use std::collections::VecDeque;

/// What has been read of an entry so far.
#[derive(Default)]
pub(super) struct Draft {
    pub is_list: bool,
    pub loc: Option<Uri>,
    /// `<loc>` was there, whether it could be understood or not.
    located: bool,
    /// What each further `<loc>` names.
    others: Vec<Uri>,
    /// The images, videos and enclosures of a page.
    media: Vec<Entry>,
    /// How many more it names that cannot be understood, or are too many: of `others`, and of `media`.
    hidden: u64,
    hidden_media: u64,
    /// Bytes of the URIs of `others` and `media`.
    further_bytes: u64,
    /// Where an item of RSS lies that has no link.
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
    /// It has the address of something that is no file: of mail, of a script.
    is_elsewhere: bool,
}

impl Draft {
    /// Takes the text of an element; it is not `understood` where a reference in it was undefined, or it was too long.
    #[inline]
    pub fn set_text(&mut self, kind: Kind, text: &str, understood: bool, context: &mut Context<'_>) {
        let text = text.trim_ascii();
        if kind == Kind::Loc && context.bindings.is_feed && understood && text.is_empty() {
            return;
        }
        if kind == Kind::Media || kind == Kind::Loc && self.located {
            return self.set_further(kind, text, understood, context);
        }
        self.located |= kind == Kind::Loc;
        if !understood {
            self.unusable = true;
            return;
        }
        let notes = &mut context.notes;
        match kind {
            Kind::Loc => match read_uri(text, context) {
                Ok(uri) => self.loc = Some(uri),
                Err(error) if error.is_of_other_scheme() => self.set_elsewhere(text, context),
                Err(_) => context.notes.add(Rule::LocMalformed, text),
            },
            // Feeds write times as mail does, and that is right there.
            Kind::LastMod if context.bindings.is_feed && Timestamp::parse(text).is_some() => {
                self.lastmod = self.lastmod.or(Timestamp::parse(text));
            }
            Kind::LastMod => self.lastmod = self.lastmod.or(read_time(text, notes)),
            Kind::ChangeFreq => {
                self.changefreq = self.changefreq.or(ChangeFrequency::parse(text));
                if self.changefreq.is_none() {
                    notes.add(Rule::ChangeFrequencyUnknown, text);
                }
            }
            // An identifier need not be a URI.
            Kind::Guid => self.guid = Uri::parse(text).ok(),
            _ => {}
        }
    }

    /// Takes what an entry names besides its first `<loc>`.
    #[cold]
    fn set_further(&mut self, kind: Kind, text: &str, understood: bool, context: &mut Context<'_>) {
        if kind == Kind::Loc {
            context.notes.add(Rule::LocRepeated, text);
        }
        match (read_uri(text, context), kind) {
            (Ok(uri), Kind::Media) if understood => self.add_media(Entry::new(uri), context),
            (Err(error), _) if understood && error.is_of_other_scheme() => context.notes.add(Rule::OtherScheme, text),
            (Ok(uri), _) if understood => {
                let is_new = self.loc.as_ref() != Some(&uri);
                if is_new && self.has_room(&uri, context) {
                    self.others.push(uri);
                } else {
                    self.hidden += u64::from(is_new);
                }
            }
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
    pub fn hide(&mut self, kind: Kind) {
        *(if kind == Kind::Loc { &mut self.hidden } else { &mut self.hidden_media }) += 1;
    }

    /// Adds an image, a video or an enclosure.
    pub fn add_media(&mut self, entry: Entry, context: &mut Context<'_>) {
        if self.has_room(&entry.loc, context) {
            self.media.push(entry);
        } else {
            self.hidden_media += 1;
        }
    }

    /// What an entry names besides itself has the bounds of its links.
    fn has_room(&mut self, uri: &Uri, context: &mut Context<'_>) -> bool {
        self.further_bytes += uri.as_str().len() as u64;
        let has_room = self.others.len() + self.media.len() < context.limits.links
            && self.further_bytes <= context.limits.markup();
        if !has_room {
            context.notes.add(Rule::TooManyLinks, uri.as_str());
        }
        has_room
    }

    /// Takes an `rs:md` or `rs:ln`.
    #[inline]
    pub fn set_tag(&mut self, kind: Kind, tag: Tag<'_, '_>, context: &mut Context<'_>) {
        if kind == Kind::Link {
            return add_link(&mut self.links, &mut self.link_bytes, tag, context);
        }
        if self.metadata.is_some() {
            context.notes.add(Rule::RepeatedMetadata, tag.attributes());
        }
        let metadata = self.metadata.get_or_insert_default();
        self.unusable |= metadata.read(tag, context).is_err();
    }

    /// Takes where it lies, as a link of a feed says.
    pub fn set_loc(&mut self, loc: Uri) {
        (self.loc, self.located) = (Some(loc), true);
    }

    /// Takes the address of something that is no file.
    pub fn set_elsewhere(&mut self, address: &str, context: &mut Context<'_>) {
        context.notes.add(Rule::OtherScheme, address);
        self.is_elsewhere = true;
    }

    /// A draft that says nothing of where it lies. An item of a feed may lie where its enclosure does.
    pub fn is_placeless(&self, root: Root) -> bool {
        let has_enclosure = root.is_feed_or_text() && !self.media.is_empty();
        !self.located && self.guid.is_none() && !has_enclosure && !self.is_elsewhere
    }

    /// A draft that is understood and lies where no file can. The entries of a document there are not known.
    pub fn is_elsewhere(&self) -> bool {
        let is_document = self.is_list || self.metadata.as_ref().is_some_and(|metadata| metadata.capability.is_some());
        self.is_elsewhere && !self.unusable && !is_document
    }

    /// The entry, if it has a URI and all of it could be understood; what else it names goes to `further`, or is counted in
    /// `hidden`.
    #[inline]
    pub fn finish(mut self, header: &Header, further: &mut VecDeque<Entry>, hidden: &mut u64) -> Option<Entry> {
        // A first `<loc>` that cannot be understood.
        self.hidden += u64::from(self.loc.is_none() && !self.others.is_empty() && !self.is_elsewhere);
        let loc = self.loc.take().or_else(|| self.others.pop()).or_else(|| self.guid.take());
        let mut enclosure = None;
        if loc.is_none() && header.root.is_feed_or_text() {
            if self.media.is_empty() {
                // It counts once, as an item that cannot be understood.
                return None;
            }
            enclosure = Some(self.media.remove(0));
            self.hidden += u64::from(self.located && !self.is_elsewhere);
        }
        *hidden += self.hidden;
        if !self.media.is_empty() || self.hidden_media > 0 {
            let lists_resources =
                matches!(header.capability, None | Some(Capability::ResourceList | Capability::Other(_)));
            let says_more = self.metadata.as_ref().is_some_and(|it| it.change.is_some() || it.capability.is_some());
            if lists_resources && !says_more && !self.is_list {
                *hidden += self.hidden_media;
                further.extend(self.media.into_iter().filter(|media| Some(&media.loc) != loc.as_ref()));
            }
        }
        if self.unusable {
            return None;
        }
        let mut entry = enclosure.or_else(|| loc.map(Entry::new))?;
        entry.is_list = self.is_list;
        entry.lastmod = self.lastmod;
        entry.changefreq = self.changefreq;
        entry.links = self.links;
        if let Some(metadata) = self.metadata {
            entry.change = metadata.change;
            entry.datetime = metadata.datetime;
            entry.hashes = metadata.hashes;
            entry.length = metadata.length;
            entry.media_type = metadata.media_type;
            entry.encoding = metadata.encoding;
            entry.path = metadata.path;
            entry.capability = metadata.capability;
            entry.at = metadata.at;
            entry.completed = metadata.completed;
            entry.from = metadata.from;
            entry.until = metadata.until;
        }
        for loc in self.others {
            // Bytes are described once, and whose they are is not known: they are taken for those of the first.
            let Entry { lastmod, changefreq, change, datetime, is_list, .. } = entry;
            let capability = entry.capability.clone();
            further.push_back(Entry { lastmod, changefreq, change, datetime, is_list, capability, ..Entry::new(loc) });
        }
        Some(entry)
    }
}

/// Adds an `rs:ln` to `links`, whose tags have `bytes` so far. It is left out where it cannot be understood or is one
/// too many.
pub(super) fn add_link(links: &mut Vec<Link>, bytes: &mut u64, tag: Tag<'_, '_>, context: &mut Context<'_>) {
    // What cannot be understood has been noted where it was read.
    let Ok(Some(link)) = read_link(tag, context) else { return };
    *bytes += tag.len() as u64;
    if links.len() < context.limits.links && *bytes <= context.limits.all_links() {
        links.push(link);
    } else {
        context.notes.add(Rule::TooManyLinks, link.href.as_str());
    }
}
