//! The guard against accidental emptiness: deletions that are too many to be believed are held back, and nothing else.
//!
//! Pure: from what a commit would take away it decides what may go. Its state is stored with the position, so that neither a restart nor
//! many small steps lead around it.

use crate::catalog::{Held, ITEMS, Losses, SetCounts, SetId};
use crate::document::Timestamp;
use crate::source::DocumentLocation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The hours for which a deletion counts.
const WINDOW_HOURS: i64 = 24;

/// A list of this many entries may become empty.
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
    /// True if it says so itself. Else it is missing, or hides some, and what it would say is unknown.
    pub speaks: bool,
    /// The set that it belongs to, where that is known.
    pub set: Option<SetId>,
    /// Why it does not say so itself, for a person.
    pub why: String,
}

/// The set whose deletions are not believed, `None` where that is all of them, and why.
type Suspicion = (Option<SetId>, String);

fn of_list(list: &ListLoss) -> Suspicion {
    let ListLoss { location, entries, why, .. } = list;
    let why = match (list.speaks, entries) {
        (true, _) => format!("{location} listed {entries} resources and is empty now"),
        (false, 0) => format!("{location} does not say that they are gone: {why}"),
        (false, _) => format!("{entries} entries of {location} cannot be understood and may list the same files"),
    };
    (list.set, why)
}

/// The verdict on the deletions of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The sets of which they are held back.
    pub held: Held,
    /// The number of files that stay for that.
    pub files: u64,
    /// Why, for a person; empty where nothing is held back.
    pub why: String,
}

/// The guard: the deletions within the window, and those that are held back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletionGuard {
    /// (Hour since the epoch, files deleted in it), ascending, none older than the window.
    deleted: Vec<(i64, u64)>,
    held: Option<HeldBack>,
    /// Numbers of the sets of which deletions are held back because they, or a part of them, could not be read. No document says that
    /// these resources are gone, so the deletions are decided again once the set can be read.
    unreadable: BTreeSet<SetId>,
    /// Sets of which deletions are held back because a list is empty or missing. Others of theirs that are listed again say nothing of these.
    by_list: BTreeSet<SetId>,
}

/// Deletions that are held back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBack {
    /// The time of the first, in seconds since the epoch.
    pub since: i64,
    /// Why, for a person.
    pub why: String,
}

/// Numbers of deletions that are held back, as the catalog has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldCounts {
    /// All of them.
    pub files: u64,
    /// Those that no document says: their sets could not be read.
    pub unreadable: u64,
}

impl DeletionGuard {
    /// Judges the losses of a commit before which so much was `held` back, and notes the verdict. The lists list less by `lists`; of the sets
    /// `unreadable` nothing, or less than before, could be read.
    pub fn judge(
        &mut self,
        limit: MaxDelete,
        losses: &Losses,
        (lists, unreadable): (&[ListLoss], &BTreeSet<SetId>),
        held: HeldCounts,
        now: Timestamp,
    ) -> Verdict {
        let released = &losses.released;
        let of_unreadable: u64 = self.unreadable.iter().filter_map(|set| released.get(set)).sum();
        let left = held.files.saturating_sub(released.values().sum());
        let stated = left.saturating_sub(held.unreadable.saturating_sub(of_unreadable));
        let verdict = self.decide(limit, losses, lists, stated, now);
        self.after(&verdict, losses, unreadable, left, now);
        self.note_lists(&verdict, lists);
        verdict
    }

    /// Decides which deletions are held back: those of what is suspicious, and no others. The losses that are left are judged
    /// once more. So much that documents say is `held` back already.
    fn decide(&self, limit: MaxDelete, losses: &Losses, lists: &[ListLoss], held: u64, now: Timestamp) -> Verdict {
        let is_counted = self.held.as_ref().is_some_and(|it| is_recent(hour_of(it.since), now));
        let before = if is_counted { held } else { 0 };
        let (mut held, mut why, mut left) = (BTreeSet::new(), Vec::new(), losses.clone());
        let held = loop {
            let suspicions = self.suspects(limit, &left, lists, before, now);
            why.extend(suspicions.iter().map(|(_, why)| why.clone()));
            if suspicions.is_empty() {
                break if held.is_empty() { Held::Nothing } else { Held::Of(held) };
            }
            match suspicions.into_iter().map(|(set, _)| set).collect::<Option<BTreeSet<_>>>() {
                Some(sets) if !sets.is_subset(&held) => held.extend(sets),
                _ => break Held::All,
            }
            left = losses.holding(&Held::Of(held.clone()));
        };
        let files = losses.going() - losses.holding(&held).going();
        Verdict { held, files, why: why.join("; ") }
    }

    /// Notes what was decided of these losses, besides which so many deletions are `left`. Nothing, or less than before, could be read of the
    /// sets `unreadable`.
    fn after(&mut self, verdict: &Verdict, losses: &Losses, unreadable: &BTreeSet<SetId>, left: u64, now: Timestamp) {
        let losing = losses.going_by_set().into_keys();
        self.unreadable.extend(losing.filter(|set| verdict.held.holds(*set) && unreadable.contains(set)));
        if verdict.held != Held::Nothing {
            let since = self.held.as_ref().map_or(now.seconds, |held| held.since);
            self.held = Some(HeldBack { since, why: verdict.why.clone() });
        } else if left == 0 {
            self.none_is_held();
        }
        self.let_go(losses.going() - verdict.files, now);
    }

    /// The reasons why losses of a commit are held back; none where all may go. All sets that are suspicious in one way are
    /// named at once: what is held of the one makes no difference to the other.
    fn suspects(
        &self,
        limit: MaxDelete,
        losses: &Losses,
        lists: &[ListLoss],
        held: u64,
        now: Timestamp,
    ) -> Vec<Suspicion> {
        if losses.departures.is_empty() {
            return Vec::new();
        }
        let (going, by_set) = (losses.going(), losses.going_by_set());
        let loses = |list: &&ListLoss| list.set.is_none_or(|set| by_set.contains_key(&set));
        // No other document speaks for an unreadable set: it is judged before the others.
        let mut named = BTreeSet::new();
        let unreadable = lists.iter().filter(|list| !list.speaks && list.set.is_some_and(|set| named.insert(set)));
        let unreadable: Vec<_> = unreadable.filter(loses).map(of_list).collect();
        if !unreadable.is_empty() {
            return unreadable;
        }
        if going >= losses.present + losses.coming {
            return vec![(None, format!("all {} files would be deleted", losses.present))];
        }
        let is_emptied =
            |set: &&SetCounts| by_set.get(&set.set).is_some_and(|going| *going >= set.present + set.coming);
        let emptied = losses.sets.iter().filter(is_emptied);
        let why = |set: &SetCounts| match set.set {
            ITEMS => format!("all {} items of landing pages would be deleted", set.present),
            SetId(number) => format!("all {} files of set {number} would be deleted", set.present),
        };
        let emptied: Vec<_> = emptied.map(|set| (Some(set.set), why(set))).collect();
        if !emptied.is_empty() {
            return emptied;
        }
        // Where less goes than half of what it listed, the rest is listed elsewhere now.
        let is_emptied = |list: &&ListLoss| list.entries > FEW_ENTRIES && going >= list.entries.div_ceil(2);
        if let Some(list) = lists.iter().find(|list| loses(list) && (!list.speaks || is_emptied(list))) {
            return vec![of_list(list)];
        }
        let gone: u64 = self.deleted.iter().filter(|(hour, _)| is_recent(*hour, now)).map(|(_, files)| files).sum();
        // Held resources are still there. Deletions that no document states do not count.
        let going = gone + held.min(losses.present) + going;
        let files = gone + losses.present;
        let share = || format!("{going} of {files} files would be deleted within 24 hours, and max-delete is {limit}");
        limit.is_passed_by(going, files).then(|| (None, share())).into_iter().collect()
    }

    /// Notes that so many files have been deleted.
    fn let_go(&mut self, files: u64, now: Timestamp) {
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

    /// Notes that nothing is held back any more: the Source lists all of it again.
    pub fn none_is_held(&mut self) {
        self.held = None;
        self.by_list.clear();
    }

    /// The sets of which deletions are held back that no document says.
    pub fn unreadable_sets(&self) -> &BTreeSet<SetId> {
        &self.unreadable
    }

    /// Notes the sets of which something is held back while a list of theirs is empty or missing.
    fn note_lists(&mut self, verdict: &Verdict, lists: &[ListLoss]) {
        let lost = lists.iter().filter(|list| list.speaks || list.entries == 0).filter_map(|list| list.set);
        self.by_list.extend(lost.filter(|set| verdict.held.holds(*set)));
    }

    /// The sets of which deletions are held back because of a list.
    pub fn by_list(&self) -> &BTreeSet<SetId> {
        &self.by_list
    }

    /// Notes that this set can be read again: its deletions are decided again.
    pub fn readable_again(&mut self, set: SetId) {
        self.unreadable.remove(&set);
    }

    /// The deletions that are held back.
    pub fn held(&self) -> Option<&HeldBack> {
        self.held.as_ref()
    }
}

fn hour_of(seconds: i64) -> i64 {
    seconds.div_euclid(3600)
}

/// True if `hour` is within the window that ends now. A clock set back must not make old deletions count for ever.
fn is_recent(hour: i64, now: Timestamp) -> bool {
    let now = hour_of(now.seconds);
    (now - WINDOW_HOURS < hour) && hour <= now + WINDOW_HOURS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Departure;
    use crate::document::Uri;
    use std::collections::BTreeMap;

    const HALF: MaxDelete = MaxDelete(50);

    fn hours(hours: i64) -> Timestamp {
        Timestamp { seconds: 1_000_000_000 + hours * 3600, nanos: 0 }
    }

    fn departure(set: u32, is_last: bool, files: u64) -> Departure {
        Departure { set: Some(SetId(set)), is_last, files, digest: 0 }
    }

    fn counts(set: u32, present: u64, coming: u64) -> SetCounts {
        SetCounts { set: SetId(set), present, coming }
    }

    /// The losses of a set that has more than what goes.
    fn losses(present: u64, going: u64) -> Losses {
        let departures = if going > 0 { vec![departure(9, true, going)] } else { Vec::new() };
        Losses { present, sets: vec![counts(9, present + 1, 0)], departures, ..Losses::default() }
    }

    fn list(entries: u64, speaks: bool) -> ListLoss {
        let location = DocumentLocation::Uri(Uri::parse("http://example.org/list.xml").unwrap());
        ListLoss { location, entries, speaks, set: None, why: String::new() }
    }

    fn of(sets: &[u32]) -> Held {
        Held::Of(sets.iter().copied().map(SetId).collect())
    }

    #[test]
    fn half_of_the_tree_may_go_and_one_more_may_not() {
        let guard = DeletionGuard::default();
        let decide = |going| guard.decide(HALF, &losses(100, going), &[], 0, hours(0));

        assert_eq!(decide(50), Verdict { held: Held::Nothing, files: 0, why: String::new() });
        let why = "51 of 100 files would be deleted within 24 hours, and max-delete is 50 %".to_string();
        assert_eq!(decide(51), Verdict { held: Held::All, files: 51, why });
    }

    #[test]
    fn small_steps_within_a_day_add_up() {
        let mut guard = DeletionGuard::default();
        let mut present = 100;
        let mut step = |hour| {
            let losses = losses(present, 20);
            let verdict = guard.decide(HALF, &losses, &[], 0, hours(hour));
            if verdict.held == Held::Nothing {
                present -= 20;
                guard.after(&verdict, &losses, &BTreeSet::new(), 0, hours(hour));
            }
            verdict.held == Held::Nothing
        };

        assert!(step(0) && step(10));
        assert!(!step(20), "60 of 100 within a day");
        assert!(step(34), "those of the first hours do not count any more");
    }

    #[test]
    fn the_limit_is_the_persons() {
        let guard = DeletionGuard::default();
        let held = |limit, going| guard.decide(limit, &losses(100, going), &[], 0, hours(0)).held;

        assert_eq!(held(MaxDelete::percent(10).unwrap(), 11), Held::All);
        assert_eq!(held(MaxDelete(0), 1), Held::All);
        assert_eq!(held(MaxDelete(100), 99), Held::Nothing);
        assert_eq!(MaxDelete::percent(101), None);
    }

    #[test]
    fn nothing_empties_the_tree_or_a_set() {
        let decide = |losses: &Losses| DeletionGuard::default().decide(MaxDelete(100), losses, &[], 0, hours(0));
        let of_set = |present, is_last, going, coming| Losses {
            sets: vec![counts(7, present, coming)],
            departures: vec![departure(7, is_last, going)],
            ..losses(100, 0)
        };

        assert_eq!(decide(&losses(3, 3)).why, "all 3 files would be deleted");
        assert_eq!(decide(&losses(3, 3)).held, Held::All);
        assert_eq!(decide(&Losses { coming: 1, ..losses(3, 3) }).held, Held::Nothing);
        assert_eq!(decide(&of_set(1, true, 1, 0)).why, "all 1 files of set 7 would be deleted");
        assert_eq!(decide(&of_set(1, true, 1, 0)).held, of(&[7]));
        assert_eq!(decide(&of_set(1, true, 1, 1)).held, Held::Nothing);
        assert_eq!(decide(&of_set(2, true, 1, 0)).held, Held::Nothing);
        assert_eq!(decide(&of_set(5, false, 5, 0)).held, of(&[7]), "its files are another set's too");
    }

    #[test]
    fn long_lists_are_not_emptied_and_missing_ones_delete_nothing() {
        let guard = DeletionGuard::default();
        let holds = |going, list| guard.decide(HALF, &losses(1000, going), &[list], 0, hours(0)).held == Held::All;

        assert!(holds(11, list(11, true)) && holds(6, list(11, true)));
        assert!(!holds(10, list(10, true)));
        assert!(!holds(5, list(11, true)), "most of it is listed elsewhere");
        assert!(holds(1, list(1, false)), "what is missing says nothing");
        assert!(!holds(0, list(11, true)), "nothing goes");
    }

    #[test]
    fn sets_that_are_emptied_together_are_held_back_together() {
        let sets = [1, 2, 3, 4].map(|set| counts(set, 10, 0)).to_vec();
        let departures = vec![departure(1, true, 10), departure(3, true, 10), departure(4, true, 2)];
        let losses = Losses { present: 40, sets, departures, ..Losses::default() };
        let mut guard = DeletionGuard::default();

        let verdict = guard.decide(HALF, &losses, &[], 0, hours(0));
        assert_eq!((&verdict.held, verdict.files), (&of(&[1, 3]), 20));
        assert!(verdict.why.contains("set 1 ") && verdict.why.contains("set 3 "), "{}", verdict.why);

        guard.after(&verdict, &losses, &BTreeSet::from([SetId(3), SetId(4)]), 0, hours(0));
        assert_eq!(guard.held().unwrap().why, verdict.why);
        assert_eq!(guard.unreadable_sets(), &BTreeSet::from([SetId(3)]));
        assert_eq!(guard.deleted, [(hour_of(hours(0).seconds), 2)], "what was not suspicious goes");
    }

    #[test]
    fn what_is_left_after_sets_are_held_back_is_judged_by_itself() {
        let sets = [1, 2, 3].map(|set| counts(set, 40, 0)).to_vec();
        let judged = |own, shared| {
            let departures =
                vec![departure(1, true, 30 + shared), departure(2, false, shared), departure(2, true, own)];
            let losses = Losses { present: 110, sets: sets.clone(), departures, ..Losses::default() };
            let lists = [ListLoss { set: Some(SetId(1)), ..list(0, false) }];
            let mut guard = DeletionGuard::default();
            let verdict = guard.decide(MaxDelete(20), &losses, &lists, 0, hours(0));
            guard.after(&verdict, &losses, &BTreeSet::from([SetId(1), SetId(2), SetId(3)]), 0, hours(0));
            (verdict.held, verdict.files, guard.unreadable_sets().iter().map(|set| set.0).collect::<Vec<_>>())
        };

        assert_eq!(judged(22, 10), (of(&[1]), 40, vec![1]), "the other set keeps nothing of what they share");
        assert_eq!(judged(23, 10), (Held::All, 63, vec![1, 2]));
    }

    #[test]
    fn what_is_held_back_counts_with_what_comes_after() {
        let mut guard = DeletionGuard::default();
        let held = |guard: &DeletionGuard, hour| guard.decide(HALF, &losses(100, 1), &[], 60, hours(hour)).held;
        let verdict = guard.decide(HALF, &losses(100, 60), &[], 0, hours(0));
        guard.after(&verdict, &losses(100, 60), &BTreeSet::new(), 0, hours(0));

        assert_eq!(held(&guard, 1), Held::All);
        assert_eq!(held(&guard, 30), Held::Nothing, "after a day it is a day's deletion");
        guard.after(&verdict, &losses(100, 60), &BTreeSet::new(), 60, hours(30));
        assert_eq!(guard.held().map(|held| held.since), Some(hours(0).seconds));
        guard.none_is_held();
        assert!(guard.held().is_none());
        assert_eq!(held(&guard, 1), Held::Nothing);
    }

    /// A clock that was set back must not make old deletions count for ever.
    #[test]
    fn deletions_of_a_time_far_ahead_count_no_more() {
        let held_at = |guard: &DeletionGuard, held| guard.decide(HALF, &losses(50, 20), &[], held, hours(0)).held;
        let gone = |hour| {
            let mut guard = DeletionGuard::default();
            guard.let_go(50, hours(hour));
            held_at(&guard, 0)
        };
        let waiting = |hour| {
            let held = Some(HeldBack { since: hours(hour).seconds, why: String::new() });
            held_at(&DeletionGuard { held, ..DeletionGuard::default() }, 50)
        };

        assert_eq!((gone(24), gone(25), gone(1000)), (Held::All, Held::Nothing, Held::Nothing));
        assert_eq!((waiting(24), waiting(25), waiting(1000)), (Held::All, Held::Nothing, Held::Nothing));
    }

    #[test]
    fn a_set_that_can_be_read_again_is_unheard_no_more() {
        let sets = [1, 2].map(|set| counts(set, 10, 0)).to_vec();
        let departures = vec![departure(1, true, 10), departure(2, true, 10)];
        let losses = Losses { present: 40, sets, departures, ..Losses::default() };
        let mut guard = DeletionGuard::default();
        let verdict = guard.decide(HALF, &losses, &[], 0, hours(0));
        guard.after(&verdict, &losses, &BTreeSet::from([SetId(1), SetId(2)]), 0, hours(0));

        guard.readable_again(SetId(1));

        assert_eq!(guard.unreadable_sets(), &BTreeSet::from([SetId(2)]));
    }

    #[test]
    fn lists_that_hide_entries_bind_no_set() {
        let of_set = |set, entries, speaks| ListLoss { set: Some(SetId(set)), ..list(entries, speaks) };
        let lists = [of_set(1, 20, true), of_set(2, 0, false), of_set(3, 5, false), of_set(4, 20, true)];
        let bound = |held| {
            let mut guard = DeletionGuard::default();
            guard.note_lists(&Verdict { held, files: 1, why: String::new() }, &lists);
            guard.by_list().iter().map(|set| set.0).collect::<Vec<_>>()
        };

        assert_eq!(bound(Held::All), [1, 2, 4], "what an entry that is not understood lists is decided again");
        assert_eq!(bound(of(&[1, 3])), [1], "nothing of the others is held back");
        assert!(bound(Held::Nothing).is_empty());
    }

    #[test]
    fn what_is_listed_again_counts_no_more() {
        let held = Some(HeldBack { since: hours(0).seconds, why: "300 of 400".to_owned() });
        let mut guard = DeletionGuard { held, ..DeletionGuard::default() };
        let mut judge = |files, going, released, hour| {
            let losses = Losses { released: BTreeMap::from([(SetId(9), released)]), ..losses(400, going) };
            let counts = HeldCounts { files, unreadable: 0 };
            let held = guard.judge(HALF, &losses, (&[], &BTreeSet::new()), counts, hours(hour)).held;
            (held, guard.held().map(|held| held.since))
        };

        let since = Some(hours(0).seconds);
        assert_eq!(judge(300, 1, 0, 1), (Held::All, since));
        assert_eq!(judge(300, 1, 299, 1), (Held::Nothing, since), "one is still held");
        assert_eq!(judge(1, 201, 1, 2), (Held::All, since), "since when stays");
        assert_eq!(judge(202, 1, 202, 3), (Held::Nothing, None));
    }

    #[test]
    fn a_confirmed_tree_is_a_new_beginning() {
        let mut guard = DeletionGuard::default();
        guard.let_go(50, hours(0));
        assert_eq!(guard.decide(HALF, &losses(50, 20), &[], 0, hours(1)).held, Held::All);

        guard = DeletionGuard::default();

        assert_eq!(guard.decide(HALF, &losses(50, 20), &[], 0, hours(1)).held, Held::Nothing);
    }

    #[test]
    fn the_state_survives_being_stored() {
        let mut guard = DeletionGuard::default();
        guard.let_go(5, hours(0));
        guard.let_go(6, hours(3));
        guard.held = Some(HeldBack { since: 5, why: "none of the 60 files would be left".to_owned() });

        let stored = serde_json::to_string(&guard).unwrap();

        assert_eq!(serde_json::from_str::<DeletionGuard>(&stored).unwrap(), guard);
    }
}
