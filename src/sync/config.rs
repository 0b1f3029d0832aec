//! The configuration of a synchronizer.

use super::deletion_guard::MaxDelete;
use super::fetch::list_parser::LEAST_PART;
use super::selection::Selection;
use crate::document::{Limits, Timestamp, Uri};
use crate::source::EntryPoint;
use std::time::Duration;

/// The Source that is synchronized, and the names of its files.
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
    /// `items=follow`: landing pages are read, and their items are files.
    pub follows_items: bool,
    /// `cache-reserve=`: bytes that documents and the catalog leave free on the disk.
    pub reserve: u64,
}

/// Bounds of one refresh, which tests make small.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    /// Changes that one commit applies: some 3 kB each.
    pub in_batch: u64,
    /// Resources that are asked: whether they are gone, or whether they show what was announced.
    pub asked: usize,
    /// How long all of these have to answer: requesters and polls wait meanwhile.
    pub answers_due: Duration,
    /// Bytes of lists that one thread parses at once, at least.
    pub least_part: u64,
    /// Packages next to lists whose manifests a refresh waits for, and how long. The others are read in the background.
    pub packages: (usize, Duration),
}

impl Default for Tuning {
    fn default() -> Tuning {
        let (in_batch, asked, answers_due) = (50_000, 10_000, Duration::from_secs(30));
        Tuning { in_batch, asked, answers_due, least_part: LEAST_PART, packages: (100, Duration::from_secs(10)) }
    }
}
