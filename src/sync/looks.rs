//! Looking at what a notification names, and again at what cannot be seen yet: the notification may be faster than the
//! document, or than a cache on the way.

use super::changes::News;
use super::extent::{Announced, Extent};
use super::followed::followed;
use super::incremental::NewChange;
use super::poll::Look;
use super::{Outcome, Stage, SyncError, Synchronizer};
use crate::catalog::SetId;
use crate::document::{Change, Entry, Timestamp, Uri};
use crate::source::DocumentLocation;
use crate::source::http::{Client, Request};
use futures_util::{FutureExt, StreamExt, stream};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// After the first look: so long after the notification it is looked again, past caches.
const AGAIN: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(60)];

/// Announcements remembered at once. Past these the polls must do: they miss nothing.
const MOST: usize = 1000;

/// Resources asked at once.
const ASKED_AT_ONCE: usize = 8;

/// How long all resources of one look have: the polls wait meanwhile. What has not answered then is left to these.
const ALL_DUE: Duration = Duration::from_secs(120);

/// How long an announced resource has to answer.
const ANSWER_DUE: Duration = Duration::from_secs(30);

impl Synchronizer {
    /// Looks at what a notification names, and at nothing else; `again` past caches.
    pub async fn look(&mut self, look: &Look, again: bool) -> Result<Outcome, SyncError> {
        let announced = match look {
            Look::Resources(resources) => return self.look_at_resources(resources).await,
            Look::Rediscover => {
                self.is_stale = true;
                return self.refresh(Arc::new(|_: Stage| ())).await;
            }
            Look::Poll => None,
            Look::Document { document, index } => self.announced(document, index.as_ref()),
        };
        let everything = || {
            let roots = self.schedule.documents().map(|planned| planned.location.clone()).collect();
            Announced { roots, ..Announced::default() }
        };
        let announced = Announced { past_caches: again, ..announced.unwrap_or_else(everything) };
        self.refresh_of(Extent::Announced(announced), Arc::new(|_: Stage| ())).await
    }

    /// The document that is followed which a notification means; `None` where it is not known.
    fn announced(&self, document: &Uri, index: Option<&Uri>) -> Option<Announced> {
        let is_followed = |uri: &Uri| {
            let location = DocumentLocation::Uri(uri.clone());
            self.schedule.documents().any(|planned| *planned.location == location).then_some(location)
        };
        let above = || self.below.get(document).cloned();
        let root = is_followed(document).or_else(|| index.and_then(is_followed)).or_else(above)?;
        Some(Announced { roots: vec![root], children: vec![document.clone()], past_caches: false })
    }

    /// Asks resources themselves, of a Source whose changes are announced and listed nowhere. They belong to the first set
    /// without change documents.
    async fn look_at_resources(&mut self, resources: &[(Uri, Change)]) -> Result<Outcome, SyncError> {
        let began = Instant::now();
        let (source, _) = self.source(true).await?;
        let Some(position) = self.position()? else { return self.refresh(Arc::new(|_: Stage| ())).await };
        let sets = followed(&source, Some(&position));
        let Some(set) = sets.iter().find(|set| set.incremental().1.is_empty()).map(|set| set.id) else {
            return self.refresh(Arc::new(|_: Stage| ())).await;
        };
        let asked = |(uri, change): &(Uri, Change)| ask(self.client.clone(), uri.clone(), *change).boxed();
        let answers = stream::iter(resources.iter().map(asked).collect::<Vec<_>>());
        let answers = answers.buffered(ASKED_AT_ONCE).take_until(tokio::time::sleep(ALL_DUE));
        let answers: Vec<Option<NewChange>> = answers.collect().await;
        let changes: Vec<(SetId, NewChange)> = answers.into_iter().flatten().map(|new| (set, new)).collect();
        if changes.is_empty() {
            return Ok(Outcome::Unchanged);
        }
        let news = News { changes, ..News::default() };
        let Some(made) = self.apply(news, position).await? else {
            // Only with the lists can it be told what is chosen.
            return self.refresh(Arc::new(|_: Stage| ())).await;
        };
        let outcome = Ok(self.take(made, Vec::new()));
        self.tell(&outcome, began.elapsed());
        outcome
    }
}

/// What an announced resource says of itself; `None` where it does not show what was announced.
async fn ask(client: Client, uri: Uri, change: Change) -> Option<NewChange> {
    let mut request = Request::head(uri.clone(), ANSWER_DUE);
    request.no_cache = true;
    let mut entry = Entry::new(uri);
    let change = match (client.send(request).await, change) {
        (Ok(response), Change::Created | Change::Updated) => {
            entry.lastmod = response.modified;
            entry.length = response.content_length.filter(|_| response.encoding.is_none());
            entry.media_type = response.media_type;
            change
        }
        (Err(cause), Change::Deleted) if cause.is_gone() => Change::Deleted,
        // It does not answer HEAD: that it changed is all that is known.
        (Err(cause), Change::Created | Change::Updated) if matches!(cause.status(), Some(405 | 501)) => change,
        _ => return None,
    };
    Some(NewChange { change, time: Timestamp::now(), is_doubtful: false, is_collapsed: false, entry, member: None })
}

/// Looks that have shown nothing new so far. Pure: it is told the time, and says what is to be looked at again.
#[derive(Debug, Default)]
pub struct Unseen {
    looks: Vec<Pending>,
}

#[derive(Debug)]
struct Pending {
    look: Look,
    announced: Instant,
    /// How often it was looked again.
    times: usize,
}

impl Pending {
    fn due(&self) -> Option<Instant> {
        AGAIN.get(self.times).map(|pause| self.announced + *pause)
    }
}

impl Unseen {
    /// A look at what was announced at `announced` has shown nothing new.
    pub fn missed(&mut self, look: Look, announced: Instant) {
        if let Some(pending) = self.looks.iter_mut().find(|pending| pending.look == look) {
            // Announced anew while it is waited for: the new document may take as long again.
            (pending.announced, pending.times) = (announced, 0);
        } else if self.looks.len() < MOST {
            self.looks.push(Pending { look, announced, times: 0 });
        }
    }

    /// What is announced can be seen.
    pub fn seen(&mut self, look: &Look) {
        self.looks.retain(|pending| pending.look != *look);
    }

    /// When something is to be looked at again.
    pub fn next(&self) -> Option<Instant> {
        self.looks.iter().filter_map(Pending::due).min()
    }

    /// What is to be looked at again now. It is asked for once more, and given up after the last time.
    pub fn due(&mut self, now: Instant) -> Vec<Look> {
        let mut due = Vec::new();
        for pending in &mut self.looks {
            if pending.due().is_some_and(|due| due <= now) {
                // What was overslept is not made up for.
                while pending.due().is_some_and(|due| due <= now) {
                    pending.times += 1;
                }
                due.push(pending.look.clone());
            }
        }
        self.looks.retain(|pending| pending.due().is_some());
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Uri;

    fn look(path: &str) -> Look {
        Look::Document { document: Uri::parse(&format!("http://example.org/{path}")).unwrap(), index: None }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_not_shown_yet_is_looked_for_after_two_ten_and_sixty_seconds() {
        let announced = Instant::now();
        let mut unseen = Unseen::default();
        unseen.missed(look("a"), announced);

        let mut times = Vec::new();
        while let Some(next) = unseen.next() {
            assert!(unseen.due(next - seconds(1)).is_empty());
            assert_eq!(unseen.due(next), [look("a")]);
            times.push(next - announced);
        }

        assert_eq!(times, [seconds(2), seconds(10), seconds(60)]);
    }

    #[test]
    fn what_is_seen_is_not_looked_for_any_more() {
        let mut unseen = Unseen::default();
        unseen.missed(look("a"), Instant::now());
        unseen.missed(look("b"), Instant::now());

        unseen.seen(&look("a"));

        assert_eq!(unseen.due(Instant::now() + seconds(2)), [look("b")]);
    }

    #[test]
    fn a_new_announcement_begins_anew_and_sleep_is_not_made_up_for() {
        let announced = Instant::now();
        let mut unseen = Unseen::default();
        unseen.missed(look("a"), announced);
        assert_eq!(unseen.due(announced + seconds(30)), [look("a")]);
        assert_eq!(unseen.next(), Some(announced + seconds(60)));

        unseen.missed(look("a"), announced + seconds(40));

        assert_eq!(unseen.next(), Some(announced + seconds(42)));
    }

    #[test]
    fn no_flood_of_announcements_fills_the_memory() {
        let mut unseen = Unseen::default();

        (0..2 * MOST).for_each(|number| unseen.missed(look(&number.to_string()), Instant::now()));

        assert_eq!(unseen.looks.len(), MOST);
    }
}
