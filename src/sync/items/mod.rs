//! Landing pages that stand for several files (`items=follow`; FAIR Signposting, RFC 8288, RFC 9264).
//!
//! A page is read in the background, once for each version of it (`follow`). Its links and those of its link set name its items and
//! metadata records (`page`), descriptions and hosts give them names (`names`). All items of a page are committed at once, as changes of
//! the set [`ITEMS`]; a row in the catalog says as of which version of the page they are complete. What fails changes nothing.

mod alone;
pub mod follow;
mod names;
pub mod page;
mod queue;

use super::changes::NewChange;
use crate::catalog::naming::extension_of_name;
use crate::catalog::{CatalogError, ITEMS, ReadPage, Resource, SetId, Snapshot};
use crate::document::{Change, Entry, Timestamp, Uri};
use page::PageItems;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use xxhash_rust::xxh3::Xxh3;

/// What became of a page.
pub enum PageNews {
    /// It was read.
    Read(Box<PageItems>),
    /// It was read, and is the same.
    Same(Box<ReadPage>),
    /// It has left the tree.
    Gone(Box<ReadPage>),
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

impl PageNews {
    /// The page.
    pub fn uri(&self) -> &Uri {
        match self {
            PageNews::Read(read) => &read.page.uri,
            PageNews::Same(page) | PageNews::Gone(page) => &page.uri,
        }
    }
}

/// Adds the changes that `news` make of what is shown, and answers the row of the page; `None` is a page that is forgotten.
pub(super) fn changes_of(
    snapshot: &Snapshot<'_>,
    news: &PageNews,
    changes: &mut Vec<(SetId, NewChange)>,
) -> Result<Option<ReadPage>, CatalogError> {
    let resource = |uri: &Uri| {
        let node = snapshot.locate(uri)?;
        Ok::<_, CatalogError>(node.map(|node| snapshot.resource(node.ino)).transpose()?.flatten())
    };
    let mut change =
        |change, entry| changes.push((ITEMS, NewChange { change, time: Timestamp::now(), entry, member: None }));
    let shown_page: Option<Resource> = resource(news.uri())?;
    let known = || Ok::<_, CatalogError>(snapshot.page(news.uri())?.map(|known| known.items).unwrap_or_default());
    let (mut row, read) = match (news, &shown_page) {
        (PageNews::Same(page), Some(_)) => return Ok(Some(ReadPage::clone(page))),
        (PageNews::Read(read), Some(_)) => (Some(read.page.clone()), Some(read)),
        _ => (None, None),
    };
    let mut now = HashSet::new();
    for entry in read.iter().flat_map(|read| &read.entries) {
        let datetime = shown_page.as_ref().and_then(|page| page.lastmod);
        let stated = || Entry { datetime, ..entry.clone() };
        match resource(&entry.loc)? {
            None => change(Change::Created, stated()),
            Some(shown) if !says_the_same(&shown, entry) || is_held(snapshot, &entry.loc)? => {
                change(Change::Updated, stated());
            }
            Some(_) => {}
        }
        now.insert(&entry.loc);
    }
    for fragment in known()? {
        let Ok(uri) = Uri::parse_item(&format!("{}#{fragment}", news.uri())) else { continue };
        match &mut row {
            _ if now.contains(&uri) => {}
            // It may be in what could not be read.
            Some(row) if row.is_partial => row.items.push(fragment),
            _ => change(Change::Deleted, Entry::new(uri)),
        }
    }
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
