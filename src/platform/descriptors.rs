//! File descriptors of this process: how many it may have, and what is closed where none is left.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::sync::{Mutex, PoisonError};

/// Closes descriptors that can be opened again; `false`: it has no more to close, for good.
type Closer = Box<dyn Fn() -> bool + Send + Sync>;

static CLOSERS: Mutex<Vec<Closer>> = Mutex::new(Vec::new());

/// A call that finds no descriptor is made so often: another thread may take what was closed for it.
const ATTEMPTS: usize = 4;

/// How many this process may have open.
pub(crate) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// `wanted` descriptors, or one in `parts` of the limit where that is less; at least one.
pub(crate) fn share(wanted: usize, parts: u64) -> usize {
    share_of(limit(), wanted, parts)
}

fn share_of(limit: u64, wanted: usize, parts: u64) -> usize {
    usize::try_from(limit / parts).unwrap_or(usize::MAX).clamp(1, wanted.max(1))
}

/// Answers whether a call failed for want of a descriptor, of this process or of the machine.
pub(crate) fn is_shortage(cause: &io::Error) -> bool {
    matches!(Errno::from_io_error(cause), Some(Errno::MFILE | Errno::NFILE))
}

/// Has `closer` called wherever descriptors are short.
pub(crate) fn on_shortage(closer: impl Fn() -> bool + Send + Sync + 'static) {
    CLOSERS.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(closer));
}

/// Closes what can be opened again. A close may wait for the disk.
pub(crate) fn close_spare() {
    CLOSERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|closer| closer());
}

/// Runs a call that opens something, again where there was no descriptor for it.
pub(crate) fn opened<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..ATTEMPTS {
        match open() {
            Err(cause) if is_shortage(&cause) => close_spare(),
            outcome => return outcome,
        }
    }
    open()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn few_descriptors_are_shared_and_many_are_not_needed() {
        assert_eq!([96, 256, 1024, u64::MAX].map(|limit| share_of(limit, 256, 4)), [24, 64, 256, 256]);
        assert_eq!((share_of(3, 256, 4), share_of(1024, 0, 4)), (1, 1), "at least one");
    }

    #[test]
    fn a_shortage_closes_others_and_opens_again() {
        let closed = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&closed);
        on_shortage(move || counted.fetch_add(1, Ordering::Relaxed) == 0);
        let mut left = 3;
        let mut open = |error: Errno| {
            opened(|| match left {
                0 => Ok("open"),
                _ => {
                    left -= 1;
                    Err(error.into())
                }
            })
        };

        assert_eq!(open(Errno::MFILE).unwrap(), "open");

        assert_eq!(closed.load(Ordering::Relaxed), 2, "a closer that has no more is not called again");
        assert!(opened(|| -> io::Result<()> { Err(Errno::NFILE.into()) }).is_err_and(|cause| is_shortage(&cause)));
        assert!(opened(|| -> io::Result<()> { Err(Errno::ACCESS.into()) }).is_err_and(|cause| !is_shortage(&cause)));
    }
}
