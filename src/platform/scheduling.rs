//! Which threads have the processors where more threads work than there are processors.
//!
//! A thread that answers a program waits for no other; long work waits for all others. The kernel knows of a thread its share (nice(2)), how
//! long it runs before another may have the processor, its slice (sched(7)), and whether it interrupts others when it wakes up, which a
//! batch does not. A slice is some milliseconds by default, with any share, and a thread that wakes up may wait for as long. Linux 6.12 and
//! later take slices, and no privilege is needed for a short one.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

/// The niceness of long work.
const NICE: libc::c_int = 10;

/// The shortest slice that the kernel takes.
const SHORT: Duration = Duration::from_micros(100);

/// The slice of a thread that asks for none.
const DEFAULT: Duration = Duration::ZERO;

/// Runs `work` on a thread of low priority, as are those that it starts, and waits for it. Where no thread can be started it runs here.
pub(crate) fn low_priority<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = Mutex::new(Some(work));
    let taken = || work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let elsewhere = thread::scope(|scope| {
        let at_low_priority = || {
            lower_priority();
            taken().map(|work| work())
        };
        match thread::Builder::new().spawn_scoped(scope, at_low_priority) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(cause) => {
                tracing::debug!(%cause, "no thread can be started for long work");
                None
            }
        }
    });
    let done = elsewhere.or_else(|| taken().map(|work| work()));
    done.unwrap_or_else(|| unreachable!("the thread that takes the work ends it, or panics"))
}

/// The threads that `start` starts have short slices: one that wakes up and has not used up its share waits for no thread with a longer
/// one.
pub(crate) fn in_short_slices<T>(start: impl FnOnce() -> T) -> T {
    set(None, niceness(), SHORT);
    let started = start();
    set(None, niceness(), DEFAULT);
    started
}

/// Runs long work, and leaves the worker thread it runs on to other tasks.
pub(crate) fn off_the_workers<T>(compute: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(compute),
        _ => compute(),
    }
}

/// Bytes that are hashed, inflated or summed up within some tenths of a millisecond.
const FEW: u64 = 32 << 10;

/// Runs work over so many bytes, [`off_the_workers`] where they are many.
pub(crate) fn over_bytes<T>(bytes: u64, compute: impl FnOnce() -> T) -> T {
    if bytes > FEW { off_the_workers(compute) } else { compute() }
}

/// A process of still lower priority keeps its own.
fn lower_priority() {
    // Not `libc::sched_getscheduler`: musl's always fails, as POSIX means a process by it and Linux a thread.
    // SAFETY: takes a number; 0 is the calling thread alone (sched_getscheduler(2)).
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    let policy = if policy == libc::c_long::from(libc::SCHED_OTHER) { Some(libc::SCHED_BATCH) } else { None };
    set(policy, niceness().max(NICE), SHORT);
}

/// Sets policy, niceness and slice of this thread; without `policy` it stays. A refusal of the kernel makes nothing wrong, only slower.
fn set(policy: Option<libc::c_int>, niceness: libc::c_int, slice: Duration) {
    // Linux before 5.3 refuses all where the policy is to stay, and has no slices either.
    let flags = if policy.is_none() { libc::SCHED_FLAG_KEEP_POLICY } else { 0 };
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy.unwrap_or(libc::SCHED_OTHER) as u32,
        sched_flags: flags as u64,
        sched_nice: niceness,
        sched_priority: 0,
        sched_runtime: slice.as_nanos() as u64,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the attributes are as long as they say and are only read; 0 is the calling thread alone (sched_setattr(2)).
    if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } != 0 {
        tracing::debug!(niceness, ?slice, "all threads share the processors alike: {}", io::Error::last_os_error());
    }
}

/// The niceness of this thread; -1 where it is not known.
fn niceness() -> libc::c_int {
    // SAFETY: no memory is handed over; 0 is the calling thread alone (getpriority(2)).
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policy, niceness and slice of this thread, as the kernel knows them.
    type Attributes = (libc::c_int, libc::c_int, u64);

    fn attributes() -> Attributes {
        // SAFETY: numbers alone; the kernel fills it in.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::sched_attr>();
        // SAFETY: the attributes are as long as they say, and live through the call (sched_getattr(2)).
        assert_eq!(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) }, 0);
        assert_eq!(attributes.sched_nice, niceness());
        (attributes.sched_policy as libc::c_int, attributes.sched_nice, attributes.sched_runtime)
    }

    /// The attributes of this thread, and of one that it starts.
    fn both() -> [Attributes; 2] {
        [attributes(), thread::spawn(attributes).join().unwrap()]
    }

    /// The slice that this kernel makes of a short one.
    fn short() -> u64 {
        let asking = || {
            set(None, niceness(), SHORT);
            attributes().2
        };
        thread::spawn(asking).join().unwrap()
    }

    #[test]
    fn work_of_low_priority_and_its_threads_are_a_batch() {
        let before = attributes();

        assert_eq!(low_priority(both), [(libc::SCHED_BATCH, before.1.max(NICE), short()); 2]);

        assert_eq!(both(), [before; 2]);
    }

    #[test]
    fn a_still_lower_priority_is_kept() {
        let further = || {
            set(None, 19, DEFAULT);
            low_priority(attributes).1
        };
        assert_eq!(thread::spawn(further).join().unwrap(), 19);
        let idle = || {
            let priority: libc::c_int = 0;
            let idle = libc::SCHED_IDLE;
            // SAFETY: the priority is only read; 0 is the calling thread alone (sched_setscheduler(2)).
            assert_eq!(unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, idle, &raw const priority) }, 0);
            low_priority(attributes).0
        };
        assert_eq!(thread::spawn(idle).join().unwrap(), libc::SCHED_IDLE);
    }

    #[test]
    fn threads_in_short_slices_have_the_usual_share() {
        let before = attributes();

        let started = in_short_slices(|| thread::spawn(both)).join().unwrap();

        assert_eq!(started, [(before.0, before.1, short()); 2]);
        assert_eq!(attributes(), before);
    }

    #[test]
    fn a_panic_at_low_priority_reaches_the_caller() {
        let panicking = || low_priority(|| panic!("as a test wants it"));
        assert!(std::panic::catch_unwind(panicking).is_err());
    }

    #[test]
    fn long_work_leaves_the_only_worker_free() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let computing = runtime.spawn(async move {
            tokio::spawn(async move { sender.send(5) });
            off_the_workers(|| receiver.recv_timeout(Duration::from_secs(60)))
        });

        assert_eq!(runtime.block_on(computing).unwrap(), Ok(5));
    }

    #[test]
    fn work_over_many_bytes_leaves_the_only_worker_free() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let others_go_on = |bytes| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let computing = runtime.spawn(async move {
                tokio::spawn(async move { sender.send(5) });
                over_bytes(bytes, || receiver.recv_timeout(Duration::from_secs(1)))
            });
            runtime.block_on(computing).unwrap().is_ok()
        };

        assert_eq!((others_go_on(FEW), others_go_on(FEW + 1)), (false, true));
    }
}
