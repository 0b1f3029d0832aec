//! The sets of resources that a revision consists of: of each the time of its list, and how many files are members.

use super::super::SetId;
use super::codec::{Octets, push_time, push_varint};
use crate::document::Timestamp;

/// One set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::catalog) struct SetRecord {
    pub set: SetId,
    /// The time that its list speaks for; `None` where it does not tell, or where there is no list.
    pub at: Option<Timestamp>,
    pub files: u64,
}

/// All sets of a revision, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::catalog) struct SetTable(Vec<SetRecord>);

impl SetTable {
    /// From what [`SetTable::encode`] wrote.
    pub(in crate::catalog) fn decode(octets: &[u8]) -> Option<SetTable> {
        let (mut octets, mut sets) = (Octets(octets), Vec::new());
        while !octets.0.is_empty() {
            let (set, files) = (SetId(u32::try_from(octets.varint()?).ok()?), octets.varint()?);
            let at = if octets.octet()? == 0 { None } else { Some(octets.time()?) };
            sets.push(SetRecord { set, at, files });
        }
        Some(SetTable(sets))
    }

    pub(in crate::catalog) fn encode(&self, out: &mut Vec<u8>) {
        for SetRecord { set, at, files } in &self.0 {
            push_varint(out, u64::from(set.0));
            push_varint(out, *files);
            out.push(u8::from(at.is_some()));
            if let Some(at) = at {
                push_time(out, *at);
            }
        }
    }

    pub(in crate::catalog) fn iter(&self) -> impl Iterator<Item = &SetRecord> {
        self.0.iter()
    }

    /// The set, entered without files where it is new.
    pub(in crate::catalog) fn entry(&mut self, set: SetId) -> &mut SetRecord {
        let place = match self.0.binary_search_by_key(&set, |record| record.set) {
            Ok(place) => place,
            Err(place) => {
                self.0.insert(place, SetRecord { set, at: None, files: 0 });
                place
            }
        };
        &mut self.0[place]
    }

    pub(in crate::catalog) fn get(&self, set: SetId) -> Option<&SetRecord> {
        self.0.binary_search_by_key(&set, |record| record.set).ok().and_then(|place| self.0.get(place))
    }

    /// The time that the list of `set` speaks for.
    pub(in crate::catalog) fn at(&self, set: SetId) -> Option<Timestamp> {
        self.get(set).and_then(|record| record.at)
    }

    pub(in crate::catalog) fn files(&self, set: SetId) -> u64 {
        self.get(set).map_or(0, |record| record.files)
    }

    /// Forgets sets that have neither files nor a list.
    pub(in crate::catalog) fn keep(&mut self, keep: impl Fn(&SetRecord) -> bool) {
        self.0.retain(keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_come_back_in_order() {
        let mut sets = SetTable::default();
        sets.entry(SetId(7)).files = 5;
        sets.entry(SetId(0)).at = Some(Timestamp { seconds: 3, nanos: 0 });
        let mut octets = Vec::new();
        sets.encode(&mut octets);

        assert_eq!(SetTable::decode(&octets), Some(sets.clone()));
        assert_eq!(sets.iter().map(|record| record.set).collect::<Vec<_>>(), [SetId(0), SetId(7)]);
        assert_eq!(SetTable::decode(&octets[..octets.len() - 1]), None);
    }
}
