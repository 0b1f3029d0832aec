//! What is synchronized, and how.

use super::guard::MaxDelete;
use super::selection::Selection;
use crate::document::{Limits, Timestamp, Uri};
use crate::source::EntryPoint;
use std::time::Duration;

/// What is synchronized, and under which names.
#[derive(Clone, Debug)]
pub struct SyncConfig {
    /// The entry point, as it was given.
    pub entry: EntryPoint,
    /// One set alone (`set=`).
    pub set: Option<Uri>,
    /// `host=`: the own `HOST[:PORT]` in place of the entry point's.
    pub host: Option<Box<str>>,
    /// `map=`
    pub maps: Vec<(Box<str>, Box<str>)>,
    /// `extension=type`
    pub extension_by_type: bool,
    /// `include=`, `exclude=`, `type=`, `collection=`, `conforms=`, `with=`
    pub selection: Selection,
    /// Bounds for every document.
    pub limits: Limits,
    /// `poll=`: a fixed interval in place of the documents' own.
    pub poll: Option<Duration>,
    /// `max-delete=`
    pub max_delete: MaxDelete,
    /// `at=`: the state of that time in place of today's.
    pub as_of: Option<Timestamp>,
    /// `cache-reserve=`: bytes that documents and the catalog leave free on the disk.
    pub reserve: u64,
}
