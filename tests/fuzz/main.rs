//! Bytes that no publisher meant to publish, for every reader of what comes from a server: an answer or an error, within a time
//! and a memory, and never a panic. `scripts/fuzz MINUTES` runs it for long; with the other tests it runs for seconds.
//!
//! First cases are those of the unit tests. A case whose outcome is new becomes a seed of others. The same `FUZZ_SEED` makes the
//! same cases in the same order. A case that fails is kept in a file, which `FUZZ_CASE=READER:FILE` reads again.

#[path = "../common/mod.rs"]
mod common;
mod corpus;
#[allow(dead_code, reason = "the unit tests of packages use all of it")]
#[path = "../../src/source/zip/tests/crafted.rs"]
mod crafted;
mod mutator;
mod readers;

use common::random::Random;
use readers::Target;
use std::alloc::{GlobalAlloc, Layout, System};
use std::any::Any;
use std::collections::HashSet;
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The longest that one case may take. A case has at most 64 KiB.
const MOST_TIME: Duration = Duration::from_secs(5);

/// The most memory that one case may take, in bytes.
const MOST_MEMORY: usize = 32 << 20;

/// Memory that may remain behind all cases of a reader, in bytes: connections, and what is remembered of packages.
const MOST_LEFT: i64 = 64 << 20;

/// Cases of one reader before the next has its turn.
const TURN: u64 = 100;

/// Seeds of one reader.
const MOST_SEEDS: usize = 4_000;

/// Cases that are run with the other tests, for each reader.
const FEW: u64 = 400;

/// The system's allocator, which counts the bytes in use.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST_IN_USE: AtomicUsize = AtomicUsize::new(0);

fn taken(bytes: usize) {
    MOST_IN_USE.fetch_max(IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes, Ordering::Relaxed);
}

// SAFETY: every call is passed to the system's allocator unchanged; the counts take no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's word is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's word is passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        taken(bytes);
        // SAFETY: the caller's word is passed on.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The first panic of the case under way, on any thread.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// The case under way: its reader, its bytes and when it began.
static UNDER_WAY: Mutex<Option<(&'static str, Vec<u8>, Instant)>> = Mutex::new(None);

/// The case under way for a handler of signals, which must not take a lock: bytes, their number, and the name of the reader.
static BYTES: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);
static NAME: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static NAME_LENGTH: AtomicUsize = AtomicUsize::new(0);

/// The file of a case that ends the process, as an overflow of the stack does.
const ABORTED: &CStr = c"/tmp/resyncfs-fuzz-aborted";

/// Keeps the case under way.
extern "C" fn aborted(_: libc::c_int) {
    let load = |pointer: &AtomicPtr<u8>| pointer.load(Ordering::Relaxed).cast::<libc::c_void>();
    // SAFETY: both are the bytes of a case and of a name that are in use, and these calls may be made by a handler.
    unsafe {
        let file = libc::open(ABORTED.as_ptr(), libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY, 0o644);
        libc::write(file, load(&BYTES), LENGTH.load(Ordering::Relaxed));
        libc::close(file);
        libc::write(2, load(&NAME), NAME_LENGTH.load(Ordering::Relaxed));
        let text = b" has ended the process; the case is in /tmp/resyncfs-fuzz-aborted\n";
        libc::write(2, text.as_ptr().cast(), text.len());
    }
}

/// A reader, its seeds, and what has come of it.
struct Fuzzed {
    target: Target,
    random: Random,
    outcomes: HashSet<String>,
    executions: u64,
    took: Duration,
    longest: Duration,
    /// Bytes that cases have left in use.
    left: i64,
    findings: HashSet<String>,
}

impl Fuzzed {
    fn new(target: Target, seed: u64) -> Fuzzed {
        let mut fuzzed = Fuzzed {
            target,
            random: Random::new(seed),
            outcomes: HashSet::new(),
            executions: 0,
            took: Duration::ZERO,
            longest: Duration::ZERO,
            left: 0,
            findings: HashSet::new(),
        };
        for case in fuzzed.target.cases.clone() {
            fuzzed.run(&case);
        }
        fuzzed
    }

    fn turn(&mut self) {
        for _ in 0..TURN {
            let cases = &self.target.cases;
            let [seed, other] = [(); 2].map(|()| &cases[self.random.below(cases.len() as u64) as usize]);
            let case = mutator::mutated(&mut self.random, seed, other, &self.target.dictionary);
            if self.run(&case) && self.target.cases.len() < MOST_SEEDS {
                self.target.cases.push(case);
            }
        }
    }

    /// Runs one case; true where its outcome is new.
    fn run(&mut self, case: &[u8]) -> bool {
        let name = self.target.name;
        *UNDER_WAY.lock().unwrap() = Some((name, case.to_vec(), Instant::now()));
        BYTES.store(case.as_ptr().cast_mut(), Ordering::Relaxed);
        LENGTH.store(case.len(), Ordering::Relaxed);
        NAME.store(name.as_ptr().cast_mut(), Ordering::Relaxed);
        NAME_LENGTH.store(name.len(), Ordering::Relaxed);
        let before = IN_USE.load(Ordering::Relaxed);
        MOST_IN_USE.store(before, Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.target.run)(case)));
        let own = outcome.as_ref().map_or(0, String::capacity);
        self.left += IN_USE.load(Ordering::Relaxed) as i64 - (before + own) as i64;
        let grew = MOST_IN_USE.load(Ordering::Relaxed).saturating_sub(before);
        let took = UNDER_WAY.lock().unwrap().take().map(|(_, _, began)| began.elapsed()).unwrap_or_default();
        self.executions += 1;
        self.took += took;
        self.longest = self.longest.max(took);
        match PANIC.lock().unwrap().take() {
            Some(panic) => self.finding(case, &panic),
            None if grew > MOST_MEMORY => self.finding(case, &format!("takes over {} MiB", MOST_MEMORY >> 20)),
            None => {}
        }
        outcome.is_ok_and(|outcome| self.outcomes.insert(outcome))
    }

    fn finding(&mut self, case: &[u8], what: &str) {
        if self.findings.insert(what.to_owned()) {
            report(self.target.name, case, what);
        }
    }
}

/// Keeps a case in a file, and says how to read it again.
fn report(name: &str, case: &[u8], what: &str) {
    let file = case_file(name, case);
    std::fs::write(&file, case).unwrap();
    println!("{name}: {what}\n  again: FUZZ_CASE='{name}:{}' scripts/fuzz", file.display());
}

fn case_file(name: &str, case: &[u8]) -> PathBuf {
    let digest = case
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    std::env::temp_dir().join(format!("resyncfs-fuzz-{}-{digest:016x}", name.replace(' ', "-")))
}

/// Ends the process when one case takes too long: nothing else can stop it.
fn watch() {
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let stuck = UNDER_WAY.lock().unwrap().clone().filter(|(_, _, began)| began.elapsed() > MOST_TIME);
        if let Some((name, case, _)) = stuck {
            report(name, &case, &format!("takes longer than {MOST_TIME:?}"));
            std::process::exit(1);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

fn main() -> ExitCode {
    let seed = number("FUZZ_SEED").unwrap_or(1);
    let until = number("FUZZ_MINUTES").map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    std::panic::set_hook(Box::new(|panic| {
        let payload: &dyn Any = panic.payload();
        let words = payload.downcast_ref::<String>().map(String::as_str);
        let words = words.or(payload.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        PANIC.lock().unwrap().get_or_insert(format!("{} at {place}", words.lines().next().unwrap_or_default()));
    }));
    // SAFETY: the handler makes only calls that it may.
    unsafe { libc::signal(libc::SIGABRT, aborted as *const () as libc::sighandler_t) };
    std::thread::spawn(watch);
    let targets = readers::targets();
    if let Ok(again) = std::env::var("FUZZ_CASE") {
        let (name, file) = again.split_once(':').expect("FUZZ_CASE is READER:FILE");
        let case = std::fs::read(file).unwrap();
        let target = targets.into_iter().find(|target| target.name == name).expect("FUZZ_CASE names a reader");
        let mut fuzzed = Fuzzed::new(Target { cases: Vec::new(), ..target }, seed);
        fuzzed.run(&case);
        println!("{:?}", fuzzed.outcomes);
        return if fuzzed.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let mut all: Vec<Fuzzed> = targets.into_iter().map(|target| Fuzzed::new(target, seed)).collect();
    while match until {
        Some(until) => Instant::now() < until,
        None => all.iter().any(|fuzzed| fuzzed.executions < FEW),
    } {
        all.iter_mut().for_each(Fuzzed::turn);
    }
    println!(
        "{:<20}{:>12}{:>10}{:>10}{:>12}{:>12}{:>10}",
        "reader", "executions", "a second", "outcomes", "longest", "left", "findings"
    );
    for fuzzed in &all {
        let rate = fuzzed.executions as f64 / fuzzed.took.as_secs_f64().max(1e-9);
        println!(
            "{:<20}{:>12}{rate:>10.0}{:>10}{:>9.1} ms{:>9} kB{:>10}",
            fuzzed.target.name,
            fuzzed.executions,
            fuzzed.outcomes.len(),
            fuzzed.longest.as_secs_f64() * 1e3,
            fuzzed.left / 1000,
            fuzzed.findings.len()
        );
    }
    let is_sound = all.iter().all(|fuzzed| fuzzed.left <= MOST_LEFT && fuzzed.findings.is_empty());
    if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
