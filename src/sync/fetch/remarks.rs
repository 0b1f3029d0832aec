//! Sentences for people about lists that fail and parts that are missing.

use crate::document::Uri;
use crate::source::crawl::ANOTHER_LIST;
use crate::source::{DocumentLocation, EntryPoint, Missing, SourceError, another_set};
use crate::sync::followed_set::FollowedSet;
use crate::sync::position::Position;
use crate::sync::{SyncError, Synchronizer};

/// Missing parts that a mount names, at most.
const REMARKS: usize = 10;

/// Fails if parts of the Source at `entry` are `missing`: nothing else is left to show.
pub fn fail_if_missing(entry: &EntryPoint, missing: &[Missing]) -> Result<(), SyncError> {
    let Some(Missing { location, why, .. }) = missing.first() else { return Ok(()) };
    let others = match missing.len() {
        1 => String::new(),
        all => format!("; {} more parts are missing", all - 1),
    };
    Err(SyncError::NothingToShow(format!("{entry} has nothing to show: {location}: {why}{others}")))
}

impl Synchronizer {
    /// Sentences about the tree that is shown: the parts that it lacks, and that it is empty.
    pub fn remarks(&mut self) -> Result<Vec<String>, SyncError> {
        let position = self.position()?;
        let lacking: Vec<_> = position.iter().flat_map(Position::lacking).collect();
        let remark = |Missing { location, entries, why }: &&Missing| match entries {
            0 => format!("the files of {location} are missing: {why}"),
            _ => format!("some files of {location} are missing: {why}"),
        };
        let mut remarks: Vec<String> = lacking.iter().take(REMARKS).map(remark).collect();
        if let Some(more) = lacking.len().checked_sub(REMARKS).filter(|more| *more > 0) {
            remarks.push(format!("{more} more parts of the Source are missing: see resyncfs status"));
        }
        if let Some(since) = position.as_ref().and_then(Position::missing_since) {
            remarks.push(format!(
                "changes since {since} may be missing, until a newer Resource List is published: see resyncfs status"
            ));
        }
        if self.catalog.revision()?.is_some_and(|revision| revision.totals.files == 0) {
            let entry = &self.config.entry;
            remarks
                .push(format!("the tree is empty: the lists of {entry} have no resources, or the filters choose none"));
        }
        Ok(remarks)
    }
}

/// The cause of a list of `set` that fails, with the document that names it, and with what can be mounted instead. A list that
/// has the name of its set was found from the `entry`.
pub fn explained(
    cause: SourceError,
    list: &DocumentLocation,
    set: &FollowedSet,
    sets: &[FollowedSet],
    entry: &EntryPoint,
) -> SourceError {
    let lists = set.list_roots();
    let others: Vec<&str> = sets.iter().filter(|it| it.id != set.id).map(|it| it.name.as_str()).collect();
    let instead = match (others.is_empty(), lists.len()) {
        (false, _) => another_set(&others),
        (true, 0 | 1) => String::new(),
        (true, _) => ANOTHER_LIST.to_owned(),
    };
    let is_alone = lists.iter().any(|list| list.to_string() == set.name);
    let named_by = match (Uri::parse(&set.name), entry) {
        (Ok(capability_list), _) if !is_alone => DocumentLocation::Uri(capability_list),
        (_, EntryPoint::Uri(entry)) => DocumentLocation::Uri(entry.clone()),
        (_, EntryPoint::File(entry)) => DocumentLocation::File(entry.clone()),
    };
    if named_by == *list || others.is_empty() && matches!(cause, SourceError::Part { .. }) {
        return cause;
    }
    cause.named_by(&named_by, &instead)
}
