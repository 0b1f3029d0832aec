//! Asking for what a notification announces.

use crate::catalog::{CatalogError, Resource};
use crate::document::{Change, Entry, Timestamp, Uri};
use crate::source::DocumentLocation;
use crate::source::http::{Client, Request};
use crate::sync::changes::NewChange;
use crate::sync::command::{Announced, Announcement, Scope};
use crate::sync::config::Tuning;
use crate::sync::documents::followed;
use crate::sync::fetch::new_changes::News;
use crate::sync::state::Position;
use crate::sync::{Outcome, SyncError, Synchronizer, unwatched};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Resources asked at once.
const ASKED_AT_ONCE: usize = 8;

/// Relations of a link to the bytes of the version that was listed, and of no later one (sections 14.2, 14.4 and 14.6).
const OF_ONE_VERSION: [&str; 4] = ["duplicate", "memento", "patch", "http://www.openarchives.org/rs/terms/patch"];

/// The relation of a link to another representation (section 14.3), each version of which lies there in its turn.
const REPRESENTATION: &str = "alternate";

/// How long an announced resource has to answer.
const ANSWER_DUE: Duration = Duration::from_secs(30);

/// What a check has shown.
#[derive(Debug)]
pub struct Checked {
    /// What was committed.
    pub outcome: Outcome,
    /// What does not show yet what was announced of it.
    pub unseen: Option<Announcement>,
    /// What there was no time for.
    pub rest: Option<Announcement>,
}

impl Checked {
    /// All that was announced was asked for: either something was new, or nothing was.
    fn wholly(announcement: &Announcement, outcome: Outcome) -> Checked {
        let unseen = matches!(outcome, Outcome::Unchanged).then(|| announcement.clone());
        Checked { outcome, unseen, rest: None }
    }
}

impl Synchronizer {
    /// Asks for what was announced, and for nothing else. A retry passes caches by.
    pub async fn check(&mut self, announcement: &Announcement, is_retry: bool) -> Result<Checked, SyncError> {
        let scope = match announcement {
            Announcement::Resources(resources) => return self.check_resources(announcement, resources).await,
            Announcement::Source => {
                self.is_stale = true;
                Scope::Everything
            }
            Announcement::Everything => self.all_documents(is_retry),
            Announcement::Document { document, index } => {
                let root = self.followed_root(document, index.as_ref());
                let of_root = |root| {
                    let children = vec![document.clone()];
                    Scope::Announced(Announced { roots: vec![root], children, past_caches: is_retry })
                };
                root.map_or_else(|| self.all_documents(is_retry), of_root)
            }
        };
        let outcome = self.refresh_of(scope, unwatched()).await?;
        Ok(Checked::wholly(announcement, outcome))
    }

    fn all_documents(&self, past_caches: bool) -> Scope {
        let roots = self.schedule.documents().map(|(location, _)| location.clone()).collect();
        Scope::Announced(Announced { roots, past_caches, ..Announced::default() })
    }

    /// The document that is followed which a notification means; `None` where it is not known.
    fn followed_root(&self, document: &Uri, index: Option<&Uri>) -> Option<DocumentLocation> {
        let is_followed = |uri: &Uri| {
            let location = DocumentLocation::Uri(uri.clone());
            self.schedule.documents().any(|(followed, _)| *followed == location).then_some(location)
        };
        let above = || self.below.get(document).cloned();
        is_followed(document).or_else(|| index.and_then(is_followed)).or_else(above)
    }

    /// Asks the resources, of a Source whose changes are announced and listed nowhere. They belong to the first set without change
    /// documents.
    async fn check_resources(
        &mut self,
        announcement: &Announcement,
        resources: &BTreeMap<Uri, Change>,
    ) -> Result<Checked, SyncError> {
        let began = Instant::now();
        let (source, _) = self.source(true).await?;
        let position = self.position()?;
        let sets = followed(&source, &mut Position::numbers(position.as_ref()));
        let set = sets.iter().find(|set| set.incremental().1.is_empty()).map(|set| set.id);
        let (Some(position), Some(set)) = (position, set) else {
            let outcome = self.refresh(unwatched()).await?;
            return Ok(Checked::wholly(announcement, outcome));
        };
        let Tuning { asked, answers_due, .. } = self.tuning;
        let asked: Vec<_> = resources.iter().take(asked).map(|(uri, change)| self.ask(uri, *change)).collect();
        let answers = stream::iter(asked).buffer_unordered(ASKED_AT_ONCE).take_until(tokio::time::sleep(answers_due));
        let answers: Vec<(Uri, Result<Option<NewChange>, CatalogError>)> = answers.collect().await;
        let (mut changes, mut unseen, mut rest) = (Vec::new(), BTreeMap::new(), resources.clone());
        for (uri, new) in answers {
            let change = rest.remove(&uri);
            match new? {
                Some(new) => changes.push((set, new)),
                None => unseen.extend(change.map(|change| (uri, change))),
            }
        }
        let (unseen, rest) = (of_resources(unseen), of_resources(rest));
        if changes.is_empty() {
            return Ok(Checked { outcome: Outcome::Unchanged, unseen, rest });
        }
        let news = News { changes, is_last: true, ..News::default() };
        let outcome = match self.apply(news, position).await? {
            Some(made) => {
                let outcome = Ok(self.take(made, Vec::new()));
                self.report(&outcome, began.elapsed());
                outcome?
            }
            // What is chosen is known with the lists alone.
            None => self.refresh(unwatched()).await?,
        };
        Ok(Checked { outcome, unseen, rest })
    }

    /// Asks an announced resource; no change where it does not show what was announced.
    fn ask(&self, uri: &Uri, change: Change) -> BoxFuture<'static, (Uri, Result<Option<NewChange>, CatalogError>)> {
        let (client, uri, known) = (self.client.clone(), uri.clone(), self.known(uri));
        async move {
            let new = match known {
                Ok(known) => Ok(ask(client, known, change).await),
                Err(cause) => Err(cause),
            };
            (uri, new)
        }
        .boxed()
    }

    /// What is known of a resource and does not change with its content: what it is, and what it belongs to.
    fn known(&self, uri: &Uri) -> Result<Entry, CatalogError> {
        let snapshot = self.catalog.snapshot()?;
        let node = snapshot.locate(uri)?;
        let resource = node.map(|node| snapshot.resource(node.ino)).transpose()?.flatten();
        Ok(resource.map_or_else(|| Entry::new(uri.clone()), lasting))
    }
}

/// What was published of a resource, without what is true of one version of it.
fn lasting(resource: Resource) -> Entry {
    let Resource { uri, changefreq, media_type, encoding, mut links, .. } = resource;
    links.retain(|link| !OF_ONE_VERSION.contains(&&*link.rel));
    for link in links.iter_mut().filter(|link| &*link.rel == REPRESENTATION) {
        (link.hashes, link.length, link.modified) = (Vec::new(), None, None);
    }
    Entry { changefreq, media_type, encoding, links, ..Entry::new(uri) }
}

fn of_resources(resources: BTreeMap<Uri, Change>) -> Option<Announcement> {
    (!resources.is_empty()).then_some(Announcement::Resources(resources))
}

/// What an announced resource answers, with what is known of it; `None` where it does not show what was announced.
async fn ask(client: Client, mut entry: Entry, change: Change) -> Option<NewChange> {
    let mut request = Request::head(entry.loc.clone(), ANSWER_DUE);
    request.no_cache = true;
    let change = match (client.send(request).await, change) {
        (Ok(response), Change::Created | Change::Updated) => {
            entry.lastmod = response.modified;
            // A published coding is what `length` counts, and the answer is of another.
            let is_plain = response.encoding.is_none() && entry.encoding.is_none();
            entry.length = response.content_length.filter(|_| is_plain);
            entry.media_type = entry.media_type.or(response.media_type);
            change
        }
        (Err(cause), Change::Deleted) if cause.is_gone() => Change::Deleted,
        // It does not answer HEAD: that it changed is all that is known.
        (Err(cause), Change::Created | Change::Updated) if matches!(cause.status(), Some(405 | 501)) => change,
        _ => return None,
    };
    Some(NewChange { change, time: Timestamp::now(), entry, member: None })
}
