//! Asking for what a notification announces.

use crate::catalog::{CatalogError, Resource, SetId};
use crate::document::{Change, Digest, Entry, Timestamp, Uri};
use crate::source::DocumentLocation;
use crate::source::http::{HttpError, Response};
use crate::sync::changes::{NewChange, just_after};
use crate::sync::command::{AnnouncedChange, AnnouncedDocuments, Announcement, Scope};
use crate::sync::fetch::DocumentFetch;
use crate::sync::{RefreshResult, SyncError, Synchronizer, unwatched};
use std::collections::{BTreeMap, HashSet};
use tokio::time::Instant;

/// Relations of a link to the bytes of the version that was listed, and of no later one (sections 14.2, 14.4 and 14.6).
const OF_ONE_VERSION: [&str; 4] = ["duplicate", "memento", "patch", "http://www.openarchives.org/rs/terms/patch"];

/// The relation of a link to another representation (section 14.3), which serves each version in its turn.
const REPRESENTATION: &str = "alternate";

/// The result of a check.
#[derive(Debug)]
pub struct Checked {
    /// The outcome of its refresh.
    pub outcome: RefreshResult,
    /// The part of the announcement whose change is not shown yet, or that did not answer in time.
    pub unseen: Option<Announcement>,
}

impl Checked {
    /// A check that has asked for all of `announcement`: nothing of it is shown if nothing was new.
    fn wholly(announcement: &Announcement, outcome: RefreshResult) -> Checked {
        let unseen = matches!(outcome, RefreshResult::Unchanged).then(|| announcement.clone());
        Checked { outcome, unseen }
    }
}

impl Synchronizer {
    /// Asks for what `announcement` names, and for nothing else. A retry passes caches by.
    pub async fn check(&mut self, announcement: &Announcement, is_retry: bool) -> Result<Checked, SyncError> {
        let scope = match announcement {
            Announcement::Resources(resources) => return self.check_resources(announcement, resources).await,
            Announcement::Source => {
                self.discovery.is_stale = true;
                Scope::Everything
            }
            Announcement::Everything => self.fetch.all_documents(is_retry),
            Announcement::Document { document, index } => {
                let root = self.fetch.followed_root(document, index.as_ref());
                let of_root = |root| {
                    let children = vec![document.clone()];
                    Scope::Announced(AnnouncedDocuments { roots: vec![root], children, past_caches: is_retry })
                };
                root.map_or_else(|| self.fetch.all_documents(is_retry), of_root)
            }
        };
        let outcome = self.refresh_of(scope, unwatched()).await?;
        Ok(Checked::wholly(announcement, outcome))
    }

    /// Asks the resources, of a Source whose changes are announced and listed nowhere. They belong to the first set without change
    /// documents.
    async fn check_resources(
        &mut self,
        announcement: &Announcement,
        resources: &BTreeMap<Uri, AnnouncedChange>,
    ) -> Result<Checked, SyncError> {
        let began = Instant::now();
        self.current.failed.clear();
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
        let answers =
            self.fetch.ask(asked.into_iter().collect(), self.tuning.answers_due, |answer| answer.map(entry_of)).await;
        let (mut changes, mut unseen) = (Vec::new(), resources.clone());
        for (uri, answer) in answers {
            let (known, announced) =
                (self.known(set, position.set(set).and_then(|set| set.at), &uri)?, &resources[&uri]);
            if known.is_announced(announced) {
                unseen.remove(&uri);
            } else if let (time, Some(entry)) = (just_after(known.stated), known.shown(answer, announced)) {
                changes.push((set, NewChange { change: announced.change, time, entry, member: None }));
                unseen.remove(&uri);
            }
        }
        let mut outcome = RefreshResult::Unchanged;
        if !changes.is_empty() {
            let committed = Ok(RefreshResult::Committed(self.apply(changes, position).await?));
            self.report(&committed, began.elapsed());
            outcome = committed?;
        }
        Ok(Checked { outcome, unseen: (!unseen.is_empty()).then_some(Announcement::Resources(unseen)) })
    }

    /// The known facts about an announced resource.
    fn known(&self, set: SetId, at: Option<Timestamp>, uri: &Uri) -> Result<KnownResource, CatalogError> {
        let snapshot = self.catalog.snapshot()?;
        let resource = snapshot.resource_of(uri)?;
        let stated = at.max(snapshot.journaled(set, uri)?.map(|journaled| journaled.time));
        let hashes = resource.as_ref().map(|resource| resource.hashes.clone());
        Ok(KnownResource { stated, hashes, entry: resource.map_or_else(|| Entry::new(uri.clone()), lasting) })
    }
}

impl DocumentFetch {
    fn all_documents(&self, past_caches: bool) -> Scope {
        let roots = self.schedule.documents().map(|(location, _)| location.clone()).collect();
        Scope::Announced(AnnouncedDocuments { roots, past_caches, ..AnnouncedDocuments::default() })
    }

    /// The followed document that a notification means; `None` where it is not known.
    fn followed_root(&self, document: &Uri, index: Option<&Uri>) -> Option<DocumentLocation> {
        let is_followed = |uri: &Uri| {
            let location = DocumentLocation::Uri(uri.clone());
            self.schedule.documents().any(|(followed, _)| *followed == location).then_some(location)
        };
        let above = || self.below.get(document).cloned();
        is_followed(document).or_else(|| index.and_then(is_followed)).or_else(above)
    }
}

/// The known facts about an announced resource.
struct KnownResource {
    /// The time of the last statement of its set about it: a change, or the list.
    stated: Option<Timestamp>,
    /// The digests of the version that is shown; `None` where none is shown.
    hashes: Option<Vec<Digest>>,
    /// The published entry without what changes with the content, but with the time and length of the version that is shown.
    entry: Entry,
}

/// The published entry of a resource; of what is true of one version alone, only its time and length.
fn lasting(resource: Resource) -> Entry {
    let mut entry = Entry { hashes: Vec::new(), ..Entry::from(resource) };
    entry.links.retain(|link| !OF_ONE_VERSION.contains(&&*link.rel));
    for link in entry.links.iter_mut().filter(|link| &*link.rel == REPRESENTATION) {
        (link.hashes, link.length, link.modified) = (Vec::new(), None, None);
    }
    entry
}

/// The entry that an answer describes; with a length only if its bytes have no coding.
fn entry_of(response: Response) -> Entry {
    let length = response.content_length.filter(|_| response.encoding.is_none());
    Entry { lastmod: response.modified, length, media_type: response.media_type, ..Entry::new(response.final_uri) }
}

impl KnownResource {
    /// True if the version that is shown has the announced digest.
    fn is_announced(&self, announced: &AnnouncedChange) -> bool {
        let has = |digest: &Digest| self.hashes.as_ref().is_some_and(|known| known.contains(digest));
        announced.change != Change::Deleted && announced.hashes.iter().any(has)
    }

    /// The entry of a resource that shows the announced change; `None` where the answer does not show it.
    fn shown(self, answer: Result<Entry, HttpError>, announced: &AnnouncedChange) -> Option<Entry> {
        let is_new = answer.as_ref().is_ok_and(|now| !self.is_another(now, announced.length));
        let mut entry = self.entry;
        match (answer, announced.change) {
            (Ok(now), Change::Created | Change::Updated) if is_new => {
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

    /// True if an answer is of another version than the announced one. It has another length, or it is of the version that is shown,
    /// which a cache or another node may still serve. A `lastmod` without a time of day stands for the whole day. Without a
    /// `lastmod` that version was last modified before its set stated it.
    fn is_another(&self, now: &Entry, announced: Option<u64>) -> bool {
        let differ = |length: Option<u64>| {
            let lengths = length.zip(now.length).filter(|_| self.entry.encoding.is_none());
            lengths.is_some_and(|(length, now)| length != now)
        };
        if differ(announced) {
            return true;
        }
        let Some(modified) = now.lastmod.filter(|_| self.hashes.is_some()) else { return false };
        let is_same_time = match self.entry.lastmod {
            Some(known) => (known.seconds..=known.latest()).contains(&modified.seconds),
            None => self.stated.is_some_and(|stated| modified <= stated),
        };
        is_same_time && !differ(self.entry.length)
    }
}
