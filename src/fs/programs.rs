//! Who reads: the programs behind the kernel's requests, by the thread that it names with each (`fuse_in_header.pid`,
//! fuse(4)), and those that may not have anything fetched (`deny=`).
//!
//! A READ that this machine answers takes no lock and, but for the first of a thread in a while, makes no system call for
//! it: the program of a thread is remembered for [`REMEMBERED`] in one atomic word.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Octets of a name as the kernel keeps it (`TASK_COMM_LEN` without its NUL, proc(5)).
const LONGEST_NAME: usize = 15;

/// Programs counted by name, the two made up ones included.
const NAMED: usize = UNNAMED;

/// Readers that cannot be named: of another PID namespace, or gone.
const UNKNOWN: usize = 0;

/// All programs that came when [`NAMED`] were known.
const OTHERS: usize = 1;

/// Threads whose program is remembered; two that meet in one place take turns.
const PLACES: usize = 1024;

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

/// Bits of a [`Place`]. Linux gives threads and processes no number of more (`PID_MAX_LIMIT`, proc(5)).
const NUMBER_BITS: u32 = 22;
const TIME_BITS: u32 = 13;
const PROGRAM_BITS: u32 = 7;
const _: () = assert!(2 * NUMBER_BITS + TIME_BITS + PROGRAM_BITS == u64::BITS);

/// Whose process is known and whose program is not: it has not read.
const UNNAMED: usize = (1 << PROGRAM_BITS) - 1;

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

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// By its name.
    number: usize,
    /// 0: it cannot be told.
    process: u32,
}

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
    /// [`Place`]s; 0: free.
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
        self.remembered(thread, |known| known.number != UNNAMED, |names| self.number(&names.process))
    }

    /// The process of a thread; 0: it cannot be told. Unlike [`Programs::of`] it makes no program one of those that read.
    pub fn process(&self, thread: u32) -> u32 {
        self.remembered(thread, |_| true, |_| UNNAMED).process
    }

    /// What is remembered of a thread where that `is_enough`, else what is found anew.
    fn remembered(
        &self,
        thread: u32,
        is_enough: impl Fn(Program) -> bool,
        number: impl Fn(&Names) -> usize,
    ) -> Program {
        if thread == 0 || thread >> NUMBER_BITS != 0 {
            return Program { number: UNKNOWN, process: 0 };
        }
        // It comes round again after two hours; who is taken for what it was then is counted wrong, and has another's share.
        let now = (self.begun.elapsed().as_millis() / REMEMBERED.as_millis()) as u64 & ((1 << TIME_BITS) - 1);
        let place = &self.places[thread as usize % PLACES];
        let known = Place(place.load(Ordering::Relaxed));
        if known.is_of(thread, now) && is_enough(known.program()) {
            return known.program();
        }
        let program = match names_of(thread).filter(|names| names.leader >> NUMBER_BITS == 0) {
            Some(names) => Program { number: number(&names), process: names.leader },
            None => Program { number: UNKNOWN, process: 0 },
        };
        place.store(Place::new(thread, now, program).0, Ordering::Relaxed);
        program
    }

    /// `program` was given octets.
    pub fn read(&self, program: Program, octets: usize) {
        let Some(counted) = self.counted.get(program.number) else { return };
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

    /// Whether a thread asks for an extended attribute, or for the type of a file in a program that looks at nothing else. Where its
    /// system call cannot be told (proc(5), `syscall`, needs the right to trace it) that program alone decides.
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
        if let Some(counted) = self.counted.get(self.of(thread).number) {
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

/// What is remembered of a thread, in one word: its number, its process's, when that was looked up (in [`REMEMBERED`] since the
/// beginning, the low bits) and its program.
#[derive(Clone, Copy)]
struct Place(u64);

impl Place {
    fn new(thread: u32, time: u64, program: Program) -> Place {
        let numbers = u64::from(thread) << NUMBER_BITS | u64::from(program.process);
        Place((numbers << TIME_BITS | time) << PROGRAM_BITS | program.number as u64)
    }

    fn is_of(self, thread: u32, time: u64) -> bool {
        let of_time = self.0 >> PROGRAM_BITS & ((1 << TIME_BITS) - 1);
        self.0 >> (NUMBER_BITS + TIME_BITS + PROGRAM_BITS) == u64::from(thread) && of_time == time
    }

    fn program(self) -> Program {
        let process = self.0 >> (TIME_BITS + PROGRAM_BITS) & ((1 << NUMBER_BITS) - 1);
        Program { number: (self.0 & ((1 << PROGRAM_BITS) - 1)) as usize, process: process as u32 }
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
    let leader = status.split(|octet| *octet == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
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
    fn what_is_remembered_of_a_thread_is_what_was_found() {
        const HIGHEST: u32 = (1 << NUMBER_BITS) - 1;
        for (thread, time, number, process) in [(1, 0, 0, 1), (HIGHEST, 8191, UNNAMED, HIGHEST), (70, 1, 5, 0)] {
            let program = Program { number, process };
            let place = Place::new(thread, time, program);
            assert_eq!(place.program(), program);
            assert!(place.is_of(thread, time) && !place.is_of(thread - 1, time) && !place.is_of(thread, time ^ 1));
        }
        assert!(!Place(0).is_of(1, 0), "a free one is nobody's");
    }

    #[test]
    fn too_many_programs_are_counted_together() {
        let programs = Programs::new([]);
        for number in 0..2 * NAMED {
            let number = programs.number(format!("p{number}").as_bytes());
            programs.read(Program { number, process: 0 }, 1);
        }

        let reading = programs.snapshot();

        assert_eq!(reading.len(), NAMED - 1);
        assert_eq!((&*reading[0].program, reading[0].octets), ("others", NAMED as u64 + 2));
    }
}
