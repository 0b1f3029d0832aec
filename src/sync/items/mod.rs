//! Landing pages that stand for several files (`items=follow`; FAIR Signposting, RFC 8288, RFC 9264).
//!
//! A page is read in the background, once for each version of it (`follow`). Its links and those of its link set name its
//! items and metadata records (`page`), descriptions and hosts give them names (`names`). All items of a page are committed at
//! once, as changes of the set [`ITEMS`]; a row in the catalog says as of which version of the page they are complete. A
//! failure changes nothing.

mod alone;
pub mod follow;
mod names;
pub mod page;
mod queue;

use super::changes::NewChange;
use crate::catalog::naming::extension_of_name;
use crate::catalog::{CatalogError, ITEMS, ReadPage, Resource, SetId, Snapshot};
use crate::document::{Change, Entry, Timestamp, Uri};
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use xxhash_rust::xxh3::Xxh3;

/// News of a page.
pub struct PageNews {
    /// Its address.
    pub page: Uri,
    /// Its row from now on; `None`: it has left the tree.
    pub row: Option<ReadPage>,
    /// All its items, where they were read; else they are those of before.
    pub entries: Option<Vec<Entry>>,
}

/// A digest of what a list says of the version of a page; `None` where it says nothing.
pub fn version(resource: &Resource) -> Option<u64> {
    let mut digest = Xxh3::new();
    (resource.lastmod, &resource.hashes).hash(&mut digest);
    (resource.lastmod.is_some() || !resource.hashes.is_empty()).then(|| digest.finish())
}

/// True if a resource may be a landing page: by its type, else by its name.
pub fn may_be_page(resource: &Resource) -> bool {
    const EXTENSIONS: [&str; 7] = ["html", "htm", "xhtml", "php", "aspx", "jsp", "shtml"];
    if resource.uri.page().is_some() || resource.encoding.is_some() {
        return false;
    }
    match &resource.media_type {
        Some(media_type) => media_type.contains("html"),
        None => {
            let last = resource.uri.path().rsplit('/').next().unwrap_or_default();
            let extension = extension_of_name(last).trim_start_matches('.');
            extension.is_empty() || EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known))
        }
    }
}

/// Adds the changes that `news` make of what is shown, and answers the row of the page; `None` is a page that is forgotten.
pub(super) fn changes_of(
    snapshot: &Snapshot<'_>,
    news: &PageNews,
    changes: &mut Vec<(SetId, NewChange)>,
) -> Result<Option<ReadPage>, CatalogError> {
    let (known, page) = (snapshot.page(&news.page)?, snapshot.resource_of(&news.page)?);
    let row = match (&news.row, &page) {
        // It has left the tree, or is back meanwhile.
        (None, None) | (Some(_), None) => None,
        (None, Some(_)) => return Ok(known),
        // An older version of it was read; the newer one is due.
        (Some(row), Some(page)) if row.version.is_some() && row.version != version(page) => return Ok(known),
        (Some(row), Some(_)) => Some(row.clone()),
    };
    // A change counts by its time, and the clock of this machine may have been set back.
    let time = Timestamp::now().max(known.as_ref().map_or(Timestamp::now(), |known| known.read));
    let row = row.map(|row| ReadPage { read: time, ..row });
    let had_items = known.as_ref().is_some_and(|known| !known.items.is_empty());
    if let Some(row) = row.as_ref().filter(|row| news.entries.is_none() || row.is_partial && had_items) {
        // The part that could not be read may have more of them.
        return Ok(Some(ReadPage { items: known.map(|known| known.items).unwrap_or_default(), ..row.clone() }));
    }
    let mut change = |change, entry| changes.push((ITEMS, NewChange { change, time, entry, member: None }));
    let mut now = HashSet::new();
    for entry in news.entries.iter().flatten().filter(|_| row.is_some()) {
        let stated = || Entry { datetime: page.as_ref().and_then(|page| page.lastmod), ..entry.clone() };
        match snapshot.resource_of(&entry.loc)? {
            None => change(Change::Created, stated()),
            Some(it) if !says_the_same(&it, entry) || is_held(snapshot, &entry.loc)? => {
                change(Change::Updated, stated());
            }
            Some(_) => {}
        }
        now.insert(&entry.loc);
    }
    let items = known.iter().flat_map(ReadPage::item_uris);
    items.filter(|uri| !now.contains(uri)).for_each(|uri| change(Change::Deleted, Entry::new(uri)));
    Ok(row)
}

/// True if the deletion of an item is held back.
fn is_held(snapshot: &Snapshot<'_>, item: &Uri) -> Result<bool, CatalogError> {
    Ok(snapshot.journaled(ITEMS, item)?.is_some_and(|last| last.change == Change::Deleted))
}

/// True if an item is shown as its page has it now.
fn says_the_same(shown: &Resource, entry: &Entry) -> bool {
    (&shown.length, &shown.hashes, &shown.media_type, &shown.links)
        == (&entry.length, &entry.hashes, &entry.media_type, &entry.links)
}
