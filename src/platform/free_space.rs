//! What is left free on the disk of the cache by what is written there in bulk: documents, sorts, the catalog.

use std::{
    error, fmt, io,
    path::Path,
    sync::{Mutex, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The file system is asked once for each so many octets that are written. So much is written without asking: a refresh of a small
/// Source goes on where next to nothing is free. In unit tests Sources are smaller still.
pub const BETWEEN_LOOKS: u64 = if cfg!(test) { 256 << 10 } else { 4 << 20 };

/// How the free octets of the file system of a folder are asked.
pub type FreeSpace = fn(&Path) -> io::Result<u64>;

/// Makes room below a folder, so many octets more than are free, and tells how many it gave up; 0 where it has not so many, or none on that
/// file system.
pub type MakeRoom = Box<dyn Fn(&Path, u64) -> u64 + Send + Sync>;

/// For so long it is waited for what was given up to be free: some file systems free in the background, and others may have it open.
const FREEING: Duration = Duration::from_secs(2);

/// Between two looks meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

/// Leaves `reserve` octets free, or half of what is free at the first look where that is less than twice the reserve: then whoever
/// has a smaller disk than the reserve is for can mount too, and no Source fills it. What is left never becomes less: a Source that
/// grows does not halve it again and again.
pub struct Room {
    reserve: u64,
    free_space: FreeSpace,
    written: Mutex<Written>,
    /// Who is asked for what it can do without, before anything is refused.
    make_room: OnceLock<MakeRoom>,
}

#[derive(Debug, Default)]
struct Written {
    since_look: u64,
    /// What is left free, once that was looked for.
    floor: Option<u64>,
    /// Whether what was written is used and tidied, so that the floor may rise.
    is_settled: bool,
}

/// There is too little room to write on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Octets that are on their way to the disk.
    pub needed: u64,
    /// Octets that are free.
    pub free: u64,
    /// Of these, octets that are to stay free.
    pub floor: u64,
}

/// Leaves nothing free.
impl Default for Room {
    fn default() -> Room {
        Room::new(0, |_| Ok(u64::MAX))
    }
}

impl Room {
    /// `reserve` octets are left free.
    pub fn new(reserve: u64, free_space: FreeSpace) -> Room {
        Room { reserve, free_space, written: Mutex::default(), make_room: OnceLock::new() }
    }

    /// Who has something on the same disk that it can do without is asked for it before anything is refused; the first of several.
    pub fn ask(&self, make_room: MakeRoom) {
        let _ = self.make_room.set(make_room);
    }

    /// Counts `octets` that are to be written below `folder`. `unseen`: octets, these among them, that were counted and that the
    /// file system does not know of yet.
    ///
    /// # Errors
    /// [`Short`] where that would leave less than is to stay free, whatever can be given up. It is looked at every few MiB, and
    /// at each call where there was none at the last.
    pub fn take(&self, folder: &Path, octets: u64, unseen: u64) -> Result<(), Short> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.since_look = written.since_look.saturating_add(octets);
        if written.since_look < BETWEEN_LOOKS { Ok(()) } else { self.look_at(folder, &mut written, unseen) }
    }

    /// As [`Room::take`] with a look at once.
    ///
    /// # Errors
    /// As there.
    pub fn claim(&self, folder: &Path, unseen: u64) -> Result<(), Short> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        self.look_at(folder, &mut written, unseen)
    }

    /// Whether there is room for so many octets below `folder`, for who can do without: nobody is asked to give up anything.
    ///
    /// # Errors
    /// There is not.
    pub fn look(&self, folder: &Path, unseen: u64) -> Result<(), Short> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        self.fits(folder, &mut written, unseen)
    }

    fn look_at(&self, folder: &Path, written: &mut Written, unseen: u64) -> Result<(), Short> {
        let mut fitting = self.fits(folder, written, unseen);
        if let Err(short) = fitting {
            let missing = short.floor.saturating_add(unseen).saturating_sub(short.free);
            let given = self.make_room.get().map_or(0, |make_room| make_room(folder, missing));
            let until = Instant::now() + FREEING;
            while given > 0 && fitting.is_err() && Instant::now() < until {
                thread::sleep(PAUSE);
                fitting = self.fits(folder, written, unseen);
            }
        }
        if fitting.is_ok() {
            // Where there was none, the next write is checked, however small.
            written.since_look = 0;
        }
        fitting
    }

    fn fits(&self, folder: &Path, written: &mut Written, unseen: u64) -> Result<(), Short> {
        // A file system that does not tell is one that has an end all the same: the write that meets it fails.
        let Ok(free) = (self.free_space)(folder) else { return Ok(()) };
        let usual = self.reserve.min(free / 2);
        let floor = match written.floor {
            Some(before) if written.is_settled => before.max(usual),
            Some(before) => before,
            None => usual,
        };
        (written.floor, written.is_settled) = (Some(floor), false);
        if free < floor.saturating_add(unseen) { Err(Short { needed: unseen, free, floor }) } else { Ok(()) }
    }

    /// What was written is used and tidied: from now on it counts as what is there.
    pub fn renew(&self) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        (written.since_look, written.is_settled) = (0, true);
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("reserve", &self.reserve).field("written", &self.written).finish_non_exhaustive()
    }
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Short { needed, free, floor } = self;
        f.write_str("no room for it: ")?;
        if *needed > 0 {
            write!(f, "{needed} octets more are needed, ")?;
        }
        write!(
            f,
            "{free} bytes are free now and {floor} are to stay free. Free some space there, or mount with a smaller \
             -o cache-reserve=SIZE"
        )
    }
}

impl error::Error for Short {}

impl From<Short> for io::Error {
    fn from(short: Short) -> io::Error {
        io::Error::new(io::ErrorKind::StorageFull, short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_left_free_rises_with_the_disk_and_never_falls() {
        static FREE: AtomicU64 = AtomicU64::new(0);
        let room = Room::new(100 * MIB, |_| Ok(FREE.load(Ordering::Relaxed)));
        let take = |free: u64| {
            FREE.store(free * MIB, Ordering::Relaxed);
            room.take(Path::new("/"), 4 * MIB, 0).map_err(|short| short.floor / MIB)
        };

        assert_eq!(take(120), Ok(()));
        assert_eq!(take(60), Ok(()));
        assert_eq!(take(59), Err(60));
        assert_eq!(take(1000), Ok(()), "others made room");
        room.renew();
        assert_eq!(take(59), Err(60));
        room.renew();
        assert_eq!(take(1000), Ok(()));
        assert_eq!(take(99), Err(100));
    }

    #[test]
    fn what_the_disk_does_not_show_yet_counts() {
        let room = Room::new(100 * MIB, |_| Ok(300 * MIB));

        assert_eq!(room.take(Path::new("/"), 4 * MIB, 200 * MIB), Ok(()));
        let short = room.take(Path::new("/"), 4 * MIB, 200 * MIB + 1).unwrap_err();

        assert_eq!(short, Short { needed: 200 * MIB + 1, free: 300 * MIB, floor: 100 * MIB });
        for part in ["209715201 octets more are needed", "314572800", "104857600", "cache-reserve="] {
            assert!(short.to_string().contains(part), "{short}");
        }
    }

    #[test]
    fn after_a_refusal_whatever_comes_is_looked_at_and_written_as_soon_as_there_is_room() {
        static FREE: AtomicU64 = AtomicU64::new(300 * MIB);
        let room = Room::new(100 * MIB, |_| Ok(FREE.load(Ordering::Relaxed)));
        room.take(Path::new("/"), 4 * MIB, 0).unwrap();
        FREE.store(99 * MIB, Ordering::Relaxed);
        room.take(Path::new("/"), 4 * MIB, 0).unwrap_err();

        room.take(Path::new("/"), 1, 1).unwrap_err();
        FREE.store(101 * MIB, Ordering::Relaxed);
        assert_eq!(room.take(Path::new("/"), 1, 1), Ok(()));
    }

    #[test]
    fn whoever_can_do_without_something_is_asked_before_anything_is_refused() {
        static FREE: AtomicU64 = AtomicU64::new(300 * MIB);
        static CACHED: AtomicU64 = AtomicU64::new(50 * MIB);
        let room = Room::new(100 * MIB, |_| Ok(FREE.load(Ordering::Relaxed)));
        room.ask(Box::new(|folder, octets| {
            assert_eq!(folder, Path::new("/there"));
            if CACHED.load(Ordering::Relaxed) < octets {
                return 0;
            }
            CACHED.fetch_sub(octets, Ordering::Relaxed);
            // It is free a little later.
            thread::spawn(move || FREE.fetch_add(octets, Ordering::Relaxed));
            octets
        }));
        let claim = |unseen: u64| room.claim(Path::new("/there"), unseen * MIB);
        claim(0).unwrap();
        FREE.store(110 * MIB, Ordering::Relaxed);

        assert!(room.look(Path::new("/there"), 40 * MIB).is_err(), "who can do without takes nothing");
        assert_eq!(claim(40), Ok(()));
        assert_eq!(FREE.load(Ordering::Relaxed), 140 * MIB, "no more than was missing");
        assert_eq!(claim(61).unwrap_err().free, 140 * MIB, "not so much is there to give up");
        assert_eq!(claim(60), Ok(()));
    }
}
