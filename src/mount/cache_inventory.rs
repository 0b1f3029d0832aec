//! The content of a cache folder: listed, verified and cleared, also while mounts use it. [`super::identity`] draws the folder.

use super::MountError;
use super::identity::CLEARED;
use crate::catalog::{CatalogError, FolderLock};
use crate::content::metadata::each_object;
use crate::content::store::{Evicted, Inventory, ObjectKey, allocated_below};
use crate::content::verify::{self, Checked};
use jiff::Timestamp;
use serde::Serialize;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A cache folder, which need not exist.
pub struct CacheFolder(pub PathBuf);

/// One tree: a Source with the options that make it this tree.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KeptTree {
    /// The folder's name: a digest of Source and options.
    pub name: String,
    /// The Source; empty if it is unknown.
    pub source: String,
    /// The options of its identity.
    pub options: Vec<String>,
    /// Bytes of catalog, lists, packages and log.
    pub catalog_bytes: u64,
    /// Cached objects.
    pub objects: u64,
    /// Bytes of these objects. An object of several trees counts in each.
    pub object_bytes: u64,
    /// The time when it was last mounted or read.
    pub last_used: Option<Timestamp>,
    /// Its mount point, while it is mounted.
    pub mounted: Option<String>,
    /// The process that uses it.
    pub process: Option<u32>,
    /// The words of that process about itself, for a person.
    #[serde(skip)]
    pub holder: Option<String>,
}

impl KeptTree {
    /// This tree, used by the process that says so of itself.
    fn held_by(self, holder: Option<String>) -> KeptTree {
        let text = holder.as_deref().and_then(|text| text.strip_prefix("process ")?.split_once(", "));
        let mounted = text.and_then(|(_, what)| what.strip_prefix("mounted at ")).map(str::to_owned);
        KeptTree { mounted, process: text.and_then(|(process, _)| process.parse().ok()), holder, ..self }
    }
}

/// Everything in a cache folder.
#[derive(Clone, Debug, Serialize)]
pub struct CacheListing {
    /// The trees, the one used last first.
    pub trees: Vec<KeptTree>,
    /// Objects on the disk.
    pub objects: u64,
    /// Bytes of the objects and of partial downloads, each counted once.
    pub object_bytes: u64,
}

/// The result of [`CacheFolder::verify`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Objects that pass.
    pub intact: u64,
    /// Bytes of the intact objects.
    pub bytes: u64,
    /// Damaged objects, removed.
    pub damaged: u64,
    /// Objects that could not be read.
    pub failed: u64,
}

/// The result of [`CacheFolder::clear`].
#[derive(Clone, Debug, Default)]
pub struct Cleared {
    /// The number of trees that were removed.
    pub trees: usize,
    /// Chosen trees that stay because they are mounted.
    pub in_use: Vec<KeptTree>,
    /// Removed objects, partial downloads included.
    pub objects: u64,
    /// Bytes of the removed trees and objects.
    pub bytes: u64,
    /// Objects that stay because a running mount has pinned them or writes them.
    pub kept: u64,
}

/// The objects of some trees. Keys are compared by their hash; a collision removes or keeps one object too many.
#[derive(Default)]
struct References {
    objects: HashSet<u64>,
    /// The names that keys of versions without a published digest begin with.
    sources: Vec<String>,
}

impl References {
    fn has(&self, key: &ObjectKey) -> bool {
        self.objects.contains(&key.hash()) || self.sources.iter().any(|source| key.is_of(source))
    }
}

impl CacheFolder {
    /// Every tree and its size. Reads the learnt metadata of each tree.
    pub fn list(&self) -> Result<CacheListing, MountError> {
        let inventory = self.inventory();
        let mut trees = self.trees()?;
        for tree in &mut trees {
            let folder = self.folder(tree);
            tree.catalog_bytes = allocated_below(&folder);
            let mut seen = HashSet::new();
            for instance in instances(&folder) {
                read_objects(&instance, &mut |key| {
                    if let (true, Some(bytes)) = (seen.insert(key.hash()), inventory.bytes(key)) {
                        tree.objects += 1;
                        tree.object_bytes += bytes;
                    }
                });
            }
        }
        trees.sort_by(|a, b| b.last_used.cmp(&a.last_used).then_with(|| a.name.cmp(&b.name)));
        let object_bytes = inventory.objects().chain(inventory.partials()).map(|(_, bytes)| bytes).sum();
        Ok(CacheListing { trees, objects: inventory.objects().count() as u64, object_bytes })
    }

    /// Reads every object and removes damaged ones; `report` gets the result of each. Uses no network.
    pub fn verify(&self, report: &mut dyn FnMut(&ObjectKey, &Checked)) -> Result<Verification, MountError> {
        entries(&self.0.join("content"))?;
        let mut inventory = self.inventory();
        let mut verification = Verification::default();
        for (key, _) in inventory.objects() {
            let checked = verify::check_object(&mut inventory, &key);
            match &checked {
                Checked::Absent => {}
                Checked::Intact(bytes) => {
                    verification.intact += 1;
                    verification.bytes += bytes;
                }
                Checked::Corrupt(_) => verification.damaged += 1,
                Checked::Failed(_) => verification.failed += 1,
            }
            report(&key, &checked);
        }
        Ok(verification)
    }

    /// Removes trees that are not mounted, and their objects that no other tree needs: those of this name, or whose name begins so,
    /// or all of this Source. Without a name all, with every object that no tree needs. `None` if no tree has that name.
    pub fn clear(&self, name: Option<&str>) -> Result<Option<Cleared>, MountError> {
        let is_named =
            |tree: &KeptTree, name: &str| tree.source == name || (name.len() >= 4 && tree.name.starts_with(name));
        let is_chosen = |tree: &KeptTree| name.is_none_or(|name| is_named(tree, name));
        let (chosen, mut remaining): (Vec<_>, Vec<_>) = self.trees()?.into_iter().partition(is_chosen);
        if chosen.is_empty() && name.is_some() {
            return Ok(None);
        }
        let (mut cleared, mut gone) = (Cleared::default(), References::default());
        for tree in chosen {
            let folder = self.folder(&tree);
            let _lock = match FolderLock::take(&folder.join("catalog"), "resyncfs cache clear") {
                Err(CatalogError::Busy { holder, .. }) => {
                    let tree = tree.held_by(Some(holder));
                    remaining.push(tree.clone());
                    cleared.in_use.push(tree);
                    continue;
                }
                // A tree without a catalog is not mounted.
                Err(CatalogError::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => None,
                lock => Some(lock?),
            };
            self.refer(&tree, &mut gone);
            cleared.bytes += allocated_below(&folder);
            cleared.trees += 1;
            // In one step, under the lock: a mount that starts now makes a new tree.
            let away = self.mounts().join(format!("{CLEARED}{}-{}", tree.name, std::process::id()));
            fs::rename(&folder, &away).map_err(MountError::cache(&folder))?;
        }
        let mut needed = References::default();
        remaining.iter().for_each(|tree| self.refer(tree, &mut needed));
        // A tree does not know its partial downloads, and not yet what was read a moment ago: what is of no chosen tree stays.
        let goes = |key: &ObjectKey| !needed.has(key) && (name.is_none() || gone.has(key));
        let mut inventory = self.inventory();
        for (key, _) in inventory.objects().chain(inventory.partials()).filter(|(key, _)| goes(key)) {
            match inventory.remove(&key).map_err(MountError::cache(&self.0))? {
                Evicted::Absent => {}
                Evicted::Kept => cleared.kept += 1,
                Evicted::Bytes(bytes) => {
                    cleared.objects += 1;
                    cleared.bytes += bytes;
                }
            }
        }
        // Also those of a process that was killed before it removed them.
        for (_, path) in entries(&self.mounts())?.into_iter().filter(|(name, _)| name.starts_with(CLEARED)) {
            match fs::remove_dir_all(&path) {
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(MountError::cache(&path)(cause)),
                _ => {}
            }
        }
        Ok(Some(cleared))
    }

    /// Adds the objects of `tree`.
    fn refer(&self, tree: &KeptTree, references: &mut References) {
        for instance in instances(&self.folder(tree)) {
            let name = instance.file_name().unwrap_or_default().to_string_lossy();
            // As content names objects without a digest.
            let source = format!("{} {name}", tree.source);
            references.sources.push(format!("{source} coded"));
            references.sources.push(source);
            read_objects(&instance, &mut |key| _ = references.objects.insert(key.hash()));
        }
    }

    /// The trees, without their sizes.
    fn trees(&self) -> Result<Vec<KeptTree>, MountError> {
        let mut trees = Vec::new();
        for (name, folder) in entries(&self.mounts())? {
            if name.starts_with('.') || !folder.is_dir() {
                continue;
            }
            let identity = folder.join("identity");
            let text = match fs::read_to_string(&identity) {
                // Its first mount has only begun, or was killed.
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => String::new(),
                text => text.map_err(MountError::cache(&identity))?,
            };
            let (entry, options): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with("entry="));
            let source = entry.first().and_then(|line| line.strip_prefix("entry=")).unwrap_or_default();
            let tree = KeptTree {
                source: source.strip_prefix("file:").unwrap_or(source).to_owned(),
                options: options.into_iter().map(str::to_owned).collect(),
                last_used: last_used(&folder).and_then(|time| Timestamp::try_from(time).ok()),
                name,
                ..KeptTree::default()
            };
            trees.push(tree.held_by(FolderLock::holder(&folder.join("catalog"))?));
        }
        Ok(trees)
    }

    fn inventory(&self) -> Inventory {
        Inventory::open(&self.0.join("content"))
    }

    fn mounts(&self) -> PathBuf {
        self.0.join("mounts")
    }

    fn folder(&self, tree: &KeptTree) -> PathBuf {
        self.mounts().join(&tree.name)
    }
}

/// The names and paths in a folder; none where it is missing.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, MountError> {
    let entries = match fs::read_dir(folder) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(MountError::cache(folder))?,
    };
    let named = entries.map(|entry| entry.map(|it| (it.file_name().to_string_lossy().into_owned(), it.path())));
    named.collect::<Result<_, _>>().map_err(MountError::cache(folder))
}

/// The folders of a tree's learnt metadata.
fn instances(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("observed")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Calls `visit` for each object that learnt metadata names. Unreadable metadata names none: its objects are downloaded again.
fn read_objects(instance: &Path, visit: &mut dyn FnMut(&ObjectKey)) {
    if let Err(cause) = each_object(instance, visit) {
        tracing::warn!(%cause, "learnt metadata of a tree cannot be read");
    }
}

/// The newest time of the files that each mount and each read write.
fn last_used(folder: &Path) -> Option<SystemTime> {
    let observed = instances(folder).into_iter().map(|instance| instance.join("data.mdb"));
    let files = [folder.join("identity"), folder.join("catalog/lock")].into_iter().chain(observed);
    files.filter_map(|file| fs::metadata(file).ok()?.modified().ok()).max()
}
