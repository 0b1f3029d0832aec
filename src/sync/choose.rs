//! The choice of resources where the links of others choose too (`conforms=`, `with=`): a change may choose, or give up, what lists have.

use super::SyncError;
use super::changes::NewChange;
use super::fetch::new_changes::NewChanges;
use super::read_set::ReadSet;
use super::selection::Selection;
use super::selection::plan::{ChoicePlan, path};
use crate::catalog::{Catalog, CatalogError, Naming, SetId, Snapshot};
use crate::document::{Change, Timestamp};
use std::collections::HashMap;
use std::sync::Arc;

/// True if the lists must be chosen from again to know what `new` brings and takes.
pub(super) async fn needs_lists(
    catalog: &Arc<Catalog>,
    selection: &Selection,
    mut new: NewChanges,
) -> Result<(NewChanges, bool), SyncError> {
    if new.is_empty() || !selection.follows_links() {
        return Ok((new, false));
    }
    let (catalog, selection) = (catalog.clone(), selection.clone());
    let look = move || {
        let (snapshot, mut needs_lists) = (catalog.snapshot()?, false);
        new.each(&mut |_, change| {
            needs_lists = needs_lists || !stays_as_chosen(&snapshot, &selection, change)?;
            Ok(())
        })?;
        Ok::<_, SyncError>((new, needs_lists))
    };
    tokio::task::spawn_blocking(look).await?
}

/// The choice of changes by themselves. Where the links of other entries choose too, what is in the tree stays.
pub(super) struct ChangeChoice<'c> {
    selection: &'c Selection,
    pub(super) snapshot: Snapshot<'c>,
    naming: Option<Naming>,
}

impl<'c> ChangeChoice<'c> {
    pub(super) fn new(catalog: &'c Catalog, selection: &'c Selection) -> Result<ChangeChoice<'c>, CatalogError> {
        let snapshot = catalog.snapshot()?;
        Ok(ChangeChoice { selection, naming: snapshot.naming()?, snapshot })
    }

    /// True if a change concerns the tree.
    pub(super) fn chooses(&self, NewChange { change, entry, .. }: &NewChange) -> Result<bool, CatalogError> {
        let ChangeChoice { selection, snapshot, naming } = self;
        let path = || naming.as_ref().map(|naming| path(selection, naming, entry)).unwrap_or_default();
        Ok(*change == Change::Deleted
            || selection.chooses(entry, &path())
            || selection.follows_links() && snapshot.locate(&entry.loc)?.is_some())
    }
}

/// True if a change leaves the choice of other resources as it is: one that is shown keeps its type and links, or goes and is
/// not a record.
fn stays_as_chosen(snapshot: &Snapshot<'_>, selection: &Selection, new: &NewChange) -> Result<bool, CatalogError> {
    let shown = snapshot.resource_of(&new.entry.loc)?;
    Ok(shown.is_some_and(|shown| match new.change {
        Change::Deleted => !selection.may_be_record(&shown.links),
        _ => shown.media_type == new.entry.media_type && shown.links == new.entry.links,
    }))
}

/// Adds to `plan` the changes of the catalog's journal that count with the lists of `read`. The plan keeps a later one that it has.
pub(super) fn add_applied(catalog: &Catalog, read: &[ReadSet], plan: &mut ChoicePlan) -> Result<(), CatalogError> {
    let counted = read.iter().filter(|it| !it.supersedes_announced);
    let at: HashMap<SetId, Option<Timestamp>> = counted.map(|it| (it.id, it.at())).collect();
    let snapshot = catalog.snapshot()?;
    snapshot.journal(&mut |set, journaled, resource| {
        // As in the baseline, a list that speaks for a later time counts more.
        if !at.get(&set).is_some_and(|at| at.is_none_or(|at| journaled.time.may_reach(at))) {
            return Ok(());
        }
        // The latest statement of its sets counts for a resource in the tree.
        let is_there = journaled.change != Change::Deleted;
        let in_tree = if is_there { snapshot.resource_of(&resource.uri)? } else { None };
        plan.applied(set, journaled.change, &in_tree.unwrap_or(resource).into());
        Ok(())
    })
}
