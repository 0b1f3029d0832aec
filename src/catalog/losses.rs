//! What a commit would take away, counted for the decision whether it may.

use super::SetId;
use super::store::record::Sets;
use super::store::sets::SetTable;
use super::{Departure, Losses, SetCounts};
use crate::document::Timestamp;
use std::collections::BTreeMap;

/// Counts the files of a new tree, and those of them that were there before.
#[derive(Debug, Default)]
pub(super) struct Tally {
    coming: u64,
    /// Ascending.
    sets: Vec<SetTally>,
}

#[derive(Debug)]
struct SetTally {
    set: SetId,
    files: u64,
    kept: u64,
}

impl Tally {
    /// Counts a file of these sets, which was a member of `before` or did not exist.
    pub(super) fn count(&mut self, now: Sets<'_>, before: Option<Sets<'_>>) {
        self.coming += u64::from(before.is_none());
        for set in now.iter() {
            let tally = self.of(set);
            tally.files += 1;
            tally.kept += u64::from(before.is_some_and(|before| before.contains(set)));
        }
    }

    fn of(&mut self, set: SetId) -> &mut SetTally {
        let place = match self.sets.binary_search_by_key(&set, |tally| tally.set) {
            Ok(place) => place,
            Err(place) => {
                self.sets.insert(place, SetTally { set, files: 0, kept: 0 });
                place
            }
        };
        &mut self.sets[place]
    }

    /// What the new tree lacks of the `present` files of the one before, whose sets are `before`: these `departures`.
    pub(super) fn losses(&self, present: u64, before: &SetTable, departures: Vec<Departure>) -> Losses {
        let mut coming = BTreeMap::new();
        for tally in self.sets.iter().filter(|tally| tally.files > tally.kept) {
            coming.insert(tally.set, tally.files - tally.kept);
        }
        losses(present, self.coming, before, coming, departures)
    }

    /// The sets of the new tree, with the times of their lists.
    pub(super) fn table(&self, lists: &[(SetId, Option<Timestamp>)]) -> SetTable {
        let mut table = SetTable::default();
        for (set, at) in lists {
            table.entry(*set).at = *at;
        }
        for tally in &self.sets {
            table.entry(tally.set).files = tally.files;
        }
        table
    }
}

/// The losses of a commit over `present` files in the sets `before`: it adds `new` files, to each set those `coming` to it.
pub(super) fn losses(
    present: u64,
    new: u64,
    before: &SetTable,
    mut coming: BTreeMap<SetId, u64>,
    departures: Vec<Departure>,
) -> Losses {
    for set in departures.iter().flat_map(|departure| &departure.sets) {
        coming.entry(*set).or_default();
    }
    let counts = |(set, coming)| SetCounts { set, present: before.files(set), coming };
    Losses { present, coming: new, sets: coming.into_iter().map(counts).collect(), departures }
}

/// Combinations of sets that are counted separately.
const MOST_COMBINATIONS: usize = 4096;

/// Counts what leaves the same sets together. Past [`MOST_COMBINATIONS`] it counts set by set: the loss of each set is exact still, and that
/// of the tree too high where one of the sets keeps a resource.
#[derive(Debug, Default)]
pub(super) struct Departures(BTreeMap<(Box<[SetId]>, bool), u64>);

impl Departures {
    /// Counts a resource that leaves `sets`, in ascending order, and the tree where it `is_last`.
    pub(super) fn count(&mut self, sets: impl Iterator<Item = SetId>, is_last: bool) {
        let combination = (sets.collect::<Box<[SetId]>>(), is_last);
        if self.0.len() < MOST_COMBINATIONS || self.0.contains_key(&combination) {
            *self.0.entry(combination).or_default() += 1;
            return;
        }
        for (place, set) in combination.0.iter().enumerate() {
            *self.0.entry((Box::new([*set]), is_last && place == 0)).or_default() += 1;
        }
    }

    pub(super) fn into_vec(self) -> Vec<Departure> {
        self.0.into_iter().map(|((sets, is_last), files)| Departure { sets, is_last, files }).collect()
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
        let mut departures = Departures::default();
        for (sets, is_last, files) in
            [(&[1, 2][..], true, 3), (&[2], true, 5), (&[2], false, 7), (&[1, 2, 3], false, 11)]
        {
            (0..files).for_each(|_| departures.count(sets.iter().copied().map(set), is_last));
        }
        let losses = Losses { present: 100, departures: departures.into_vec(), ..Losses::default() };
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
        let mut departures = Departures::default();
        let most = u32::try_from(MOST_COMBINATIONS).unwrap();
        for first in 0..2 * most {
            departures.count([set(first), set(9_000), set(9_001)].into_iter(), true);
        }
        let losses = Losses { departures: departures.into_vec(), ..Losses::default() };

        assert_eq!(losses.going(), u64::from(2 * most));
        let by_set = losses.going_by_set();
        assert_eq!(by_set[&set(9_000)], u64::from(2 * most));
        assert_eq!(by_set[&set(9_001)], u64::from(2 * most));
        assert!((0..2 * most).all(|first| by_set[&set(first)] == 1));
    }
}
