//! The programs behind the kernel's requests, by the thread that the kernel names with each (`fuse_in_header.pid`, fuse(4)), and
//! those for which nothing is fetched (`deny=`).
//!
//! The program of a thread is remembered for [`REMEMBERED`], so most READs that this machine answers make no system call for it.

use lru::LruCache;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a name as the kernel keeps it (`TASK_COMM_LEN` without its NUL, proc(5)).
const LONGEST_NAME: usize = 15;

/// Programs counted by name.
const NAMED: usize = 126;

/// Readers without a name: of another PID namespace, or gone.
const UNKNOWN: &str = "?";

/// All programs that were first seen when [`NAMED`] were known.
const OTHERS: &str = "others";

/// Threads whose program is remembered.
const THREADS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);

/// How long a thread's program is taken for the same: execve(2) and prctl(2) change it.
const REMEMBERED: Duration = Duration::from_secs(1);

/// Programs that show extended attributes of files and nothing else of them.
const XATTR_PROGRAMS: [&[u8]; 2] = [b"getfattr", b"attr"];

/// System calls for extended attributes.
const XATTR_CALLS: [libc::c_long; 6] = [
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
];

/// Mask of statx(2) for callers that need the size.
const SIZED: u32 = libc::STATX_SIZE | libc::STATX_BLOCKS;

/// How often the system call of a thread is looked up: the thread may still be on its way into it.
const TRIES: usize = 8;

/// READs of one program since the mount began. Pages that the kernel has are read without a READ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramReads {
    /// The name of its process as in `/proc/PID/comm`; `?`: unknown; `others`: all that were seen late.
    pub program: Arc<str>,
    /// READs that were answered with bytes.
    pub reads: u64,
    /// These bytes.
    pub bytes: u64,
    /// READs and questions for a size that failed with EACCES because of `deny=`.
    pub denied: u64,
}

/// The reader of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The name of its process.
    name: Arc<str>,
    /// The name for which nothing is fetched: that of its thread or its process.
    denied: Option<Arc<str>>,
    /// 0: unknown.
    process: u32,
}

/// The programs seen since the mount began, and those for which nothing is fetched.
#[derive(Debug)]
pub struct Programs {
    denied: Vec<Box<[u8]>>,
    /// Held for a few instructions.
    seen: Mutex<SeenPrograms>,
}

#[derive(Debug)]
struct SeenPrograms {
    /// Programs of threads, and since when each is known.
    threads: LruCache<u32, (Program, Instant)>,
    readings: HashMap<Arc<str>, ProgramReads>,
}

impl Programs {
    /// None seen yet. `denied`: names as typed; the kernel keeps 15 bytes of each.
    pub fn new<'a>(denied: impl IntoIterator<Item = &'a str>) -> Programs {
        let kept = |name: &str| name.as_bytes()[..name.len().min(LONGEST_NAME)].into();
        let seen = SeenPrograms { threads: LruCache::new(THREADS), readings: HashMap::new() };
        Programs { denied: denied.into_iter().map(kept).collect(), seen: Mutex::new(seen) }
    }

    /// The program of a thread (0: unknown).
    pub fn of(&self, thread: u32) -> Program {
        let now = Instant::now();
        if let Some((program, since)) = self.seen().threads.get(&thread) {
            if now.saturating_duration_since(*since) < REMEMBERED {
                return program.clone();
            }
        }
        let program = self.find(thread);
        self.seen().threads.put(thread, (program.clone(), now));
        program
    }

    /// The process of a thread; 0: unknown.
    pub fn process(&self, thread: u32) -> u32 {
        self.of(thread).process
    }

    /// The `deny=` name that matches a thread or its process. `None`: fetching is allowed; also
    /// where neither is known, because `deny=` does not protect.
    pub fn denied(&self, thread: u32) -> Option<Arc<str>> {
        if self.denied.is_empty() {
            return None;
        }
        // The program that is remembered may have executed another since. Of a thread that is gone nothing else is known.
        let found = self.find(thread);
        if found.process == 0 { self.of(thread).denied } else { found.denied }
    }

    /// `program` was given bytes.
    pub fn read(&self, program: &Program, bytes: usize) {
        self.count(program, |reading| {
            reading.reads += 1;
            reading.bytes += bytes as u64;
        });
    }

    /// `program` was refused something.
    pub fn refused(&self, program: &Program) {
        self.count(program, |reading| reading.denied += 1);
    }

    /// READs of each program, the most bytes first.
    pub fn snapshot(&self) -> Vec<ProgramReads> {
        let mut all: Vec<_> = self.seen().readings.values().cloned().collect();
        all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.program.cmp(&b.program)));
        all
    }

    fn count(&self, program: &Program, add: impl FnOnce(&mut ProgramReads)) {
        let readings = &mut self.seen().readings;
        let has_own = readings.len() < NAMED || readings.contains_key(&program.name);
        let name = if has_own { Arc::clone(&program.name) } else { OTHERS.into() };
        let none = || ProgramReads { program: Arc::clone(&name), reads: 0, bytes: 0, denied: 0 };
        add(readings.entry(Arc::clone(&name)).or_insert_with(none));
    }

    fn find(&self, thread: u32) -> Program {
        self.named(thread).unwrap_or_else(|| Program { name: UNKNOWN.into(), denied: None, process: 0 })
    }

    /// The program by the names of a thread and its process (proc(5), `comm` and `Tgid` of `status`); `None` where it is gone or hidden.
    fn named(&self, thread: u32) -> Option<Program> {
        let own = comm(thread)?;
        let status = fs::read(format!("/proc/{thread}/status")).ok()?;
        let leader = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
        let leader: u32 = std::str::from_utf8(leader).ok()?.trim().parse().ok()?;
        let process = if leader == thread { own.clone() } else { comm(leader)? };
        let text = |name: &[u8]| String::from_utf8_lossy(name).into();
        let is_denied = |name: &&Vec<u8>| self.denied.iter().any(|denied| **denied == ***name);
        let denied = [&own, &process].into_iter().find(is_denied).map(|name| text(name));
        Some(Program { name: text(&process), denied, process: leader })
    }

    fn seen(&self) -> MutexGuard<'_, SeenPrograms> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a thread needs no size: it asks for an extended attribute, or for the status of a file without it (`ls --color`), or belongs to a
/// program that shows extended attributes alone. Where the system call is unknown (proc(5), `syscall`, needs the right to trace the
/// thread) the program alone decides.
pub fn needs_no_size(thread: u32) -> bool {
    let without_size = |(number, arguments): (libc::c_long, Vec<u64>)| match number {
        libc::SYS_statx => arguments.get(3).is_some_and(|mask| mask & u64::from(SIZED) == 0),
        number => XATTR_CALLS.contains(&number),
    };
    call_of(thread).is_some_and(without_size) || comm(thread).is_some_and(|name| XATTR_PROGRAMS.contains(&&name[..]))
}

/// SIGKILL in the masks of proc(5). The kernel adds it to the pending signals of each thread where another signal ends the process.
const KILLED: u64 = 1 << (libc::SIGKILL - 1);

/// Returns whether a process has ended, or will once its READ is answered: the kernel cannot end one that waits for a single page. An unknown one
/// (0) counts as running.
pub(super) fn is_gone(process: u32) -> bool {
    if process == 0 {
        return false;
    }
    let status = match fs::read_to_string(format!("/proc/{process}/status")) {
        Ok(status) => status,
        // Without a descriptor for it nothing is known: it may live. One that ends while it is read is ESRCH.
        Err(cause) => return cause.kind() == ErrorKind::NotFound || cause.raw_os_error() == Some(libc::ESRCH),
    };
    let masks = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & KILLED != 0)
}

/// The number and the arguments of the system call that a thread waits in; `None`: none, or unknown.
fn call_of(thread: u32) -> Option<(libc::c_long, Vec<u64>)> {
    for _ in 0..TRIES {
        let call = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
        let mut words = call.split_ascii_whitespace();
        if let Some(number) = words.next().and_then(|number| number.parse().ok()) {
            let argument = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or(u64::MAX);
            return Some((number, words.map(argument).collect()));
        }
        std::thread::yield_now();
    }
    None
}

fn comm(process: u32) -> Option<Vec<u8>> {
    let mut name = fs::read(format!("/proc/{process}/comm")).ok()?;
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `look` in a thread named `name`, with that thread's number.
    fn in_thread<T: Send + 'static>(name: &str, look: impl FnOnce(u32) -> T + Send + 'static) -> T {
        let run = move || look(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        std::thread::Builder::new().name(name.into()).spawn(run).unwrap().join().unwrap()
    }

    fn own_name() -> String {
        fs::read_to_string("/proc/self/comm").unwrap().trim_end_matches('\n').to_owned()
    }

    #[test]
    fn a_program_is_denied_as_soon_as_it_has_its_name() {
        in_thread("shell", |thread| {
            let programs = Programs::new(["thumbnailer"]);
            let before = programs.of(thread);
            assert_eq!((programs.denied(thread), before.denied), (None, None));

            // As execve(2) does.
            fs::write("/proc/thread-self/comm", "thumbnailer").unwrap();

            assert_eq!(programs.denied(thread).as_deref(), Some("thumbnailer"));
        });
    }

    #[test]
    fn what_a_thread_reads_counts_as_its_programs() {
        let programs = Programs::new([]);

        let programs = in_thread("some-worker", move |thread| {
            let program = programs.of(thread);
            programs.read(&program, 5);
            assert_eq!(programs.of(thread), program, "as it is remembered");
            assert_eq!(programs.process(thread), std::process::id(), "whichever of its threads reads");
            programs.read(&programs.of(thread), 7);
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
            programs.read(&programs.of(thread), 1);
            assert_eq!(programs.denied(thread), None);
        }

        let reading = programs.snapshot();

        assert_eq!((reading.len(), &*reading[0].program, reading[0].bytes), (1, "?", 2));
    }

    #[test]
    fn only_programs_that_read_are_counted() {
        let programs = Programs::new([]);

        let programs = in_thread("some-worker", move |thread| {
            assert_eq!(programs.process(thread), std::process::id());
            assert_eq!(programs.snapshot(), [], "it has not read");
            programs.read(&programs.of(thread), 5);
            programs.refused(&programs.of(thread));
            programs
        });

        let [reading] = &programs.snapshot()[..] else { panic!() };
        assert_eq!((&*reading.program, reading.bytes, reading.denied), (&*own_name(), 5, 1));
    }

    #[test]
    fn too_many_programs_are_counted_together() {
        let programs = Programs::new([]);
        for number in 0..2 * NAMED {
            programs.read(&Program { name: format!("p{number}").into(), denied: None, process: 0 }, 1);
        }

        let reading = programs.snapshot();

        assert_eq!(reading.len(), NAMED + 1);
        assert_eq!((&*reading[0].program, reading[0].bytes), ("others", NAMED as u64));
    }

    #[test]
    fn questions_for_extended_attributes_are_recognised() {
        let (names, named) = std::sync::mpsc::channel();
        let waiting = std::thread::Builder::new().name("getfattr".into()).spawn(move || {
            names.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            std::thread::park();
        });
        let waiting = waiting.unwrap();

        assert!(needs_no_size(named.recv().unwrap()));
        assert!(!needs_no_size(0) && !in_thread("some-worker", needs_no_size));
        waiting.thread().unpark();
        waiting.join().unwrap();
    }
}
