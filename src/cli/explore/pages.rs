//! Landing pages: the items of one that is explored alone, and whether those of a sample have any.

use super::CliError;
use crate::document::{Uri, believed_length};
use crate::mount::MountError;
use crate::source::http::{Client, Priority};
use crate::sync::SyncError;
use crate::sync::items::page::{PageError, PageItems, PageReader};
use percent_encoding::percent_decode_str;
use serde::Serialize;

/// Pages of a sample that are read.
const MOST: usize = 5;

/// Items of landing pages.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Pages {
    /// The items of the page that is explored.
    pub items: Vec<ExploredItem>,
    /// Pages of the sample that were read.
    pub asked: usize,
    /// Pages with items.
    pub with_items: usize,
}

/// An item of a landing page.
#[derive(Clone, Debug, Serialize)]
pub struct ExploredItem {
    /// Its path in the mount.
    pub path: String,
    /// Its own address.
    pub address: String,
    /// Its media type.
    #[serde(rename = "type")]
    pub media_type: Option<String>,
    /// Its length in bytes.
    pub length: Option<u64>,
}

impl Pages {
    /// The items of the page at `uri`.
    pub async fn of_page(client: &Client, uri: &Uri) -> Result<Pages, CliError> {
        let read = read(client, uri).await.map_err(|cause| MountError::FirstBaseline(SyncError::Page(cause)))?;
        let item = |entry: &crate::document::Entry| {
            let path = entry.loc.page().map_or("", |(_, path)| path);
            ExploredItem {
                path: percent_decode_str(path).decode_utf8_lossy().into_owned(),
                address: entry.links.iter().find_map(|link| link.uri()).map(Uri::to_string).unwrap_or_default(),
                media_type: entry.media_type.as_deref().map(str::to_owned),
                length: believed_length(entry.length, &entry.hashes),
            }
        };
        Ok(Pages { items: read.iter().flat_map(|read| &read.entries).map(item).collect(), ..Pages::default() })
    }

    /// Reads a few pages of `sample`.
    pub async fn of_sample(client: &Client, sample: &[Uri]) -> Pages {
        let mut pages = Pages::default();
        for uri in sample.iter().take(MOST) {
            if let Ok(read) = read(client, uri).await {
                pages.asked += 1;
                pages.with_items += usize::from(read.is_some_and(|read| !read.entries.is_empty()));
            }
        }
        pages
    }
}

async fn read(client: &Client, uri: &Uri) -> Result<Option<PageItems>, PageError> {
    PageReader { client, priority: Priority::default(), repeats: true }.read(uri, None, None).await
}
