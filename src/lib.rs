//! resyncfs mounts a ResourceSync Source (ANSI/NISO Z39.99) or any sitemap as a read-only folder.
//!
//! Three flows run through the modules, each a path of names:
//!
//! 1. what exists: `source::http -> document::reader -> source (discovery, crawl) -> sync -> catalog`
//! 2. what is asked: `fs::fuse -> fs -> catalog (metadata) | content -> store | download -> source::http (bytes)`
//! 3. what changed: `source::websub, timer or signal -> sync -> catalog -> Invalidation -> fs::invalidator -> kernel`
//!
//! A module names only modules to its right (`tests/layers.rs` holds it):
//! `main > cli > mount > {control | fs | sync} > {catalog | content} > source > document > platform`.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]

pub mod catalog;
pub mod cli;
pub mod content;
pub mod control;
pub mod document;
pub mod fs;
pub mod mount;
pub mod platform;
pub mod source;
pub mod sync;
