//! Rows of the table, clocks and memory.

use std::any::Any;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often a time is taken; the median counts.
pub const ROUNDS: usize = 5;

const NOT_MEASURED: &str = "not measured";

const BROKE_OFF: &str = "broke off";

/// One line of the table.
#[derive(Clone)]
pub struct Row {
    /// What was done.
    pub work: String,
    /// What it took here.
    pub measured: String,
    /// What it took the peer, or what the limit is.
    pub peer: String,
    /// Measured by peer.
    pub ratio: String,
    /// What was wanted.
    pub bar: String,
    /// Whether the bar holds.
    pub holds: bool,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { work, measured, peer, ratio, bar, holds } = self;
        let verdict = match self.missing() {
            Some(_) => "-",
            None if measured == BROKE_OFF => "BROKE OFF",
            None if *holds => "ok",
            None => "MISSED",
        };
        write!(f, "| {work} | {measured} | {peer} | {ratio} | {bar} | {verdict} |")
    }
}

impl Row {
    /// A row that compares two speeds in `unit` per second; `least` is the smallest ratio wanted.
    pub fn speeds(work: &str, unit: &str, ours: f64, peer_name: &str, peer: f64, least: f64) -> Row {
        let ratio = ours / peer;
        Row {
            work: work.into(),
            measured: format!("{ours:.0} {unit}/s"),
            peer: format!("{peer_name} {peer:.0} {unit}/s"),
            ratio: format!("{ratio:.2}"),
            bar: format!(">= {least}"),
            holds: ratio >= least,
        }
    }

    /// A row whose peer, or network, is not to be had here: `why`.
    pub fn not_measured(work: &str, why: &str) -> Row {
        Row::bound(work, NOT_MEASURED.into(), why, true)
    }

    /// A row that was begun and came to no figure: `why`.
    pub fn broke_off(work: &str, why: &str) -> Row {
        // What a program said may have lines, and bars of a table.
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "/");
        Row::bound(work, BROKE_OFF.into(), &why.chars().take(400).collect::<String>(), false)
    }

    /// What is wrong with it, where something is.
    pub fn missed(&self) -> Option<String> {
        let Row { work, measured, ratio, bar, .. } = self;
        match measured.as_str() {
            BROKE_OFF => Some(format!("broke off: {work}: {bar}")),
            _ => (!self.holds).then(|| format!("missed: {work}: {measured}, {ratio}, wanted {bar}")),
        }
    }

    /// The reason for a missing figure.
    pub fn missing(&self) -> Option<&str> {
        (self.measured == NOT_MEASURED).then_some(&*self.bar)
    }

    /// A row with a number and the greatest or least value wanted.
    pub fn bound(work: &str, measured: String, bar: &str, holds: bool) -> Row {
        Row { work: work.into(), measured, peer: String::new(), ratio: String::new(), bar: bar.into(), holds }
    }
}

/// The rows of `work`, or one that says why it broke off: what is measured of the others counts all the same.
pub fn caught(work: &str, rows: impl FnOnce() -> Vec<Row>) -> Vec<Row> {
    catch_unwind(AssertUnwindSafe(rows)).unwrap_or_else(|panic| vec![broken(work, &*panic)])
}

/// A row of what panicked with `panic`.
pub fn broken(work: &str, panic: &(dyn Any + Send)) -> Row {
    let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    Row::broke_off(work, said.unwrap_or("a panic without words"))
}

static KEPT: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// Keeps what has folders of its own until all is measured: for minutes after many files were removed ext4 looks for the
/// inode of a new one among theirs, which would be counted to whatever writes next.
pub fn keep(kept: impl Any + Send) {
    KEPT.lock().unwrap().push(Box::new(kept));
}

/// Removes what was kept.
pub fn let_go() {
    let kept = std::mem::take(&mut *KEPT.lock().unwrap());
    drop(kept);
}

/// Waits until the disk has what was written so far: else who is measured next waits for it with its own writes, as far as it does not
/// leave them to the page cache.
pub fn settle() {
    // SAFETY: sync(2) has no preconditions.
    unsafe { libc::sync() }
}

/// Has the page cache let go of the files below `folder`, which nobody reads any more: else each turn takes memory that nobody has had
/// before it, and of a virtual machine's that is memory which its host has to find first.
pub fn forget(folder: &Path) {
    settle();
    forget_below(folder);
}

fn forget_below(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => forget_below(&entry.path()),
            kind if kind.is_file() => {
                let file = File::open(entry.path()).unwrap();
                // SAFETY: it takes numbers (posix_fadvise(2)).
                assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
            }
            _ => {}
        }
    }
}

/// How the machine stands: what a page costs that is touched for the first time, what the disk writes without the page cache, how
/// much memory nobody uses.
pub fn machine() -> String {
    const OCTETS: usize = 64 << 20;
    const PAGE: usize = 4096;
    let Ok(mut memory) = memmap2::MmapMut::map_anon(OCTETS) else { return "there is no memory".into() };
    let (touched, ()) = time(|| memory.chunks_mut(PAGE).for_each(|page| page[0] = 1));
    let micros = touched.as_secs_f64() * 1e6 / (OCTETS / PAGE) as f64;
    let write = || -> io::Result<f64> {
        let folder = tempfile::tempdir()?;
        let flags = libc::O_DIRECT;
        let mut file =
            File::options().write(true).create_new(true).custom_flags(flags).open(folder.path().join("a"))?;
        let (written, outcome) = time(|| memory.chunks(1 << 20).try_for_each(|part| file.write_all(part)));
        outcome.map(|()| OCTETS as f64 / 1e6 / written.as_secs_f64())
    };
    let disk = write().map_or_else(|error| error.to_string(), |speed| format!("{speed:.0} MB/s"));
    let known = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = known.lines().find_map(|line| line.strip_prefix("MemFree:")).unwrap_or_default().trim();
    format!("a fresh page takes {micros:.1} us, the disk writes {disk} past the page cache, {free} are free")
}

/// How long `work` takes.
pub fn time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let began = Instant::now();
    let result = work();
    (began.elapsed(), result)
}

/// The median of `times` (sorted in place).
pub fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100]
}

/// The median seconds of `ours` and of `theirs`, done in turns, so that whatever else the machine does falls on both.
pub fn in_turns(mut ours: impl FnMut(), mut theirs: impl FnMut()) -> (f64, f64) {
    let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        our_times.push(time(&mut ours).0);
        their_times.push(time(&mut theirs).0);
    }
    (percentile(&mut our_times, 50).as_secs_f64(), percentile(&mut their_times, 50).as_secs_f64())
}

/// RssAnon of a process in bytes (proc_pid_status(5)).
pub fn rss_anon(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// Follows the RssAnon of a process and keeps its peak.
pub struct MemoryWatch {
    peak: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl MemoryWatch {
    /// Looks every 5 ms at the process whose command line holds `marker`: the next one that does, when it has ended.
    pub fn of_process_with(marker: &Path) -> MemoryWatch {
        let (peak, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, stopped, marker) = (peak.clone(), stop.clone(), marker.as_os_str().to_owned());
        std::thread::spawn(move || {
            let mut pid = None;
            while !stopped.load(Ordering::Relaxed) {
                pid = pid.or_else(|| process_with(&marker.to_string_lossy()));
                match pid.and_then(rss_anon) {
                    Some(bytes) => {
                        seen.fetch_max(bytes, Ordering::Relaxed);
                    }
                    None => pid = None,
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        MemoryWatch { peak, stop }
    }

    /// The peak so far, in bytes.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn process_with(marker: &str) -> Option<u32> {
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        (pid != std::process::id() && String::from_utf8_lossy(&line).contains(marker)).then_some(pid)
    })
}

/// `12.3 MB`
pub fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Walks `folder`: every name, and `lstat` of each. How many files there were.
pub fn walk(folder: &Path) -> u64 {
    let mut files = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for entry in std::fs::read_dir(current).unwrap() {
            let path = entry.unwrap().path();
            if std::fs::symlink_metadata(&path).unwrap().is_dir() { folders.push(path) } else { files += 1 }
        }
    }
    files
}

/// Every file below `folder`.
pub fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for entry in std::fs::read_dir(current).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() { folders.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    found
}
