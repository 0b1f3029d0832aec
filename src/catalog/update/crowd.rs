//! Paths that more URIs share than are shown: of each the first by their URIs are, the others are left out.

use super::super::CatalogError;
use super::super::octets::{Octets, damaged, push_string, push_varint};
use super::super::record::ResourceRecord;
use super::super::store::meta;
use crate::document::Uri;
use std::collections::BTreeMap;

/// URIs of one path, and octets of these and of what is said of them, that are shown. URIs share a path where they differ by
/// scheme or by which of their reserved characters are escaped: of honest ones there are a few.
pub(super) const MOST_URIS: usize = if cfg!(test) { 5_000 } else { 10_000 };
pub(super) const MOST_OCTETS: usize = 32 << 20;

/// Counts the URIs of one path, in their order: all are shown up to the first that does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fitting {
    uris: usize,
    octets: usize,
}

impl Fitting {
    /// Whether the next URI is shown. The first one is, however much is said of it.
    pub(super) fn takes(&mut self, uri: &str, record: &ResourceRecord<'_>) -> bool {
        let octets = self.octets.saturating_add(uri.len() + record.said());
        let fits = self.uris == 0 || self.uris < MOST_URIS && octets <= MOST_OCTETS;
        if fits {
            (self.uris, self.octets) = (self.uris + 1, octets);
        }
        fits
    }

    /// Whether there may be room now for one that did not fit beside `before`.
    pub(super) fn has_more_room_than(&self, before: &Fitting) -> bool {
        self.takes_more_uris() && (self.uris < before.uris || self.octets < before.octets)
    }

    /// Whether it is for their octets alone that others do not fit.
    pub(super) fn takes_more_uris(&self) -> bool {
        self.uris < MOST_URIS
    }
}

/// What is left out of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Crowd {
    /// The first that is not shown by the order of URIs. All that are before it are.
    pub first: Box<str>,
    /// How many entries are not shown, one that several lists have counted for each: as of the last baseline, and those that changes
    /// have pushed out since.
    pub entries: u64,
}

/// The paths of a revision of which something is left out. Each takes a large part of what is stated altogether: there are few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::catalog) struct Crowds(pub(super) BTreeMap<String, Crowd>);

impl Crowds {
    /// From what [`Crowds::encode`] wrote; from nothing there are none.
    pub(in crate::catalog) fn decode(octets: &[u8]) -> Result<Crowds, CatalogError> {
        let sense = || damaged("sense", meta::CROWDS);
        let (mut octets, mut crowds) = (Octets(octets), BTreeMap::new());
        while !octets.0.is_empty() {
            let path = octets.string().ok_or_else(sense)?.to_owned();
            let first = octets.string().ok_or_else(sense)?.into();
            crowds.insert(path, Crowd { first, entries: octets.varint().ok_or_else(sense)? });
        }
        Ok(Crowds(crowds))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for (path, Crowd { first, entries }) in &self.0 {
            push_string(out, path);
            push_string(out, first);
            push_varint(out, *entries);
        }
    }

    /// The path of each, and how many entries are left out.
    pub(in crate::catalog) fn told(self) -> impl Iterator<Item = (String, u64)> {
        self.0.into_iter().map(|(path, crowd)| (path, crowd.entries))
    }

    /// The path whose URIs are shown up to this one.
    pub(super) fn path_behind(&self, first: &Uri) -> Option<&str> {
        self.0.iter().find(|(_, crowd)| *crowd.first == *first.as_str()).map(|(path, _)| &**path)
    }

    /// Tells of those that were not among `before`.
    pub(super) fn warn(&self, before: &Crowds) {
        for (path, Crowd { entries, .. }) in self.0.iter().filter(|(path, _)| !before.0.contains_key(*path)) {
            tracing::warn!(
                path,
                entries,
                "more than {MOST_URIS} URIs, or {MOST_OCTETS} octets, are stated for one path: the first by their URIs are shown"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_comes_back_as_it_was_written() {
        let crowd = |first: &str, entries| Crowd { first: first.into(), entries };
        let crowds = Crowds(BTreeMap::from([
            ("a/b".into(), crowd("http://h/a%2Cb", 1)),
            ("c".into(), crowd("http://h/c", 1 << 40)),
        ]));
        let mut octets = Vec::new();
        crowds.encode(&mut octets);

        assert_eq!(Crowds::decode(&octets).unwrap(), crowds);
        assert_eq!(Crowds::decode(&[]).unwrap(), Crowds::default());
        assert!(Crowds::decode(&octets[..octets.len() - 1]).is_err());
    }
}
