//! The sets of resources that a revision consists of: of each the time of its list, and how many files are members.

use super::super::SetId;
use super::codec::{Decoder, push_time, push_varint};
use crate::document::Timestamp;
use std::collections::BTreeMap;

/// One set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetRecord {
    /// The time that its list speaks for; `None` where it has none, or where there is no list.
    pub at: Option<Timestamp>,
    pub files: u64,
}

/// All sets of a revision, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetTable(pub BTreeMap<SetId, SetRecord>);

impl SetTable {
    /// From what [`SetTable::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Option<SetTable> {
        let (mut bytes, mut sets) = (Decoder(bytes), BTreeMap::new());
        while !bytes.0.is_empty() {
            let (set, files) = (SetId(u32::try_from(bytes.varint()?).ok()?), bytes.varint()?);
            let at = if bytes.byte()? == 0 { None } else { Some(bytes.time()?) };
            sets.insert(set, SetRecord { at, files });
        }
        Some(SetTable(sets))
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        for (set, SetRecord { at, files }) in &self.0 {
            push_varint(out, u64::from(set.0));
            push_varint(out, *files);
            out.push(u8::from(at.is_some()));
            at.iter().for_each(|at| push_time(out, *at));
        }
    }

    /// The set, entered without files where it is new.
    pub fn entry(&mut self, set: SetId) -> &mut SetRecord {
        self.0.entry(set).or_default()
    }

    /// The time that the list of `set` speaks for.
    pub fn at(&self, set: SetId) -> Option<Timestamp> {
        self.0.get(&set).and_then(|record| record.at)
    }

    pub fn files(&self, set: SetId) -> u64 {
        self.0.get(&set).map_or(0, |record| record.files)
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
        let mut bytes = Vec::new();
        sets.encode(&mut bytes);

        assert_eq!(SetTable::decode(&bytes), Some(sets.clone()));
        assert_eq!(sets.0.keys().copied().collect::<Vec<_>>(), [SetId(0), SetId(7)]);
        assert_eq!(SetTable::decode(&bytes[..bytes.len() - 1]), None);
    }
}
