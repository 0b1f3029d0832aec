//! What was seen of change documents: the digests of their entries, each document's in its own order.

use crate::document::{Digest, Entry, Link, PackageMember, Timestamp};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::collections::HashMap;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// XXH3 over all that an entry says of its change; `scratch` is for reuse.
pub fn digest(entry: &Entry, member: Option<&PackageMember>, scratch: &mut Vec<u8>) -> u64 {
    scratch.clear();
    push_text(scratch, Some(entry.loc.as_str()));
    push_text(scratch, entry.change.map(|change| change.as_str()));
    push_time(scratch, entry.datetime);
    push_time(scratch, entry.lastmod);
    push_hashes(scratch, &entry.hashes);
    push_number(scratch, entry.length);
    push_text(scratch, entry.media_type.as_deref());
    push_text(scratch, entry.encoding.as_deref());
    push_text(scratch, entry.path.as_deref());
    push_text(scratch, member.map(|member| member.package.as_str()));
    push_text(scratch, member.map(|member| &*member.path));
    entry.links.iter().for_each(|link| push_link(scratch, link));
    xxh3_64(scratch)
}

fn push_link(octets: &mut Vec<u8>, link: &Link) {
    push_text(octets, Some(&link.rel));
    push_text(octets, Some(&link.href.to_string()));
    push_number(octets, Some(u64::from(link.pri)));
    push_text(octets, link.media_type.as_deref());
    push_text(octets, link.encoding.as_deref());
    push_number(octets, link.length);
    push_hashes(octets, &link.hashes);
    push_time(octets, link.modified);
    push_text(octets, link.path.as_deref());
}

/// The length goes first, so that neighbours cannot be mistaken for one another; absent is not the same as empty.
fn push_text(octets: &mut Vec<u8>, text: Option<&str>) {
    push_number(octets, text.map(|text| text.len() as u64));
    octets.extend_from_slice(text.unwrap_or_default().as_bytes());
}

fn push_number(octets: &mut Vec<u8>, number: Option<u64>) {
    octets.push(u8::from(number.is_some()));
    octets.extend_from_slice(&number.unwrap_or(0).to_le_bytes());
}

fn push_time(octets: &mut Vec<u8>, time: Option<Timestamp>) {
    push_number(octets, time.map(|time| time.seconds as u64));
    octets.extend_from_slice(&time.map_or(0, |time| time.nanos).to_le_bytes());
}

fn push_hashes(octets: &mut Vec<u8>, hashes: &[Digest]) {
    push_number(octets, Some(hashes.len() as u64));
    for hash in hashes {
        push_text(octets, Some(hash.algorithm().name()));
        octets.extend_from_slice(hash.octets());
    }
}

/// Digests of the entries of one document, in its order; stored as base64 of little-endian numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digests(pub Arc<[u64]>);

impl Serialize for Digests {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let octets: Vec<u8> = self.0.iter().flat_map(|digest| digest.to_le_bytes()).collect();
        serializer.serialize_str(&STANDARD_NO_PAD.encode(octets))
    }
}

impl<'de> Deserialize<'de> for Digests {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digests, D::Error> {
        let text = String::deserialize(deserializer)?;
        let octets = STANDARD_NO_PAD.decode(text).map_err(D::Error::custom)?;
        let (digests, rest) = octets.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(D::Error::custom("cut within a digest"));
        }
        Ok(Digests(digests.iter().map(|digest| u64::from_le_bytes(*digest)).collect()))
    }
}

/// All that was seen of the documents of one root.
#[derive(Debug, Default)]
pub struct Seen {
    /// Ascending.
    everywhere: Vec<u64>,
    documents: HashMap<String, Arc<[u64]>>,
}

impl Seen {
    /// What was seen of each document, by its location.
    pub fn of<'d>(documents: impl Iterator<Item = (&'d str, &'d Digests)>) -> Seen {
        let mut seen = Seen::default();
        for (location, digests) in documents {
            seen.everywhere.extend_from_slice(&digests.0);
            seen.documents.insert(location.to_owned(), digests.0.clone());
        }
        seen.everywhere.sort_unstable();
        seen
    }

    /// Whether any of the documents had such an entry.
    pub fn anywhere(&self, digest: u64) -> bool {
        self.everywhere.binary_search(&digest).is_ok()
    }

    /// The digests of the document at `location`; none where it was never read.
    pub fn of_document(&self, location: &str) -> Arc<[u64]> {
        self.documents.get(location).cloned().unwrap_or_default()
    }
}

/// Tells, entry by entry, whether a document goes on as it was at the last look: its entries in the order that they had, the
/// oldest perhaps dropped, and only then what is new.
///
/// What was met of the document is looked for among the entries before as by Knuth, Morris and Pratt, for the text grows at
/// one end only: however often entries repeat, each is gone over a fixed number of times.
#[derive(Debug)]
pub struct Comparison {
    before: Arc<[u64]>,
    /// The first place in `before` where the document may begin now, all entries met so far being in line.
    begins: usize,
    /// For each entry met, how many of the entries up to it the document begins with once more.
    borders: Vec<u32>,
    /// Whether entries may still be in line: neither was all of `before` met, nor what is not in it.
    is_open: bool,
    /// Whether all of `before` was met in line.
    is_passed: bool,
}

impl Comparison {
    /// A comparison with the entries that a document had `before`.
    pub fn with(before: Arc<[u64]>) -> Comparison {
        Comparison { before, begins: 0, borders: Vec::new(), is_open: true, is_passed: false }
    }

    /// How many entries the document begins with that were the last ones before; `None` where it does not go on there.
    pub fn overlap(&self) -> Option<usize> {
        self.is_passed.then_some(self.borders.len())
    }

    /// Whether the next entry of the document is in line, and so was there before.
    pub fn meets(&mut self, digest: u64) -> bool {
        if !self.is_open {
            return false;
        }
        // Of the entries met each lies `begins` behind its place in the document.
        let (met, begun) = (self.borders.len(), self.begins);
        let entry = |place: usize| if place == met { digest } else { self.before[begun + place] };
        let (mut at, mut in_line) = (begun + met, met);
        while in_line <= met {
            match self.before.get(at) {
                None => {
                    self.is_open = false;
                    return false;
                }
                Some(before) if *before == entry(in_line) => (at, in_line) = (at + 1, in_line + 1),
                Some(_) if in_line == 0 => at += 1,
                Some(_) => in_line = self.borders[in_line - 1] as usize,
            }
        }
        let mut border = self.borders.last().map_or(0, |border| *border as usize);
        while border > 0 && entry(border) != digest {
            border = self.borders[border - 1] as usize;
        }
        border += usize::from(met > 0 && entry(border) == digest);
        self.borders.push(border as u32);
        self.begins = at - in_line;
        self.is_passed = at == self.before.len();
        self.is_open = !self.is_passed;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`Comparison`] stands for, place by place: whether each entry is in line, and the overlap in the end.
    fn by_definition(before: &[u64], document: &[u64]) -> (Vec<bool>, Option<usize>) {
        let mut told = Vec::new();
        for met in 1..=document.len() {
            let begins = (0..before.len()).find(|begin| before[*begin..].starts_with(&document[..met]));
            told.push(begins.is_some());
            if begins.is_some_and(|begin| begin + met == before.len()) {
                told.resize(document.len(), false);
                return (told, Some(met));
            }
        }
        (told, None)
    }

    fn by_comparison(before: &[u64], document: &[u64]) -> (Vec<bool>, Option<usize>) {
        let mut comparison = Comparison::with(before.into());
        let told = document.iter().map(|digest| comparison.meets(*digest)).collect();
        (told, comparison.overlap())
    }

    #[test]
    fn where_a_document_goes_on_is_found_whatever_repeats_in_it() {
        // Every document of up to six entries before, and of up to six now, of two that differ.
        let documents: Vec<Vec<u64>> = (0..=6)
            .flat_map(|length| (0..1_u64 << length).map(move |bits| (0..length).map(|at| bits >> at & 1).collect()))
            .collect();

        for before in &documents {
            for now in &documents {
                assert_eq!(by_comparison(before, now), by_definition(before, now), "{before:?}, {now:?}");
            }
        }
    }

    #[test]
    fn a_document_of_one_entry_again_and_again_is_compared_in_one_pass() {
        let before = vec![1; 300_000];
        let mut now = before.clone();
        now.push(1);

        let (told, overlap) = by_comparison(&before, &now);

        assert_eq!((overlap, told.last()), (Some(300_000), Some(&false)));
        let dropped = by_comparison(&before, &[1, 1, 2]);
        assert_eq!(dropped, (vec![true, true, false], None));
    }
}
