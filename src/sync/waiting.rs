//! What was asked for while a refresh is under way, and is to be done next. Pure.

use super::poll::Look;
use super::status::Refreshed;
use std::collections::VecDeque;
use tokio::sync::oneshot;

/// Looks that wait one by one: for more, everything is looked at once.
const MOST_LOOKS: usize = 64;

/// What waits. A refresh must see everything that was published before it was asked for: who asks while one is under way is not
/// served by that one, but by the next, which all of them share.
#[derive(Debug, Default)]
pub struct Waiting {
    refresh: bool,
    accept: bool,
    requesters: Vec<oneshot::Sender<Refreshed>>,
    looks: VecDeque<Look>,
    /// Whether the last thing that was done is a refresh: looks get their turn between refreshes.
    has_refreshed: bool,
}

/// What is to be done next of what waits.
#[derive(Debug)]
pub enum Next {
    /// A refresh, for all these; `accept` says whether somebody has confirmed the deletions that are held back.
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
        if self.looks.contains(&look) || self.looks.contains(&Look::Poll) && matches!(look, Look::Document { .. }) {
            return;
        }
        if self.looks.len() < MOST_LOOKS {
            self.looks.push_back(look);
            return;
        }
        self.looks.retain(|look| !matches!(look, Look::Document { .. }));
        self.looks.truncate(MOST_LOOKS - 1);
        self.looks.push_back(Look::Poll);
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
        self.looks.pop_front().map(Next::Look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Change, Uri};

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
    fn a_flood_of_looks_becomes_one_at_everything() {
        let mut waiting = Waiting::default();
        let resources = Look::Resources(vec![(Uri::parse("http://example.org/r").unwrap(), Change::Updated)]);
        waiting.look(resources.clone());
        (0..10 * MOST_LOOKS).for_each(|number| waiting.look(look(&number.to_string())));

        let looks: Vec<_> = waiting.looks.into_iter().collect();

        assert_eq!(looks, [resources, Look::Poll], "what a poll would not ask stays");
    }
}
