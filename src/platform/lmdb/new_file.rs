//! The first file of an environment, with pages of one size on all machines.

use super::structure::{INTEGER_KEY, MAGIC, META, METAS, NO_ROOT, TREE, VERSION};
use std::io::{self, Write};
use std::path::Path;
use tempfile::NamedTempFile;

/// Bytes of the map that the file asks for. Each opening names another.
const MAP: u64 = 1 << 20;

/// Makes an environment of no records in `folder`, where it has none: its two meta pages, as LMDB writes them.
///
/// It appears whole: another process may make or open it at this moment, and LMDB takes an empty file for one that is its own to begin.
pub fn make(folder: &Path, page_size: u32) -> io::Result<()> {
    let path = folder.join("data.mdb");
    if path.try_exists()? {
        return Ok(());
    }
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(&meta_pages(page_size))?;
    match file.persist_noclobber(path) {
        Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
        _ => Ok(()),
    }
}

fn meta_pages(page_size: u32) -> Vec<u8> {
    let mut pages = Vec::new();
    for number in 0..METAS {
        pages.resize((number * u64::from(page_size)) as usize, 0);
        pages.extend_from_slice(&number.to_ne_bytes());
        pages.extend_from_slice(&[[0; 2], META.to_ne_bytes()].concat());
        pages.extend_from_slice(&[0; 4]);
        pages.extend_from_slice(&[MAGIC, VERSION].map(u32::to_ne_bytes).concat());
        pages.extend_from_slice(&[0, MAP].map(u64::to_ne_bytes).concat());
        // The tree of free pages, whose head has the size of a page, and the tree of records: both without a page.
        for (first, flags) in [(page_size, INTEGER_KEY), (0, 0)] {
            let begin = pages.len();
            pages.extend_from_slice(&first.to_ne_bytes());
            pages.extend_from_slice(&flags.to_ne_bytes());
            pages.resize(begin + TREE - size_of_val(&NO_ROOT), 0);
            pages.extend_from_slice(&NO_ROOT.to_ne_bytes());
        }
        // The last page, and the number of the commit.
        pages.extend_from_slice(&[METAS - 1, 0].map(u64::to_ne_bytes).concat());
    }
    pages.resize((METAS * u64::from(page_size)) as usize, 0);
    pages
}

#[cfg(test)]
mod tests {
    use super::*;
    use heed::types::Bytes;
    use heed::{CommitOrAbort, Env, EnvOpenOptions, WithoutTls};

    fn open(folder: &Path) -> Env<WithoutTls> {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(MAP as usize);
        // SAFETY: the folder is the test's own.
        unsafe { options.open(folder) }.unwrap()
    }

    #[test]
    fn the_file_equals_that_of_lmdb() {
        let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        drop(open(theirs.path()));

        make(ours.path(), rustix::param::page_size() as u32).unwrap();

        let read = |folder: &tempfile::TempDir| std::fs::read(folder.path().join("data.mdb")).unwrap();
        assert!(read(&ours) == read(&theirs));
    }

    #[test]
    fn an_environment_keeps_pages_of_any_size() {
        for page_size in [2048, 4096, 16384, 32768] {
            let folder = tempfile::tempdir().unwrap();
            make(folder.path(), page_size).unwrap();
            let record = vec![7; 5000];

            for round in 0..3_u8 {
                let env = open(folder.path());
                let (mut txn, key) = (env.write_txn().unwrap(), [round; 511]);
                assert_eq!(env.unnamed_database_stat().page_size, page_size);
                let created = env.create_databases_and_commit(txn, |creator, txn| {
                    Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(
                        creator.create_database::<Bytes, Bytes>(txn, None)?,
                    ))
                });
                let records = created.unwrap().commit().unwrap();
                txn = env.write_txn().unwrap();
                records.put(&mut txn, &key, &record).unwrap();
                txn.commit().unwrap();
                assert_eq!(records.len(&env.read_txn().unwrap()).unwrap(), u64::from(round) + 1);
                super::super::check(folder.path(), true).unwrap();
                env.prepare_for_closing().wait();
                make(folder.path(), 4096).unwrap();
            }
        }
    }

    #[test]
    fn makers_at_one_time_leave_one_file() {
        let folder = tempfile::tempdir().unwrap();

        std::thread::scope(|scope| {
            for page_size in [2048, 4096, 8192, 16384] {
                let folder = folder.path();
                scope.spawn(move || make(folder, page_size).unwrap());
            }
        });

        let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["data.mdb"]);
        super::super::check(folder.path(), true).unwrap();
    }
}
