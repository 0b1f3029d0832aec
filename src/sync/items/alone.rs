//! A landing page that is mounted alone: its items are at the root, next to the page itself.

use super::PageNews;
use super::page::{PageItems, PageReader};
use crate::catalog::{ITEMS, Naming, SetId};
use crate::document::{Entry, Uri};
use crate::platform::error_chain::chain;
use crate::source::DocumentLocation;
use crate::source::http::Priority;
use crate::sync::commit::guarded;
use crate::sync::refresh::Step;
use crate::sync::scheduler::{Cost, jitter};
use crate::sync::{RefreshResult, SyncError, Synchronizer};
use tokio::time::Instant;

impl Synchronizer {
    /// Reads the page, and makes one revision of it where it is another than before.
    pub(in crate::sync) async fn refresh_page(&mut self, step: &Step, page: &Uri) -> Result<RefreshResult, SyncError> {
        let (location, began) = (DocumentLocation::Uri(page.clone()), Instant::now());
        let naming = Naming { page: Some(page.clone()), ..self.config.naming_of(page.authority())? };
        // A DOI may lead to another page now.
        let is_first = step.is_first || self.catalog.snapshot()?.naming()?.is_none_or(|shown| shown != naming);
        let known = if is_first { None } else { self.catalog.snapshot()?.page(page)? };
        let validator = known.filter(|known| !known.is_partial).and_then(|known| known.validator);
        let reader = PageReader { client: &self.fetch.client, priority: Priority::default(), repeats: true };
        let read = reader.read(page, None, validator).await;
        let now = Instant::now();
        match &read {
            Ok(_) => {
                let cost = Cost { bytes: 0, took: now - began, max_age: None };
                self.fetch.schedule.answered(&location, cost, jitter(), now);
            }
            Err(cause) => self.fetch.schedule.failed(&location, chain(cause), jitter(), now),
        }
        let Some(PageItems { page: row, entries }) = read? else { return Ok(RefreshResult::Unchanged) };
        if !step.is_first && (row.is_partial || entries.is_empty()) {
            return Err(SyncError::NothingToShow(format!("{page} does not say now which items it has")));
        }
        if !is_first {
            let news = PageNews { page: page.clone(), row: Some(row), entries: Some(entries) };
            return Ok(RefreshResult::Committed(self.apply_pages(vec![news]).await?));
        }
        let (catalog, selection, limit) = (self.catalog.clone(), self.config.selection.clone(), self.config.max_delete);
        let position = step.position.after(&[], Vec::new(), &naming);
        let write = move || {
            let mut commit = catalog.commit_of_lists(naming.clone())?;
            // Those of another page, which was mounted before, go.
            commit.forget(ITEMS);
            let of_page = Entry { media_type: Some("text/html".into()), ..Entry::new(row.uri.clone()) };
            for (set, entries) in [(ITEMS, &entries[..]), (SetId::default(), std::slice::from_ref(&of_page))] {
                commit.begin_list(set, None);
                for entry in entries {
                    let (path, _) = naming.path(&entry.loc, entry.media_type.as_deref());
                    if selection.chooses(entry, &path) {
                        commit.add(entry)?;
                    }
                }
            }
            commit.set_page(&row.uri, Some(&row));
            guarded(&catalog, commit, limit, position)
        };
        Ok(RefreshResult::Committed(self.commit(write).await?))
    }
}
