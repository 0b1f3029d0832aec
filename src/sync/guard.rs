//! The guard against accidental emptiness: deletions that are too many to be believed are held back, and nothing else.
//!
//! Pure: it is told what a commit would take away and answers whether it may. Its state is stored with the position, so that
//! neither a restart nor many small steps lead around it.

use crate::catalog::{Losses, SetId};
use crate::document::Timestamp;
use crate::source::DocumentLocation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// How long a deletion counts.
const WINDOW_HOURS: i64 = 24;

/// A list of so few entries may become empty.
const FEW_ENTRIES: u64 = 10;

/// `max-delete=`: the part of the tree that may go within 24 hours, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxDelete(u8);

impl MaxDelete {
    /// `None` for more than 100.
    pub fn percent(percent: u8) -> Option<MaxDelete> {
        (percent <= 100).then_some(MaxDelete(percent))
    }

    fn is_passed_by(self, going: u64, files: u64) -> bool {
        u128::from(going) * 100 > u128::from(files) * u128::from(self.0)
    }
}

impl Default for MaxDelete {
    fn default() -> MaxDelete {
        MaxDelete(50)
    }
}

impl std::fmt::Display for MaxDelete {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} %", self.0)
    }
}

/// A list that listed something before and lists nothing now, or that is not there any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListLoss {
    /// The list.
    pub location: DocumentLocation,
    /// Resources that it listed; of a list that hides some its entries that cannot be understood.
    pub entries: u64,
    /// Whether it says so itself; else it is missing, or hides some, and what it would say is unknown.
    pub speaks: bool,
    /// The set that it belongs to, where that is known.
    pub set: Option<SetId>,
}

/// Why deletions are held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// Too much of the tree goes within 24 hours.
    Share {
        /// Files that would have gone, those already gone or held back in this time among them.
        going: u64,
        /// Files that there would be without.
        files: u64,
        /// What was allowed.
        limit: MaxDelete,
    },
    /// Nothing would be left.
    EmptyTree {
        /// Files shown.
        files: u64,
    },
    /// Nothing would be left of a set, or it is not offered any more.
    EmptySet {
        /// The set.
        set: SetId,
        /// Its files.
        files: u64,
    },
    /// A list of the Source is empty or gone.
    EmptyList(ListLoss),
}

impl Suspicion {
    /// The set whose deletions are not believed; `None` where that is all of them.
    pub fn set(&self) -> Option<SetId> {
        match self {
            Suspicion::Share { .. } | Suspicion::EmptyTree { .. } => None,
            Suspicion::EmptySet { set, .. } => Some(*set),
            Suspicion::EmptyList(list) => list.set,
        }
    }
}

impl std::fmt::Display for Suspicion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Suspicion::Share { going, files, limit } => {
                write!(f, "{going} of {files} files would be gone within 24 hours, and max-delete is {limit}")
            }
            Suspicion::EmptyTree { files } => write!(f, "none of the {files} files would be left"),
            Suspicion::EmptySet { set, files } => write!(f, "none of the {files} files of set {} would be left", set.0),
            Suspicion::EmptyList(ListLoss { location, entries, speaks: true, .. }) => {
                write!(f, "{location} listed {entries} resources and is empty now")
            }
            Suspicion::EmptyList(ListLoss { location, entries: 0, speaks: false, .. }) => {
                write!(f, "{location} cannot be had any more")
            }
            Suspicion::EmptyList(ListLoss { location, entries, speaks: false, .. }) => {
                write!(f, "{entries} entries of {location} cannot be understood, and may list what would go")
            }
        }
    }
}

/// What has been deleted of late, and what is held back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    /// (Hour since the epoch, files deleted in it), ascending, none older than the window.
    deleted: Vec<(i64, u64)>,
    held: Option<Held>,
    /// Numbers of the sets of which deletions are held back because they, or a part of them, could not be had: nothing told of
    /// these deletions, so once the set can be had again they are decided anew.
    #[serde(default)]
    unheard: BTreeSet<u32>,
}

/// Deletions that are held back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Since when, in seconds since the epoch.
    pub since: i64,
    /// How many files the last commit would have taken away.
    pub files: u64,
    /// Those of them that nothing told of: their sets could not be had.
    #[serde(default)]
    pub unheard: u64,
    /// Why, for a person.
    pub why: String,
}

impl Guard {
    /// Why what a commit takes away may not go; nothing where it may. Of single sets all that are suspicious in one way are
    /// named at once: what is held of the one makes no difference to the other, and each further answer costs a merge.
    pub fn suspects(&self, limit: MaxDelete, losses: &Losses, lists: &[ListLoss], now: Timestamp) -> Vec<Suspicion> {
        if losses.going == 0 && losses.sets.iter().all(|set| set.going == 0) {
            return Vec::new();
        }
        let loses = |list: &ListLoss| {
            list.set.is_none_or(|set| losses.sets.iter().any(|loss| loss.set == set && loss.going > 0))
        };
        // What the set cannot tell nothing else tells: with the others it is not mixed up.
        let mut named = BTreeSet::new();
        let unheard = lists.iter().filter(|list| !list.speaks && list.set.is_some_and(|set| named.insert(set)));
        let unheard: Vec<_> = unheard.filter(|list| loses(list)).cloned().map(Suspicion::EmptyList).collect();
        if !unheard.is_empty() {
            return unheard;
        }
        if losses.going >= losses.present + losses.coming {
            return vec![Suspicion::EmptyTree { files: losses.present }];
        }
        let emptied = losses.sets.iter().filter(|set| set.going > 0 && set.going >= set.present + set.coming);
        let emptied: Vec<_> = emptied.map(|set| Suspicion::EmptySet { set: set.set, files: set.present }).collect();
        if !emptied.is_empty() {
            return emptied;
        }
        // Where less goes than half of what it listed, the rest is listed elsewhere now.
        let is_emptied = |list: &&ListLoss| list.entries > FEW_ENTRIES && losses.going >= list.entries.div_ceil(2);
        if let Some(list) = lists.iter().find(|list| loses(list) && (!list.speaks || is_emptied(list))) {
            return vec![Suspicion::EmptyList(list.clone())];
        }
        let gone: u64 = self.deleted.iter().filter(|(hour, _)| is_recent(*hour, now)).map(|(_, files)| files).sum();
        let held = self
            .held
            .as_ref()
            .filter(|held| is_recent(hour_of(held.since), now))
            .map_or(0, |held| held.files.saturating_sub(held.unheard));
        // What is held back is still there. Of what nothing told nothing counts.
        let going = gone + held.min(losses.present) + losses.going;
        let files = gone + losses.present;
        limit.is_passed_by(going, files).then_some(Suspicion::Share { going, files, limit }).into_iter().collect()
    }

    /// Notes that so many files have been deleted.
    pub fn let_go(&mut self, files: u64, now: Timestamp) {
        self.deleted.retain(|(hour, _)| is_recent(*hour, now));
        if files == 0 {
            return;
        }
        let hour = hour_of(now.seconds);
        match self.deleted.last_mut() {
            Some((last, sum)) if *last == hour => *sum += files,
            _ => self.deleted.push((hour, files)),
        }
    }

    /// Notes that `files` more deletions are held back; the earliest time stays.
    pub fn hold(&mut self, files: u64, why: &dyn std::fmt::Display, now: Timestamp) {
        let before = self.held.as_ref();
        let (since, unheard) = before.map_or((now.seconds, 0), |held| (held.since, held.unheard));
        let files = files + before.map_or(0, |held| held.files);
        self.held = Some(Held { since, files, unheard, why: why.to_string() });
    }

    /// Notes how many deletions are still held back, and how many of them of sets that [are not heard](Guard::unheard): the
    /// Source takes some back by listing their resources again.
    pub fn recount(&mut self, files: u64, unheard: u64) {
        self.held = self.held.take().filter(|_| files > 0).map(|held| Held { files, unheard, ..held });
    }

    /// The sets of which deletions are held back that nothing told.
    pub fn unheard(&self) -> impl Iterator<Item = SetId> {
        self.unheard.iter().map(|set| SetId(*set))
    }

    /// Notes that deletions of this set are held back because it, or a part of it, cannot be had.
    pub fn miss(&mut self, set: SetId) {
        self.unheard.insert(set.0);
    }

    /// Notes that this set can be had again: of its deletions is decided anew.
    pub fn hear(&mut self, set: SetId) {
        self.unheard.remove(&set.0);
    }

    /// Notes that a person has confirmed the tree as it is: what went before does not count any more.
    pub fn confirm(&mut self) {
        *self = Guard::default();
    }

    /// What is held back.
    pub fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }
}

fn hour_of(seconds: i64) -> i64 {
    seconds.div_euclid(3600)
}

/// Whether `hour` lies in the window that ends now. A clock set back must not make old deletions count for ever.
fn is_recent(hour: i64, now: Timestamp) -> bool {
    let now = hour_of(now.seconds);
    (now - WINDOW_HOURS < hour) && hour <= now + WINDOW_HOURS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::SetLoss;
    use crate::document::Uri;

    const HALF: MaxDelete = MaxDelete(50);

    fn hours(hours: i64) -> Timestamp {
        Timestamp { seconds: 1_000_000_000 + hours * 3600, nanos: 0 }
    }

    fn losses(present: u64, going: u64) -> Losses {
        Losses { present, going, coming: 0, sets: Vec::new() }
    }

    fn list(entries: u64, speaks: bool) -> ListLoss {
        let location = DocumentLocation::Uri(Uri::parse("http://example.org/list.xml").unwrap());
        ListLoss { location, entries, speaks, set: None }
    }

    #[test]
    fn half_of_the_tree_may_go_and_one_more_may_not() {
        let guard = Guard::default();

        assert_eq!(guard.suspects(HALF, &losses(100, 50), &[], hours(0)), []);
        let suspicion = guard.suspects(HALF, &losses(100, 51), &[], hours(0));
        assert_eq!(suspicion, [Suspicion::Share { going: 51, files: 100, limit: HALF }]);
    }

    #[test]
    fn small_steps_within_a_day_add_up() {
        let mut guard = Guard::default();
        let mut present = 100;
        let mut step = |hour| {
            let suspicion = guard.suspects(HALF, &losses(present, 20), &[], hours(hour));
            if suspicion.is_empty() {
                present -= 20;
                guard.let_go(20, hours(hour));
            }
            suspicion.is_empty()
        };

        assert!(step(0) && step(10));
        assert!(!step(20), "60 of 100 within a day");
        assert!(step(34), "those of the first hours do not count any more");
    }

    #[test]
    fn the_limit_is_the_persons() {
        let guard = Guard::default();
        let tenth = MaxDelete::percent(10).unwrap();

        assert!(!guard.suspects(tenth, &losses(100, 11), &[], hours(0)).is_empty());
        assert!(!guard.suspects(MaxDelete(0), &losses(100, 1), &[], hours(0)).is_empty());
        assert!(guard.suspects(MaxDelete(100), &losses(100, 99), &[], hours(0)).is_empty());
        assert_eq!(MaxDelete::percent(101), None);
    }

    #[test]
    fn nothing_empties_the_tree_or_a_set() {
        let guard = Guard::default();
        let set = |present, going, coming| SetLoss { set: SetId(7), present, going, coming };
        let of_set = |loss| Losses { sets: vec![loss], ..losses(100, 1) };

        let whole = guard.suspects(MaxDelete(100), &losses(3, 3), &[], hours(0));
        assert_eq!(whole, [Suspicion::EmptyTree { files: 3 }]);
        assert_eq!(guard.suspects(MaxDelete(100), &Losses { coming: 1, ..losses(3, 3) }, &[], hours(0)), []);
        let one = guard.suspects(HALF, &of_set(set(1, 1, 0)), &[], hours(0));
        assert_eq!(one, [Suspicion::EmptySet { set: SetId(7), files: 1 }]);
        assert_eq!(guard.suspects(HALF, &of_set(set(1, 1, 1)), &[], hours(0)), []);
        assert_eq!(guard.suspects(HALF, &of_set(set(2, 1, 0)), &[], hours(0)), []);
        let shared = Losses { sets: vec![set(5, 5, 0)], ..losses(100, 0) };
        assert!(!guard.suspects(HALF, &shared, &[], hours(0)).is_empty(), "its files are another set's too");
    }

    #[test]
    fn a_list_of_over_ten_entries_does_not_become_empty_and_none_that_is_gone_deletes() {
        let guard = Guard::default();
        let suspects = |going, list| !guard.suspects(HALF, &losses(1000, going), &[list], hours(0)).is_empty();

        assert!(suspects(11, list(11, true)) && suspects(6, list(11, true)));
        assert!(!suspects(10, list(10, true)));
        assert!(!suspects(5, list(11, true)), "most of it is listed elsewhere");
        assert!(suspects(1, list(1, false)), "what cannot be had says nothing");
        assert_eq!(guard.suspects(HALF, &losses(1000, 0), &[list(11, true)], hours(0)), [], "nothing goes");
    }

    #[test]
    fn what_is_held_back_counts_with_what_comes_after() {
        let mut guard = Guard::default();
        let why = guard.suspects(HALF, &losses(100, 60), &[], hours(0)).remove(0);
        guard.hold(60, &why, hours(0));

        assert!(!guard.suspects(HALF, &losses(100, 1), &[], hours(1)).is_empty());
        assert!(guard.suspects(HALF, &losses(100, 1), &[], hours(30)).is_empty(), "after a day it is a day's deletion");
        guard.hold(1, &why, hours(30));
        assert_eq!(guard.held().map(|held| (held.since, held.files)), Some((hours(0).seconds, 61)));
        guard.recount(0, 0);
        assert!(guard.held().is_none());
        assert!(guard.suspects(HALF, &losses(100, 1), &[], hours(1)).is_empty());
    }

    #[test]
    fn a_confirmed_tree_is_a_new_beginning() {
        let mut guard = Guard::default();
        guard.let_go(50, hours(0));
        assert!(!guard.suspects(HALF, &losses(50, 20), &[], hours(1)).is_empty());

        guard.confirm();

        assert!(guard.suspects(HALF, &losses(50, 20), &[], hours(1)).is_empty());
    }

    #[test]
    fn the_state_survives_being_stored() {
        let mut guard = Guard::default();
        guard.let_go(5, hours(0));
        guard.let_go(6, hours(3));
        guard.hold(60, &Suspicion::EmptyTree { files: 60 }, hours(3));

        let stored = serde_json::to_string(&guard).unwrap();

        assert_eq!(serde_json::from_str::<Guard>(&stored).unwrap(), guard);
    }
}
