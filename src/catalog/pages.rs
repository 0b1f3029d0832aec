//! Landing pages whose links were read. Their items are changes of [`ITEMS`]; the row of a page says as of which version they are complete.

use super::base::Base;
use super::sink::tree::TreeWriter;
use super::store::TableId;
use super::store::codec::pack;
use super::store::keys::digest;
use super::{CatalogError, Commit, SetId};
use crate::document::{Timestamp, Uri};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The set of all items of landing pages.
pub const ITEMS: SetId = SetId(u32::MAX >> 1);

/// A landing page whose links were read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadPage {
    /// Its address.
    pub uri: Uri,
    /// A digest of what its list says of its version; `None` where the list says nothing of it.
    pub version: Option<u64>,
    /// True if a part of it was dead or made no sense: it may have further items.
    pub is_partial: bool,
    /// When it was read.
    pub read: Timestamp,
    /// Its ETag, for the next request.
    pub validator: Option<Box<str>>,
    /// Its own links, as (relation, target): `cite-as`, `license`, `author`, `type`.
    pub links: Vec<(Box<str>, Box<str>)>,
    /// The paths of its items in its folder, as [`Uri::page`] gives them.
    pub items: Vec<Box<str>>,
}

impl ReadPage {
    /// The identities of its items.
    pub fn item_uris(&self) -> impl Iterator<Item = Uri> {
        self.items.iter().filter_map(|fragment| Uri::parse_item(&format!("{}#{fragment}", self.uri)).ok())
    }
}

/// Rows of pages that a commit writes, by key; `None` is removed.
pub(super) type PageRows = BTreeMap<[u8; 16], Option<Vec<u8>>>;

impl Commit<'_> {
    /// Notes that a page was read; `None`: it has left the tree. Its items are stated with [`Commit::apply`], or listed with it.
    pub fn set_page(&mut self, uri: &Uri, page: Option<&ReadPage>) {
        self.pages.insert(digest(uri.as_str()), page.map(pack));
    }
}

/// Writes `pages` over those of `base`; with `all` those that stay too, for a store that is written whole.
pub(super) fn put_pages(
    base: &Base<'_>,
    pages: &PageRows,
    all: bool,
    tree: &mut TreeWriter<'_>,
) -> Result<(), CatalogError> {
    if all {
        for row in base.store.all(base.txn, TableId::Pages)? {
            let (key, row) = row?;
            if !key.first_chunk().is_some_and(|key| pages.contains_key(key)) {
                tree.row(TableId::Pages, key, Some(row))?;
            }
        }
    }
    pages
        .iter()
        .filter(|(_, row)| !all || row.is_some())
        .try_for_each(|(key, row)| tree.row(TableId::Pages, key, row.as_deref()))
}
