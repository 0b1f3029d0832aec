//! The walk over the sorted statement and the current revision, folder by folder, level by level.

use super::Committed;
use super::apply::place::{File, Folder, Placer, ReadAhead};
use super::apply::write::{Numbers, Writer};
use super::coming::Coming;
use super::going::{Going, Gone};
use super::journal;
use super::journal::list_at;
use super::journal::{Fate, Speaking};
use super::losses::Tally;
use super::naming::resolve::settled_name;
use super::naming::resolve::uri;
use super::rebuild::rewrite::{REWRITTEN_PART, Rewrite};
use super::revision::Before;
use super::sort::Sorted;
use super::sort_key::slashed;
use super::sort_key::split;
use super::statement::{Held, Path};
use super::store::codec::damaged;
use super::store::keys::statement_key;
use super::store::record::{ResourceRecord, RevisionRecord};
use super::store::{ROOT, Store, TableId, meta};
use super::superseded::Overtaken;
use super::version;
use super::{Catalog, CatalogError, Naming, Totals};
use super::{Departure, Losses};
use crate::document::Timestamp;
use std::collections::BTreeMap;

/// What is stated beside the paths.
#[derive(Clone, Copy)]
pub(super) struct Listing<'a> {
    pub naming: &'a Naming,
    /// The newest `lastmod` of all.
    pub newest: Option<Timestamp>,
    pub at: Option<Timestamp>,
    pub speaking: Speaking<'a>,
}

/// A tree being made of a sorted statement.
pub(super) struct Merge<'o> {
    before: &'o Before<'o>,
    listing: Listing<'o>,
    placer: Placer<'o>,
    /// In the order of the stream.
    coming: Coming,
    left_out: BTreeMap<String, u64>,
    scratch: Vec<u8>,
}

impl<'o> Merge<'o> {
    /// Makes the tree of `before` that of `sorted`, not yet committed. An empty store goes on
    /// from `numbers`, where there are any. What would go is noted in `going`. Into `successor`, where there is one, the tree is
    /// written as a whole.
    ///
    /// The caller holds `catalog.writer`.
    pub(super) fn new(
        catalog: &'o Catalog,
        before: &'o Before<'o>,
        listing: Listing<'o>,
        numbers: Option<Numbers>,
        going: Option<Going>,
        successor: Option<&Store>,
    ) -> Result<Merge<'o>, CatalogError> {
        let Before { store, old, revision, .. } = before;
        let numbers = revision.as_ref().map(Numbers::from).or(numbers).unwrap_or(Numbers::FIRST);
        let mut writer = Writer::new(catalog, store, numbers, revision.is_some(), version::now());
        if revision.is_none() {
            writer.create_root(listing.newest.map_or(writer.now, |newest| newest.min(writer.now)))?;
        }
        if let Some(successor) = successor {
            writer.rewrite(old, Rewrite::new(successor, store, old, &catalog.spill_folder)?)?;
        }
        let placer = Placer {
            catalog,
            store,
            old,
            old_naming: before.naming.as_ref().unwrap_or(listing.naming),
            naming: listing.naming,
            same_naming: before.naming.as_ref().is_none_or(|old| old == listing.naming),
            has_old: revision.is_some(),
            writer,
            folder: Folder::new(ROOT, revision.is_none()),
            totals: Totals { folders: 1, ..Totals::default() },
            tally: Tally::default(),
            going,
            ahead: ReadAhead::default(),
        };
        let (coming, left_out) = (Coming::default(), BTreeMap::new());
        Ok(Merge { before, listing, placer, coming, left_out, scratch: Vec::new() })
    }

    /// Places everything. Lists do not count for what changes have `overtaken`. Breaks off, and answers `false`, where more than
    /// `most` names differ and these are so many of those that came by that the tree is better written as a whole.
    pub(super) fn walk(
        &mut self,
        sorted: &mut Sorted,
        overtaken: &mut Option<Overtaken>,
        most: u64,
    ) -> Result<bool, CatalogError> {
        let mut path = Path::default();
        let Folder { ino, fresh, .. } = self.placer.folder;
        self.placer.enter(ino, fresh)?;
        // The folder whose children come by: depth of the children, path. It begins as the root.
        let mut within = (1, Vec::new());
        while let Some((key, value)) = sorted.next()? {
            if key != path.key {
                self.place(&mut path, &mut within)?;
                path.begin(key);
                let differences = self.placer.writer.differences();
                if differences > most && differences > self.placer.totals.files / REWRITTEN_PART {
                    return Ok(false);
                }
            }
            path.take(value, self.listing.naming, self.listing.speaking.lists, overtaken.as_mut())?;
        }
        self.place(&mut path, &mut within)?;
        self.finish_folder()?;
        Ok(true)
    }

    /// Puts one path into the tree.
    fn place(&mut self, path: &mut Path, within: &mut (u8, Vec<u8>)) -> Result<(), CatalogError> {
        if path.key.is_empty() || (path.folder.is_none() && path.resources().is_empty()) {
            return Ok(());
        }
        if path.left_out() > 0 {
            let slashed = slashed(&path.key[1..]).ok_or_else(|| damaged("path", &path.key))?;
            self.left_out.insert(slashed, path.left_out());
        }
        if !path.is_settled() {
            self.bring_together(path)?;
        }
        let (parent, name) = split(&path.key);
        if parent != (within.0, &within.1) {
            // Each folder holds something, and the stream is sorted by segments: its children come in the order of
            // the folders themselves.
            self.finish_folder()?;
            let (ino, fresh) = self.coming.pop().ok_or_else(|| damaged("order", &path.key))?;
            self.placer.enter(ino, fresh)?;
            within.0 = parent.0;
            within.1.clear();
            within.1.extend_from_slice(parent.1);
        }
        if let Some(newest) = path.folder {
            let (ino, fresh) = self.placer.place_folder(name, newest)?;
            self.coming.push(ino, fresh);
        }
        match path.resources() {
            [] => Ok(()),
            [resource] if path.folder.is_none() => {
                let (resource, changed, updated) = resource.placed();
                self.placer.place_file(File { name, path: &path.key[1..], resource, changed, updated })
            }
            _ => self.settle(name, path),
        }
    }

    /// Brings sets, package members and held deletions into what is stated of a path.
    fn bring_together(&mut self, path: &mut Path) -> Result<(), CatalogError> {
        let Placer { writer, naming, catalog, .. } = &mut self.placer;
        let lists = self.listing.speaking.lists;
        let by_path = slashed(&path.key[1..]);
        path.settle(&catalog.symbols, |record, set, held| {
            let sense = || damaged("resource", record.uri.unwrap_or_default().as_bytes());
            let uri = uri(record, by_path.as_deref().ok_or_else(sense)?, naming).ok_or_else(sense)?;
            let key = statement_key(set, &uri);
            match held {
                Held::Listed => writer.drop_row(TableId::Held, &key),
                Held::New => {
                    let time = list_at(lists, Some(set)).unwrap_or(writer.now);
                    writer.put_held(&key, time, &uri)
                }
            }
        })
    }

    /// Several resources with one path, or one whose path is a folder too: the same names on every machine, whatever
    /// the order and the history.
    fn settle(&mut self, name: &[u8], path: &Path) -> Result<(), CatalogError> {
        let sense = || damaged("path", &path.key);
        let slashed = slashed(&path.key[1..]).ok_or_else(sense)?;
        let name = std::str::from_utf8(name).map_err(|_| sense())?;
        let mut candidates = Vec::with_capacity(path.resources().len());
        for resource in path.resources() {
            let record = ResourceRecord::decode(&resource.octets).ok_or_else(sense)?;
            candidates.push((uri(&record, &slashed, self.listing.naming).ok_or_else(sense)?, record, resource));
        }
        candidates.sort_by(|a, b| a.0.cmp(&b.0));
        for (index, (uri, record, resource)) in candidates.into_iter().enumerate() {
            let (octets, changed, updated) = resource.placed();
            let settled = settled_name(name, index, path.folder.is_some(), &uri);
            if index == 0 && path.folder.is_none() {
                let plain = File { name: settled.as_bytes(), path: &path.key[1..], resource: octets, changed, updated };
                self.placer.place_file(plain)?;
                continue;
            }
            let mut with_uri = std::mem::take(&mut self.scratch);
            with_uri.clear();
            record.push_with_uri(Some(uri.as_str()), &mut with_uri);
            // The URI stands in the record: the path is not asked for it.
            let file = File { name: settled.as_bytes(), path: &[], resource: &with_uri, changed, updated };
            let placed = self.placer.place_file(file);
            self.scratch = with_uri;
            placed?;
        }
        Ok(())
    }

    /// All children have come by: what was not among them goes.
    fn finish_folder(&mut self) -> Result<(), CatalogError> {
        self.placer.remove_others()?;
        self.placer.put_names()
    }

    /// What the new tree lacks of the one before: these `departures`.
    pub(super) fn losses(&self, departures: Vec<Departure>) -> Losses {
        self.placer.tally.losses(self.before.files(), &self.before.sets, departures)
    }

    /// What goes, where it was noted, once everything is placed.
    pub(super) fn gone(&mut self) -> Result<Option<Gone>, CatalogError> {
        self.placer.going.take().map(Going::finish).transpose()
    }

    /// The time of this commit.
    pub(super) fn now(&self) -> Timestamp {
        self.placer.writer.now
    }

    /// How many files were placed.
    pub(super) fn files(&self) -> u64 {
        self.placer.totals.files
    }

    /// Drops the held rows of these keys; to be called before anything is placed, which may hold them anew.
    pub(super) fn drop_held(&mut self, keys: &mut Sorted) -> Result<(), CatalogError> {
        let Placer { writer, .. } = &mut self.placer;
        keys.rewind()?;
        while let Some((key, _)) = keys.next()? {
            writer.drop_row(TableId::Held, key)?;
        }
        Ok(())
    }

    /// Commits the tree with the journal, brought forward by `statements`, and `position`.
    pub(super) fn finish(mut self, position: &[u8], mut statements: Sorted) -> Result<Committed, CatalogError> {
        let Merge { before, listing, .. } = self;
        let Before { store, old, revision, .. } = before;
        self.placer.writer.settle_folders(old)?;
        let changed = self.placer.writer.changed_tree();
        let writer = &mut self.placer.writer;
        journal::brought_forward(store, old, &mut statements, listing.speaking, &mut |key, row, fate| match fate {
            Fate::Stays | Fate::Rests { is_new: false } if !writer.is_rewrite() => Ok(()),
            Fate::Stays | Fate::New | Fate::Rests { .. } => writer.put_row(TableId::Journal, key, row),
            Fate::Goes => writer.drop_row(TableId::Journal, key),
        })?;
        // Rows of the journal name symbols too.
        let wrote = writer.changed();
        let all = writer.is_rewrite();
        let next = match revision {
            Some(before) if !changed => RevisionRecord { at: listing.at, ..*before },
            _ => writer.next_revision(listing.at, self.placer.totals),
        };
        if all || *revision != Some(next) {
            writer.put_revision(&next)?;
        }
        if all || store.meta(old, meta::POSITION)? != Some(position) {
            writer.put_position(position)?;
        }
        let sets = self.placer.tally.table(listing.speaking.lists);
        if all || sets != before.sets {
            writer.put_sets(&sets)?;
        }
        if all || revision.is_none() || !self.placer.same_naming {
            writer.put_naming(listing.naming)?;
        }
        if wrote {
            writer.put_symbols()?;
            writer.drop_forgotten()?;
        }
        Ok(Committed { left_out: self.left_out, ..self.placer.writer.commit()? })
    }
}
