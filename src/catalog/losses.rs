//! Losses of a commit, counted for the decision what of it is held back.

use super::SetId;
use super::store::record::SetTable;
use crate::document::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_64;

/// Resources that a commit would take from a set, counted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The set; `None` where the sets cannot be read any more.
    pub set: Option<SetId>,
    /// True where the resources leave the tree with it.
    pub is_last: bool,
    /// How many.
    pub files: u64,
    /// A digest of their addresses in any order: other resources have another one.
    pub digest: u64,
}

/// Files of one set, as a commit finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetCounts {
    /// The set.
    pub set: SetId,
    /// Its files before the commit.
    pub present: u64,
    /// Files that the commit adds to it.
    pub coming: u64,
}

/// The losses of a commit, for the decision what of them is held back.
///
/// Files that are held back already stay in any case: they count as present, neither as departing nor as coming. So do those whose
/// deletion was accepted: they are decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Files of the tree before the commit.
    pub present: u64,
    /// Files that the commit adds.
    pub coming: u64,
    /// Each set that loses or gains something, ascending.
    pub sets: Vec<SetCounts>,
    /// The resources that would go.
    pub departures: Vec<Departure>,
    /// Deletions that were held back and are so no more, by set: the set has the resources again, or they are decided again.
    pub released: BTreeMap<SetId, u64>,
}

impl Losses {
    /// The losses of a tree of `files` in place of one of `present` files, of which nothing else is known.
    pub(super) fn of_totals(present: u64, files: u64) -> Losses {
        let lost = Departure { set: None, is_last: true, files: present.saturating_sub(files), digest: 0 };
        let departures = Some(lost).filter(|lost| lost.files > 0).into_iter().collect();
        Losses { present, coming: files.saturating_sub(present), departures, ..Losses::default() }
    }

    /// Files that would leave the tree.
    pub fn going(&self) -> u64 {
        self.departures.iter().filter(|departure| departure.is_last).map(|departure| departure.files).sum()
    }

    /// Files that would leave each set, from the tree or not; no set that loses none.
    pub fn going_by_set(&self) -> BTreeMap<SetId, u64> {
        let mut going = BTreeMap::new();
        for departure in &self.departures {
            departure.set.iter().for_each(|set| *going.entry(*set).or_default() += departure.files);
        }
        going
    }

    /// The losses that are left where this much is held back.
    pub fn holding(&self, held: &Held) -> Losses {
        let mut left = self.clone();
        left.departures.retain(|departure| departure.set.map_or(*held != Held::All, |set| !held.holds(set)));
        left
    }
}

/// Which deletions of a commit are kept, persisted, as held back. All else is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// None.
    Nothing,
    /// All.
    All,
    /// Deletions from these sets.
    Of(BTreeSet<SetId>),
    /// Not known yet: the commit is given up with [`CatalogError::Undecided`](super::CatalogError::Undecided).
    Undecided,
}

impl Held {
    /// Answers whether deletions from `set` are held back.
    pub fn holds(&self, set: SetId) -> bool {
        match self {
            Held::Nothing => false,
            Held::All | Held::Undecided => true,
            Held::Of(sets) => sets.contains(&set),
        }
    }
}

/// Asked once for each commit, with what would go: what of it is held back, and the position to store.
pub type Decide<'d> = &'d mut dyn FnMut(&Losses) -> (Held, Vec<u8>);

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
    /// held back, more seems to leave the tree than does. With the number comes the digest of them.
    departures: BTreeMap<(SetId, bool), (u64, u64)>,
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

    /// Counts the resource of `uri`, which leaves `sets`, in ascending order, and the tree where it `is_last`.
    pub(super) fn depart(&mut self, uri: &str, sets: impl Iterator<Item = SetId>, is_last: bool) {
        for (index, set) in sets.enumerate() {
            let (files, digest) = self.departures.entry((set, is_last && index == 0)).or_default();
            (*files, *digest) = (*files + 1, digest.wrapping_add(xxh3_64(uri.as_bytes())));
        }
    }

    /// Counts a name that the sets `now` have, and `base` had.
    pub(super) fn name(&mut self, now: impl Iterator<Item = SetId>, base: impl Iterator<Item = SetId>) {
        now.for_each(|set| *self.growth.entry(set).or_default() += 1);
        base.for_each(|set| *self.growth.entry(set).or_default() -= 1);
    }

    /// The losses of a commit over a tree of `present` files in the sets `base`.
    pub(super) fn losses(&self, present: u64, base: &SetTable) -> Losses {
        let departure = |((set, is_last), (files, digest)): (&(SetId, bool), &(u64, u64))| Departure {
            set: Some(*set),
            is_last: *is_last,
            files: *files,
            digest: *digest,
        };
        let mut coming = self.coming.clone();
        self.departures.keys().for_each(|(set, _)| _ = coming.entry(*set).or_default());
        let sets = coming.into_iter().map(|(set, coming)| SetCounts {
            set,
            present: base.get(&set).map_or(0, |record| record.files),
            coming,
        });
        let departures = self.departures.iter().map(departure).collect();
        Losses { present, coming: self.new, sets: sets.collect(), departures, released: self.released.clone() }
    }

    /// The sets of the new tree, over those of `base`, with the times of their lists.
    pub(super) fn table(&self, base: &SetTable, lists: &BTreeMap<SetId, Option<Timestamp>>) -> SetTable {
        let mut table = base.clone();
        for (set, growth) in &self.growth {
            let record = table.entry(*set).or_default();
            record.files = record.files.saturating_add_signed(*growth);
        }
        table.retain(|_, record| record.files > 0);
        table.values_mut().for_each(|record| record.at = None);
        lists.iter().for_each(|(set, at)| table.entry(*set).or_default().at = *at);
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
            (0..files).for_each(|_| tally.depart("http://h/", sets.iter().copied().map(set), is_last));
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
        let departures = vec![Departure { set: None, is_last: true, files: 4, digest: 0 }];
        let losses = Losses { present: 9, departures, ..Losses::default() };

        assert_eq!(losses.holding(&Held::Of([set(1)].into())).going(), 4);
        assert_eq!(losses.holding(&Held::All).going(), 0);
    }
}
