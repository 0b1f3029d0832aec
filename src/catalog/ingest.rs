//! Entries as rows of the sorted statement: each thread that enters some has a share of its own.

use super::folders::OpenFolders;
use super::naming::resolve::{path_of_record, within_depth};
use super::sort::{RunLimits, Sorter, SpillFolder};
use super::sort_key::{FIRST_SEEN, push_key, tag};
use super::store::codec::damaged;
use super::store::record::{ResourceRecord, push_resource};
use super::store::symbols::Symbols;
use super::{Catalog, CatalogError, Naming, SetId};
use crate::document::{Entry, PackageMember, Timestamp, Uri};

/// Rows on their way into the sorter, with the folders that they imply.
pub(super) struct Rows {
    pub sorter: Sorter,
    pub folders: OpenFolders,
    path: String,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

/// Entries of a list that one of several threads adds to a baseline.
pub struct Share<'b> {
    pub(super) naming: &'b Naming,
    pub(super) symbols: &'b Symbols,
    pub(super) set: SetId,
    pub(super) rows: Rows,
}

/// A part of what was added to a [`Share`].
pub struct Shared {
    sorter: Sorter,
    newest: Option<Timestamp>,
}

impl<'b> Share<'b> {
    /// `limits` are those of one that sorts alone.
    pub(super) fn new(catalog: &'b Catalog, naming: &'b Naming, set: SetId, limits: RunLimits) -> Share<'b> {
        // There are several at once.
        let limits = RunLimits { bytes: limits.bytes / 4 * 3, ..limits };
        Share { naming, symbols: &catalog.symbols, set, rows: Rows::new(&catalog.spill_folder, limits) }
    }

    /// As [`super::Baseline::add`].
    ///
    /// # Errors
    /// What does not fit into memory could not be spilled (the disk is full): the share is given up.
    pub fn add(&mut self, entry: &Entry) -> Result<(), CatalogError> {
        self.rows.add_file(self.naming, self.symbols, self.set, entry, None)
    }

    /// Everything that was added since the last part.
    ///
    /// # Errors
    /// The rest could not be spilled (the disk is full): the share is given up.
    pub fn part(&mut self) -> Result<Shared, CatalogError> {
        let newest = self.rows.close()?;
        Ok(Shared { sorter: self.rows.sorter.split_off()?, newest })
    }
}

impl Catalog {
    /// For entries that another thread adds; they count as added at [`super::Baseline::join`].
    pub fn share<'c>(&'c self, naming: &'c Naming, set: SetId) -> Share<'c> {
        Share::new(self, naming, set, RunLimits::default())
    }
}

impl Rows {
    pub(super) fn new(spill_folder: &SpillFolder, limits: RunLimits) -> Rows {
        Rows {
            sorter: Sorter::new(spill_folder, limits),
            folders: OpenFolders::new(),
            path: String::new(),
            key: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Adds a file, which `member` of a package may hold.
    pub(super) fn add_file(
        &mut self,
        naming: &Naming,
        symbols: &Symbols,
        set: SetId,
        entry: &Entry,
        member: Option<&PackageMember>,
    ) -> Result<(), CatalogError> {
        let by_rule = self.settle_key(naming, entry);
        self.folders.enter_above(&self.key, &mut self.sorter)?;
        self.folders.see(entry.lastmod.unwrap_or(FIRST_SEEN));
        self.value.clear();
        self.value.push(tag::FILE);
        push_resource(&mut self.value, entry, !by_rule, &[set], member, symbols);
        self.sorter.add(&self.key, &self.value)
    }

    /// Adds what a package holds.
    pub(super) fn add_member(
        &mut self,
        naming: &Naming,
        symbols: &Symbols,
        set: SetId,
        entry: &Entry,
        member: &PackageMember,
    ) -> Result<(), CatalogError> {
        let by_rule = self.settle_key(naming, entry);
        self.value.clear();
        self.value.push(tag::MEMBER);
        push_resource(&mut self.value, entry, !by_rule, &[set], Some(member), symbols);
        self.sorter.add(&self.key, &self.value)
    }

    /// Adds a resource that no list states, `time` its newest: `head` says what states it, and for which `sets`.
    pub(super) fn add_record(
        &mut self,
        uri: &Uri,
        record: &ResourceRecord<'_>,
        sets: &[SetId],
        head: &[u8],
        time: Option<Timestamp>,
        (catalog, naming): (&Catalog, &Naming),
    ) -> Result<(), CatalogError> {
        let found = path_of_record(naming, uri, record, &catalog.symbols);
        let (path, by_rule) = found.ok_or_else(|| damaged("resource", uri.as_str().as_bytes()))?;
        push_key(&mut self.key, &path);
        self.folders.enter_above(&self.key, &mut self.sorter)?;
        self.folders.see(time.unwrap_or(FIRST_SEEN));
        self.value.clear();
        self.value.extend_from_slice(head);
        record.push_belonging((!by_rule).then_some(uri.as_str()), sets, record.member, &mut self.value);
        self.sorter.add(&self.key, &self.value)
    }

    /// Makes the sort key of an entry; answers whether its path gives the URI back.
    fn settle_key(&mut self, naming: &Naming, entry: &Entry) -> bool {
        let by_rule = naming.path_into(&entry.loc, entry.media_type.as_deref(), &mut self.path);
        let (path, whole) = within_depth(&self.path, &entry.loc);
        push_key(&mut self.key, &path);
        by_rule && whole
    }

    /// Leaves all folders; the newest time of everything, `None` where there is nothing.
    pub(super) fn close(&mut self) -> Result<Option<Timestamp>, CatalogError> {
        self.folders.close(&mut self.sorter)
    }

    /// Takes what was added to a share, behind what is here.
    pub(super) fn join(&mut self, Shared { sorter, newest }: Shared) -> Result<(), CatalogError> {
        if let Some(newest) = newest {
            self.folders.see_in_root(newest);
        }
        self.sorter.join(sorter)
    }
}
