//! Who reads: the programs behind the kernel's requests, by the thread that it names with each (`fuse_in_header.pid`,
//! fuse(4)), and those that may not have anything fetched (`deny=`).
//!
//! The program of a thread is remembered for [`REMEMBERED`]. So a READ that this machine answers makes no system call for it, but for the
//! first of a thread in a while.

use lru::LruCache;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a name as the kernel keeps it (`TASK_COMM_LEN` without its NUL, proc(5)).
const LONGEST_NAME: usize = 15;

/// Programs counted by name, the two invented ones included.
const NAMED: usize = 127;

/// Readers that cannot be named: of another PID namespace, or gone.
const UNKNOWN: usize = 0;

/// All programs that were first seen when [`NAMED`] were known.
const OTHERS: usize = 1;

/// Threads whose program is remembered.
const THREADS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);

/// How long a thread's program is taken for the same: execve(2) and prctl(2) change it.
const REMEMBERED: Duration = Duration::from_secs(1);

/// Programs that show extended attributes of files and nothing else of them.
const XATTR_PROGRAMS: [&[u8]; 2] = [b"getfattr", b"attr"];

/// System calls for extended attributes, and those for the type of a file.
const XATTR_CALLS: [libc::c_long; 6] = [
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
];
const TYPE_CALLS: &[libc::c_long] = &[
    libc::SYS_statx,
    #[cfg(target_pointer_width = "64")]
    libc::SYS_newfstatat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
];

/// So often it is looked which system call a thread waits in: it may not have begun to wait.
const LOOKS: usize = 8;

/// What a program has read since the mount began. Pages that the kernel has are read without asking and not seen here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// The name of its process as in `/proc/PID/comm`; `?`: unknown; `others`: all that were seen late.
    pub program: Box<str>,
    /// READs that were answered with bytes.
    pub reads: u64,
    /// These bytes.
    pub bytes: u64,
    /// READs and questions for a size that failed with EACCES because of `deny=`.
    pub denied: u64,
}

/// The reader of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// By its name; `None`: its process is known and it has not read.
    number: Option<usize>,
    /// 0: unknown.
    process: u32,
}

#[derive(Debug, Default)]
struct Counted {
    reads: AtomicU64,
    octets: AtomicU64,
    denied: AtomicU64,
}

/// The programs seen since the mount began, and those for which nothing is fetched.
#[derive(Debug)]
pub struct Programs {
    denied: Vec<Box<[u8]>>,
    /// Programs of threads, and since when each is known. Held for a few instructions.
    threads: Mutex<LruCache<u32, (Program, Instant)>>,
    /// Taken for a thread not seen in a while, never while a request waits.
    names: Mutex<HashMap<Box<str>, usize>>,
    counted: Box<[Counted]>,
}

impl Programs {
    /// None seen yet. `denied`: names as typed; the kernel keeps 15 bytes of each.
    pub fn new<'a>(denied: impl IntoIterator<Item = &'a str>) -> Programs {
        let kept = |name: &str| name.as_bytes()[..name.len().min(LONGEST_NAME)].into();
        let names = [("?".into(), UNKNOWN), ("others".into(), OTHERS)];
        Programs {
            denied: denied.into_iter().map(kept).collect(),
            threads: Mutex::new(LruCache::new(THREADS)),
            names: Mutex::new(names.into()),
            counted: (0..NAMED).map(|_| Counted::default()).collect(),
        }
    }

    /// The program of a thread.
    pub fn of(&self, thread: u32) -> Program {
        self.remembered(thread, true)
    }

    /// The process of a thread; 0: unknown. Unlike [`Programs::of`] it makes no program one of those that read.
    pub fn process(&self, thread: u32) -> u32 {
        self.remembered(thread, false).process
    }

    /// What is remembered of a thread, else what is found now. `is_named`: with the number of its name.
    fn remembered(&self, thread: u32, is_named: bool) -> Program {
        if thread == 0 {
            return Program { number: Some(UNKNOWN), process: 0 };
        }
        let now = Instant::now();
        if let Some((program, since)) = self.threads().get(&thread).copied()
            && now.saturating_duration_since(since) < REMEMBERED
            && (program.number.is_some() || !is_named)
        {
            return program;
        }
        let program = match names_of(thread) {
            Some(names) => Program { number: is_named.then(|| self.number(&names.process)), process: names.leader },
            None => Program { number: Some(UNKNOWN), process: 0 },
        };
        self.threads().put(thread, (program, now));
        program
    }

    fn threads(&self) -> MutexGuard<'_, LruCache<u32, (Program, Instant)>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `program` was given bytes.
    pub fn read(&self, program: Program, bytes: usize) {
        let Some(counted) = program.number.and_then(|number| self.counted.get(number)) else { return };
        counted.reads.fetch_add(1, Ordering::Relaxed);
        counted.octets.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The name because of which nothing may be fetched for a thread: its own or that of its process. `None`: it may; also
    /// where neither is known, for this is no protection.
    pub fn denied(&self, thread: u32) -> Option<String> {
        if self.denied.is_empty() || thread == 0 {
            return None;
        }
        let names = names_of(thread)?;
        let is_denied = |name: &[u8]| self.denied.iter().any(|denied| **denied == *name);
        let name = [&names.thread, &names.process].into_iter().find(|name| is_denied(name))?;
        Some(String::from_utf8_lossy(name).into_owned())
    }

    /// Whether a thread asks for an extended attribute, or for the type of a file in a program that looks at nothing else. Where its
    /// system call is unknown (proc(5), `syscall`, needs the right to trace it) that program alone decides.
    pub fn asks_for_xattr(&self, thread: u32) -> bool {
        if thread == 0 {
            return false;
        }
        let is_of_xattr_program = || comm(thread).is_some_and(|name| XATTR_PROGRAMS.contains(&&name[..]));
        match call_of(thread) {
            Ok(call) if call.is_some_and(|call| XATTR_CALLS.contains(&call)) => true,
            Ok(call) => call.is_some_and(|call| TYPE_CALLS.contains(&call)) && is_of_xattr_program(),
            Err(_) => is_of_xattr_program(),
        }
    }

    /// A thread was refused something.
    pub fn refused(&self, thread: u32) {
        if let Some(counted) = self.of(thread).number.and_then(|number| self.counted.get(number)) {
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
                bytes: number(&counted.octets),
                denied: number(&counted.denied),
            });
        }
        drop(names);
        all.retain(|reading| reading.reads > 0 || reading.denied > 0);
        all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.program.cmp(&b.program)));
        all
    }
}

struct Names {
    thread: Vec<u8>,
    process: Vec<u8>,
    /// The process's number.
    leader: u32,
}

/// The names of a thread and its process (proc(5), `comm` and `Tgid` of `status`); `None` where it is gone or hidden.
fn names_of(thread: u32) -> Option<Names> {
    let own = comm(thread)?;
    let status = fs::read(format!("/proc/{thread}/status")).ok()?;
    let leader = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
    let leader: u32 = std::str::from_utf8(leader).ok()?.trim().parse().ok()?;
    let process = if leader == thread { own.clone() } else { comm(leader)? };
    Some(Names { thread: own, process, leader })
}

/// The system call that a thread waits in; `None`: it waits in none.
fn call_of(thread: u32) -> io::Result<Option<libc::c_long>> {
    for _ in 0..LOOKS {
        let call = fs::read_to_string(format!("/proc/{thread}/syscall"))?;
        if let Some(number) = call.split_ascii_whitespace().next().and_then(|number| number.parse().ok()) {
            return Ok(Some(number));
        }
        std::thread::yield_now();
    }
    Ok(None)
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
            assert_eq!(programs.of(thread), program, "as it is remembered");
            assert_eq!(programs.process(thread), std::process::id(), "whichever of its threads reads");
            programs.read(programs.of(thread), 7);
            programs
        });

        let reading = programs.snapshot();
        assert_eq!(reading.len(), 1);
        assert_eq!((&*reading[0].program, reading[0].reads, reading[0].bytes), (&*own_name(), 2, 12));
    }

    #[test]
    fn a_name_is_compared_as_the_kernel_keeps_it() {
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
    fn unnamed_programs_are_counted_together_and_not_denied() {
        let programs = Programs::new(["?"]);
        // Past the highest number that Linux gives.
        for thread in [0, 1 << 23] {
            programs.read(programs.of(thread), 1);
            assert_eq!(programs.denied(thread), None);
        }

        let reading = programs.snapshot();

        assert_eq!((reading.len(), &*reading[0].program, reading[0].bytes), (1, "?", 2));
    }

    #[test]
    fn a_program_whose_process_was_asked_for_is_named_when_it_reads() {
        let programs = Programs::new([]);

        let programs = in_thread("some-worker", move |thread| {
            assert_eq!(programs.process(thread), std::process::id());
            assert_eq!(programs.names.lock().unwrap().len(), 2, "it has not read");
            programs.read(programs.of(thread), 5);
            assert_eq!(programs.process(thread), std::process::id());
            programs
        });

        assert_eq!(*programs.snapshot()[0].program, *own_name());
    }

    #[test]
    fn too_many_programs_are_counted_together() {
        let programs = Programs::new([]);
        for number in 0..2 * NAMED {
            let number = programs.number(format!("p{number}").as_bytes());
            programs.read(Program { number: Some(number), process: 0 }, 1);
        }

        let reading = programs.snapshot();

        assert_eq!(reading.len(), NAMED - 1);
        assert_eq!((&*reading[0].program, reading[0].bytes), ("others", NAMED as u64 + 2));
    }
}
