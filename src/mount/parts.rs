//! Opens the parts of a mount: HTTP client, catalog, cached content, packages and synchronizer.

use super::identity::Folders;
use super::serving::LONGEST_END;
use super::{MountConfig, MountError, mountpoint};
use crate::catalog::{Catalog, CatalogError};
use crate::content::store::free_space;
use crate::content::{Content, ContentConfig, Event, Fixity};
use crate::platform::free_space::SpaceGuard;
use crate::platform::scheduling::off_the_workers;
use crate::source::documents::DocumentCache;
use crate::source::http::Client;
use crate::source::zip::{PackageConfig, Packages};
use crate::sync::Synchronizer;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// How often the catalog is tried while an earlier mount ends.
const RETRY: Duration = Duration::from_millis(20);

/// The parts of a mount, without the kernel's side.
pub(super) struct Parts {
    pub catalog: Arc<Catalog>,
    pub content: Arc<Content>,
    pub client: Client,
    pub synchronizer: Synchronizer,
    /// The events of content.
    pub events: mpsc::UnboundedReceiver<Event>,
}

impl Parts {
    pub(super) fn open(config: &MountConfig, folders: &Folders, runtime: &Handle) -> Result<Parts, MountError> {
        let catalog = open_catalog(&folders.own.join("catalog"), &config.directory)?;
        let catalog = Arc::new(catalog.leaving(SpaceGuard::new(config.sync.reserve, free_space)));
        let client = Client::new(config.http.clone())?;
        let (sender, events) = mpsc::unbounded_channel();
        let instance = content_instance(&catalog.instance()?, config.content.fixity);
        let content = ContentConfig {
            metadata_folder: folders.observed_of(&instance)?,
            counted_folder: Some(folders.mounts.clone()),
            folder: folders.content.clone(),
            source: format!("{} {instance}", config.content.source),
            ..config.content.clone()
        };
        let content = Content::open(content, client.clone(), runtime.clone(), sender)?;
        // On a full disk the tree goes first: cached objects can be downloaded again.
        let cache = Arc::downgrade(&content);
        catalog.room().ask(Box::new(move |folder, bytes| {
            off_the_workers(|| cache.upgrade().map_or(0, |content| content.give_up(folder, bytes)))
        }));
        let packages = open_packages(config, &content, folders.own.join("packages"), client.clone())?;
        content.read_packages(packages.clone());
        let documents = DocumentCache::open(&folders.own.join("spool"))?;
        let synchronizer = Synchronizer::new(config.sync.clone(), client.clone(), catalog.clone(), documents, packages);
        Ok(Parts { catalog, content, client, synchronizer, events })
    }
}

/// Opens the catalog for a mount at `directory`. A process whose mount is no longer in the tree may still be ending, or serve open
/// files: this waits for it.
fn open_catalog(folder: &Path, directory: &Path) -> Result<Catalog, MountError> {
    let mounted_at = |directory: &Path| format!("mounted at {}", directory.display());
    let deadline = Instant::now() + LONGEST_END;
    loop {
        let holder = match Catalog::open(folder, &mounted_at(directory)) {
            Err(CatalogError::Busy { holder, .. }) if Instant::now() < deadline => holder,
            opened => return Ok(opened?),
        };
        let system = |cause| MountError::System { what: "the mounts of this machine cannot be read", cause };
        if mountpoint::ours().map_err(system)?.iter().any(|ours| holder.ends_with(&mounted_at(&ours.directory))) {
            return Ok(Catalog::open(folder, &mounted_at(directory))?);
        }
        tracing::debug!(holder, "waiting for an earlier mount to end");
        std::thread::sleep(RETRY);
    }
}

/// The name under which content keeps learnt metadata of a catalog's `instance`. What was read without a check of published hashes
/// must never count as verified in a mount that checks them.
fn content_instance(instance: &str, fixity: Fixity) -> String {
    match fixity {
        Fixity::Off => format!("{instance}-unverified"),
        Fixity::Strict | Fixity::Stream => instance.to_owned(),
    }
}

/// The packages of this mount. Local copies take at most half of the quota of the cache folder.
fn open_packages(
    config: &MountConfig,
    content: &Content,
    folder: PathBuf,
    client: Client,
) -> Result<Packages, MountError> {
    let usual = PackageConfig::new(folder.clone());
    let whole = usual.whole.min(content.quota() / 2);
    let (reserve, budget) = (config.content.reserve, content.memory());
    Packages::open(client, PackageConfig { whole, reserve, free_space, budget, ..usual })
        .map_err(|error| MountError::Cache { folder, cause: io::Error::other(error) })
}
