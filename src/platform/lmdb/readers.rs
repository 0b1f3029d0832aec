//! Read transactions that are used again.
//!
//! A new one takes a place in the environment's table of readers, under a lock that all share, and looks up the root of each table. So one
//! that ended well waits for the next reader until something is committed: as it reads the current revision, it keeps no other page from
//! reuse. A commit ends all that wait ([`Readers::let_go`]); one that is in use meanwhile is not kept.

use heed::{Env, RoTxn, WithoutTls};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Slots: further threads share them, and begin a transaction where theirs is empty.
const PLACES: usize = 16;

/// A transaction of one environment, on any thread.
pub type Reading = RoTxn<'static, WithoutTls>;

/// The transactions that wait.
#[derive(Default)]
pub struct Readers([ThreadSlot; PLACES]);

/// The slot of one thread, so that no other waits for its lock, in a separate cache line.
#[derive(Default)]
#[repr(align(128))]
struct ThreadSlot(Mutex<Option<Reading>>);

impl Readers {
    /// A transaction that reads the last commit.
    pub fn take(&self, env: &Env<WithoutTls>) -> heed::Result<Reading> {
        let waiting = self.place().0.try_lock().ok().and_then(|mut waiting| waiting.take());
        match waiting.filter(|reading| is_current(env, reading)) {
            Some(reading) => Ok(reading),
            None => env.clone().static_read_txn(),
        }
    }

    /// Keeps one in which nothing failed.
    pub fn give_back(&self, env: &Env<WithoutTls>, reading: Reading) {
        // Checked under the lock: a commit becomes current before it ends those that wait.
        if let Ok(mut waiting) = self.place().0.try_lock() {
            if waiting.is_none() && is_current(env, &reading) {
                *waiting = Some(reading);
            }
        }
    }

    /// Ends all that wait. Called after each commit.
    pub fn let_go(&self) {
        for ThreadSlot(place) in &self.0 {
            let waiting = place.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(waiting);
        }
    }

    /// The place of this thread.
    fn place(&self) -> &ThreadSlot {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        &self.0[NUMBER.get() % PLACES]
    }
}

/// Answers whether nothing was committed behind what it reads.
fn is_current(env: &Env<WithoutTls>, reading: &Reading) -> bool {
    env.info().last_txn_id == reading.id()
}

#[cfg(test)]
mod tests {
    use super::*;
    use heed::types::Bytes;
    use heed::{CommitOrAbort, Database, EnvOpenOptions};

    type Table = Database<'static, Bytes, Bytes>;

    fn environment(folder: &std::path::Path) -> (Env<WithoutTls>, Table) {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(1 << 30);
        // SAFETY: no other program has the folder.
        let env = unsafe { options.open(folder) }.unwrap();
        let created = env.create_databases_and_commit(env.write_txn().unwrap(), |creator, txn| {
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(creator.create_database::<Bytes, Bytes>(txn, None)?))
        });
        let table = created.unwrap().commit().unwrap();
        (env, table)
    }

    fn put(env: &Env<WithoutTls>, table: &Table, value: &[u8]) {
        let mut txn = env.write_txn().unwrap();
        table.put(&mut txn, b"key", value).unwrap();
        txn.commit().unwrap();
    }

    #[test]
    fn a_reader_uses_the_last_transaction_and_sees_each_commit() {
        let folder = tempfile::tempdir().unwrap();
        let ((env, table), readers) = (environment(folder.path()), Readers::default());
        for number in 0..10u8 {
            put(&env, &table, &[number]);
            for _ in 0..2 {
                let reading = readers.take(&env).unwrap();
                assert_eq!(table.get(&reading, b"key").unwrap(), Some(&[number][..]), "let go of or not");
                readers.give_back(&env, reading);
            }
            assert!(readers.place().0.lock().unwrap().is_some(), "it waits");
            if number % 2 == 0 {
                readers.let_go();
                assert!(readers.place().0.lock().unwrap().is_none());
            }
        }
    }

    #[test]
    fn a_transaction_in_use_during_a_commit_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let ((env, table), readers) = (environment(folder.path()), Readers::default());
        put(&env, &table, b"before");
        let (first, second) = (readers.take(&env).unwrap(), readers.take(&env).unwrap());

        put(&env, &table, b"after");
        readers.let_go();

        assert_eq!(table.get(&first, b"key").unwrap(), Some(&b"before"[..]));
        readers.give_back(&env, first);
        assert!(readers.place().0.lock().unwrap().is_none());
        readers.give_back(&env, second);
        assert_eq!(table.get(&readers.take(&env).unwrap(), b"key").unwrap(), Some(&b"after"[..]));
    }

    #[test]
    fn pages_are_used_again_while_commits_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let ((env, table), readers) = (environment(folder.path()), Readers::default());
        let size = || env.info().last_page_number;
        let rounds = |count: usize| {
            for number in 0..count {
                readers.give_back(&env, readers.take(&env).unwrap());
                put(&env, &table, &vec![number as u8; 100_000]);
                readers.let_go();
            }
        };

        rounds(10);
        let before = size();
        rounds(50);

        assert!(size() <= before + 30, "{} pages, then {}", before, size());
    }
}
