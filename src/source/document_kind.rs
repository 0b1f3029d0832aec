//! The beginning of a document: enough to decide what it is by its own words.

use super::Channel;
use crate::document::{Capability, Change, DocumentError, Entry, Header, Link, Reader, Root};
use std::collections::HashSet;
use std::io::BufRead;

/// Entries that decide between a list and an index.
const FIRST_ENTRIES: usize = 8;

/// Relations of a document's own links that lead on from it; of each the first is kept.
const LEADING_ON: [&str; 5] = ["up", "index", "next", "archives", "describedby"];

/// A document's header and its first entries.
#[derive(Clone, Debug)]
pub(super) struct DocumentStart {
    pub header: Header,
    /// Up to [`FIRST_ENTRIES`] of them.
    pub first: Vec<Entry>,
}

/// Kind of a document for discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DocumentKind {
    /// Its entries are documents of several capabilities or of several sets: a Source Description, an index of them,
    /// a Capability List.
    Offers,
    /// Document, or index of documents, of one capability.
    Lists(Capability),
}

impl DocumentStart {
    /// Reads from the start of a document. With `cut` the bytes may end early.
    pub fn read<R: BufRead>(reader: &mut Reader<R>, cut: bool) -> Result<DocumentStart, DocumentError> {
        let mut first = Vec::new();
        while first.len() < FIRST_ENTRIES {
            match reader.next_entry() {
                Ok(Some(entry)) => first.push(entry),
                Ok(None) => break,
                Err(_) if cut => break,
                Err(cause) => return Err(cause),
            }
        }
        Ok(DocumentStart { header: reader.header().clone(), first })
    }

    /// The document's own capability, if it is one of the standard's.
    pub fn capability(&self) -> Option<&Capability> {
        self.header.capability.as_ref().and_then(known)
    }

    /// Kind of the document: its own capability decides, without one its entries do. A document without any word of ResourceSync
    /// is a plain sitemap, which is a Resource List.
    pub fn kind(&self) -> DocumentKind {
        match self.capability() {
            Some(Capability::Description | Capability::CapabilityList) => return DocumentKind::Offers,
            Some(Capability::ChangeList) if self.lists_packages() => {
                return DocumentKind::Lists(Capability::ChangeDump);
            }
            Some(Capability::ChangeDump) if self.lists_changes() => return DocumentKind::Lists(Capability::ChangeList),
            Some(own) => return DocumentKind::Lists(own.clone()),
            None => {}
        }
        let hints: Vec<&Capability> = self.hints().flatten().collect();
        match hints.first() {
            None if self.first.iter().any(|entry| channel(entry).is_some()) => DocumentKind::Offers,
            None if self.lists_changes() => DocumentKind::Lists(Capability::ChangeList),
            None => DocumentKind::Lists(Capability::ResourceList),
            Some(Capability::Description | Capability::CapabilityList) => DocumentKind::Offers,
            Some(hint) if self.header.root == Root::SitemapIndex && hints.iter().all(|other| other == hint) => {
                DocumentKind::Lists((*hint).clone())
            }
            Some(_) => DocumentKind::Offers,
        }
    }

    /// Returns whether the entries are lists rather than resources or packages: `<sitemapindex>`, an archive, or a `<urlset>`
    /// whose first entries all say that they are lists.
    pub fn is_index(&self) -> bool {
        use Capability::*;
        if self.header.root == Root::SitemapIndex {
            return true;
        }
        match self.capability() {
            Some(ResourceListArchive | ResourceDumpArchive | ChangeListArchive | ChangeDumpArchive) => true,
            None | Some(ResourceList | ResourceDump | ChangeList | ChangeDump) => {
                let may_hold_lists = matches!(self.capability(), None | Some(ResourceList));
                let is_list = |entry: &Entry| {
                    may_hold_lists && entry.is_list || entry.capability.as_ref().and_then(known).is_some_and(lists)
                };
                !self.first.is_empty() && self.first.iter().all(is_list)
            }
            Some(_) => false,
        }
    }

    /// Returns whether the first entries are packages of changes and no changes, as in a Change Dump that calls itself a Change List. An
    /// entry that is a change has the attribute `change`.
    pub fn lists_packages(&self) -> bool {
        !self.first.is_empty() && self.first.iter().all(|entry| entry.change.is_none() && is_package(entry))
    }

    /// First entries that are changes, as in a Change List that calls itself a Change Dump.
    pub fn lists_changes(&self) -> bool {
        !self.first.is_empty() && self.first.iter().all(|entry| entry.change.is_some())
    }

    /// Returns whether this is an index that does not say, itself or by its entries, of what. It may have a time, a link or an unknown capability.
    pub fn is_silent_index(&self) -> bool {
        self.header.root == Root::SitemapIndex && self.capability().is_none() && self.hints().flatten().next().is_none()
    }

    /// Returns whether this is a list that says nothing of ResourceSync, neither itself nor by its entries.
    pub fn is_silent_list(&self) -> bool {
        self.header.root != Root::SitemapIndex
            && !self.speaks_resourcesync()
            && self.hints().flatten().next().is_none()
            && self.first.iter().all(|entry| entry.change.is_none() && channel(entry).is_none())
    }

    /// Returns whether this is a Resource List in the sense of the standard and not a sitemap made without it.
    pub fn speaks_resourcesync(&self) -> bool {
        let header = &self.header;
        let times = [header.at, header.completed, header.from, header.until];
        header.capability.is_some() || times.iter().any(Option::is_some) || header.link("up").is_some()
    }

    /// The capability that each of the first entries gives itself.
    fn hints(&self) -> impl Iterator<Item = Option<&Capability>> {
        self.first.iter().map(|entry| entry.capability.as_ref().and_then(known))
    }
}

/// Returns whether an entry of a dump is a package and no list of packages, by its type or its name.
pub(super) fn is_package(entry: &Entry) -> bool {
    const TYPES: [&str; 5] = ["application/zip", "application/x-zip", "x-tar", "x-xz", "x-7z"];
    const ENDINGS: [&str; 7] = [".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".7z"];
    let media_type = entry.media_type.as_deref().unwrap_or_default().to_ascii_lowercase();
    let path = entry.loc.path().to_ascii_lowercase();
    TYPES.iter().any(|packed| media_type.contains(packed)) || ENDINGS.iter().any(|ending| path.ends_with(ending))
}

/// `capability`, if it is one of the standard's.
pub(super) fn known(capability: &Capability) -> Option<&Capability> {
    (!matches!(capability, Capability::Other(_))).then_some(capability)
}

/// A header without the links that are not followed: there may be very many of them, in each of very many documents.
pub(super) fn leading_on(mut header: Header) -> Header {
    let mut kept = HashSet::new();
    header
        .links
        .retain(|link| link.uri().is_some() && LEADING_ON.contains(&&*link.rel) && kept.insert(link.rel.clone()));
    header.links.shrink_to_fit();
    header
}

/// Returns whether an entry of a list that may hold resources says that it points to a document.
pub(super) fn is_document(entry: &Entry) -> bool {
    entry.is_list || entry.capability.as_ref().and_then(known).is_some()
}

/// An entry of a Resource List stands for a resource unless it says that it points to a document or is gone.
pub fn is_resource(entry: &Entry) -> bool {
    !is_document(entry) && entry.change != Some(Change::Deleted)
}

/// Returns whether documents of this capability are lists of resources, changes or packages, or archives of such lists.
fn lists(capability: &Capability) -> bool {
    use Capability::*;
    let listed = archived(capability.clone());
    matches!(listed, ResourceList | ResourceDump | ChangeList | ChangeDump)
}

/// The channel for notifications that an entry is: an entry with a hub is not a document, of any capability.
pub(super) fn channel(entry: &Entry) -> Option<Channel> {
    let hubs = || entry.links.iter().filter(|link| link.rel.eq_ignore_ascii_case("hub")).filter_map(Link::uri);
    let hub = hubs().find(|hub| hub.scheme() == "https").or_else(|| hubs().next())?;
    let capability = entry.capability.clone().unwrap_or(Capability::Other("".into()));
    Some(Channel { topic: entry.loc.clone(), hub: hub.clone(), capability })
}

/// The capability of what an archive lists; other capabilities as they are.
pub(super) fn archived(capability: Capability) -> Capability {
    match capability {
        Capability::ResourceListArchive => Capability::ResourceList,
        Capability::ResourceDumpArchive => Capability::ResourceDump,
        Capability::ChangeListArchive => Capability::ChangeList,
        Capability::ChangeDumpArchive => Capability::ChangeDump,
        other => other,
    }
}
