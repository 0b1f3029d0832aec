//! What documents leave free on the disk.

use std::{
    io,
    path::Path,
    sync::{Mutex, PoisonError},
};

/// The file system is asked once for each so many octets that are written. So much is written without asking: a refresh of a small
/// Source goes on where next to nothing is free.
const BETWEEN_LOOKS: u64 = 4 << 20;

/// How the free octets of the file system of a folder are asked.
pub type FreeSpace = fn(&Path) -> io::Result<u64>;

/// Leaves `reserve` octets free, or half of what is free where that is less than twice the reserve: then whoever has a smaller
/// disk than the reserve is for can mount too, and no Source fills it.
#[derive(Debug)]
pub(super) struct Room {
    reserve: u64,
    free_space: FreeSpace,
    written: Mutex<Written>,
}

/// Since the spool was opened, or settled last.
#[derive(Debug, Default)]
struct Written {
    since_look: u64,
    /// What is left free, once that was looked for.
    floor: Option<u64>,
}

/// There is too little room to write on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Short {
    pub free: u64,
    pub floor: u64,
}

impl Room {
    pub fn new(reserve: u64, free_space: FreeSpace) -> Room {
        Room { reserve, free_space, written: Mutex::default() }
    }

    /// Counts `octets` that are to be written below `folder`.
    pub fn take(&self, folder: &Path, octets: u64) -> Result<(), Short> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.since_look += octets;
        if written.since_look < BETWEEN_LOOKS {
            return Ok(());
        }
        // A file system that does not tell is one that has an end all the same: the write that meets it fails.
        let Ok(free) = (self.free_space)(folder) else { return Ok(()) };
        let floor = *written.floor.get_or_insert(self.reserve.min(free / 2));
        if free < floor {
            return Err(Short { free, floor });
        }
        written.since_look = 0;
        Ok(())
    }

    /// What was written is used and tidied: from now on it counts as what is there.
    pub fn renew(&self) {
        *self.written.lock().unwrap_or_else(PoisonError::into_inner) = Written::default();
    }
}
