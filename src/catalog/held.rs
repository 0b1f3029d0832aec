//! Deletions that are held back: of each (set, URI) the time for which its set said that it is gone.

use super::HeldDeletion;
use super::naming::locate::locate;
use super::revision::Before;
use super::sort::BESIDE_A_LIST;
use super::sort::{Sorted, Sorter, SpillFolder};
use super::store::codec::{Octets, damaged, push_string, push_time, unseal};
use super::store::keys::statement_set;
use super::store::record::ResourceRecord;
use super::{CatalogError, SetId};
use crate::document::{Timestamp, Uri};
use std::collections::BTreeSet;

/// What the table has of a deletion.
pub(super) fn encode(time: Timestamp, uri: &Uri, out: &mut Vec<u8>) {
    push_time(out, time);
    push_string(out, uri.as_str());
}

/// The deletion of a row; `None` where it makes no sense.
pub(super) fn decode(key: &[u8], octets: &[u8]) -> Option<HeldDeletion> {
    let mut octets = Octets(octets);
    let time = octets.time()?;
    Some(HeldDeletion { set: statement_set(key)?, uri: Uri::parse(octets.string()?).ok()?, time })
}

/// Is told URI, record and set.
pub(super) type Tell<'t> = dyn FnMut(&Uri, &[u8], SetId) -> Result<(), CatalogError> + 't;

/// Tells of every resource that is held back what it is in the tree, but for what is held of the sets `anew`. Answers the keys
/// of rows that have nothing to hold, which may be as many as there are files.
pub(super) fn state(
    before: &Before<'_>,
    anew: &BTreeSet<SetId>,
    spill_folder: &SpillFolder,
    tell: &mut Tell<'_>,
) -> Result<Sorted, CatalogError> {
    let mut stale = Sorter::new(spill_folder, BESIDE_A_LIST);
    let Some(naming) = &before.naming else { return stale.finish() };
    for pair in before.store.held.iter(before.old)? {
        let (key, sealed) = pair?;
        let sense = || damaged("sense", key);
        let HeldDeletion { set, uri, .. } = decode(key, unseal(key, sealed)?).ok_or_else(sense)?;
        if anew.contains(&set) {
            stale.add(key, &[])?;
            continue;
        }
        let located = locate(before.store, before.old, naming, &uri)?;
        match located {
            Some(located) if ResourceRecord::decode(located.resource).ok_or_else(sense)?.sets.contains(set) => {
                tell(&uri, located.resource, set)?;
            }
            _ => stale.add(key, &[])?,
        }
    }
    stale.finish()
}

#[cfg(test)]
mod tests {
    use super::super::Held;
    use super::super::store::Store;
    use super::super::tests::{entry, naming, open};
    use super::*;

    #[test]
    fn what_was_held_of_a_set_that_is_decided_anew_is_not_held_in_memory() {
        const HELD: usize = 1000;
        let folder = tempfile::tempdir().unwrap();
        let catalog = open(folder.path());
        for last in [HELD, 0] {
            let mut baseline = catalog.baseline(naming()).unwrap();
            for number in 0..=last {
                baseline.add(&entry(&format!("http://h/{number}"))).unwrap();
            }
            baseline.commit_guarded(None, &mut |_| (Held::All, Vec::new())).unwrap();
        }
        let store: std::sync::Arc<Store> = catalog.store();
        let old = store.env.read_txn().unwrap();
        let before = Before::read(&store, &old).unwrap();

        let anew = BTreeSet::from([SetId::default()]);
        let mut stale = state(&before, &anew, &catalog.spill_folder, &mut |_, _, _| Ok(())).unwrap();

        assert!(stale.octets_in_memory() <= BESIDE_A_LIST.resident, "{}", stale.octets_in_memory());
        let mut told = 0;
        while stale.next().unwrap().is_some() {
            told += 1;
        }
        assert_eq!(told, HELD);
    }
}
