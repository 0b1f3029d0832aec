//! A revision that is written apart from the store that readers see, or before there is anything to be seen: nothing of what it
//! writes is read.

pub(super) mod beside;
pub(super) mod first;
pub(super) mod rewrite;
pub(super) mod transaction;

use super::CatalogError;
use super::store::Successor;
use first::{FirstRevision, Target};
use rewrite::Rewrite;

pub(super) enum Apart<'c> {
    /// The first of all, into the store itself while it is small.
    First(Box<FirstRevision<'c>>),
    /// All of one that shares little with the one before, into another store.
    Whole(Box<Rewrite>),
}

impl Apart<'_> {
    /// Writes the record that `encode` appends.
    #[inline]
    pub(super) fn put(
        &mut self,
        target: Target,
        key: &[u8],
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), CatalogError> {
        match self {
            Apart::First(first) => first.put(target, key, encode),
            Apart::Whole(rewrite) => rewrite.put(target, key, encode),
        }
    }

    /// Whether there is anything to be written.
    pub(super) fn is_begun(&self) -> bool {
        match self {
            Apart::First(first) => first.is_begun(),
            Apart::Whole(_) => true,
        }
    }

    /// Commits the last of it; the store that is to take the place of the one there was, where it is another and the caller does not have
    /// it.
    pub(super) fn commit(self) -> Result<Option<Successor>, CatalogError> {
        match self {
            Apart::First(first) => first.commit(),
            Apart::Whole(rewrite) => rewrite.commit().map(|()| None),
        }
    }
}
