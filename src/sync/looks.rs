//! Looking at what a notification names, and again at what cannot be seen yet: the notification may be faster than the
//! document, or than a cache on the way.

use super::command::{Announced, Look, Scope};
use super::followed::followed;
use super::incremental::NewChange;
use super::new_changes::News;
use super::position::Position;
use super::{Outcome, Stage, SyncError, Synchronizer};
use crate::catalog::{CatalogError, Resource};
use crate::document::{Change, Entry, Timestamp, Uri};
use crate::source::DocumentLocation;
use crate::source::http::{Client, Request};
use futures_util::{FutureExt, StreamExt, stream};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// After the first look: so long after the notification it is looked again, past caches.
const AGAIN: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(60)];

/// Announcements remembered at once, and the resources that they name. Past these the polls must do: they miss nothing.
const MOST: usize = 1000;
const MOST_RESOURCES: usize = 50_000;

/// Resources asked at once.
const ASKED_AT_ONCE: usize = 8;

/// Resources asked in one look, and how long all of them have: the polls wait meanwhile. The rest is left to a look of its own.
const MOST_ASKED: usize = if cfg!(test) { 20 } else { 1000 };
const ALL_DUE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 60 });

/// How long it is looked again at what could not be seen before the polls get their turn.
pub const AGAIN_DUE: Duration = Duration::from_secs(60);

/// Relations of a link to the bytes of the version that was listed, and of no later one (sections 14.2, 14.4 and 14.6).
const OF_ONE_VERSION: [&str; 4] = ["duplicate", "memento", "patch", "http://www.openarchives.org/rs/terms/patch"];

/// The relation of a link to another representation (section 14.3), each version of which lies there in its turn.
const REPRESENTATION: &str = "alternate";

/// How long an announced resource has to answer.
const ANSWER_DUE: Duration = Duration::from_secs(30);

/// What a look has done.
#[derive(Debug)]
pub struct Looked {
    /// What was committed.
    pub outcome: Outcome,
    /// What does not show yet what was announced of it: it is looked at again.
    pub unseen: Option<Look>,
    /// What there was no time for: it was not looked at.
    pub unreached: Option<Look>,
}

impl Looked {
    /// All of `look` was looked at: either something was new, or nothing was.
    fn wholly(look: &Look, outcome: Outcome) -> Looked {
        let unseen = matches!(outcome, Outcome::Unchanged).then(|| look.clone());
        Looked { outcome, unseen, unreached: None }
    }
}

impl Synchronizer {
    /// Looks at what a notification names, and at nothing else; `again` past caches.
    pub async fn look(&mut self, look: &Look, again: bool) -> Result<Looked, SyncError> {
        match look {
            Look::Resources(resources) => self.look_at_resources(look, resources).await,
            _ => self.look_at_documents(look, again).await.map(|outcome| Looked::wholly(look, outcome)),
        }
    }

    async fn look_at_documents(&mut self, look: &Look, again: bool) -> Result<Outcome, SyncError> {
        let announced = match look {
            Look::Rediscover => {
                self.is_stale = true;
                return self.refresh(Arc::new(|_: Stage| ())).await;
            }
            Look::Poll | Look::Resources(_) => None,
            Look::Document { document, index } => self.announced(document, index.as_ref()),
        };
        let everything = || {
            let roots = self.schedule.documents().map(|planned| planned.location.clone()).collect();
            Announced { roots, ..Announced::default() }
        };
        let announced = Announced { past_caches: again, ..announced.unwrap_or_else(everything) };
        self.refresh_of(Scope::Announced(announced), Arc::new(|_: Stage| ())).await
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
    async fn look_at_resources(&mut self, look: &Look, resources: &[(Uri, Change)]) -> Result<Looked, SyncError> {
        let began = Instant::now();
        let (source, _) = self.source(true).await?;
        let position = self.position()?;
        let sets = followed(&source, &mut Position::numbers(position.as_ref()));
        let set = sets.iter().find(|set| set.incremental().1.is_empty()).map(|set| set.id);
        let (Some(position), Some(set)) = (position, set) else {
            let outcome = self.refresh(Arc::new(|_: Stage| ())).await?;
            return Ok(Looked::wholly(look, outcome));
        };
        let (asked, beyond) = resources.split_at(resources.len().min(MOST_ASKED));
        let ask = |(uri, change): &(Uri, Change)| {
            let (client, uri, change) = (self.client.clone(), uri.clone(), *change);
            let known = self.known(&uri);
            async move {
                let new = match known {
                    Ok(known) => Ok(ask(client, known, change).await),
                    Err(cause) => Err(cause),
                };
                (uri, change, new)
            }
            .boxed()
        };
        let answers = stream::iter(asked.iter().map(ask).collect::<Vec<_>>());
        let answers = answers.buffer_unordered(ASKED_AT_ONCE).take_until(tokio::time::sleep(ALL_DUE));
        let answers: Vec<(Uri, Change, Result<Option<NewChange>, CatalogError>)> = answers.collect().await;
        let reached: HashSet<&Uri> = answers.iter().map(|(uri, ..)| uri).collect();
        let rest = asked.iter().filter(|(uri, _)| !reached.contains(uri)).chain(beyond).cloned().collect();
        let unreached = resources_of(rest);
        let (mut changes, mut unseen) = (Vec::new(), Vec::new());
        for (uri, change, new) in answers {
            match new? {
                Some(new) => changes.push((set, new)),
                None => unseen.push((uri, change)),
            }
        }
        let unseen = resources_of(unseen);
        if changes.is_empty() {
            return Ok(Looked { outcome: Outcome::Unchanged, unseen, unreached });
        }
        let news = News { changes, is_last: true, ..News::default() };
        let outcome = match self.apply(news, position).await? {
            Some(made) => {
                let outcome = Ok(self.take(made, Vec::new()));
                self.tell(&outcome, began.elapsed());
                outcome?
            }
            // Only with the lists can it be told what is chosen.
            None => self.refresh(Arc::new(|_: Stage| ())).await?,
        };
        Ok(Looked { outcome, unseen, unreached })
    }
}

impl Synchronizer {
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

/// A look at these resources, where there are any.
fn resources_of(resources: Vec<(Uri, Change)>) -> Option<Look> {
    (!resources.is_empty()).then_some(Look::Resources(resources))
}

/// What an announced resource says of itself, beside what is known of it; `None` where it does not show what was announced.
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
        } else if self.looks.len() < MOST && self.resources() + named(&look) <= MOST_RESOURCES {
            self.looks.push(Pending { look, announced, times: 0 });
        } else if look != Look::Poll {
            tracing::warn!("more is announced and cannot be seen yet than is remembered: all documents are looked at");
            // One more than there may be, and never two.
            match self.looks.iter_mut().find(|pending| pending.look == Look::Poll) {
                Some(pending) => (pending.announced, pending.times) = (announced, 0),
                None => self.looks.push(Pending { look: Look::Poll, announced, times: 0 }),
            }
        }
    }

    /// Resources that are remembered.
    fn resources(&self) -> usize {
        self.looks.iter().map(|pending| named(&pending.look)).sum()
    }

    /// A first look at what was announced at `announced` has shown this.
    pub fn looked(&mut self, look: &Look, announced: Instant, looked: &mut Looked) {
        self.looks.retain(|pending| pending.look != *look);
        looked.unseen.take().into_iter().for_each(|unseen| self.missed(unseen, announced));
        self.left(looked);
    }

    /// It was looked once more, and has shown this.
    pub fn looked_again(&mut self, look: &Look, looked: &mut Looked) {
        match looked.unseen.take() {
            Some(unseen) => {
                let pending = self.looks.iter_mut().find(|pending| pending.look == *look);
                pending.into_iter().for_each(|pending| pending.look = unseen.clone());
            }
            None => self.looks.retain(|pending| pending.look != *look),
        }
        self.left(looked);
    }

    /// What was not looked at has all its looks still before it.
    fn left(&mut self, looked: &mut Looked) {
        if let Some(unreached) = looked.unreached.take() {
            tracing::info!(resources = named(&unreached), "announced resources are left to a look of their own");
            self.missed(unreached, Instant::now());
        }
    }

    /// When something is to be looked at again.
    pub fn next(&self) -> Option<Instant> {
        self.looks.iter().filter_map(Pending::due).min()
    }

    /// What is to be looked at again now and has waited longest. It is asked for once more, and given up after the last time.
    pub fn due(&mut self, now: Instant) -> Option<Look> {
        let longest = self.looks.iter().enumerate().filter_map(|(place, pending)| Some((pending.due()?, place))).min();
        let (_, place) = longest.filter(|(due, _)| *due <= now)?;
        let pending = &mut self.looks[place];
        // What was overslept is not made up for.
        while pending.due().is_some_and(|due| due <= now) {
            pending.times += 1;
        }
        let look = pending.look.clone();
        if pending.due().is_none() {
            self.looks.remove(place);
        }
        Some(look)
    }
}

/// Resources that a look names.
fn named(look: &Look) -> usize {
    match look {
        Look::Resources(resources) => resources.len(),
        _ => 0,
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
            assert_eq!(unseen.due(next - seconds(1)), None);
            assert_eq!(unseen.due(next), Some(look("a")));
            assert_eq!(unseen.due(next), None);
            times.push(next - announced);
        }

        assert_eq!(times, [seconds(2), seconds(10), seconds(60)]);
    }

    #[test]
    fn what_is_seen_is_not_looked_for_any_more() {
        let mut unseen = Unseen::default();
        unseen.missed(look("a"), Instant::now());
        unseen.missed(look("b"), Instant::now());

        unseen.looked_again(&look("a"), &mut looked(None, None));

        assert_eq!(unseen.due(Instant::now() + seconds(2)), Some(look("b")));
        assert_eq!(unseen.due(Instant::now() + seconds(2)), None);
    }

    #[test]
    fn a_new_announcement_begins_anew_and_sleep_is_not_made_up_for() {
        let announced = Instant::now();
        let mut unseen = Unseen::default();
        unseen.missed(look("a"), announced);
        assert_eq!(unseen.due(announced + seconds(30)), Some(look("a")));
        assert_eq!(unseen.next(), Some(announced + seconds(60)));

        unseen.missed(look("a"), announced + seconds(40));

        assert_eq!(unseen.next(), Some(announced + seconds(42)));
    }

    #[test]
    fn no_flood_of_announcements_fills_the_memory() {
        let mut unseen = Unseen::default();

        (0..2 * MOST).for_each(|number| unseen.missed(look(&number.to_string()), Instant::now()));

        assert_eq!(unseen.looks.len(), MOST + 1);
        assert_eq!(unseen.looks[MOST].look, Look::Poll, "which misses nothing");
    }

    fn resources(paths: &[&str]) -> Option<Look> {
        let uri = |path: &&str| (Uri::parse(&format!("http://example.org/{path}")).unwrap(), Change::Updated);
        Some(Look::Resources(paths.iter().map(uri).collect()))
    }

    fn looked(unseen: Option<Look>, unreached: Option<Look>) -> Looked {
        Looked { outcome: Outcome::Unchanged, unseen, unreached }
    }

    #[test]
    fn of_a_look_that_was_cut_what_was_not_reached_has_all_its_looks_before_it_and_what_was_seen_none() {
        let announced = Instant::now() - seconds(100);
        let mut unseen = Unseen::default();
        let whole = resources(&["seen", "not yet", "not reached", "later"]).unwrap();

        unseen.looked(&whole, announced, &mut looked(resources(&["not yet"]), resources(&["not reached", "later"])));

        assert_eq!(unseen.due(Instant::now()), resources(&["not yet"]), "overslept, and given up after that");
        let rest = unseen.next().unwrap();
        assert!(rest > announced + seconds(100));
        let again = unseen.due(rest).unwrap();
        assert_eq!(Some(&again), resources(&["not reached", "later"]).as_ref());
        unseen.looked_again(&again, &mut looked(resources(&["later"]), None));
        let times = unseen.next().unwrap();
        assert_eq!(unseen.due(times), resources(&["later"]));
        assert_eq!(unseen.due(times + seconds(58)), resources(&["later"]), "as often as anything else");
        assert_eq!(unseen.next(), None);
    }

    #[test]
    fn of_announced_resources_no_more_are_remembered_than_fit_and_the_documents_are_looked_at_for_the_rest() {
        let mut unseen = Unseen::default();
        let many = |of: usize| {
            let uri = |number| Uri::parse(&format!("http://example.org/{of}/{number}")).unwrap();
            Look::Resources((0..MOST_RESOURCES / 2).map(|number| (uri(number), Change::Created)).collect())
        };

        (0..5).for_each(|number| unseen.missed(many(number), Instant::now()));

        assert_eq!((unseen.resources(), unseen.looks.len()), (MOST_RESOURCES, 3));
        assert!(unseen.looks.iter().any(|pending| pending.look == Look::Poll));
    }
}
