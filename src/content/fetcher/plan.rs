//! Where an object is asked for, in which order, and what follows a failure. Pure.

use crate::content::{ContentError, Mirrors, Wanted};
use crate::document::Uri;

/// How often a body that was cut, and cannot be resumed, is begun again at one place.
const RESTARTS: u32 = 2;

/// The places of a resource, in the order in which they are asked: none twice, never empty.
///
/// `vouched` tells that a digest will tell right bytes from wrong ones: only then a mirror may come first by default.
pub(super) fn places(wanted: &Wanted, mirrors: Mirrors, vouched: bool) -> Vec<Uri> {
    let mut by_priority: Vec<&(u32, Uri)> = wanted.mirrors.iter().collect();
    by_priority.sort_by_key(|(priority, _)| *priority);
    let mirrored = by_priority.into_iter().map(|(_, uri)| uri);
    let loc = std::iter::once(&wanted.uri);
    let ordered: Vec<&Uri> = match mirrors {
        Mirrors::Off => loc.collect(),
        Mirrors::First => mirrored.chain(loc).collect(),
        Mirrors::Auto if vouched => mirrored.chain(loc).collect(),
        Mirrors::Auto | Mirrors::Last => loc.chain(mirrored).collect(),
    };
    let mut places: Vec<Uri> = Vec::with_capacity(ordered.len());
    for uri in ordered {
        if !places.contains(uri) {
            places.push(uri.clone());
        }
    }
    places
}

/// What ended an attempt.
#[derive(Debug)]
pub(super) enum Failure {
    /// No head that can be used: a status, a time-out, a refused connection.
    Refused(ContentError),
    /// The body ended too early, or stalled, with so many octets received from the object's first.
    Cut {
        /// Octets that are here.
        received: u64,
        /// What ended it.
        error: ContentError,
    },
    /// The bytes are wrong, or those of another version.
    Wrong(ContentError),
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask the current place for the rest.
    Resume,
    /// Ask the current place, which may be another now, for the whole.
    Again,
    /// Nothing is left to try: [`Plan::error`] tells why.
    GiveUp,
}

/// The state of one fetch between its attempts.
#[derive(Debug)]
pub(super) struct Plan {
    places: Vec<Uri>,
    place: usize,
    past_caches: bool,
    restarts: u32,
    /// The most octets any attempt at this place has brought: a resumed body must get further.
    furthest: u64,
    last: ContentError,
}

impl Plan {
    /// A plan over `places`, which is not empty; `uri` is the resource's own.
    pub(super) fn new(places: Vec<Uri>, uri: Uri) -> Plan {
        let last = ContentError::Stalled { uri };
        Plan { places, place: 0, past_caches: false, restarts: 0, furthest: 0, last }
    }

    /// The place to ask; `None` when all were tried.
    pub(super) fn place(&self) -> Option<&Uri> {
        self.places.get(self.place)
    }

    /// Whether caches on the way must be passed by: something wrong came from this place before.
    pub(super) fn past_caches(&self) -> bool {
        self.past_caches
    }

    /// Number of places in all.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Why everything failed: bytes that came and were wrong tell more than a place that did not answer.
    pub(super) fn error(&self) -> ContentError {
        self.last.clone()
    }

    /// What follows `failure`; `resumable` tells that the bytes received belong to a strong validator.
    pub(super) fn after(&mut self, failure: Failure, resumable: bool) -> Next {
        match failure {
            Failure::Refused(error) => {
                self.remember(error);
                self.next_place()
            }
            Failure::Cut { received, error } => {
                self.remember(error);
                let further = received > self.furthest;
                self.furthest = self.furthest.max(received);
                if resumable && further {
                    Next::Resume
                } else if self.restarts < RESTARTS {
                    self.restarts += 1;
                    Next::Again
                } else {
                    self.next_place()
                }
            }
            Failure::Wrong(error) => {
                self.remember(error);
                if self.past_caches {
                    self.next_place()
                } else {
                    self.past_caches = true;
                    Next::Again
                }
            }
        }
    }

    fn next_place(&mut self) -> Next {
        self.place += 1;
        self.past_caches = false;
        self.restarts = 0;
        self.furthest = 0;
        if self.place < self.places.len() { Next::Again } else { Next::GiveUp }
    }

    fn remember(&mut self, error: ContentError) {
        let tells_of_bytes = |error: &ContentError| {
            matches!(
                error,
                ContentError::Mismatch { .. } | ContentError::Unannounced { .. } | ContentError::Changed { .. }
            )
        };
        if tells_of_bytes(&error) || !tells_of_bytes(&self.last) {
            self.last = error;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuser::INodeNo;

    fn uri(name: &str) -> Uri {
        Uri::parse(&format!("http://{name}.example.org/a")).unwrap()
    }

    fn wanted(mirrors: &[(u32, &str)]) -> Wanted {
        let mirrors = mirrors.iter().map(|(priority, name)| (*priority, uri(name))).collect();
        Wanted { mirrors, ..Wanted::new(INodeNo(2), uri("loc")) }
    }

    fn cut(received: u64) -> Failure {
        Failure::Cut { received, error: ContentError::Stalled { uri: uri("loc") } }
    }

    fn wrong() -> Failure {
        Failure::Wrong(ContentError::Mismatch { uri: uri("loc"), what: "its digest".into() })
    }

    fn refused() -> Failure {
        Failure::Refused(ContentError::Stalled { uri: uri("loc") })
    }

    #[test]
    fn mirrors_come_first_only_where_a_digest_vouches() {
        let wanted = wanted(&[(999_999, "late"), (1, "early"), (2, "loc")]);
        let order = |mirrors, vouched| -> Vec<Uri> { places(&wanted, mirrors, vouched) };

        assert_eq!(order(Mirrors::Auto, true), [uri("early"), uri("loc"), uri("late")]);
        assert_eq!(order(Mirrors::Auto, false), [uri("loc"), uri("early"), uri("late")]);
        assert_eq!(order(Mirrors::First, false), [uri("early"), uri("loc"), uri("late")]);
        assert_eq!(order(Mirrors::Last, true), [uri("loc"), uri("early"), uri("late")]);
        assert_eq!(order(Mirrors::Off, true), [uri("loc")]);
    }

    #[test]
    fn wrong_bytes_are_asked_for_once_more_past_caches_then_elsewhere() {
        let mut plan = Plan::new(vec![uri("a"), uri("b")], uri("loc"));

        assert_eq!(plan.after(wrong(), false), Next::Again);
        assert!(plan.past_caches() && plan.place() == Some(&uri("a")));
        assert_eq!(plan.after(wrong(), false), Next::Again);
        assert!(!plan.past_caches() && plan.place() == Some(&uri("b")));
        assert_eq!(plan.after(refused(), false), Next::GiveUp);
        assert!(matches!(plan.error(), ContentError::Mismatch { .. }), "wrong bytes tell more than a refusal");
    }

    #[test]
    fn a_cut_body_is_resumed_while_it_gets_further_and_restarted_a_few_times_where_it_does_not() {
        let mut plan = Plan::new(vec![uri("a")], uri("loc"));

        assert_eq!(plan.after(cut(10), true), Next::Resume);
        assert_eq!(plan.after(cut(11), true), Next::Resume);
        for _ in 0..RESTARTS {
            assert_eq!(plan.after(cut(11), true), Next::Again);
        }
        assert_eq!(plan.after(cut(11), true), Next::GiveUp);
    }

    #[test]
    fn a_cut_body_without_strong_validator_is_begun_again() {
        let mut plan = Plan::new(vec![uri("a"), uri("b")], uri("loc"));
        for received in 1..=u64::from(RESTARTS) {
            assert_eq!(plan.after(cut(received), false), Next::Again);
        }
        assert_eq!(plan.after(cut(9), false), Next::Again);
        assert_eq!(plan.place(), Some(&uri("b")));
    }
}
