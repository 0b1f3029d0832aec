//! Deletions that are held back: of each (set, URI) the time for which its set said that it is gone.

use super::super::keys::statement_set;
use super::super::octets::{Octets, damaged, push_string, push_time, unseal};
use super::super::record::ResourceRecord;
use super::super::{CatalogError, SetId};
use super::changes::HeldDeletion;
use super::locate::locate;
use super::merge::Before;
use crate::document::{Timestamp, Uri};
use std::collections::BTreeSet;

/// What the table has of a deletion.
pub(super) fn encode(time: Timestamp, uri: &Uri, out: &mut Vec<u8>) {
    push_time(out, time);
    push_string(out, uri.as_str());
}

/// The deletion of a row; `None` where it makes no sense.
pub(in crate::catalog) fn decode(key: &[u8], octets: &[u8]) -> Option<HeldDeletion> {
    let mut octets = Octets(octets);
    let time = octets.time()?;
    Some(HeldDeletion { set: statement_set(key)?, uri: Uri::parse(octets.string()?).ok()?, time })
}

/// Is told URI, record and set.
pub(super) type Tell<'t> = dyn FnMut(&Uri, &[u8], SetId) -> Result<(), CatalogError> + 't;

/// Tells of every resource that is held back what it is in the tree, but for what is held of the sets `anew`. Answers the keys
/// of rows that have nothing to hold.
pub(super) fn state(
    before: &Before<'_>,
    anew: &BTreeSet<SetId>,
    tell: &mut Tell<'_>,
) -> Result<Vec<Vec<u8>>, CatalogError> {
    let mut stale = Vec::new();
    let Some(naming) = &before.naming else { return Ok(stale) };
    for pair in before.store.held.iter(before.old)? {
        let (key, sealed) = pair?;
        let sense = || damaged("sense", key);
        let HeldDeletion { set, uri, .. } = decode(key, unseal(key, sealed)?).ok_or_else(sense)?;
        if anew.contains(&set) {
            stale.push(key.to_vec());
            continue;
        }
        let located = locate(before.store, before.old, naming, &uri)?;
        match located {
            Some(located) if ResourceRecord::decode(located.resource).ok_or_else(sense)?.sets.contains(set) => {
                tell(&uri, located.resource, set)?;
            }
            _ => stale.push(key.to_vec()),
        }
    }
    Ok(stale)
}
