//! A check that the file of an environment can be mapped without harm, by plain reads before LMDB maps it.
//!
//! LMDB trusts its file. A page that the file lost is a SIGBUS where it is read, and a number of a page that is none is a
//! SIGSEGV or an assertion: each ends the mount. So the trees are followed here first: each page but the two meta pages
//! belongs to at most one tree or list of free pages, is within the file, and is laid out as LMDB lays it out. LMDB asserts
//! the order of the commits that freed pages. Keys out of order would hide the records behind them from searches and ranges, without
//! an error. The meaning of records is not checked.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file of up to so many bytes is followed at every opening, which takes some 20 ms at most.
const ALWAYS: u64 = 64 << 20;

/// LMDB's own numbers (`mdb.c` of 0.9.70, on machines of 64 bits).
pub(super) const MAGIC: u32 = 0xBEEF_C0DE;
pub(super) const VERSION: u32 = 1;
pub(super) const HEADER: usize = 16;
const NODE: usize = 8;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const OVERFLOW: u16 = 0x04;
pub(super) const META: u16 = 0x08;
const BIG_DATA: u16 = 0x01;
const SUB_DATA: u16 = 0x02;
pub(super) const INTEGER_KEY: u16 = 0x08;
pub(super) const TREE: usize = 48;
pub(super) const NO_ROOT: u64 = u64::MAX;
pub(super) const METAS: u64 = 2;
const DEEPEST: u16 = 32;
const LONGEST_KEY: usize = 511;

/// Why a file cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum StructureError {
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not one that LMDB left whole.
    #[error("{what} of page {page} is damaged")]
    Damaged {
        /// The path of the file.
        page: u64,
        /// The part that does not fit.
        what: &'static str,
    },
}

impl From<StructureError> for heed::Error {
    fn from(error: StructureError) -> heed::Error {
        match error {
            StructureError::Io(cause) => heed::Error::Io(cause),
            StructureError::Damaged { .. } => heed::Error::Mdb(heed::MdbError::Corrupted),
        }
    }
}

type Checked<T = ()> = Result<T, StructureError>;

/// Checks the file of the environment in `folder`, which other processes may have open. A missing file is in order.
///
/// The trees are followed where the file is small, shorter than its meta page says, or `unclean`: some process did not close it.
/// The kernel has all that a killed process wrote. A short file that is in order lacks free pages alone: LMDB never writes pages that one
/// commit takes at the end and frees.
pub fn check(folder: &Path, unclean: bool) -> Checked {
    let path = folder.join("data.mdb");
    let checked = match File::open(&path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => check_file(&opened?, unclean),
    };
    if let Err(error @ StructureError::Damaged { .. }) = &checked {
        tracing::warn!(path = %path.display(), %error, "a database file is damaged");
    }
    checked
}

fn check_file(file: &File, unclean: bool) -> Checked {
    let length = file.metadata()?.len();
    // Nothing was written yet. Where a number of a page has 32 bits the layout is another.
    if length == 0 || cfg!(not(target_pointer_width = "64")) {
        return Ok(());
    }
    let meta = Meta::read(file)?;
    let whole = meta.pages.checked_mul(meta.page_size).ok_or(damaged(meta.number, "the last page"))?;
    if !unclean && length >= whole && length > ALWAYS {
        return Ok(());
    }
    let followed = PageWalk::new(file, &meta, length).and_then(|walk| walk.all(&meta));
    // A process that has it open has committed, perhaps twice: what was read is of several trees, and it lives with them.
    if Meta::read(file)?.txn == meta.txn { followed } else { Ok(()) }
}

fn damaged(page: u64, what: &'static str) -> StructureError {
    StructureError::Damaged { page, what }
}

/// The values of the newest meta page.
struct Meta {
    number: u64,
    page_size: u64,
    pages: u64,
    txn: u64,
    free: LmdbTree,
    main: LmdbTree,
}

impl Meta {
    fn read(file: &File) -> Checked<Meta> {
        let first = Meta::read_at(file, 0, 0)?;
        let second = Meta::read_at(file, 1, first.page_size)?;
        // As LMDB does: of equals the first.
        Ok(if second.txn > first.txn { second } else { first })
    }

    fn read_at(file: &File, number: u64, at: u64) -> Checked<Meta> {
        let mut page = [0; HEADER + 24 + 2 * TREE + 16];
        file.read_exact_at(&mut page, at).map_err(|cause| cut(cause, number, "the header"))?;
        let (header, meta) = page.split_at(HEADER);
        if u16_at(header, 10) & META == 0 || u32_at(meta, 0) != MAGIC || u32_at(meta, 4) != VERSION {
            return Err(damaged(number, "the header"));
        }
        let (free, main) = (LmdbTree::decode(&meta[24..]), LmdbTree::decode(&meta[24 + TREE..]));
        let page_size = u64::from(u32_at(meta, 24));
        let pages = u64_at(meta, 24 + 2 * TREE).saturating_add(1);
        if !page_size.is_power_of_two() || !(512..=65536).contains(&page_size) || pages < METAS {
            return Err(damaged(number, "the size"));
        }
        if free.flags != INTEGER_KEY {
            return Err(damaged(number, "the flags"));
        }
        Ok(Meta { number, page_size, pages, txn: u64_at(meta, 32 + 2 * TREE), free, main })
    }
}

/// A tree as a meta page, or the tree of trees, describes it.
struct LmdbTree {
    flags: u16,
    depth: u16,
    entries: u64,
    root: u64,
}

impl LmdbTree {
    fn decode(tree: &[u8]) -> LmdbTree {
        LmdbTree { flags: u16_at(tree, 4), depth: u16_at(tree, 6), entries: u64_at(tree, 32), root: u64_at(tree, 40) }
    }
}

/// Which of the trees.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TreeKind {
    /// The tree of free pages, by the number of the commit that freed them.
    Free,
    /// The tree of trees by name, and of records.
    Main,
    Named,
}

/// The lowest key that may come next. The default lets any key come.
#[derive(Default)]
struct LowestKey {
    key: Vec<u8>,
    /// The key is that of a record, so that the next one is greater. Else it leads to a page that may begin with it.
    is_taken: bool,
}

impl LowestKey {
    /// Advances to `key`, of a record or of the way to a page; `None` where it is too low.
    fn advance(&mut self, key: &[u8], is_record: bool) -> Option<()> {
        let is_allowed = key > &self.key[..] || key == &self.key[..] && !self.is_taken;
        self.key.clear();
        self.key.extend_from_slice(key);
        self.is_taken = is_record;
        is_allowed.then_some(())
    }
}

struct PageWalk<'f> {
    file: &'f File,
    length: u64,
    page_size: usize,
    pages: u64,
    /// A bit a page: it belongs to some tree, or is free.
    claimed: Vec<u64>,
    /// Records of the tree that is followed.
    entries: u64,
    /// The bound of the next key in it.
    lowest: LowestKey,
    /// The last commit whose free pages were read.
    freed_by: u64,
}

impl PageWalk<'_> {
    fn new<'f>(file: &'f File, meta: &Meta, length: u64) -> Checked<PageWalk<'f>> {
        // Pages that were never written are few compared with those that were: a greater number is a damaged one.
        let pages = meta.pages;
        if pages / 2 > length / meta.page_size + ALWAYS / meta.page_size {
            return Err(damaged(meta.number, "the last page"));
        }
        let words = usize::try_from(pages.div_ceil(64)).map_err(|_| damaged(meta.number, "the last page"))?;
        let page_size = meta.page_size as usize;
        let claimed = vec![0; words];
        let mut walk =
            PageWalk { file, length, page_size, pages, claimed, entries: 0, lowest: LowestKey::default(), freed_by: 0 };
        (0..METAS).try_for_each(|page| walk.claim(page, page))?;
        Ok(walk)
    }

    fn all(mut self, meta: &Meta) -> Checked {
        self.tree(&meta.free, TreeKind::Free, meta.number)?;
        if meta.main.flags != 0 {
            return Err(damaged(meta.number, "the flags"));
        }
        self.tree(&meta.main, TreeKind::Main, meta.number)
    }

    fn claim(&mut self, page: u64, by: u64) -> Checked {
        let bit = 1 << (page % 64);
        match self.claimed.get_mut((page / 64) as usize) {
            Some(word) if page < self.pages && *word & bit == 0 => {
                *word |= bit;
                Ok(())
            }
            _ => Err(damaged(by, "a number")),
        }
    }

    fn tree(&mut self, tree: &LmdbTree, kind: TreeKind, by: u64) -> Checked {
        let before = (std::mem::take(&mut self.entries), std::mem::take(&mut self.lowest));
        match tree.root {
            NO_ROOT => {}
            root if (1..=DEEPEST).contains(&tree.depth) => self.page(root, tree.depth, kind, by)?,
            _ => return Err(damaged(by, "a depth")),
        }
        let entries = self.entries;
        (self.entries, self.lowest) = before;
        if entries == tree.entries { Ok(()) } else { Err(damaged(by, "a count")) }
    }

    /// Follows the pages below `number`.
    fn page(&mut self, number: u64, depth: u16, kind: TreeKind, by: u64) -> Checked {
        self.claim(number, by)?;
        let mut page = vec![0; self.page_size];
        let at = number * self.page_size as u64;
        self.file.read_exact_at(&mut page, at).map_err(|cause| cut(cause, number, "all"))?;
        let is_leaf = depth == 1;
        if u64_at(&page, 0) != number || u16_at(&page, 10) != if is_leaf { LEAF } else { BRANCH } {
            return Err(damaged(number, "the header"));
        }
        let nodes = nodes(&page, is_leaf).ok_or(damaged(number, "the layout"))?;
        // The first key of a branch is never compared.
        if kind == TreeKind::Free && nodes.iter().skip(usize::from(!is_leaf)).any(|node| node.key.len() != 8) {
            return Err(damaged(number, "a key"));
        }
        for (index, node) in nodes.iter().enumerate() {
            // The keys of the other tree are numbers, whose order `free` checks.
            if kind != TreeKind::Free && (is_leaf || index > 0) {
                self.lowest.advance(node.key, is_leaf).ok_or(damaged(number, "the order of keys"))?;
            }
            match is_leaf {
                true => self.record(node, kind, number)?,
                false => self.page(node.child(), depth - 1, kind, number)?,
            }
        }
        Ok(())
    }

    fn record(&mut self, node: &LmdbNode<'_>, kind: TreeKind, by: u64) -> Checked {
        self.entries += 1;
        match (node.flags, kind) {
            (0, TreeKind::Free) => self.free(node.key, node.data, by),
            (0, TreeKind::Main | TreeKind::Named) => Ok(()),
            (BIG_DATA, _) => self.big(node, kind, by),
            (SUB_DATA, TreeKind::Main) if node.data.len() == TREE => {
                let tree = LmdbTree::decode(node.data);
                if tree.flags != 0 {
                    return Err(damaged(by, "the flags"));
                }
                self.tree(&tree, TreeKind::Named, by)
            }
            _ => Err(damaged(by, "the flags")),
        }
    }

    /// A value in separate pages.
    fn big(&mut self, node: &LmdbNode<'_>, kind: TreeKind, by: u64) -> Checked {
        let first = u64_at(node.data, 0);
        let pages = (node.length + HEADER).div_ceil(self.page_size) as u64;
        (0..pages).try_for_each(|page| self.claim(first.saturating_add(page), by))?;
        let mut header = [0; HEADER];
        let at = first * self.page_size as u64;
        self.file.read_exact_at(&mut header, at).map_err(|cause| cut(cause, first, "all"))?;
        if u64_at(&header, 0) != first || u16_at(&header, 10) != OVERFLOW || u64::from(u32_at(&header, 12)) != pages {
            return Err(damaged(first, "the header"));
        }
        if at + pages * self.page_size as u64 > self.length {
            return Err(damaged(first, "all"));
        }
        if kind == TreeKind::Free {
            let mut data = vec![0; node.length];
            self.file.read_exact_at(&mut data, at + HEADER as u64)?;
            self.free(node.key, &data, by)?;
        }
        Ok(())
    }

    /// The pages that a commit freed: how many, and their numbers from the greatest.
    fn free(&mut self, key: &[u8], data: &[u8], by: u64) -> Checked {
        let count = data.first_chunk().and_then(|count| usize::try_from(u64::from_ne_bytes(*count)).ok());
        let numbers = count.and_then(|count| data.get(8..)?.get(..count.checked_mul(8)?));
        let before = std::mem::replace(&mut self.freed_by, u64_at(key, 0));
        let Some(numbers) = numbers.filter(|_| before < self.freed_by) else {
            return Err(damaged(by, "a list of free pages"));
        };
        let mut numbers = numbers.chunks_exact(8).map(|number| u64_at(number, 0));
        if !numbers.clone().is_sorted_by(|a, b| a > b) {
            return Err(damaged(by, "a list of free pages"));
        }
        numbers.try_for_each(|number| self.claim(number, by))
    }
}

/// One key of a page.
struct LmdbNode<'p> {
    flags: u16,
    /// The bytes of its value, wherever they are.
    length: usize,
    key: &'p [u8],
    data: &'p [u8],
}

impl LmdbNode<'_> {
    /// The page that a branch leads to: in place of length and flags.
    fn child(&self) -> u64 {
        self.length as u64 | u64::from(self.flags) << 32
    }
}

/// The keys of a page, in their order; `None`: they overlap, leave holes, or reach outside.
fn nodes(page: &[u8], is_leaf: bool) -> Option<Vec<LmdbNode<'_>>> {
    let (lower, upper) = (usize::from(u16_at(page, 12)), usize::from(u16_at(page, 14)));
    if lower <= HEADER || lower % 2 != 0 || lower > upper || upper > page.len() {
        return None;
    }
    let mut nodes = Vec::with_capacity((lower - HEADER) / 2);
    let mut places = Vec::with_capacity(nodes.capacity());
    for at in page[HEADER..lower].chunks_exact(2) {
        let at = usize::from(u16_at(at, 0));
        let node = page.get(at..).filter(|node| node.len() >= NODE && at >= upper)?;
        let length = usize::from(u16_at(node, 0)) | usize::from(u16_at(node, 2)) << 16;
        let (flags, key) = (u16_at(node, 4), usize::from(u16_at(node, 6)));
        let inside = match (is_leaf, flags) {
            (false, _) => 0,
            (true, BIG_DATA) => 8,
            (true, _) => length,
        };
        if key > LONGEST_KEY {
            return None;
        }
        let (key, rest) = node[NODE..].split_at_checked(key)?;
        nodes.push(LmdbNode { flags, length, key, data: rest.get(..inside)? });
        places.push((at, at + (NODE + key.len() + inside).next_multiple_of(2)));
    }
    places.sort_unstable();
    let end = places.iter().try_fold(upper, |end, (from, to)| (*from == end).then_some(*to))?;
    (end == page.len()).then_some(nodes)
}

fn cut(cause: io::Error, page: u64, what: &'static str) -> StructureError {
    if cause.kind() == io::ErrorKind::UnexpectedEof { damaged(page, what) } else { cause.into() }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|number| number.try_into().ok()).map_or(0, u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|number| number.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|number| number.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use heed::types::Bytes;
    use heed::{CommitOrAbort, Database, Env, EnvOpenOptions, WithoutTls};
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    use std::path::PathBuf;

    type Table = Database<'static, Bytes, Bytes>;

    fn open(folder: &Path, names: u32) -> Env<WithoutTls> {
        super::super::make_files(folder, 126).unwrap();
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(1 << 30).max_dbs(names);
        // SAFETY: the folder is the test's own.
        unsafe { options.open(folder) }.unwrap()
    }

    fn tables(env: &Env<WithoutTls>, names: &[Option<&str>]) -> Vec<Table> {
        let table = |name: &Option<&str>| {
            let created = env.create_databases_and_commit(env.write_txn().unwrap(), |creator, txn| {
                let table = creator.create_database::<Bytes, Bytes>(txn, *name)?;
                Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(table))
            });
            created.unwrap().commit().unwrap()
        };
        names.iter().map(table).collect()
    }

    /// A pseudo-random number, the same at each run.
    fn random(seed: u64, number: u64) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, number))
    }

    /// Random commits: values of all sizes come, change and go in some trees, while a reader keeps old pages now and then.
    fn history(folder: &Path, seed: u64, commits: u64, names: &[Option<&str>]) {
        let env = open(folder, 4);
        let tables = tables(&env, names);
        let mut reader = None;
        for commit in 0..commits {
            let mut txn = env.write_txn().unwrap();
            for change in 0..random(seed, commit) % 200 {
                let it = random(seed ^ 1, commit << 20 | change);
                let table = tables[it as usize % tables.len()];
                let key = [&[b'k'; 300][..it as usize >> 8 & 0xff], &(it >> 16 & 0xff).to_be_bytes()[..]].concat();
                let length = if it >> 40 & 0x1f == 0 { 20_000 } else { [1, 60, 900, 3000][it as usize >> 32 & 3] };
                match it >> 50 & 0x3 {
                    0 => drop(table.delete(&mut txn, &key).unwrap()),
                    _ => table.put(&mut txn, &key, &vec![it as u8; length]).unwrap(),
                }
            }
            if commit % 11 == 10 {
                tables[commit as usize % tables.len()].clear(&mut txn).unwrap();
            }
            match commit % 7 {
                3 => drop(txn),
                _ => txn.commit().unwrap(),
            }
            check(folder, true).unwrap_or_else(|error| panic!("seed {seed}, commit {commit}: {error}"));
            if commit % 9 == 0 {
                reader = Some(env.clone().static_read_txn().unwrap());
            } else if commit % 9 == 6 {
                reader = None;
            }
        }
        drop(reader);
    }

    #[test]
    fn every_file_that_lmdb_left_is_in_order() {
        for seed in 0..6 {
            let folder = tempfile::tempdir().unwrap();
            let names: &[_] = if seed % 2 == 0 { &[None] } else { &[Some("one"), Some("two"), Some("three")] };
            history(folder.path(), seed, 60, names);

            let copy = tempfile::tempdir().unwrap();
            let file =
                open(folder.path(), 4).copy_to_path(copy.path().join("data.mdb"), heed::CompactionOption::Enabled);
            drop(file.unwrap());
            check(copy.path(), true).unwrap();
        }
    }

    #[test]
    fn a_missing_and_an_empty_file_are_in_order() {
        let folder = tempfile::tempdir().unwrap();
        check(folder.path(), true).unwrap();
        File::create(folder.path().join("data.mdb")).unwrap();
        check(folder.path(), true).unwrap();
        drop(open(folder.path(), 1));
        check(folder.path(), true).unwrap();
    }

    /// Reads and writes all of an environment that was found to be in order: what ends this process was not found.
    fn use_all(folder: &Path, names: &[Option<&str>]) {
        let env = open(folder, 4);
        let tables = tables(&env, names);
        let mut txn = env.write_txn().unwrap();
        for table in tables {
            let all = table.iter(&txn).unwrap().map(|pair| pair.map(|(key, _)| key.to_vec()));
            let keys: Vec<_> = all.collect::<Result<_, _>>().unwrap();
            assert!(keys.iter().all(|key| table.get(&txn, key).unwrap().is_some()), "a search finds each key");
            for (index, key) in keys.iter().enumerate() {
                match index % 3 {
                    0 => drop(table.delete(&mut txn, key).unwrap()),
                    _ => table.put(&mut txn, key, &[7; 1000]).unwrap(),
                }
            }
        }
        txn.commit().unwrap();
    }

    fn damage(seed: u64, names: &[Option<&str>], harm: impl Fn(&mut Vec<u8>, u64)) -> (u64, u64) {
        let folder = tempfile::tempdir().unwrap();
        history(folder.path(), seed, 12, names);
        let whole = std::fs::read(folder.path().join("data.mdb")).unwrap();
        let (mut found, rounds) = (0, 150);
        for round in 0..rounds {
            let damaged = tempfile::tempdir().unwrap();
            let mut bytes = whole.clone();
            harm(&mut bytes, round);
            std::fs::write(damaged.path().join("data.mdb"), bytes).unwrap();
            match check(damaged.path(), false) {
                Ok(()) => use_all(damaged.path(), names),
                Err(error) => {
                    assert!(matches!(error, StructureError::Damaged { .. }), "{error}");
                    found += 1;
                }
            }
        }
        (found, rounds)
    }

    #[test]
    fn what_passes_can_be_read_and_written_after_flips_and_cuts() {
        let names = [Some("one"), Some("two"), Some("three")];
        for seed in [1, 2] {
            damage(seed, &names, |bytes, round| {
                for flip in 0..[1, 20][round as usize % 2] {
                    let at = random(seed, round << 8 | flip);
                    let length = bytes.len() as u64;
                    bytes[(at % length) as usize] ^= 1 << (at >> 32 & 7);
                }
            });
            // Of the meta pages and of the headers of pages, where a flip does most harm.
            damage(seed, &names, |bytes, round| {
                let at = random(seed, round);
                let (page, length) = (4096 * (at % (bytes.len() as u64 / 4096)), if round % 2 == 0 { 170 } else { 40 });
                let page = if round % 2 == 0 { page % 8192 } else { page };
                bytes[(page + (at >> 20) % length) as usize] ^= 1 << (at >> 40 & 7);
            });
            let (found, rounds) = damage(seed, &[None], |bytes, round| {
                bytes.truncate((random(seed, round) % bytes.len() as u64) as usize & !4095);
            });
            assert!(found > rounds / 2, "{found}");
        }
    }

    #[test]
    fn a_page_of_zeros_is_found_wherever_it_lies() {
        let folder = tempfile::tempdir().unwrap();
        history(folder.path(), 3, 12, &[None]);
        let file: PathBuf = folder.path().join("data.mdb");
        let whole = std::fs::read(&file).unwrap();
        let mut found = 0;
        for page in 0..whole.len() / 4096 {
            let mut bytes = whole.clone();
            bytes[page * 4096..][..4096].fill(0);
            std::fs::write(&file, bytes).unwrap();
            found += usize::from(check(folder.path(), true).is_err());
        }
        // Free pages, and the later ones of a value, may hold anything.
        assert!(found > 4, "{found} of {}", whole.len() / 4096);
    }
}
