//! Long work beside a tree that is shown.

use super::SyncError;
use crate::catalog::Catalog;
use crate::priority;

/// Does `work` on a thread that gives way to those who answer readers, as do all that it starts, where there is a tree that is
/// shown; else here. The caller may wait.
pub(super) fn aside<T: Send>(
    catalog: &Catalog,
    work: impl FnOnce() -> Result<T, SyncError> + Send,
) -> Result<T, SyncError> {
    match catalog.revision().is_ok_and(|revision| revision.is_some()) {
        true => priority::aside(work),
        false => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Naming;
    use std::thread;

    #[test]
    fn work_beside_a_tree_that_is_shown_is_done_by_another_thread() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(folder.path(), "a test").unwrap();
        let whose = || aside(&catalog, || Ok(thread::current().id())).unwrap();
        assert_eq!(whose(), thread::current().id(), "nobody waits but for this");

        catalog.baseline(Naming::default()).unwrap().commit(None, b"").unwrap();

        assert_ne!(whose(), thread::current().id());
    }
}
