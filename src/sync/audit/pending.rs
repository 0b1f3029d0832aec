//! The files that are still to be looked at, in a file: however many they are and however long it takes, neither memory nor a
//! revision of the catalog is held.

use super::{AuditError, Versions};
use crate::catalog::Catalog;
use crate::content::FetchSpec;
use fuser::INodeNo;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Files that are looked up in one snapshot.
const BATCH: usize = 64;

/// Inodes being written down.
pub(super) struct Pending {
    path: PathBuf,
    file: BufWriter<File>,
}

/// The same, being read.
pub(super) struct Rest {
    path: PathBuf,
    file: BufReader<File>,
}

/// A file that is still in the tree.
#[derive(Debug)]
pub(super) struct Version {
    pub path: String,
    pub wanted: FetchSpec,
}

impl Pending {
    /// None yet; they are kept in `folder`.
    pub fn new(folder: &Path) -> Result<Pending, AuditError> {
        let path = folder.join("pending");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(failed(&path))?;
        Ok(Pending { file: BufWriter::new(file), path })
    }

    pub fn push(&mut self, ino: INodeNo) -> Result<(), AuditError> {
        self.file.write_all(&ino.0.to_le_bytes()).map_err(failed(&self.path))
    }

    /// All are written down.
    pub fn finish(self) -> Result<Rest, AuditError> {
        let mut file = self.file.into_inner().map_err(|error| failed(&self.path)(error.into_error()))?;
        file.rewind().map_err(failed(&self.path))?;
        Ok(Rest { file: BufReader::new(file), path: self.path })
    }
}

impl Rest {
    /// The next versions that are still in the tree; `None` at the end.
    pub fn next(&mut self, catalog: &Catalog, versions: &Versions) -> Result<Option<Vec<Version>>, AuditError> {
        let snapshot = catalog.snapshot()?;
        let mut batch = Vec::with_capacity(BATCH);
        for read in 0..BATCH {
            let mut ino = [0; 8];
            match self.file.read_exact(&mut ino) {
                Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof && read == 0 => return Ok(None),
                Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => break,
                outcome => outcome.map_err(failed(&self.path))?,
            }
            let ino = INodeNo(u64::from_le_bytes(ino));
            // A version that was replaced since then has lost its path: the tree is in step there.
            if let (Some(path), Some(wanted)) = (snapshot.path(ino)?, versions(&snapshot, ino)?) {
                batch.push(Version { path, wanted });
            }
        }
        Ok(Some(batch))
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> AuditError {
    let path = path.to_owned();
    move |cause| AuditError::Scratch { path, cause }
}
