//! Incremental commits: k changes of single resources at a cost of O(k), and the guard against accidental emptiness.
//!
//! Every applied change is written to the journal, in the same commit: a later baseline whose list speaks for an earlier
//! time keeps the change (DESIGN, Sync). Rows that a list's `at` has overtaken are dropped by that baseline.

use super::super::{Catalog, CatalogError, SetId};
use super::Committed;
use crate::document::{Change, Entry, PackageMember, Timestamp, Uri};

/// What a change document says of one resource.
#[derive(Clone, Copy, Debug)]
pub struct Statement<'a> {
    /// The set whose document says it.
    pub set: SetId,
    /// What happened.
    pub change: Change,
    /// When, as `sync` has settled it: statements about one resource are ordered by it.
    pub time: Timestamp,
    /// The entry; of a deletion only `loc` counts.
    pub entry: &'a Entry,
    /// Where a Change Dump's package holds the new bytes.
    pub member: Option<&'a PackageMember>,
}

/// What became of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It changes the tree.
    Changed,
    /// The tree says so already.
    Same,
    /// A deletion of what is not there (any more).
    Unknown,
    /// The resource has a later statement of this set, or was listed later.
    Older,
}

/// Files of one set that a commit would take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetLoss {
    /// The set.
    pub set: SetId,
    /// Its files before the commit.
    pub present: u64,
    /// Those of them that would go, from this set at least.
    pub going: u64,
    /// Files that the commit adds to it.
    pub coming: u64,
}

/// What a commit would take away, for whoever decides whether it may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Files of the tree before the commit.
    pub present: u64,
    /// Those of them that would go.
    pub going: u64,
    /// Files that the commit adds.
    pub coming: u64,
    /// The same for each set that loses or gains something.
    pub sets: Vec<SetLoss>,
}

/// Whether what would go may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Everything is applied.
    Apply,
    /// All but the deletions is applied; these are kept, persisted, as held back.
    Hold,
}

/// Changes of single resources that become one revision; dropped without commit they leave no trace.
pub struct Changes<'c> {
    #[expect(dead_code)]
    catalog: &'c Catalog,
}

impl<'c> Changes<'c> {
    pub(in crate::catalog) fn new(catalog: &'c Catalog) -> Result<Changes<'c>, CatalogError> {
        Ok(Changes { catalog })
    }

    /// Adds one statement. Order counts for none but statements of one resource with equal times: the later call wins.
    pub fn apply(&mut self, _statement: Statement<'_>) -> Result<Applied, CatalogError> {
        unimplemented!()
    }

    /// Adds the deletions that earlier commits have held back.
    pub fn accept_held(&mut self) -> Result<u64, CatalogError> {
        unimplemented!()
    }

    /// Settles names anew for what is affected (a folder where a file was, URIs that meet) and commits tree, journal and
    /// position at once. `decide` is told what would go and answers whether it may, with the position to store.
    pub fn commit(
        self,
        _at: Option<Timestamp>,
        _decide: &mut dyn FnMut(&Losses) -> (Decision, Vec<u8>),
    ) -> Result<Committed, CatalogError> {
        unimplemented!()
    }
}

/// A deletion that is held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDeletion {
    /// The set that says so.
    pub set: SetId,
    /// The resource.
    pub uri: Uri,
    /// Since when.
    pub time: Timestamp,
}
