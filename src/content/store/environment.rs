//! LMDB environments as caches: a damaged one is removed and made new, as what it holds can be learnt again.

use crate::platform::lmdb::{make_files, with_map};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, WithoutTls};
use std::path::Path;
use std::time::Duration;

/// Address space, not memory: room for some 50 million records.
const MAP_SIZE: u64 = 16 << 30;
/// Threads of all processes that read at the same moment; a cache line each.
const MAX_READERS: u32 = 512;

/// An open environment and its one database.
pub(in crate::content) struct Environment {
    pub(in crate::content) env: Env<WithoutTls>,
    pub(in crate::content) database: Database<'static, Bytes, Bytes>,
}

impl Environment {
    /// Opens the environment in a folder that exists and is the user's own. Not twice in one process. `unclean`: it may not have
    /// been closed.
    pub(in crate::content) fn open(folder: &Path, unclean: bool) -> heed::Result<Environment> {
        let file = folder.join("data.mdb");
        let checked = crate::platform::lmdb::check(folder, unclean).map_err(heed::Error::from);
        match checked.and_then(|()| Environment::open_whole(folder)) {
            Err(heed::Error::Mdb(cause)) => {
                tracing::warn!(folder = %folder.display(), %cause, "a damaged environment is removed");
                // Both files: a process that still has the old ones open keeps using its pair.
                std::fs::remove_file(&file)?;
                std::fs::remove_file(folder.join("lock.mdb"))?;
                Environment::open_whole(folder)
            }
            outcome => outcome,
        }
    }

    fn open_whole(folder: &Path) -> heed::Result<Environment> {
        // The last owner in this process may still be closing it.
        if let Some(closing) = heed::env_closing_event(folder.canonicalize()?) {
            closing.wait_timeout(Duration::from_secs(5));
        }
        make_files(folder, MAX_READERS)?;
        let env = open_env(folder, EnvFlags::NO_META_SYNC)?;
        env.clear_stale_readers()?;
        let txn = env.write_txn()?;
        let created = env.create_databases_and_commit(txn, |opener, txn| -> heed::Result<_> {
            Ok(CommitOrAbort::<_, ()>::Commit(opener.create_database::<Bytes, Bytes>(txn, None)?))
        })?;
        let database = created.commit().ok_or(heed::Error::Mdb(heed::MdbError::BadTxn))?;
        Ok(Environment { env, database })
    }
}

/// Calls `visit` for each value of the environment in `folder`, which is not changed and which other processes may have open.
/// Nothing where there is none. Not where this process has it open.
pub(in crate::content) fn each_value(folder: &Path, visit: &mut dyn FnMut(&[u8])) -> heed::Result<()> {
    if !folder.join("data.mdb").exists() {
        return Ok(());
    }
    crate::platform::lmdb::check(folder, false)?;
    let env = open_env(folder, EnvFlags::READ_ONLY)?;
    let opened = env.open_databases_and_commit(env.read_txn()?, |opener, txn| -> heed::Result<_> {
        Ok(CommitOrAbort::<_, ()>::Commit(opener.open_database::<Bytes, Bytes>(txn, None)?))
    })?;
    let Some(database) = opened.commit().flatten() else { return Ok(()) };
    let txn = env.read_txn()?;
    for pair in database.iter(&txn)? {
        visit(pair?.1);
    }
    Ok(())
}

fn open_env(folder: &Path, flags: EnvFlags) -> heed::Result<Env<WithoutTls>> {
    // Without thread-local readers a slot is taken for a transaction only, not for each thread that ever read.
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.max_readers(MAX_READERS);
    // SAFETY: the flags keep LMDB's locking; without a synced meta page a power loss undoes the last commits but keeps the
    // file whole. The map's file is changed by LMDB alone: its folder is the user's own, mode 0700.
    with_map(MAP_SIZE, |size| unsafe { options.map_size(size).flags(EnvFlags::NO_READ_AHEAD | flags).open(folder) })
}
