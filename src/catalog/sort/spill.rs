//! Where runs are written: files without a name, on a disk that keeps its reserve.

use crate::platform::free_space::SpaceGuard;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{DirBuilder, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder of temporary files.
#[derive(Clone)]
pub struct SpillFolder {
    /// The folder.
    pub path: PathBuf,
    /// Watches the free space there.
    pub room: Arc<SpaceGuard>,
}

impl SpillFolder {
    /// Without a reserve.
    pub fn new(path: &Path) -> SpillFolder {
        SpillFolder { path: path.to_owned(), room: Arc::default() }
    }

    /// A new run of at most so many `bytes`, written in large pieces: a file without a name, which ends with the process.
    pub(super) fn writer(&self, bytes: u64) -> io::Result<BufWriter<File>> {
        // The cache may have been emptied below the mount.
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        self.room.reserve(&self.path, bytes, bytes)?;
        Ok(BufWriter::with_capacity(1 << 18, tempfile::tempfile_in(&self.path)?))
    }
}

/// A run on the disk, being read.
pub(super) struct RunFile {
    pub(super) file: File,
    /// Bytes read since the beginning.
    read: u64,
    /// True if it is read for the last time: what the reader has passed is freed.
    pub(super) is_read_once: bool,
    /// Bytes from the beginning that are freed.
    freed: u64,
}

impl RunFile {
    /// Bytes freed at once.
    const STEP: u64 = 1 << 20;

    /// From the beginning of a file.
    pub fn new(mut file: File) -> io::Result<RunFile> {
        file.rewind()?;
        Ok(RunFile { file, read: 0, is_read_once: false, freed: 0 })
    }

    fn free(&mut self) {
        let length = (self.read - self.freed) / RunFile::STEP * RunFile::STEP;
        if length > 0 {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // A file system that cannot frees it when the file is closed.
            self.is_read_once = fallocate(&self.file, hole, self.freed, length).is_ok();
            self.freed += length;
        }
    }
}

impl Read for RunFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(out)?;
        self.read += count as u64;
        if self.is_read_once {
            self.free();
        }
        Ok(count)
    }
}

impl Seek for RunFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        if self.freed > 0 {
            return Err(io::Error::other("a run that was to be read once is read again"));
        }
        self.read = self.file.seek(to)?;
        Ok(self.read)
    }
}
