//! The options of a mount that concern its bytes.

use super::freshness::Revalidate;
use super::shared_cache::SharedCacheConfig;
use std::path::PathBuf;
use std::time::Duration;

/// How strictly bytes are verified before they are handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fixity {
    /// Everything whole before the first byte.
    Strict,
    /// Whole up to 16 MiB; above, streamed with the last block withheld.
    #[default]
    Stream,
    /// Published hashes are ignored (a Source whose hashes are wrong); lengths still count.
    Off,
}

/// Order in which the locations of a resource with mirrors (`duplicate`) are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mirrors {
    /// With a published hash mirrors first, without one `loc` first.
    #[default]
    Auto,
    /// Always mirrors first.
    First,
    /// Always `loc` first.
    Last,
    /// Never asked.
    Off,
}

/// Policy for bytes that differ from the published ones because they are newer than the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unannounced {
    /// Reading fails, until a list announces them.
    #[default]
    Error,
    /// The name gets a new version of which no length and no digest is known.
    Show,
}

/// Settings of the cache and of the downloads.
#[derive(Clone, Debug)]
pub struct ContentConfig {
    /// The cache folder, shared by all mounts that name it.
    pub folder: PathBuf,
    /// A folder of this mount alone, for the metadata that was learnt.
    pub metadata_folder: PathBuf,
    /// A folder whose files count in the quota too: the catalogs and observations of all mounts.
    pub counted_folder: Option<PathBuf>,
    /// Distinguishes objects without digest of different Sources in one folder.
    pub source: String,
    /// Bytes the folder may take; `None`: 10 GiB or a tenth of the free space, whichever is smaller.
    pub quota: Option<u64>,
    /// Bytes of free space to leave on the file system.
    pub reserve: u64,
    /// See [`Fixity`].
    pub fixity: Fixity,
    /// See [`Mirrors`].
    pub mirrors: Mirrors,
    /// See [`Revalidate`].
    pub revalidate: Revalidate,
    /// See [`Unannounced`].
    pub unannounced: Unannounced,
    /// An object store that is asked before the Source.
    pub shared_cache: Option<SharedCacheConfig>,
    /// A fetch without progress for so long has failed for its waiters.
    pub stall: Duration,
    /// All of a GETATTR's wait for a size.
    pub size_deadline: Duration,
}

impl Default for ContentConfig {
    fn default() -> ContentConfig {
        ContentConfig {
            folder: PathBuf::new(),
            metadata_folder: PathBuf::new(),
            counted_folder: None,
            source: String::new(),
            quota: None,
            reserve: 0,
            fixity: Fixity::default(),
            mirrors: Mirrors::default(),
            revalidate: Revalidate::default(),
            unannounced: Unannounced::default(),
            shared_cache: None,
            stall: Duration::from_secs(30),
            size_deadline: Duration::from_secs(30),
        }
    }
}
