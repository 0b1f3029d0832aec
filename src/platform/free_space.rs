//! Keeps free space on the disk of the cache from what is written there in bulk: documents, sorts, the catalog.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

/// Bytes that are written between two questions to the file system. So much is written without a question: a refresh of a small Source goes
/// on where next to nothing is free.
const STEP: u64 = 4 << 20;

/// Asks for the free bytes of the file system of a folder.
pub type FreeSpace = fn(&Path) -> io::Result<u64>;

/// Frees so many more bytes below a folder and returns how many; 0 where it has not so many, or none on that file system.
pub type MakeRoom = Box<dyn Fn(&Path, u64) -> u64 + Send + Sync>;

/// How long freed bytes may take to be free: some file systems free in the background, and other processes may have a file open.
const FREEING: Duration = Duration::from_secs(2);

/// Between two questions meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

/// Keeps `reserve` bytes free, or half of what is free at the first question where that is less than twice the reserve: so a disk smaller than
/// the reserve can be used too, and no Source fills it. This floor never falls: a Source that grows does not halve it again and again.
pub struct SpaceGuard {
    reserve: u64,
    step: u64,
    free_space: FreeSpace,
    written: Mutex<FloorState>,
    /// A cache on the same disk, asked to free some of it before anything is refused.
    make_room: OnceLock<MakeRoom>,
}

#[derive(Debug, Default)]
struct FloorState {
    since_question: u64,
    /// Bytes that are kept free, once the file system was asked.
    floor: Option<u64>,
    /// `true` once what was written is in use or removed, so that the floor may rise.
    is_settled: bool,
}

/// Too little is free for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no space for it: {}{free} bytes are free, and {floor} are reserved. Free some space there, or set a smaller -o cache-reserve=SIZE",
    if *needed > 0 { format!("{needed} more bytes are needed, ") } else { String::new() }
)]
pub struct NoSpace {
    /// Bytes that are on their way to the disk.
    pub needed: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Bytes of these that are kept free.
    pub floor: u64,
}

/// Keeps nothing free.
impl Default for SpaceGuard {
    fn default() -> SpaceGuard {
        SpaceGuard::new(0, |_| Ok(u64::MAX))
    }
}

impl SpaceGuard {
    /// Keeps `reserve` bytes free.
    pub fn new(reserve: u64, free_space: FreeSpace) -> SpaceGuard {
        SpaceGuard { reserve, step: STEP, free_space, written: Mutex::default(), make_room: OnceLock::new() }
    }

    /// Bytes that are written without a question.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Sets the cache that frees bytes before a write is refused; the first of several counts.
    pub fn ask(&self, make_room: MakeRoom) {
        let _ = self.make_room.set(make_room);
    }

    /// Counts `bytes` that are to be written below `folder`. The file system does not know `unseen` of these and of earlier
    /// ones yet.
    ///
    /// # Errors
    /// [`NoSpace`] where less than the floor would be left, also after the cache has freed what it can. The file system is asked every few
    /// MiB, and at each call after a refusal.
    pub fn reserve(&self, folder: &Path, bytes: u64, unseen: u64) -> Result<(), NoSpace> {
        let mut written = self.written();
        written.since_question = written.since_question.saturating_add(bytes);
        if written.since_question < self.step { Ok(()) } else { self.ask_for(folder, &mut written, unseen) }
    }

    /// Reserves as [`SpaceGuard::reserve`] does, with a question at once.
    ///
    /// # Errors
    /// As there.
    pub fn reserve_now(&self, folder: &Path, unseen: u64) -> Result<(), NoSpace> {
        self.ask_for(folder, &mut self.written(), unseen)
    }

    /// Checks that so many bytes are free below `folder`, for a write that is not necessary: the cache frees nothing for it.
    ///
    /// # Errors
    /// They are not.
    pub fn check(&self, folder: &Path, unseen: u64) -> Result<(), NoSpace> {
        self.fits(folder, &mut self.written(), unseen)
    }

    fn written(&self) -> MutexGuard<'_, FloorState> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask_for(&self, folder: &Path, written: &mut FloorState, unseen: u64) -> Result<(), NoSpace> {
        let mut fitting = self.fits(folder, written, unseen);
        if let Err(short) = fitting {
            let missing = short.floor.saturating_add(unseen).saturating_sub(short.free);
            let freed = self.make_room.get().map_or(0, |make_room| make_room(folder, missing));
            let until = Instant::now() + FREEING;
            while freed > 0 && fitting.is_err() && Instant::now() < until {
                thread::sleep(PAUSE);
                fitting = self.fits(folder, written, unseen);
            }
        }
        // After a refusal the next write asks too, however small.
        fitting.inspect(|()| written.since_question = 0)
    }

    fn fits(&self, folder: &Path, written: &mut FloorState, unseen: u64) -> Result<(), NoSpace> {
        // A file system that does not answer has an end all the same: the write that meets it fails.
        let Ok(free) = (self.free_space)(folder) else { return Ok(()) };
        let usual = self.reserve.min(free / 2);
        let floor = match written.floor {
            Some(before) if written.is_settled => before.max(usual),
            Some(before) => before,
            None => usual,
        };
        (written.floor, written.is_settled) = (Some(floor), false);
        if free < floor.saturating_add(unseen) { Err(NoSpace { needed: unseen, free, floor }) } else { Ok(()) }
    }

    /// Settles that what was written is in use or removed: from now on it is part of what the disk holds.
    pub fn settle(&self) {
        let mut written = self.written();
        (written.since_question, written.is_settled) = (0, true);
    }
}

impl fmt::Debug for SpaceGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpaceGuard")
            .field("reserve", &self.reserve)
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

impl From<NoSpace> for io::Error {
    fn from(short: NoSpace) -> io::Error {
        io::Error::new(io::ErrorKind::StorageFull, short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const MIB: u64 = 1 << 20;

    impl SpaceGuard {
        /// The guard, which asks the file system each `step` bytes.
        pub(crate) fn with_step(self, step: u64) -> SpaceGuard {
            SpaceGuard { step, ..self }
        }
    }

    #[test]
    fn the_floor_rises_with_the_disk_and_never_falls() {
        static FREE: AtomicU64 = AtomicU64::new(0);
        let room = SpaceGuard::new(100 * MIB, |_| Ok(FREE.load(Ordering::Relaxed)));
        let reserve = |free: u64| {
            FREE.store(free * MIB, Ordering::Relaxed);
            room.reserve(Path::new("/"), 4 * MIB, 0).map_err(|short| short.floor / MIB)
        };

        assert_eq!(reserve(120), Ok(()));
        assert_eq!(reserve(60), Ok(()));
        assert_eq!(reserve(59), Err(60));
        assert_eq!(reserve(1000), Ok(()), "another process freed some");
        room.settle();
        assert_eq!(reserve(59), Err(60));
        room.settle();
        assert_eq!(reserve(1000), Ok(()));
        assert_eq!(reserve(99), Err(100));
    }

    #[test]
    fn bytes_that_the_disk_does_not_show_yet_count() {
        let room = SpaceGuard::new(100 * MIB, |_| Ok(300 * MIB));

        assert_eq!(room.reserve(Path::new("/"), 4 * MIB, 200 * MIB), Ok(()));
        let short = room.reserve(Path::new("/"), 4 * MIB, 200 * MIB + 1).unwrap_err();

        assert_eq!(short, NoSpace { needed: 200 * MIB + 1, free: 300 * MIB, floor: 100 * MIB });
        for part in ["209715201 more bytes are needed", "314572800", "104857600", "cache-reserve="] {
            assert!(short.to_string().contains(part), "{short}");
        }
    }

    #[test]
    fn after_a_refusal_each_write_asks_the_file_system() {
        static FREE: AtomicU64 = AtomicU64::new(300 * MIB);
        let room = SpaceGuard::new(100 * MIB, |_| Ok(FREE.load(Ordering::Relaxed)));
        room.reserve(Path::new("/"), 4 * MIB, 0).unwrap();
        FREE.store(99 * MIB, Ordering::Relaxed);
        room.reserve(Path::new("/"), 4 * MIB, 0).unwrap_err();

        room.reserve(Path::new("/"), 1, 1).unwrap_err();
        FREE.store(101 * MIB, Ordering::Relaxed);
        assert_eq!(room.reserve(Path::new("/"), 1, 1), Ok(()));
    }

    #[test]
    fn a_cache_frees_bytes_before_a_write_is_refused() {
        static FREE: AtomicU64 = AtomicU64::new(300 * MIB);
        static CACHED: AtomicU64 = AtomicU64::new(50 * MIB);
        let room = SpaceGuard::new(100 * MIB, |_| Ok(FREE.load(Ordering::Relaxed)));
        room.ask(Box::new(|folder, bytes| {
            assert_eq!(folder, Path::new("/there"));
            if CACHED.load(Ordering::Relaxed) < bytes {
                return 0;
            }
            CACHED.fetch_sub(bytes, Ordering::Relaxed);
            // It is free a little later.
            thread::spawn(move || FREE.fetch_add(bytes, Ordering::Relaxed));
            bytes
        }));
        let reserve_now = |unseen: u64| room.reserve_now(Path::new("/there"), unseen * MIB);
        reserve_now(0).unwrap();
        FREE.store(110 * MIB, Ordering::Relaxed);

        assert!(room.check(Path::new("/there"), 40 * MIB).is_err(), "a write that is not necessary frees nothing");
        assert_eq!(reserve_now(40), Ok(()));
        assert_eq!(FREE.load(Ordering::Relaxed), 140 * MIB, "no more than was missing");
        assert_eq!(reserve_now(61).unwrap_err().free, 140 * MIB, "the cache holds less");
        assert_eq!(reserve_now(60), Ok(()));
    }
}
