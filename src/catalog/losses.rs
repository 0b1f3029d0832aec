//! What a commit would take away, counted for the decision whether it may.

use super::SetId;
use super::store::record::Sets;
use super::store::sets::SetTable;
use super::{Losses, SetLoss};
use crate::document::Timestamp;

/// Counts the files of a new tree, and those of them that were there before.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Files that were there before.
    kept: u64,
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
        match before {
            Some(_) => self.kept += 1,
            None => self.coming += 1,
        }
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

    /// What the new tree lacks of the `present` files of the one before, whose sets are `before`.
    pub(super) fn losses(&self, present: u64, before: &SetTable) -> Losses {
        let mut sets: Vec<SetId> = before.iter().map(|record| record.set).collect();
        sets.extend(self.sets.iter().map(|tally| tally.set));
        sets.sort_unstable();
        sets.dedup();
        let losses = sets.into_iter().map(|set| {
            let present = before.files(set);
            let tally = self.sets.binary_search_by_key(&set, |tally| tally.set).ok().map(|place| &self.sets[place]);
            let (files, kept) = tally.map_or((0, 0), |tally| (tally.files, tally.kept));
            SetLoss { set, present, going: present.saturating_sub(kept), coming: files - kept }
        });
        Losses {
            present,
            going: present.saturating_sub(self.kept),
            coming: self.coming,
            sets: losses.filter(|loss| loss.going > 0 || loss.coming > 0).collect(),
        }
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
