//! The folders that a sorted statement implies.

use super::CatalogError;
use super::sort::Sorter;
use super::sort_key::split;
use super::sort_key::{FIRST_SEEN, tag};
use super::store::codec::push_time;
use crate::document::Timestamp;

/// The folders above the entry added last. A folder's marker is written when the entries leave it, so that it carries the
/// newest time of what came by.
pub(super) struct OpenFolders {
    /// The path of the innermost one, segments separated by NUL.
    path: Vec<u8>,
    /// For each, outermost first: the end of its path, and the newest time beneath. The first is the root.
    stack: Vec<(usize, Option<Timestamp>)>,
    /// Room for the key and the value of a marker.
    key: Vec<u8>,
    value: Vec<u8>,
}

impl OpenFolders {
    /// Within the root.
    pub(super) fn new() -> OpenFolders {
        OpenFolders { path: Vec::new(), stack: vec![(0, None)], key: Vec::new(), value: Vec::new() }
    }

    /// [`OpenFolders::enter`] the folder that a sort key lies in.
    pub(super) fn enter_above(&mut self, key: &[u8], sorter: &mut Sorter) -> Result<(), CatalogError> {
        let ((_, path), _) = split(key);
        self.enter(path, sorter)
    }

    /// Leaves the folders that do not lie on the way to `path`, and enters those that do.
    pub(super) fn enter(&mut self, path: &[u8], sorter: &mut Sorter) -> Result<(), CatalogError> {
        if path == self.path {
            return Ok(());
        }
        while !self.innermost_holds(path) {
            self.leave(sorter)?;
        }
        let entered = self.path.len();
        self.path.extend_from_slice(&path[entered..]);
        for at in entered + 1..=path.len() {
            if at == path.len() || path[at] == 0 {
                self.stack.push((at, None));
            }
        }
        Ok(())
    }

    fn innermost_holds(&self, path: &[u8]) -> bool {
        let end = self.path.len();
        path.starts_with(&self.path) && (end == 0 || path.len() == end || path[end] == 0)
    }

    /// An entry of this time lies in the innermost.
    pub(super) fn see(&mut self, time: Timestamp) {
        if let Some((_, newest)) = self.stack.last_mut() {
            *newest = (*newest).max(Some(time));
        }
    }

    /// An entry of this time lies somewhere beneath the root, in folders that are seen to elsewhere.
    pub(super) fn see_in_root(&mut self, time: Timestamp) {
        if let Some((_, newest)) = self.stack.first_mut() {
            *newest = (*newest).max(Some(time));
        }
    }

    fn leave(&mut self, sorter: &mut Sorter) -> Result<(), CatalogError> {
        // The root, whose path is empty, holds every path and is never left.
        let Some((_, newest)) = self.stack.pop() else { return Ok(()) };
        let depth = self.stack.len() as u8;
        self.key.clear();
        self.key.push(depth);
        self.key.extend_from_slice(&self.path);
        self.value.clear();
        self.value.push(tag::FOLDER);
        push_time(&mut self.value, newest.unwrap_or(FIRST_SEEN));
        sorter.add(&self.key, &self.value)?;
        if let Some((end, above)) = self.stack.last_mut() {
            *above = (*above).max(newest);
            self.path.truncate(*end);
        }
        Ok(())
    }

    /// Leaves all but the root; the newest time of everything, `None` where there is nothing.
    pub(super) fn close(&mut self, sorter: &mut Sorter) -> Result<Option<Timestamp>, CatalogError> {
        while self.stack.len() > 1 {
            self.leave(sorter)?;
        }
        Ok(self.stack.first().and_then(|(_, newest)| *newest))
    }
}
