//! New changes on their way from their documents into commits: sorted by resource first, then by time. However many they are, memory is
//! bounded.

use super::journal::ChangeRow;
use super::sort::{Sorted, Sorter};
use super::store::Lookup;
use super::store::codec::{damaged, pack, unpack};
use super::store::keys::resource_key;
use super::{Catalog, CatalogError, SetId, StatedChange};
use crate::document::{Change, Entry, PackageMember, Timestamp};
use serde::{Deserialize, Serialize};

/// Bytes in memory, at most.
const IN_MEMORY: usize = 16 << 20;

/// One change that was not known before, the last of its resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewChange {
    /// The kind of change; an entry that does not say is an update.
    pub change: Change,
    /// When, as well as can be known.
    pub time: Timestamp,
    /// The entry.
    pub entry: Entry,
    /// The package member with the new bytes.
    pub member: Option<PackageMember>,
}

/// Entries of change documents, each with a note, in any order.
pub struct Notes(Sorter);

/// Notes by set and resource; those of one resource in the order in which they were added.
pub struct SortedNotes(Sorted);

/// The rank of a change in time: its time, then the number of its document, then its position in it.
pub type ChangeRank = (Timestamp, u32, u64);

/// New changes in any order.
pub struct News(Sorter);

/// New changes in order of time.
pub struct SortedNews(Sorted);

impl Catalog {
    /// Notes for the entries of change documents.
    pub fn notes(&self) -> Notes {
        Notes(Sorter::new(&self.spill_folder, IN_MEMORY))
    }
}

impl Notes {
    /// Adds an entry of `set`; without its row where `is_known` says that it never becomes news.
    ///
    /// # Errors
    /// The disk is full.
    pub fn add(
        &mut self,
        set: SetId,
        (entry, member): (&Entry, Option<&PackageMember>),
        note: &impl Serialize,
        is_known: bool,
    ) -> Result<(), CatalogError> {
        let (change, time) = (entry.change.unwrap_or(Change::Updated), Timestamp { seconds: 0, nanos: 0 });
        let stated = StatedChange { set, change, time, is_left_out: false, entry, member };
        let row = if is_known { Vec::new() } else { ChangeRow::of(&stated) };
        self.0.add(&resource_key(set, &entry.loc), &pack(&(set, note, &row[..])))
    }

    /// Adds all notes of `other`, behind those that are here.
    ///
    /// # Errors
    /// As [`Notes::add`].
    pub fn join(&mut self, mut other: Notes) -> Result<(), CatalogError> {
        self.0.join(other.0.split_off()?)
    }

    /// The notes, to be read, and the [`News`] that receive what is new. Nothing is added to the notes any more.
    ///
    /// # Errors
    /// As [`Notes::add`].
    pub fn sorted(mut self) -> Result<(SortedNotes, News), CatalogError> {
        Ok((SortedNotes(self.0.split_off()?.finish()?), News(self.0)))
    }
}

impl SortedNotes {
    /// The next key of a set's resource with what was noted and the row, which is empty where it was left out; `None` at the end.
    pub fn next_note<'n, N: Deserialize<'n>>(&'n mut self) -> Lookup<(&'n [u8], SetId, N, &'n [u8])> {
        let Some((key, value)) = self.0.next()? else { return Ok(None) };
        let (set, note, row) = unpack(value).ok_or_else(|| damaged("note", key))?;
        Ok(Some((key, set, note, row)))
    }
}

impl News {
    /// Adds a change.
    ///
    /// # Errors
    /// The disk is full.
    pub fn add(&mut self, set: SetId, rank: ChangeRank, is_doubtful: bool, row: &[u8]) -> Result<(), CatalogError> {
        let (Timestamp { seconds, nanos }, document, position) = rank;
        let mut key = [0; 24];
        key[..8].copy_from_slice(&((seconds as u64) ^ (1 << 63)).to_be_bytes());
        key[8..12].copy_from_slice(&nanos.to_be_bytes());
        key[12..16].copy_from_slice(&document.to_be_bytes());
        key[16..].copy_from_slice(&position.to_be_bytes());
        self.0.add(&key, &pack(&((seconds, nanos), set, is_doubtful, row)))
    }

    /// The news in order of time. Nothing is added any more.
    ///
    /// # Errors
    /// As [`News::add`].
    pub fn sorted(self) -> Result<SortedNews, CatalogError> {
        self.0.finish().map(SortedNews)
    }
}

impl SortedNews {
    /// The next change of a set, and whether [`News::add`] got it as doubtful; `None` at the end.
    pub fn next_change(&mut self) -> Lookup<(SetId, NewChange, bool)> {
        let Some((key, value)) = self.0.next()? else { return Ok(None) };
        let corrupt = || damaged("news", key);
        let ((seconds, nanos), set, is_doubtful, row): (_, _, _, &[u8]) = unpack(value).ok_or_else(corrupt)?;
        let row = ChangeRow::decode(row).ok_or_else(corrupt)?;
        let (record, uri) = row.record().ok_or_else(corrupt)?;
        let mut resource = record.resource(uri).ok_or_else(corrupt)?;
        let (member, time) = (resource.member.take(), Timestamp { seconds, nanos });
        let entry = Entry { change: Some(row.change), datetime: row.datetime, ..Entry::from(resource) };
        Ok(Some((set, NewChange { change: row.change, time, entry, member }, is_doubtful)))
    }

    /// Begins again with the first.
    ///
    /// # Errors
    /// A spilled run cannot be read.
    pub fn rewind(&mut self) -> Result<(), CatalogError> {
        self.0.rewind()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sort::SpillFolder;
    use super::*;
    use crate::document::{Algorithm, ChangeFrequency, Digest, Link, Uri};

    impl Notes {
        /// Notes of a test, so few that they stay in memory.
        pub fn few() -> Notes {
            Notes(Sorter::new(&SpillFolder::new(std::path::Path::new("/nowhere")), 1 << 20))
        }
    }

    fn uri(name: &str) -> Uri {
        Uri::parse(&format!("http://h/{name}")).unwrap()
    }

    #[test]
    fn entries_leave_as_they_came_and_in_order_of_time() {
        let time = |seconds| Timestamp { seconds, nanos: 5 };
        let hashes = vec![Digest::new(Algorithm::Md5, &[7; 16]).unwrap()];
        let link = Link { pri: 3, hashes: hashes.clone(), modified: Some(time(8)), ..Link::new("via", uri("a/via")) };
        let full = Entry {
            change: Some(Change::Updated),
            datetime: Some(time(9)),
            lastmod: Some(time(7)),
            changefreq: Some(ChangeFrequency::Daily),
            length: Some(12),
            hashes,
            media_type: Some("text/plain".into()),
            encoding: Some("gzip".into()),
            links: vec![link],
            ..Entry::new(uri("a"))
        };
        let bare = Entry { change: Some(Change::Deleted), ..Entry::new(uri("b")) };
        let member = PackageMember { package: uri("p.zip"), path: "x/a".into() };
        let mut notes = Notes::few();
        notes.add(SetId(3), (&full, Some(&member)), &1, false).unwrap();
        notes.add(SetId(4), (&bare, None), &2, false).unwrap();

        let (mut notes, mut news) = notes.sorted().unwrap();
        while let Some((_, set, note, row)) = notes.next_note::<i64>().unwrap() {
            // The later number is the earlier time.
            news.add(set, (time(-note), 0, 0), note == 2, row).unwrap();
        }
        let mut news = news.sorted().unwrap();

        let first = NewChange { change: Change::Deleted, time: time(-2), entry: bare, member: None };
        let second = NewChange { change: Change::Updated, time: time(-1), entry: full, member: Some(member) };
        for _ in 0..2 {
            assert_eq!(news.next_change().unwrap(), Some((SetId(4), first.clone(), true)));
            assert_eq!(news.next_change().unwrap(), Some((SetId(3), second.clone(), false)));
            assert_eq!(news.next_change().unwrap(), None);
            news.rewind().unwrap();
        }
    }
}
