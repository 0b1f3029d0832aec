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
