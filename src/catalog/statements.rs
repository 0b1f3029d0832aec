//! Statements beyond number: sorted on the disk by what they speak of, so that of each resource of a set the last one counts.

use super::Statement;
use super::journal::Row;
use super::sort::{RunLimits, Sorted, Sorter};
use super::store::codec::{Octets, damaged};
use super::store::keys::{statement_key, statement_set};
use super::{Catalog, CatalogError, Resource, SetId};
use crate::document::{Change, Entry, PackageMember, Timestamp};
use std::sync::Arc;

/// Statements in memory: what else a commit needs is still to come.
const LIMITS: RunLimits = RunLimits { octets: 16 << 20, pairs: 1 << 17, resident: 1 << 20 };

/// What is known of a statement beside what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Of two statements of one resource with equal times the one of the greater order is the later.
    pub order: u64,
    /// Whether it was not known before. A resource of which nothing is new is not told of.
    pub is_new: bool,
    /// Whether it is to be believed only where the resource itself says so too.
    pub is_doubtful: bool,
}

/// Takes statements in any order. Memory: some 20 MiB for any number of them.
pub struct Statements {
    catalog: Arc<Catalog>,
    sorter: Sorter,
    has_doubts: bool,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// Of each resource of each set what was stated last; to be gone through any number of times.
pub struct LastStatements {
    catalog: Arc<Catalog>,
    sorted: Sorted,
    has_doubts: bool,
    /// The last statement of the key that is being read.
    key: Vec<u8>,
    last: Vec<u8>,
}

/// What was stated last of one resource in one set.
#[derive(Debug)]
pub struct LastStatement {
    /// The set.
    pub set: SetId,
    /// What happened.
    pub change: Change,
    /// When.
    pub time: Timestamp,
    /// The entry, as far as the catalog keeps it; of a deletion `loc` alone.
    pub entry: Entry,
    /// Where a package holds the new bytes.
    pub member: Option<PackageMember>,
    /// See [`Standing::is_doubtful`].
    pub is_doubtful: bool,
}

mod flag {
    pub const NEW: u8 = 1;
    pub const DOUBTFUL: u8 = 2;
}

impl Catalog {
    /// Begins to collect statements that are too many for the memory. They are no part of the catalog.
    pub fn statements(self: &Arc<Catalog>) -> Statements {
        let sorter = Sorter::new(&self.spill_folder, LIMITS);
        Statements { catalog: self.clone(), sorter, has_doubts: false, key: Vec::new(), value: Vec::new() }
    }
}

impl Statements {
    /// Adds a statement.
    ///
    /// # Errors
    /// The disk takes no more.
    pub fn add(&mut self, statement: &Statement<'_>, standing: Standing) -> Result<(), CatalogError> {
        let Standing { order, is_new, is_doubtful } = standing;
        self.has_doubts |= is_doubtful;
        self.key.clear();
        self.key.extend_from_slice(&statement_key(statement.set, &statement.entry.loc));
        self.value.clear();
        self.value.push(if is_new { flag::NEW } else { 0 } | if is_doubtful { flag::DOUBTFUL } else { 0 });
        self.value.extend_from_slice(&order.to_be_bytes());
        Row::encode(statement, &self.catalog.symbols, &mut self.value);
        self.sorter.add(&self.key, &self.value)
    }

    /// All were added.
    ///
    /// # Errors
    /// The disk takes no more.
    pub fn finish(self) -> Result<LastStatements, CatalogError> {
        let Statements { catalog, sorter, has_doubts, key, value } = self;
        Ok(LastStatements { catalog, sorted: sorter.finish()?, has_doubts, key, last: value })
    }
}

impl LastStatements {
    /// Whether any statement is to be believed only where the resource itself says so too.
    pub fn has_doubts(&self) -> bool {
        self.has_doubts
    }

    /// Begins again.
    ///
    /// # Errors
    /// What was written cannot be read.
    pub fn rewind(&mut self) -> Result<(), CatalogError> {
        self.sorted.rewind()
    }

    /// The next, set by set; `None` at the end.
    ///
    /// # Errors
    /// What was written cannot be read.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<LastStatement>, CatalogError> {
        loop {
            let Some((key, value)) = self.sorted.peek()? else { return Ok(None) };
            self.key.clear();
            self.key.extend_from_slice(key);
            self.last.clear();
            self.last.extend_from_slice(value);
            let mut is_new = value.first().is_some_and(|flags| flags & flag::NEW != 0);
            self.sorted.next()?;
            while let Some((key, value)) = self.sorted.peek()?.filter(|(key, _)| *key == self.key) {
                is_new |= value.first().is_some_and(|flags| flags & flag::NEW != 0);
                let sense = || damaged("sense", key);
                if moment(value).ok_or_else(sense)? >= moment(&self.last).ok_or_else(sense)? {
                    self.last.clear();
                    self.last.extend_from_slice(value);
                }
                self.sorted.next()?;
            }
            if is_new {
                return self.told().map(Some);
            }
        }
    }

    fn told(&self) -> Result<LastStatement, CatalogError> {
        let sense = || damaged("sense", &self.key);
        let (flags, row) = split(&self.last).ok_or_else(sense)?;
        let set = statement_set(&self.key).ok_or_else(sense)?;
        let row = Row::decode(row).ok_or_else(sense)?;
        let (record, uri) = row.record().ok_or_else(sense)?;
        let resource = record.resource(uri, &self.catalog.symbols).ok_or_else(sense)?;
        let Resource { uri, lastmod, changefreq, length, hashes, media_type, encoding, links, member, .. } = resource;
        let is_doubtful = flags & flag::DOUBTFUL != 0;
        let (change, time, datetime) = (Some(row.change), row.time, row.shown);
        let said = Entry { lastmod, changefreq, change, datetime, hashes, length, ..Entry::new(uri) };
        let entry = Entry { media_type, encoding, links, ..said };
        Ok(LastStatement { set, change: row.change, time, entry, member, is_doubtful })
    }
}

/// The flags of a value, and the row behind its order.
fn split(value: &[u8]) -> Option<(u8, &[u8])> {
    let (flags, rest) = value.split_first()?;
    Some((*flags, rest.get(8..)?))
}

/// The time of a value, then its order.
fn moment(value: &[u8]) -> Option<(Timestamp, u64)> {
    let mut octets = Octets(value.get(1..)?);
    let order = u64::from_be_bytes(octets.take(8)?.try_into().ok()?);
    Some((Row::decode(octets.0)?.time, order))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Algorithm, Digest, Link, Uri};

    fn catalog() -> (tempfile::TempDir, Arc<Catalog>) {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Arc::new(Catalog::open(folder.path(), "a test").unwrap());
        (folder, catalog)
    }

    fn t(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    fn entry(name: &str) -> Entry {
        Entry::new(Uri::parse(&format!("http://h/{name}")).unwrap())
    }

    fn standing(order: u64, is_new: bool) -> Standing {
        Standing { order, is_new, is_doubtful: false }
    }

    #[test]
    fn of_each_resource_of_a_set_the_last_statement_is_told_if_one_of_them_is_new() {
        let (_folder, catalog) = catalog();
        let mut statements = catalog.statements();
        let mut add = |set: u32, name: &str, time: i64, order: u64, is_new: bool, length: u64| {
            let entry = Entry { length: Some(length), ..entry(name) };
            let set = SetId(set);
            let statement = Statement { set, change: Change::Updated, time: t(time), entry: &entry, member: None };
            statements.add(&statement, standing(order, is_new)).unwrap();
        };
        add(0, "a", 2, 0, true, 1);
        add(0, "a", 1, 9, true, 2);
        add(1, "a", 3, 0, true, 3);
        add(0, "same-time", 5, 7, true, 4);
        add(0, "same-time", 5, 6, true, 5);
        add(0, "known", 9, 1, false, 6);
        add(0, "known-and-new", 9, 1, false, 7);
        add(0, "known-and-new", 8, 2, true, 8);
        let mut last = statements.finish().unwrap();

        for _ in 0..2 {
            let mut told = Vec::new();
            while let Some(it) = last.next().unwrap() {
                told.push((it.set.0, it.entry.loc.path()[1..].to_owned(), it.time.seconds, it.entry.length.unwrap()));
            }
            told.sort();
            let expected = [(0, "a", 2, 1), (0, "known-and-new", 9, 7), (0, "same-time", 5, 4), (1, "a", 3, 3)];
            assert_eq!(told, expected.map(|(set, name, time, length)| (set, name.to_owned(), time, length)));
            last.rewind().unwrap();
        }
    }

    #[test]
    fn an_entry_comes_back_as_it_was_said() {
        let (_folder, catalog) = catalog();
        let entry = Entry {
            lastmod: Some(t(7)),
            change: Some(Change::Created),
            datetime: Some(t(8)),
            hashes: vec![Digest::new(Algorithm::Md5, &[3; 16]).unwrap()],
            length: Some(5),
            media_type: Some("text/plain".into()),
            encoding: Some("gzip".into()),
            links: vec![Link::new("describedby", Uri::parse("http://h/record").unwrap())],
            ..entry("a")
        };
        let member = PackageMember { package: entry.loc.clone(), path: "in/a".into() };
        let mut statements = catalog.statements();
        let said =
            Statement { set: SetId(3), change: Change::Created, time: t(9), entry: &entry, member: Some(&member) };
        statements.add(&said, Standing { is_doubtful: true, ..standing(0, true) }).unwrap();

        let mut last = statements.finish().unwrap();
        let told = last.next().unwrap().unwrap();

        assert!(last.has_doubts());
        assert_eq!((told.set, told.change, told.time, told.is_doubtful), (SetId(3), Change::Created, t(9), true));
        assert_eq!((told.entry, told.member), (entry, Some(member)));
        assert!(last.next().unwrap().is_none());
    }
}
