//! The documents of the Source: lists, dumps and change documents are fetched and read.

pub(super) mod change_docs;
pub mod dumps;
pub mod gap;
pub(super) mod index_cache;
pub(super) mod list_parser;
pub(super) mod lists;
pub(super) mod new_changes;
mod own_host;
mod remarks;
pub mod spool;

use crate::document::Uri;
use crate::source::DocumentLocation;
use crate::source::http::Client;
use crate::source::zip::Packages;
use index_cache::IndexCache;
use spool::Spool;
use std::collections::HashMap;
use tokio::task::JoinSet;

/// The owner of what documents are fetched with.
pub(super) struct DocumentFetch {
    /// Requests them.
    pub client: Client,
    /// Keeps them on disk.
    pub spool: Spool,
    /// Reads the packages of dumps.
    pub packages: Packages,
    /// Knows which children of indexes need not be asked for.
    pub children: IndexCache,
    /// The followed document above each list that was reached.
    pub below: HashMap<Uri, DocumentLocation>,
    /// Reads the manifests of many packages.
    pub reading: JoinSet<()>,
}
