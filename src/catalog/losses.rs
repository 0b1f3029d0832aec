//! What a commit would take away, counted for the decision whether it may.

use super::store::sets::SetTable;
use super::{Departure, Losses, SetCounts, SetId};
use crate::document::Timestamp;
use std::collections::BTreeMap;

/// Combinations of sets that are counted separately.
const MOST_COMBINATIONS: usize = 4096;

/// Counts what a commit adds, and what it takes away.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Files that did not exist.
    pub new: u64,
    pub sets: BTreeMap<SetId, SetTally>,
    /// What leaves the same sets is counted together. Past [`MOST_COMBINATIONS`] it is counted set by set: the loss of each set is exact
    /// still, and that of the tree too high where one of the sets keeps a resource.
    pub departures: BTreeMap<(Box<[SetId]>, bool), u64>,
    /// Deletions that are held back no more, as their sets have the resources again.
    pub released: BTreeMap<SetId, u64>,
}

/// Files of one set.
#[derive(Debug, Default)]
pub(super) struct SetTally {
    pub files: u64,
    /// Those of them that were not its members.
    pub coming: u64,
}

impl Tally {
    /// Counts a file of the sets `now`, which was a member of `before` or did not exist.
    pub(super) fn count(&mut self, now: impl Iterator<Item = SetId>, before: Option<&dyn Fn(SetId) -> bool>) {
        self.new += u64::from(before.is_none());
        for set in now {
            let tally = self.sets.entry(set).or_default();
            tally.files += 1;
            tally.coming += u64::from(!before.is_some_and(|before| before(set)));
        }
    }

    /// Counts a resource that leaves `sets`, in ascending order, and the tree where it `is_last`.
    pub(super) fn depart(&mut self, sets: impl Iterator<Item = SetId>, is_last: bool) {
        let combination = (sets.collect::<Box<[SetId]>>(), is_last);
        if self.departures.len() < MOST_COMBINATIONS || self.departures.contains_key(&combination) {
            *self.departures.entry(combination).or_default() += 1;
            return;
        }
        for (place, set) in combination.0.iter().enumerate() {
            *self.departures.entry((Box::new([*set]), is_last && place == 0)).or_default() += 1;
        }
    }

    /// The losses of a commit over a tree of `present` files in the sets `before`.
    pub(super) fn losses(&self, present: u64, before: &SetTable) -> Losses {
        let departures = self.departures.iter().map(|((sets, is_last), files)| {
            let (sets, is_last, files) = (sets.clone(), *is_last, *files);
            Departure { sets, is_last, files }
        });
        let departures: Vec<_> = departures.collect();
        let changed = self.sets.iter().filter(|(_, tally)| tally.coming > 0);
        let mut coming: BTreeMap<SetId, u64> = changed.map(|(set, tally)| (*set, tally.coming)).collect();
        for set in departures.iter().flat_map(|departure| &departure.sets) {
            coming.entry(*set).or_default();
        }
        let counts = |(set, coming)| SetCounts { set, present: before.files(set), coming };
        let sets = coming.into_iter().map(counts).collect();
        Losses { present, coming: self.new, sets, departures, released: self.released.clone() }
    }

    /// The sets of the new tree, with the times of their lists.
    pub(super) fn table(&self, lists: &BTreeMap<SetId, Option<Timestamp>>) -> SetTable {
        let mut table = SetTable::default();
        lists.iter().for_each(|(set, at)| table.entry(*set).at = *at);
        self.sets.iter().for_each(|(set, tally)| table.entry(*set).files = tally.files);
        table
    }
}

#[cfg(test)]
mod tests {
    use super::super::Held;
    use super::*;

    fn set(number: u32) -> SetId {
        SetId(number)
    }

    #[test]
    fn holding_back_a_set_keeps_what_it_shares_in_the_tree() {
        let mut tally = Tally::default();
        for (sets, is_last, files) in
            [(&[1, 2][..], true, 3), (&[2], true, 5), (&[2], false, 7), (&[1, 2, 3], false, 11)]
        {
            (0..files).for_each(|_| tally.depart(sets.iter().copied().map(set), is_last));
        }
        let losses = tally.losses(100, &SetTable::default());
        let of = |sets: &[u32]| losses.holding(&Held::Of(sets.iter().copied().map(set).collect()));
        let counts = |losses: &Losses| {
            let by_set: Vec<_> = losses.going_by_set().into_iter().map(|(set, files)| (set.0, files)).collect();
            (losses.going(), by_set)
        };

        assert_eq!(counts(&losses), (8, vec![(1, 14), (2, 26), (3, 11)]));
        assert_eq!(counts(&of(&[1])), (5, vec![(2, 26), (3, 11)]));
        assert_eq!(counts(&of(&[2])), (0, vec![(1, 14), (3, 11)]));
        assert_eq!(counts(&of(&[1]).holding(&Held::Of([set(2)].into()))), (0, vec![(3, 11)]));
        assert_eq!(of(&[1, 2]), of(&[1]).holding(&Held::Of([set(2)].into())));
        assert_eq!(of(&[4]), losses);
        assert_eq!(losses.holding(&Held::Nothing), losses);
        assert_eq!(counts(&losses.holding(&Held::All)), (0, vec![]));
    }

    #[test]
    fn what_leaves_unknown_sets_is_kept_by_holding_all_alone() {
        let departures = vec![Departure { sets: Box::new([]), is_last: true, files: 4 }];
        let losses = Losses { present: 9, departures, ..Losses::default() };

        assert_eq!(losses.holding(&Held::Of([set(1)].into())).going(), 4);
        assert_eq!(losses.holding(&Held::All).going(), 0);
    }

    #[test]
    fn past_the_most_combinations_each_set_is_counted_exactly() {
        let mut tally = Tally::default();
        let most = u32::try_from(MOST_COMBINATIONS).unwrap();
        for first in 0..2 * most {
            tally.depart([set(first), set(9_000), set(9_001)].into_iter(), true);
        }
        let losses = tally.losses(0, &SetTable::default());

        assert_eq!(losses.going(), u64::from(2 * most));
        let by_set = losses.going_by_set();
        assert_eq!(by_set[&set(9_000)], u64::from(2 * most));
        assert_eq!(by_set[&set(9_001)], u64::from(2 * most));
        assert!((0..2 * most).all(|first| by_set[&set(first)] == 1));
    }
}
