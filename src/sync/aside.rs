//! Long work beside a tree that is shown.

use super::SyncError;
use crate::catalog::Catalog;
use std::panic::resume_unwind;
use std::thread;

/// How much the work gives way to those who answer readers (nice(2)): with both processors taken these would wait for a turn.
const NICE: libc::c_int = 10;

/// Does `work` on a thread that gives way to others, as do all that it starts, where there is a tree that is shown; else here.
/// The caller may wait.
pub(super) fn aside<T: Send>(
    catalog: &Catalog,
    work: impl FnOnce() -> Result<T, SyncError> + Send,
) -> Result<T, SyncError> {
    if !catalog.revision().is_ok_and(|revision| revision.is_some()) {
        return work();
    }
    thread::scope(|scope| {
        let giving_way = || {
            give_way();
            work()
        };
        let thread = thread::Builder::new().spawn_scoped(scope, giving_way).map_err(SyncError::NoThread)?;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Has this thread give way. The priority that is set is no step but a value: one that gives way further stays as it is.
fn give_way() {
    if niceness() >= NICE {
        return;
    }
    // SAFETY: no memory is handed over; 0 is the calling thread alone (setpriority(2)).
    let refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } != 0;
    if refused {
        tracing::debug!("the refresh does not give way: {}", std::io::Error::last_os_error());
    }
}

/// Of this thread; what cannot be told is -1.
fn niceness() -> libc::c_int {
    // SAFETY: as above.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Naming;

    /// Of the thread that does work, and of one that it starts.
    fn both() -> Result<(libc::c_int, libc::c_int), SyncError> {
        Ok((niceness(), thread::spawn(niceness).join().unwrap()))
    }

    #[test]
    fn work_beside_a_tree_that_is_shown_gives_way_and_so_do_its_threads_but_nobody_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(folder.path(), "a test").unwrap();
        let before = niceness();
        let expected = before.max(NICE);

        assert_eq!(aside(&catalog, both).unwrap(), (before, before), "nobody waits but for this");
        catalog.baseline(Naming::default()).unwrap().commit(None, b"").unwrap();
        assert_eq!(aside(&catalog, both).unwrap(), (expected, expected));

        assert_eq!(niceness(), before);
    }

    #[test]
    fn work_of_a_process_that_gives_way_further_does_so_too() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(folder.path(), "a test").unwrap();
        catalog.baseline(Naming::default()).unwrap().commit(None, b"").unwrap();
        let further = || {
            // SAFETY: as above; the thread is this one.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) }, 0);
            aside(&catalog, both).unwrap()
        };

        let done = thread::scope(|scope| scope.spawn(further).join().unwrap());

        assert_eq!(done, (19, 19));
    }
}
