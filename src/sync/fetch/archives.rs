//! Archives of change documents (section 15): they close a gap without a new baseline where they reach back far enough.

use super::read_changes::{Origin, ReadChanges};
use crate::platform::error_chain::chain;
use crate::source::DocumentLocation;
use crate::sync::changes::ChangeState;
use crate::sync::command::Scope;
use crate::sync::documents::{FollowedSet, Purpose};
use crate::sync::{Progressing, SyncError, Synchronizer};
use std::collections::HashSet;

impl Synchronizer {
    /// Where `read` does not go on from what is known: adds to it what the archives of `set`, and those that its documents name,
    /// hold of the time between. What does not close the gap is left; only where an earlier time is wanted
    /// it is applied all the same, and the gap stays marked.
    pub(in crate::sync) async fn close_gap(
        &mut self,
        set: &FollowedSet,
        read: &mut ReadChanges,
        known: &ChangeState,
        progress: &Progressing,
    ) -> Result<(), SyncError> {
        if read.goes_on(known) {
            return Ok(());
        }
        let mut archives: Vec<DocumentLocation> = set.earlier_changes().cloned().collect();
        archives.extend(read.archives.iter().cloned());
        let (mut earlier, mut replaced) = (Vec::new(), HashSet::new());
        let mut met = vec![read.root.clone()];
        for archive in archives {
            if met.contains(&archive) {
                continue;
            }
            let archived = match set.incremental().0 {
                Purpose::ChangeDump => {
                    self.read_change_dump(set.id, &archive, known, &Scope::Everything, progress).await
                }
                _ => self.read_root(set.id, (&archive, &[]), known, &Scope::Everything, progress).await,
            };
            match archived {
                Ok(archived) => {
                    // Fetched again with other bytes: the places of its entries are those of the later ones.
                    for (location, later) in &archived.origins {
                        if let (Some(Origin::List(before)), Origin::List(later)) = (read.origins.get(location), later) {
                            if before.digest != later.digest {
                                replaced.insert(location.clone());
                            }
                        }
                    }
                    read.is_beyond |= archived.is_beyond;
                    read.digests.extend(archived.digests);
                    read.origins.extend(archived.origins);
                    earlier.extend(archived.documents);
                }
                // The tree of an earlier time is whole or not at all.
                Err(cause) if known.is_of_the_past() && !cause.is_gone() => return Err(cause),
                Err(cause @ (SyncError::Source(_) | SyncError::Document { .. } | SyncError::Package(_))) => {
                    tracing::warn!("the archive {archive} cannot be read now: {}", chain(&cause));
                }
                Err(cause) => return Err(cause),
            }
            met.push(archive);
        }
        let mut others = Vec::with_capacity(earlier.len());
        for archived in earlier {
            match read.documents.iter_mut().find(|it| it.location() == archived.location()) {
                Some(before) if replaced.contains(before.location()) => *before = archived,
                Some(_) => {}
                None => others.push(archived),
            }
        }
        let earlier = others;
        let is_closed = known.is_followed_by(earlier.iter().chain(&read.documents));
        if is_closed || known.is_of_the_past() {
            if !earlier.is_empty() {
                tracing::info!(set = %set.name, documents = earlier.len(), "the changes in between are read from archives");
            }
            read.is_torn = !is_closed;
            read.documents.extend(earlier);
        }
        Ok(())
    }
}
