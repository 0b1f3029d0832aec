//! What lists say in vain, because changes have overtaken it: noted on the disk, sorted as the statement is, and read along
//! with it. In memory is what concerns one path.

use super::sort::BESIDE_A_LIST;
use super::sort::{Sorted, Sorter, SpillFolder};
use super::sort_key::tag;
use super::sort_key::{for_folders_above, push_above};
use super::store::codec::damaged;
use super::store::record::ResourceRecord;
use super::{CatalogError, SetId};
use std::cmp::Ordering;
use std::collections::HashSet;
use xxhash_rust::xxh3::xxh3_128;

/// What changes have overtaken, as it becomes known.
pub(super) struct Noted {
    folder: SpillFolder,
    /// Digests of (set, resource) by the path that a list gives it.
    resources: Sorter,
    /// Folders in which a list says in vain that something is, twice: to be read along with folders, and with what lies in them.
    folders: [Sorter; 2],
    scratch: Vec<u8>,
}

/// The same, to be read along with the statement.
pub(super) struct Overtaken {
    folder: SpillFolder,
    resources: Along,
    /// The digests of one path.
    here: HashSet<u128>,
    folders: [Along; 2],
    /// Those folders that hold something all the same.
    held: Option<Along>,
    scratch: Vec<u8>,
}

/// A sorted stream that is read up to one key after the other, ascending.
struct Along {
    sorted: Sorted,
    key: Vec<u8>,
}

impl Noted {
    /// Spills into `folder`.
    pub(super) fn new(folder: &SpillFolder) -> Noted {
        let sorter = || Sorter::new(folder, BESIDE_A_LIST);
        Noted { folder: folder.clone(), resources: sorter(), folders: [sorter(), sorter()], scratch: Vec::new() }
    }

    /// The list of `set` does not count for the resource that lies at `path` (a sort key) and is known there by its scheme, or by
    /// its URI.
    pub(super) fn add(&mut self, set: SetId, path: &[u8], https: bool, uri: Option<&str>) -> Result<(), CatalogError> {
        let digest = digest(&mut self.scratch, set, https, uri);
        self.resources.add(path, &digest.to_be_bytes())
    }

    /// Nothing takes the place of what a list says of `path`: the folders above may hold nothing any more.
    pub(super) fn add_gone(&mut self, path: &[u8]) -> Result<(), CatalogError> {
        let (folders, scratch) = (&mut self.folders, &mut self.scratch);
        for_folders_above(path, scratch, |key| folders.iter_mut().try_for_each(|sorter| sorter.add(key, &[])))
    }

    /// All is noted.
    pub(super) fn finish(self) -> Result<Overtaken, CatalogError> {
        let Noted { folder, resources, folders: [folders, those_above], scratch } = self;
        Ok(Overtaken {
            folder,
            resources: Along::new(resources)?,
            here: HashSet::new(),
            folders: [Along::new(folders)?, Along::new(those_above)?],
            held: None,
            scratch,
        })
    }
}

impl Overtaken {
    /// Reads the whole stream, to learn which folders hold nothing. Answers the stream at its beginning; all is ready to be
    /// asked along with it.
    pub(super) fn find_empty_folders(&mut self, mut sorted: Sorted) -> Result<Sorted, CatalogError> {
        self.held = None;
        self.rewind()?;
        if !self.folders[0].is_empty()? {
            let mut held = Sorter::new(&self.folder, BESIDE_A_LIST);
            let (mut scratch, mut above) = (Vec::new(), Vec::new());
            while let Some((key, value)) = sorted.next()? {
                let stated = match value.split_first() {
                    Some((&tag::FILE, resource)) => {
                        let record = ResourceRecord::decode(resource).ok_or_else(|| damaged("resource", key))?;
                        !self.contains(key, &record)?
                    }
                    Some((&tag::CHANGE | &tag::KEPT, _)) => true,
                    // A folder that holds something stands for itself in the one above.
                    Some((&tag::FOLDER, _)) => !self.folders[0].reach(key)?,
                    _ => false,
                };
                if stated && push_above(key, &mut above) && self.folders[1].reach(&above)? {
                    held.add(&above, &[])?;
                    for_folders_above(&above, &mut scratch, |key| held.add(key, &[]))?;
                }
            }
            self.held = Some(Along::new(held)?);
            self.rewind()?;
        }
        sorted.again_with(None)
    }

    fn rewind(&mut self) -> Result<(), CatalogError> {
        self.here.clear();
        self.resources.rewind()?;
        self.folders.iter_mut().try_for_each(Along::rewind)
    }

    /// Whether nothing is left in the folder at `path`. Paths are asked for in the order of the stream.
    pub(super) fn is_empty(&mut self, path: &[u8]) -> Result<bool, CatalogError> {
        let Some(held) = &mut self.held else { return Ok(false) };
        Ok(self.folders[0].reach(path)? && !held.reach(path)?)
    }

    /// Whether what a list says of a resource at `path` is said in vain. Paths are asked for in the order of the stream.
    pub(super) fn contains(&mut self, path: &[u8], record: &ResourceRecord<'_>) -> Result<bool, CatalogError> {
        if self.resources.key != path {
            self.here.clear();
            if self.resources.reach(path)? {
                let sense = || damaged("digest", path);
                while let Some(value) = self.resources.next_here()? {
                    self.here.insert(u128::from_be_bytes(value.try_into().map_err(|_| sense())?));
                }
            }
        }
        if self.here.is_empty() {
            return Ok(false);
        }
        let Some(set) = record.sets.iter().next() else { return Ok(false) };
        let digest = digest(&mut self.scratch, set, record.https, record.uri);
        Ok(self.here.contains(&digest))
    }
}

impl Along {
    fn new(sorter: Sorter) -> Result<Along, CatalogError> {
        Ok(Along { sorted: sorter.finish()?, key: Vec::new() })
    }

    fn rewind(&mut self) -> Result<(), CatalogError> {
        self.key.clear();
        self.sorted.rewind()
    }

    fn is_empty(&mut self) -> Result<bool, CatalogError> {
        Ok(self.sorted.peek()?.is_none())
    }

    /// Goes on to `key`; whether it is there.
    fn reach(&mut self, key: &[u8]) -> Result<bool, CatalogError> {
        self.key.clear();
        self.key.extend_from_slice(key);
        while let Some((next, _)) = self.sorted.peek()? {
            match next.cmp(key) {
                Ordering::Less => self.sorted.next()?,
                Ordering::Equal => return Ok(true),
                Ordering::Greater => return Ok(false),
            };
        }
        Ok(false)
    }

    /// The next value of the key that was reached.
    fn next_here(&mut self) -> Result<Option<&[u8]>, CatalogError> {
        match self.sorted.peek()? {
            Some((key, _)) if key == self.key => Ok(self.sorted.next()?.map(|(_, value)| value)),
            _ => Ok(None),
        }
    }
}

/// What stands for a resource of a set among those of one path.
fn digest(scratch: &mut Vec<u8>, set: SetId, https: bool, uri: Option<&str>) -> u128 {
    scratch.clear();
    scratch.extend_from_slice(&set.0.to_be_bytes());
    scratch.push(uri.map_or(u8::from(https), |_| 2));
    scratch.extend_from_slice(uri.unwrap_or_default().as_bytes());
    xxh3_128(scratch)
}

#[cfg(test)]
mod tests {
    use super::super::sort_key::push_key;
    use super::super::store::record::push_resource;
    use super::super::store::symbols::Symbols;
    use super::*;
    use crate::document::{Entry, Uri};

    const SET: SetId = SetId(3);

    fn key(path: &str) -> Vec<u8> {
        let mut key = Vec::new();
        push_key(&mut key, path);
        key
    }

    /// Folder and file of each number: of every third folder the one file is gone, of every sixth there is another.
    #[test]
    fn of_all_that_is_overtaken_one_path_is_held_in_memory_and_empty_folders_are_found() {
        const FOLDERS: u32 = 3000;
        let folder = tempfile::tempdir().unwrap();
        let symbols = Symbols::decode(&[]).unwrap();
        let mut noted = Noted::new(&SpillFolder::new(folder.path()));
        let mut sorter = Sorter::new(&SpillFolder::new(folder.path()), BESIDE_A_LIST);
        let mut file = Vec::new();
        push_resource(&mut file, &Entry::new(Uri::parse("http://h/x").unwrap()), false, &[SET], None, &symbols);
        file.insert(0, tag::FILE);
        sorter.add(&key("deep"), &[tag::FOLDER]).unwrap();
        for number in 0..FOLDERS {
            sorter.add(&key(&format!("deep/{number}")), &[tag::FOLDER]).unwrap();
            sorter.add(&key(&format!("deep/{number}/a")), &file).unwrap();
            if number % 6 == 0 {
                sorter.add(&key(&format!("deep/{number}/b")), &file).unwrap();
            }
            if number % 3 == 0 {
                let path = key(&format!("deep/{number}/a"));
                noted.add(SET, &path, false, None).unwrap();
                noted.add_gone(&path).unwrap();
            }
        }
        let mut overtaken = noted.finish().unwrap();
        let mut sorted = overtaken.find_empty_folders(sorter.finish().unwrap()).unwrap();

        let (mut empty, mut in_vain, mut most) = (0, 0, 0);
        while let Some((key, value)) = sorted.next().unwrap() {
            match value.split_first() {
                Some((&tag::FOLDER, _)) => empty += u32::from(overtaken.is_empty(key).unwrap()),
                Some((_, resource)) => {
                    let record = ResourceRecord::decode(resource).unwrap();
                    in_vain += u32::from(overtaken.contains(key, &record).unwrap());
                }
                None => unreachable!(),
            }
            most = most.max(overtaken.here.len());
        }

        assert_eq!((empty, in_vain), (FOLDERS / 6, FOLDERS / 3));
        assert_eq!(most, 1);
        let in_memory = |along: &Along| along.sorted.octets_in_memory();
        let held = overtaken.held.as_ref().map_or(0, in_memory);
        let all = in_memory(&overtaken.resources) + overtaken.folders.iter().map(in_memory).sum::<usize>() + held;
        assert!(all <= 4 * BESIDE_A_LIST.resident, "{all} octets");
    }
}
