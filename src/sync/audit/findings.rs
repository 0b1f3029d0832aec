//! What a comparison has found, in a file until it is told: however much it is and however slowly it is read, neither memory
//! nor a revision of the catalog is held.

use super::{AuditError, Event, Events, Finding};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

/// Findings being written down, one a line.
pub(super) struct Findings {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Findings {
    /// None yet; they are kept in `folder`.
    pub fn new(folder: &Path) -> Result<Findings, AuditError> {
        let path = folder.join("findings");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(failed(&path))?;
        Ok(Findings { file: BufWriter::new(file), path })
    }

    pub fn push(&mut self, finding: &Finding) -> Result<(), AuditError> {
        let written = serde_json::to_writer(&mut self.file, finding).map_err(io::Error::from);
        written.and_then(|()| self.file.write_all(b"\n")).map_err(failed(&self.path))
    }

    /// Tells all of them, in their order, as fast as they are read.
    pub fn tell(self, events: &Events) -> Result<(), AuditError> {
        let Findings { path, file } = self;
        let mut file = file.into_inner().map_err(|error| failed(&path)(error.into_error()))?;
        file.rewind().map_err(failed(&path))?;
        for line in BufReader::new(file).lines() {
            let finding = line.and_then(|line| serde_json::from_str(&line).map_err(io::Error::from));
            let finding = finding.map_err(failed(&path))?;
            events.blocking_send(Event::Finding(finding)).map_err(|_| AuditError::Left)?;
        }
        Ok(())
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> AuditError {
    let path = path.to_owned();
    move |cause| AuditError::Scratch { path, cause }
}
