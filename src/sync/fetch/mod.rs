//! The documents of a baseline: lists and dumps are fetched, and lists are parsed.

pub mod dumps;
pub(super) mod index_cache;
pub(super) mod lists;
pub(super) mod parse;
