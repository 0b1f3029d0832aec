//! Asking for what a notification announces.

use crate::catalog::{CatalogError, Resource, SetId};
use crate::document::{Change, Entry, Timestamp, Uri};
use crate::source::DocumentLocation;
use crate::source::http::{HttpError, Response};
use crate::sync::changes::{NewChange, just_after};
use crate::sync::command::{Announced, Announcement, Scope};
use crate::sync::{Outcome, SyncError, Synchronizer, unwatched};
use std::collections::{BTreeMap, HashSet};
use tokio::time::Instant;

/// Relations of a link to the bytes of the version that was listed, and of no later one (sections 14.2, 14.4 and 14.6).
const OF_ONE_VERSION: [&str; 4] = ["duplicate", "memento", "patch", "http://www.openarchives.org/rs/terms/patch"];

/// The relation of a link to another representation (section 14.3), each version of which lies there in its turn.
const REPRESENTATION: &str = "alternate";

/// What a check has shown.
#[derive(Debug)]
pub struct Checked {
    /// What was committed.
    pub outcome: Outcome,
    /// What does not show yet what was announced of it, or did not answer in time.
    pub unseen: Option<Announcement>,
}

impl Checked {
    /// All that was announced was asked for: either something was new, or nothing was.
    fn wholly(announcement: &Announcement, outcome: Outcome) -> Checked {
        let unseen = matches!(outcome, Outcome::Unchanged).then(|| announcement.clone());
        Checked { outcome, unseen }
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
        self.failed.clear();
        let (source, _) = self.source(true).await?;
        let stored = self.position()?;
        let mut position = stored.clone().unwrap_or_default();
        let set = position.follow(&source).iter().find(|set| set.changes.is_empty()).map(|set| set.id);
        let Some(set) = set.filter(|_| stored.is_some()) else {
            let outcome = self.refresh(unwatched()).await?;
            return Ok(Checked::wholly(announcement, outcome));
        };
        // In another order each time: those that stay silent hold up no other.
        let asked: HashSet<Uri> = resources.keys().cloned().collect();
        let answers = self.ask(asked.into_iter().collect(), |answer| answer.map(entry_of)).await;
        let (mut changes, mut unseen) = (Vec::new(), resources.clone());
        for (uri, answer) in answers {
            let (known, time) = self.known(set, position.set(set).and_then(|set| set.at), &uri)?;
            if let Some(entry) = shown(answer, known, resources[&uri]) {
                let new = NewChange { change: resources[&uri], time, entry, member: None };
                changes.push((set, new));
                unseen.remove(&uri);
            }
        }
        let mut outcome = Outcome::Unchanged;
        if !changes.is_empty() {
            let committed = Ok(Outcome::Committed(self.apply(changes, position).await?));
            self.report(&committed, began.elapsed());
            outcome = committed?;
        }
        Ok(Checked { outcome, unseen: (!unseen.is_empty()).then_some(Announcement::Resources(unseen)) })
    }

    /// The entry of a resource as far as it does not change with its content, with the time and length of the version that is shown;
    /// and the time of a new change: behind all that its set's list, which speaks for `at`, and earlier changes say of it.
    fn known(&self, set: SetId, at: Option<Timestamp>, uri: &Uri) -> Result<(Entry, Timestamp), CatalogError> {
        let snapshot = self.catalog.snapshot()?;
        let node = snapshot.locate(uri)?;
        let resource = node.map(|node| snapshot.resource(node.ino)).transpose()?.flatten();
        let before = at.max(snapshot.journaled(set, uri)?.map(|journaled| journaled.time));
        Ok((resource.map_or_else(|| Entry::new(uri.clone()), lasting), just_after(before)))
    }
}

/// The published entry of a resource; of what is true of one version alone, only its time and length.
fn lasting(resource: Resource) -> Entry {
    let Resource { uri, lastmod, length, changefreq, media_type, encoding, mut links, .. } = resource;
    links.retain(|link| !OF_ONE_VERSION.contains(&&*link.rel));
    for link in links.iter_mut().filter(|link| &*link.rel == REPRESENTATION) {
        (link.hashes, link.length, link.modified) = (Vec::new(), None, None);
    }
    Entry { lastmod, length, changefreq, media_type, encoding, links, ..Entry::new(uri) }
}

/// What an answer says of the bytes; a length only of bytes without a coding.
fn entry_of(response: Response) -> Entry {
    let length = response.content_length.filter(|_| response.encoding.is_none());
    Entry { lastmod: response.modified, length, media_type: response.media_type, ..Entry::new(response.final_uri) }
}

/// The entry of a resource that shows the announced `change`; `None` where the answer does not show it.
fn shown(answer: Result<Entry, HttpError>, mut entry: Entry, change: Change) -> Option<Entry> {
    match (answer, change) {
        (Ok(now), Change::Created | Change::Updated) if !is_of_before(&entry, &now) => {
            entry.lastmod = now.lastmod;
            // A published coding is what `length` counts, and the answer is of another.
            entry.length = now.length.filter(|_| entry.encoding.is_none());
            entry.media_type = entry.media_type.or(now.media_type);
        }
        (Err(cause), Change::Deleted) if cause.is_gone() => {}
        // It does not answer HEAD: that it changed is all that is known.
        (Err(cause), Change::Created | Change::Updated) if matches!(cause.status(), Some(405 | 501)) => {
            (entry.lastmod, entry.length) = (None, None);
        }
        _ => return None,
    }
    Some(entry)
}

/// Whether an answer is of the version that is `known`: a cache or another node may still serve that one.
fn is_of_before(known: &Entry, now: &Entry) -> bool {
    let differ = |known: Option<u64>, now: Option<u64>| known.zip(now).is_some_and(|(known, now)| known != now);
    let seconds = |entry: &Entry| entry.lastmod.map(|lastmod| lastmod.seconds);
    let is_same_length = known.encoding.is_some() || !differ(known.length, now.length);
    now.lastmod.is_some() && seconds(known) == seconds(now) && is_same_length
}
