//! Where runs are written: files without a name, on a disk where room is left.

use crate::platform::free_space::Room;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder for what is needed for a while.
#[derive(Clone, Debug)]
pub(in crate::catalog) struct SpillFolder {
    /// Where.
    pub path: PathBuf,
    /// What is left free there.
    pub room: Arc<Room>,
}

impl SpillFolder {
    /// One where nothing need be left free.
    pub fn new(path: &Path) -> SpillFolder {
        SpillFolder { path: path.to_owned(), room: Arc::default() }
    }

    /// A file without a name: it ends with the process.
    pub(super) fn file(&self) -> io::Result<Spill<'_>> {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let path = self.path.join(format!("run-{}", FILES.fetch_add(1, Ordering::Relaxed)));
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = match options.open(&path) {
            // The cache was emptied below the mount.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
                options.open(&path)?
            }
            opened => opened?,
        };
        std::fs::remove_file(&path)?;
        Ok(Spill { file, folder: self })
    }
}

/// A run on the disk, being read.
pub(super) struct RunFile {
    file: File,
    /// Octets read since the beginning.
    read: u64,
    /// Whether it is read for the last time: the disk has its room back behind the reader.
    is_read_once: bool,
    /// Octets that the disk has back.
    given_back: u64,
}

impl RunFile {
    /// Octets given back at once.
    const STEP: u64 = if cfg!(test) { 4096 } else { 1 << 20 };

    /// From the beginning of a file.
    pub fn new(mut file: File) -> io::Result<RunFile> {
        file.rewind()?;
        Ok(RunFile { file, read: 0, is_read_once: false, given_back: 0 })
    }

    /// What is read from here on is not read again.
    pub fn read_once(&mut self) {
        self.is_read_once = true;
    }

    /// Blocks of 512 octets that it takes on the disk.
    #[cfg(test)]
    pub fn blocks(&self) -> u64 {
        std::os::unix::fs::MetadataExt::blocks(&self.file.metadata().unwrap())
    }

    fn give_back(&mut self) {
        let (start, length) = (self.given_back, (self.read - self.given_back) / RunFile::STEP * RunFile::STEP);
        if length == 0 {
            return;
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the descriptor is open; the call touches no memory of ours (fallocate(2)).
        if unsafe { libc::fallocate(self.file.as_raw_fd(), mode, start.cast_signed(), length.cast_signed()) } != 0 {
            // The file system knows no such thing: it has all of it back at the end.
            self.is_read_once = false;
            return;
        }
        self.given_back += length;
    }
}

impl Read for RunFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(out)?;
        self.read += count as u64;
        if self.is_read_once {
            self.give_back();
        }
        Ok(count)
    }
}

impl Seek for RunFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        if self.given_back > 0 {
            return Err(io::Error::other("a run that was to be read once is read again"));
        }
        self.read = self.file.seek(to)?;
        Ok(self.read)
    }
}

/// A file being written, as far as there is room.
pub(super) struct Spill<'f> {
    pub file: File,
    folder: &'f SpillFolder,
}

impl Write for Spill<'_> {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.folder.room.take(&self.folder.path, octets.len() as u64, 0)?;
        self.file.write(octets)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
