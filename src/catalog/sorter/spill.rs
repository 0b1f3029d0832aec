//! Where runs are written: files without a name, on a disk where room is left.

use crate::room::Room;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
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

    /// A file without a name: whatever ends this process ends it too.
    pub(super) fn file(&self) -> io::Result<Spill<'_>> {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let path = self.path.join(format!("run-{}", FILES.fetch_add(1, Ordering::Relaxed)));
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Spill { file, folder: self })
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
