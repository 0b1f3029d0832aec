//! Long work beside a tree that is shown.

use crate::catalog::Catalog;
use std::panic::resume_unwind;
use std::thread;

/// How much the work gives way to those who answer readers (nice(2)): with both processors taken these would wait for a turn.
const NICE: libc::c_int = 10;

/// Does `work` on a thread that gives way to others, as do all that it starts, where there is a tree that is shown; else here.
/// The caller may wait.
pub(super) fn aside<T: Send>(catalog: &Catalog, work: impl FnOnce() -> T + Send) -> T {
    if !catalog.revision().is_ok_and(|revision| revision.is_some()) {
        return work();
    }
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: no memory is handed over; 0 is the calling thread alone (setpriority(2)).
            let refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } != 0;
            if refused {
                tracing::debug!("the refresh does not give way: {}", std::io::Error::last_os_error());
            }
            work()
        });
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Naming;

    #[test]
    fn work_beside_a_tree_that_is_shown_gives_way_and_so_do_its_threads_but_nobody_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(folder.path(), "a test").unwrap();
        // SAFETY: as above.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let both = || (nice(), thread::spawn(nice).join().unwrap());
        let before = nice();

        assert_eq!(aside(&catalog, both), (before, before), "nobody waits but for this");
        catalog.baseline(Naming::default()).unwrap().commit(None, b"").unwrap();
        assert_eq!(aside(&catalog, both), (NICE, NICE));

        assert_eq!(nice(), before);
    }
}
