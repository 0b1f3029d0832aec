//! The documents of the Source: lists, dumps and change documents are fetched and read.

pub(super) mod change_docs;
pub mod dumps;
pub mod gap;
pub(super) mod index_cache;
pub(super) mod list_parser;
pub(super) mod lists;
pub(super) mod new_changes;
pub(super) mod own_host;
pub(super) mod remarks;
pub mod spool;

use super::absence::Absence;
use super::scheduler::{Cost, Schedule, jitter};
use super::{Progressing, Stage};
use crate::document::Uri;
use crate::platform::error_chain::chain;
use crate::source::crawl::{Asking, Crawled, crawl};
use crate::source::http::{Client, HttpError, Request, Response};
use crate::source::zip::Packages;
use crate::source::{DocumentLocation, SourceError};
use futures_util::{FutureExt, StreamExt, stream};
use index_cache::IndexCache;
use spool::Spool;
use std::collections::HashMap;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Resources asked at once.
const ASKED_AT_ONCE: usize = 8;

/// The time that one resource has to answer.
const ANSWER_DUE: Duration = Duration::from_secs(30);

/// The owner of what documents are fetched with.
pub(super) struct DocumentFetch {
    /// Requests them.
    pub client: Client,
    /// Keeps them on disk.
    pub spool: Spool,
    /// Reads the packages of dumps.
    pub packages: Packages,
    /// Knows when each is due.
    pub schedule: Schedule,
    /// Knows which children of indexes need not be asked for.
    pub children: IndexCache,
    /// Knows whether the lists are read once more, as an absence from them was not proved.
    pub absence: Absence,
    /// The followed document above each list that was reached.
    pub below: HashMap<Uri, DocumentLocation>,
    /// Reads the manifests of many packages.
    pub reading: JoinSet<()>,
}

impl DocumentFetch {
    /// Fetches one document with all below it, and notes when it is due again.
    pub async fn walk(
        &mut self,
        progress: &Progressing,
        root: &DocumentLocation,
        asking: Asking<'_>,
    ) -> Result<Crawled, SourceError> {
        let fetching = |so_far| progress(Stage::Fetching(so_far));
        let began = Instant::now();
        let walked = crawl(&self.client, &self.spool.cache, root, self.spool.limits, asking, &fetching).await;
        let now = Instant::now();
        match &walked {
            Ok(walked) => {
                let cost = Cost { bytes: walked.transferred, took: now - began, max_age: walked.max_age };
                match self.absence.is_doubted() {
                    true => self.schedule.answered_again(root, cost, jitter(), now),
                    false => self.schedule.answered(root, cost, jitter(), now),
                }
                for index in &walked.indexes {
                    let found = walked.deviations.iter().find(|it| it.location == index.location);
                    let deviations = found.map(|it| it.deviations.clone()).unwrap_or_default();
                    self.spool.deviations.note(&index.location, &deviations, None);
                }
                self.below.retain(|_, above| above != root);
                for entry in walked.leaves.iter().filter_map(|leaf| leaf.listed.as_deref()) {
                    self.below.insert(entry.loc.clone(), root.clone());
                }
            }
            Err(cause) => self.schedule.failed(root, chain(cause), jitter(), now),
        }
        walked
    }

    /// Asks resources by HEAD, past caches, for as long as all of them together have. What `judge` makes of each answer; those that
    /// there was no time for are not among them.
    pub async fn ask<T: Send + 'static>(
        &self,
        resources: Vec<Uri>,
        all_due: Duration,
        judge: fn(Result<Response, HttpError>) -> T,
    ) -> Vec<(Uri, T)> {
        let ask = |uri: Uri| {
            let client = self.client.clone();
            async move {
                let mut request = Request::head(uri.clone(), ANSWER_DUE);
                request.no_cache = true;
                (uri, judge(client.send(request).await))
            }
            .boxed()
        };
        let asked: Vec<_> = resources.into_iter().map(ask).collect();
        let answers = stream::iter(asked).buffer_unordered(ASKED_AT_ONCE);
        answers.take_until(tokio::time::sleep(all_due)).collect().await
    }
}
