//! Who reads: the programs behind the kernel's requests, by the thread that it names with each (`fuse_in_header.pid`,
//! fuse(4)), and those that may not have anything fetched (`deny=`).
//!
//! A READ that this machine answers takes no lock and, but for the first of a thread in a while, makes no system call for
//! it: the program of a thread is remembered for [`REMEMBERED`] in one atomic word.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Octets of a name as the kernel keeps it (`TASK_COMM_LEN` without its NUL, proc(5)).
const LONGEST_NAME: usize = 15;

/// Programs counted by name, the two made up ones included.
const NAMED: usize = 128;

/// Readers that cannot be named: of another PID namespace, or gone.
const UNKNOWN: usize = 0;

/// All programs that came when [`NAMED`] were known.
const OTHERS: usize = 1;

/// Threads whose program is remembered; two that meet in one place take turns.
const PLACES: usize = 1024;

/// How long a thread's program is taken for the same: execve(2) and prctl(2) change it.
const REMEMBERED: Duration = Duration::from_secs(1);

/// What a program has read since the mount began. Pages that the kernel has are read without asking and not seen here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The name of its process as in `/proc/PID/comm`; `?`: cannot be told; `others`: all that came late.
    pub program: Box<str>,
    /// READs that were answered with octets.
    pub reads: u64,
    /// These octets.
    pub octets: u64,
    /// READs and questions for a size that failed with EACCES because of `deny=`.
    pub denied: u64,
}

/// A program, by its number here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program(usize);

#[derive(Debug, Default)]
struct Counted {
    reads: AtomicU64,
    octets: AtomicU64,
    denied: AtomicU64,
}

/// The programs seen since the mount began, and those that were told to stay away.
#[derive(Debug)]
pub struct Programs {
    denied: Vec<Box<[u8]>>,
    begun: Instant,
    /// `thread << 32 | time << 16 | program`; 0: free.
    places: Box<[AtomicU64]>,
    /// Taken for a thread not seen in a while, never while a request waits.
    names: Mutex<HashMap<Box<str>, usize>>,
    counted: Box<[Counted]>,
}

impl Programs {
    /// None seen yet. `denied`: names as typed; the kernel keeps 15 octets of each.
    pub fn new<'a>(denied: impl IntoIterator<Item = &'a str>) -> Programs {
        let kept = |name: &str| name.as_bytes()[..name.len().min(LONGEST_NAME)].into();
        let names = [("?".into(), UNKNOWN), ("others".into(), OTHERS)];
        Programs {
            denied: denied.into_iter().map(kept).collect(),
            begun: Instant::now(),
            places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            names: Mutex::new(names.into()),
            counted: (0..NAMED).map(|_| Counted::default()).collect(),
        }
    }

    /// The program of a thread.
    pub fn of(&self, thread: u32) -> Program {
        if thread == 0 {
            return Program(UNKNOWN);
        }
        // It comes round again after hours; who is taken for what it was then is only counted wrong.
        let now = (self.begun.elapsed().as_millis() / REMEMBERED.as_millis()) as u64 & 0xffff;
        let place = &self.places[thread as usize % PLACES];
        let known = place.load(Ordering::Relaxed);
        if known != 0 && known >> 16 == u64::from(thread) << 16 | now {
            return Program((known & 0xffff) as usize);
        }
        let program = names_of(thread).map_or(UNKNOWN, |names| self.number(&names.process));
        place.store(u64::from(thread) << 32 | now << 16 | program as u64, Ordering::Relaxed);
        Program(program)
    }

    /// `program` was given octets.
    pub fn read(&self, program: Program, octets: usize) {
        let Some(counted) = self.counted.get(program.0) else { return };
        counted.reads.fetch_add(1, Ordering::Relaxed);
        counted.octets.fetch_add(octets as u64, Ordering::Relaxed);
    }

    /// The name because of which nothing may be fetched for a thread: its own or that of its process. `None`: it may; also
    /// where neither can be told, for this keeps nobody out who wants in.
    pub fn denied(&self, thread: u32) -> Option<String> {
        if self.denied.is_empty() || thread == 0 {
            return None;
        }
        let names = names_of(thread)?;
        let is_denied = |name: &[u8]| self.denied.iter().any(|denied| **denied == *name);
        let name = [&names.thread, &names.process].into_iter().find(|name| is_denied(name))?;
        Some(String::from_utf8_lossy(name).into_owned())
    }

    /// A thread was refused something.
    pub fn refused(&self, thread: u32) {
        if let Some(counted) = self.counted.get(self.of(thread).0) {
            counted.denied.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn number(&self, name: &[u8]) -> usize {
        let name = String::from_utf8_lossy(name);
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        match names.get(&*name) {
            Some(number) => *number,
            None if names.len() >= NAMED => OTHERS,
            None => {
                let number = names.len();
                names.insert(name.as_ref().into(), number);
                number
            }
        }
    }

    /// What each program has read, the most first; those that were neither given nor refused anything are left out.
    pub fn snapshot(&self) -> Vec<Reading> {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::with_capacity(names.len());
        for (name, place) in names.iter() {
            let Some(counted) = self.counted.get(*place) else { continue };
            all.push(Reading {
                program: name.clone(),
                reads: number(&counted.reads),
                octets: number(&counted.octets),
                denied: number(&counted.denied),
            });
        }
        drop(names);
        all.retain(|reading| reading.reads > 0 || reading.denied > 0);
        all.sort_by(|a, b| b.octets.cmp(&a.octets).then_with(|| a.program.cmp(&b.program)));
        all
    }
}

struct Names {
    thread: Vec<u8>,
    process: Vec<u8>,
}

/// The names of a thread and its process (proc(5), `comm` and `Tgid` of `status`); `None` where it is gone or hidden.
fn names_of(thread: u32) -> Option<Names> {
    let own = comm(thread)?;
    let status = fs::read(format!("/proc/{thread}/status")).ok()?;
    let leader = status.split(|octet| *octet == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
    let leader: u32 = std::str::from_utf8(leader).ok()?.trim().parse().ok()?;
    let process = if leader == thread { own.clone() } else { comm(leader)? };
    Some(Names { thread: own, process })
}

fn comm(process: u32) -> Option<Vec<u8>> {
    let mut name = fs::read(format!("/proc/{process}/comm")).ok()?;
    name.pop_if(|last| *last == b'\n');
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `look` in a thread named `name`, with that thread's number.
    fn in_thread<T: Send + 'static>(name: &str, look: impl FnOnce(u32) -> T + Send + 'static) -> T {
        // SAFETY: gettid has no preconditions and cannot fail.
        let run = move || look(unsafe { libc::gettid() } as u32);
        std::thread::Builder::new().name(name.into()).spawn(run).unwrap().join().unwrap()
    }

    fn own_name() -> String {
        fs::read_to_string("/proc/self/comm").unwrap().trim_end_matches('\n').to_owned()
    }

    #[test]
    fn what_a_thread_reads_counts_as_its_programs() {
        let programs = Programs::new([]);

        let programs = in_thread("some-worker", move |thread| {
            let program = programs.of(thread);
            programs.read(program, 5);
            assert_eq!(programs.of(thread), program);
            programs.read(programs.of(thread), 7);
            programs
        });

        let reading = programs.snapshot();
        assert_eq!(reading.len(), 1);
        assert_eq!((&*reading[0].program, reading[0].reads, reading[0].octets), (&*own_name(), 2, 12));
    }

    #[test]
    fn a_name_is_compared_as_the_kernel_keeps_it_of_thread_and_process() {
        for (denied, thread, expected) in [
            ("a-very-long-program-name", "a-very-long-program-name", true),
            ("a-very-long-pro", "a-very-long-program-name", true),
            ("a-very-long", "a-very-long-program-name", false),
            ("tumblerd", "tumblerd", true),
            ("tumblerd", "Tumblerd", false),
            (&own_name(), "worker", true),
            ("other", "worker", false),
        ] {
            let programs = Programs::new([denied]);

            let is_denied = in_thread(thread, move |thread| programs.denied(thread).is_some());

            assert_eq!(is_denied, expected, "deny={denied}, thread {thread}");
        }
    }

    #[test]
    fn who_cannot_be_named_is_counted_together_and_not_denied() {
        let programs = Programs::new(["?"]);
        // Past the highest number that Linux gives.
        for thread in [0, 1 << 23] {
            programs.read(programs.of(thread), 1);
            assert_eq!(programs.denied(thread), None);
        }

        let reading = programs.snapshot();

        assert_eq!((reading.len(), &*reading[0].program, reading[0].octets), (1, "?", 2));
    }

    #[test]
    fn too_many_programs_are_counted_together() {
        let programs = Programs::new([]);
        for number in 0..2 * NAMED {
            programs.read(Program(programs.number(format!("p{number}").as_bytes())), 1);
        }

        let reading = programs.snapshot();

        assert_eq!(reading.len(), NAMED - 1);
        assert_eq!((&*reading[0].program, reading[0].octets), ("others", NAMED as u64 + 2));
    }
}
