//! Losses of a commit, counted for the decision what of it is held back.

use super::store::record::SetTable;
use super::{Departure, Losses, SetCounts, SetId};
use crate::document::Timestamp;
use std::collections::BTreeMap;

/// Counts what a commit adds, and what it takes away.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Files that did not exist.
    new: u64,
    /// Files of each set that were not its members.
    coming: BTreeMap<SetId, u64>,
    /// By how many files each set grows.
    growth: BTreeMap<SetId, i64>,
    /// Files that leave a set. One that leaves the tree counts as the last of the first of its sets alone: where another of them is
    /// held back, more seems to leave the tree than does.
    departures: BTreeMap<(SetId, bool), u64>,
    /// Deletions that are held back no more, as their sets have the resources again.
    pub released: BTreeMap<SetId, u64>,
}

impl Tally {
    /// Counts a resource of the sets `now`, which was a member of `base` or did not exist.
    pub(super) fn come(&mut self, now: impl Iterator<Item = SetId>, base: Option<&dyn Fn(SetId) -> bool>) {
        self.new += u64::from(base.is_none());
        for set in now.filter(|set| !base.is_some_and(|base| base(*set))) {
            *self.coming.entry(set).or_default() += 1;
        }
    }

    /// Counts a resource that leaves `sets`, in ascending order, and the tree where it `is_last`.
    pub(super) fn depart(&mut self, sets: impl Iterator<Item = SetId>, is_last: bool) {
        for (index, set) in sets.enumerate() {
            *self.departures.entry((set, is_last && index == 0)).or_default() += 1;
        }
    }

    /// Counts a name that the sets `now` have, and `base` had.
    pub(super) fn name(&mut self, now: impl Iterator<Item = SetId>, base: impl Iterator<Item = SetId>) {
        now.for_each(|set| *self.growth.entry(set).or_default() += 1);
        base.for_each(|set| *self.growth.entry(set).or_default() -= 1);
    }

    /// The losses of a commit over a tree of `present` files in the sets `base`.
    pub(super) fn losses(&self, present: u64, base: &SetTable) -> Losses {
        let departure = |((set, is_last), files): (&(SetId, bool), &u64)| Departure {
            set: Some(*set),
            is_last: *is_last,
            files: *files,
        };
        let mut coming = self.coming.clone();
        self.departures.keys().for_each(|(set, _)| _ = coming.entry(*set).or_default());
        let sets = coming.into_iter().map(|(set, coming)| SetCounts { set, present: base.files(set), coming });
        let departures = self.departures.iter().map(departure).collect();
        Losses { present, coming: self.new, sets: sets.collect(), departures, released: self.released.clone() }
    }

    /// The sets of the new tree, over those of `base`, with the times of their lists.
    pub(super) fn table(&self, base: &SetTable, lists: &BTreeMap<SetId, Option<Timestamp>>) -> SetTable {
        let mut table = base.clone();
        for (set, growth) in &self.growth {
            let record = table.entry(*set);
            record.files = record.files.saturating_add_signed(*growth);
        }
        table.0.retain(|set, record| record.files > 0 || lists.contains_key(set));
        for (set, record) in &mut table.0 {
            record.at = lists.get(set).copied().flatten();
        }
        lists.iter().for_each(|(set, at)| table.entry(*set).at = *at);
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
    fn what_several_sets_lose_counts_at_the_first_of_them() {
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
        assert_eq!(counts(&of(&[2])), (3, vec![(1, 14), (3, 11)]), "a bound: 2 keeps these");
        assert_eq!(counts(&of(&[1]).holding(&Held::Of([set(2)].into()))), (0, vec![(3, 11)]));
        assert_eq!(of(&[1, 2]), of(&[1]).holding(&Held::Of([set(2)].into())));
        assert_eq!(of(&[4]), losses);
        assert_eq!(losses.holding(&Held::Nothing), losses);
        assert_eq!(counts(&losses.holding(&Held::All)), (0, vec![]));
    }

    #[test]
    fn what_leaves_unknown_sets_is_kept_by_holding_all_alone() {
        let departures = vec![Departure { set: None, is_last: true, files: 4 }];
        let losses = Losses { present: 9, departures, ..Losses::default() };

        assert_eq!(losses.holding(&Held::Of([set(1)].into())).going(), 4);
        assert_eq!(losses.holding(&Held::All).going(), 0);
    }
}
