//! What a running synchronizer is asked to do, how much of the Source it looks at for that, and what waits meanwhile.

use super::schedule::Schedule;
use super::status::Refreshed;
use crate::document::{Change, Uri};
use crate::source::DocumentLocation;
use fuser::INodeNo;
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Documents that are looked at by name; for more, everything is looked at once.
const MOST_DOCUMENTS: usize = 64;
/// Resources of one look.
const MOST_RESOURCES: usize = 10_000;

/// What the rest of the mount asks of a running synchronizer.
#[derive(Debug)]
pub enum Command {
    /// Look now.
    Refresh,
    /// Apply the deletions that are held back.
    AcceptDeletions,
    /// The same as one of these, with an answer.
    Asked {
        /// Whether the deletions that are held back are to be applied.
        accept_deletions: bool,
        /// Receives the answer once the refresh has ended.
        requester: oneshot::Sender<Refreshed>,
    },
    /// A notification came: look at what it names.
    Look(Look),
    /// Whether every set has a notification channel that is alive: polling is rarer then.
    Channels(bool),
    /// This inode's bytes were found wrong or changed: its name needs another inode.
    Renew(INodeNo),
    /// The Source serves other bytes than it published, which are to be shown: its name needs an inode without length and
    /// digests.
    Unannounced(INodeNo),
}

/// What is to be looked at because a notification named it. The notification itself is never believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Every document that is followed, as a poll does.
    Poll,
    /// This document, or all of the index it belongs to.
    Document {
        /// The document announced.
        document: Uri,
        /// The index that it says it belongs to (`rel="index"`).
        index: Option<Uri>,
    },
    /// Source Description and Capability Lists, then everything.
    Rediscover,
    /// These resources themselves, of a Source that has notifications and no Change List, each with the announced change.
    Resources(Vec<(Uri, Change)>),
}

/// Looks that wait, each once. Past the bounds one look at everything replaces the rest.
#[derive(Debug, Default)]
pub struct Looks {
    rediscover: bool,
    poll: bool,
    documents: VecDeque<(Uri, Option<Uri>)>,
    resources: BTreeMap<Uri, Change>,
}

impl Looks {
    /// Adds a look.
    pub fn add(&mut self, look: Look) {
        match look {
            Look::Rediscover => self.rediscover = true,
            Look::Poll => self.poll = true,
            Look::Document { document, index } => {
                let wanted = (document, index);
                match self.documents.contains(&wanted) {
                    true => {}
                    false if self.documents.len() < MOST_DOCUMENTS => self.documents.push_back(wanted),
                    false => self.poll = true,
                }
            }
            Look::Resources(resources) => {
                for (uri, change) in resources {
                    if self.resources.len() < MOST_RESOURCES || self.resources.contains_key(&uri) {
                        self.resources.insert(uri, change);
                    } else {
                        self.poll = true;
                    }
                }
            }
        }
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        !self.rediscover && !self.poll && self.documents.is_empty() && self.resources.is_empty()
    }
}

impl Iterator for Looks {
    type Item = Look;

    /// Takes the next look: a look at everything makes those at single documents needless, and comes last.
    fn next(&mut self) -> Option<Look> {
        if std::mem::take(&mut self.rediscover) {
            // Everything is looked at then.
            self.poll = false;
            self.documents.clear();
            return Some(Look::Rediscover);
        }
        if let Some((document, index)) = self.documents.pop_front() {
            return Some(Look::Document { document, index });
        }
        if !self.resources.is_empty() {
            return Some(Look::Resources(std::mem::take(&mut self.resources).into_iter().collect()));
        }
        std::mem::take(&mut self.poll).then_some(Look::Poll)
    }
}

/// What waits while a refresh is under way. A refresh must see everything that was published before it was asked for:
/// requesters during one are served by the next, which all of them share.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    refresh: bool,
    accept: bool,
    requesters: Vec<oneshot::Sender<Refreshed>>,
    looks: Looks,
    /// Whether the last thing that was done is a refresh: looks get their turn between refreshes.
    has_refreshed: bool,
}

/// What is to be done next of what waits.
#[derive(Debug)]
pub(super) enum Next {
    /// A refresh, for all these; `accept` says whether one of them has confirmed the deletions that are held back.
    Refresh { accept: bool, requesters: Vec<oneshot::Sender<Refreshed>> },
    /// This look.
    Look(Look),
}

impl Waiting {
    /// A refresh is wanted; `accept`: once the deletions that are held back are applied.
    pub fn refresh(&mut self, accept: bool, requester: Option<oneshot::Sender<Refreshed>>) {
        self.refresh = true;
        self.accept |= accept;
        self.requesters.extend(requester);
    }

    /// Something was announced.
    pub fn look(&mut self, look: Look) {
        self.looks.add(look);
    }

    /// What is to be done now; `None` where nothing waits.
    pub fn next(&mut self) -> Option<Next> {
        if self.refresh && (!self.has_refreshed || self.looks.is_empty()) {
            self.has_refreshed = true;
            self.refresh = false;
            let (accept, requesters) = (std::mem::take(&mut self.accept), std::mem::take(&mut self.requesters));
            return Some(Next::Refresh { accept, requesters });
        }
        self.has_refreshed = false;
        self.looks.next().map(Next::Look)
    }
}

/// How much of the Source a refresh looks at. A first tree is made of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every document that is followed, and every child of an index.
    Everything,
    /// The documents that are due.
    Due,
    /// What a notification names.
    Announced(Announced),
}

/// What a notification names, in terms of the documents that are followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// Documents that are followed.
    pub roots: Vec<DocumentLocation>,
    /// Lists below them that are asked for although their index says nothing new of them.
    pub children: Vec<Uri>,
    /// Whether caches on the way are passed by: the documents did not show yet what was announced.
    pub past_caches: bool,
}

impl Scope {
    /// Whether this document is looked at.
    pub(super) fn wants(&self, root: &DocumentLocation, schedule: &Schedule) -> bool {
        match self {
            Scope::Everything => true,
            Scope::Due => schedule.is_due(root, Instant::now()),
            Scope::Announced(announced) => announced.roots.contains(root),
        }
    }

    /// Whether this child of an index is looked at although its index says nothing new of it.
    pub(super) fn names(&self, child: &Uri) -> bool {
        match self {
            Scope::Everything => true,
            Scope::Due => false,
            Scope::Announced(announced) => announced.children.contains(child),
        }
    }

    pub(super) fn is_past_caches(&self) -> bool {
        matches!(self, Scope::Announced(announced) if announced.past_caches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(path: &str) -> Look {
        Look::Document { document: Uri::parse(&format!("http://example.org/{path}")).unwrap(), index: None }
    }

    #[test]
    fn all_who_wait_share_one_refresh_and_a_confirmation_counts_for_it() {
        let mut waiting = Waiting::default();
        for accept in [false, true, false] {
            waiting.refresh(accept, Some(oneshot::channel().0));
        }

        let next = waiting.next();

        assert!(matches!(next, Some(Next::Refresh { accept: true, requesters }) if requesters.len() == 3));
        assert!(waiting.next().is_none());
    }

    #[test]
    fn who_asks_without_end_does_not_keep_what_was_announced_from_being_looked_at() {
        let mut waiting = Waiting::default();
        waiting.look(look("a"));
        waiting.refresh(false, None);
        assert!(matches!(waiting.next(), Some(Next::Refresh { .. })));
        waiting.refresh(false, None);

        assert!(matches!(waiting.next(), Some(Next::Look(it)) if it == look("a")));
        assert!(matches!(waiting.next(), Some(Next::Refresh { .. })));
    }

    #[test]
    fn a_flood_of_looks_ends_with_one_at_everything() {
        let uri = |number: usize| Uri::parse(&format!("http://example.org/{number}")).unwrap();
        let changes =
            |all: std::ops::Range<usize>| all.map(|number| (uri(number), Change::Updated)).collect::<Vec<_>>();
        let mut looks = Looks::default();
        (0..10).for_each(|_| looks.add(look("again")));
        (0..10 * MOST_DOCUMENTS).for_each(|number| looks.add(look(&number.to_string())));
        looks.add(Look::Resources(changes(0..MOST_RESOURCES)));
        looks.add(Look::Resources(changes(5..MOST_RESOURCES + 5)));

        let looks: Vec<_> = looks.collect();

        assert_eq!((looks.len(), looks.last()), (MOST_DOCUMENTS + 2, Some(&Look::Poll)));
        assert!(matches!(&looks[MOST_DOCUMENTS], Look::Resources(all) if all.len() == MOST_RESOURCES));
    }

    #[test]
    fn a_discovery_looks_at_all_documents_and_at_no_resource() {
        let mut looks = Looks::default();
        let resources = Look::Resources(vec![(Uri::parse("http://example.org/r").unwrap(), Change::Updated)]);
        [look("a"), Look::Poll, Look::Rediscover, resources.clone()].into_iter().for_each(|look| looks.add(look));

        assert_eq!(looks.collect::<Vec<_>>(), [Look::Rediscover, resources]);
    }
}
