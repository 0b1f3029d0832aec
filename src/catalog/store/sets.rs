//! The sets of resources that a revision consists of: of each the time of its list, and how many files are members.

use super::super::SetId;
use crate::document::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetRecord {
    /// The time that its list speaks for; `None` where it has none, or where there is no list.
    pub at: Option<Timestamp>,
    pub files: u64,
}

/// All sets of a revision, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetTable(pub BTreeMap<SetId, SetRecord>);

impl SetTable {
    /// The set, entered without files where it is new.
    pub fn entry(&mut self, set: SetId) -> &mut SetRecord {
        self.0.entry(set).or_default()
    }

    /// The time that the list of `set` speaks for.
    pub fn at(&self, set: SetId) -> Option<Timestamp> {
        self.0.get(&set).and_then(|record| record.at)
    }

    pub fn files(&self, set: SetId) -> u64 {
        self.0.get(&set).map_or(0, |record| record.files)
    }
}
