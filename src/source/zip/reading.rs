//! The last reading of each package next to lists: a manifest is requested once for each state of its package's entry, also by the
//! processes that follow.
//!
//! What a reading gave is kept until another succeeds, so that a package that fails takes nothing away.

use super::folder::{self, file};
use super::manifest::Sum;
use super::preview::{Listed, today};
use super::{Manifest, PackageError, Packages};
use crate::document::Uri;
use crate::platform::error_chain::chain;
use crate::platform::scheduling::off_the_workers;
use serde::{Deserialize, Serialize};
use std::fs;

/// The last reading of a package, in `KEY.reading` as JSON.
#[derive(Serialize, Deserialize)]
struct ReadingRecord {
    package: String,
    /// The state of the entry then.
    state: u64,
    /// The day, since the epoch. What fails may be mended although its entry is the same: it is read again once a day.
    day: i64,
    /// The manifest of this reading, or of the last that did not fail.
    manifest: Option<KeptReading>,
    /// The cause of the failure, for a person.
    failed: Option<String>,
}

/// A manifest in the folder.
#[derive(Serialize, Deserialize)]
struct KeptReading {
    file: String,
    base: String,
    sum: Sum,
}

/// State of a package.
#[derive(Debug, Default)]
pub struct Reading {
    /// Its manifest, by the last reading that did not fail.
    pub manifest: Option<Manifest>,
    /// The failure of the last reading, for a person.
    pub failed: Option<String>,
    /// True if nothing is to be requested: this is of the present state of its entry, and no failure that may pass.
    pub is_current: bool,
}

impl Packages {
    /// The last reading of a package; nothing is requested.
    pub fn last_reading(&self, listed: &Listed) -> Reading {
        let path = file(&self.shared.config.folder, &listed.package, "reading");
        let read = fs::read(path).ok().and_then(|bytes| serde_json::from_slice::<ReadingRecord>(&bytes).ok());
        let Some(record) = read.filter(|it| it.package == listed.package.as_str()) else { return Reading::default() };
        let manifest = record.manifest.and_then(|kept| self.opened_reading(&listed.package, &kept).ok());
        let is_read = if record.failed.is_some() { record.day == today() } else { manifest.is_some() };
        let is_current = is_read && record.state == listed.state;
        Reading { manifest, failed: record.failed, is_current }
    }

    fn opened_reading(&self, package: &Uri, kept: &KeptReading) -> Result<Manifest, PackageError> {
        let path = self.shared.config.folder.join(&kept.file);
        match self.stand_in_of(package) {
            // The package itself may have corrected it.
            Some(stand_in) if path == file(&self.shared.config.folder, package, "copy") => {
                self.opened_stand_in(package, &stand_in)
            }
            _ => self.opened(package, &path, &kept.base, kept.sum),
        }
    }

    /// Reads what a package holds, and keeps it.
    pub async fn read_listed(&self, listed: &Listed) -> Reading {
        let before = self.last_reading(listed);
        if before.is_current {
            return before;
        }
        let (manifest, failed) = match self.stated_cheaply(listed).await.and_then(sound) {
            Ok(manifest) => (Some(manifest), None),
            Err(cause) if cause.is_retryable() => {
                return Reading { manifest: before.manifest, failed: Some(chain(&cause)), is_current: false };
            }
            Err(cause) => (before.manifest, Some(chain(&cause))),
        };
        let kept = |manifest: &Manifest| KeptReading {
            file: manifest.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
            base: manifest.base().to_string(),
            sum: manifest.sum(),
        };
        let (package, folder) = (&listed.package, &self.shared.config.folder);
        let (state, failed_then) = (listed.state, failed.clone());
        let (package_then, manifest_then) = (package.to_string(), manifest.as_ref().map(kept));
        let record =
            ReadingRecord { package: package_then, state, day: today(), manifest: manifest_then, failed: failed_then };
        if let Err(error) = folder::replace_json(folder, &file(folder, package, "reading"), &record) {
            tracing::warn!(%package, error = %chain(&error), "the manifest of a package is requested again");
        }
        Reading { manifest, failed, is_current: true }
    }

    /// Packages say something that was not stated before.
    pub fn report_news(&self) {
        self.shared.contradiction.notify_one();
    }
}

/// A manifest that can be read to its end.
fn sound(manifest: Manifest) -> Result<Manifest, PackageError> {
    off_the_workers(|| manifest.is_sound()).map(|_| manifest)
}
