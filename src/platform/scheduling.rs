//! Who waits for whom where there are more threads at work than processors.
//!
//! A thread that answers a program waits for no other; long work waits for all others. Three things tell the kernel: how great a share a
//! thread has (nice(2)); how long it goes on before another may have the processor, its slice (sched(7)); and whether it may interrupt
//! others when it wakes up, which a batch does not. A slice is some milliseconds by default, whatever the share, and so long a
//! thread that wakes up may wait. Linux 6.12 and later take slices, and no privilege is needed for a short one.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

/// The share of work that takes long beside a tree that is shown.
const NICE: libc::c_int = 10;

/// The shortest slice that the kernel takes.
const SHORT: Duration = Duration::from_micros(100);

/// That of a thread of which nothing was told.
const DEFAULT: Duration = Duration::ZERO;

/// Does `work` on a thread that gives way to all others, as do those that it starts; here where there can be no other thread. The caller
/// may wait.
pub(crate) fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = Mutex::new(Some(work));
    let taken = || work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let elsewhere = thread::scope(|scope| {
        let giving_way = || {
            give_way();
            taken().map(|work| work())
        };
        match thread::Builder::new().spawn_scoped(scope, giving_way) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(cause) => {
                tracing::debug!(%cause, "there is no thread to give way");
                None
            }
        }
    });
    let done = elsewhere.or_else(|| taken().map(|work| work()));
    done.unwrap_or_else(|| unreachable!("whoever takes the work does it to its end, or panics"))
}

/// The threads that `start` starts have short slices: when one of them wakes up that has not used up its share, it waits for nobody who
/// has a longer one.
pub(crate) fn in_short_slices<T>(start: impl FnOnce() -> T) -> T {
    set(Policy::Kept, niceness(), SHORT);
    let started = start();
    set(Policy::Kept, niceness(), DEFAULT);
    started
}

/// A process that gives way further goes on doing so.
fn give_way() {
    // SAFETY: takes a number; 0 is the calling thread alone (sched_getscheduler(2)).
    let policy = unsafe { libc::sched_getscheduler(0) };
    let policy = if policy == libc::SCHED_OTHER { Policy::Batch } else { Policy::Kept };
    set(policy, niceness().max(NICE), SHORT);
}

enum Policy {
    Kept,
    Batch,
}

/// Of this thread. What the kernel refuses makes nothing wrong, only slower.
fn set(policy: Policy, niceness: libc::c_int, slice: Duration) {
    let (policy, flags) = match policy {
        // Which policy is told is not looked at. Before Linux 5.3 all of it is refused, which knows nothing of slices either.
        Policy::Kept => (libc::SCHED_OTHER, libc::SCHED_FLAG_KEEP_POLICY),
        Policy::Batch => (libc::SCHED_BATCH, 0),
    };
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy as u32,
        sched_flags: flags as u64,
        sched_nice: niceness,
        sched_priority: 0,
        sched_runtime: slice.as_nanos() as u64,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the attributes are as long as they say and are only read; 0 is the calling thread alone (sched_setattr(2)).
    if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } != 0 {
        tracing::debug!(niceness, ?slice, "threads share the processors alike: {}", io::Error::last_os_error());
    }
}

/// Of this thread; what cannot be told is -1.
fn niceness() -> libc::c_int {
    // SAFETY: no memory is handed over; 0 is the calling thread alone (getpriority(2)).
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policy, niceness and slice of this thread, as the kernel tells them.
    type Told = (libc::c_int, libc::c_int, u64);

    fn told() -> Told {
        // SAFETY: numbers alone; the kernel fills it in.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::sched_attr>();
        // SAFETY: the attributes are as long as is told, and live through the call (sched_getattr(2)).
        assert_eq!(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) }, 0);
        assert_eq!(attributes.sched_nice, niceness());
        (attributes.sched_policy as libc::c_int, attributes.sched_nice, attributes.sched_runtime)
    }

    /// Of this thread, and of one that it starts.
    fn both() -> [Told; 2] {
        [told(), thread::spawn(told).join().unwrap()]
    }

    /// The slice that this kernel makes of a short one.
    fn short() -> u64 {
        let asking = || {
            set(Policy::Kept, niceness(), SHORT);
            told().2
        };
        thread::spawn(asking).join().unwrap()
    }

    #[test]
    fn what_is_done_aside_gives_way_and_so_do_its_threads_but_nobody_else_does() {
        let before = told();

        assert_eq!(aside(both), [(libc::SCHED_BATCH, before.1.max(NICE), short()); 2]);

        assert_eq!(both(), [before; 2]);
    }

    #[test]
    fn who_gives_way_further_goes_on_doing_so() {
        let further = || {
            set(Policy::Kept, 19, DEFAULT);
            aside(told).1
        };
        assert_eq!(thread::spawn(further).join().unwrap(), 19);
        let idle = || {
            let nothing = libc::sched_param { sched_priority: 0 };
            // SAFETY: the parameter is only read; 0 is the calling thread alone (sched_setscheduler(2)).
            assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const nothing) }, 0);
            aside(told).0
        };
        assert_eq!(thread::spawn(idle).join().unwrap(), libc::SCHED_IDLE);
    }

    #[test]
    fn who_is_started_in_short_slices_has_them_and_the_share_of_all() {
        let before = told();

        let started = in_short_slices(|| thread::spawn(both)).join().unwrap();

        assert_eq!(started, [(before.0, before.1, short()); 2]);
        assert_eq!(told(), before);
    }

    #[test]
    fn a_panic_aside_is_one_here() {
        let panicking = || aside(|| panic!("as a test wants it"));
        assert!(std::panic::catch_unwind(panicking).is_err());
    }
}
