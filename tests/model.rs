//! Random histories of a Source against a plain reference, with no kernel in the loop: after each step the whole tree is compared.

mod common;

use common::random::Random;
use common::rounds;
use common::source::{Fault, Resource, Source};
use resyncfs::catalog::{Catalog, Kind};
use resyncfs::content::{Content, ContentConfig};
use resyncfs::document::Limits;
use resyncfs::fs::attributes::Attributes;
use resyncfs::fs::directory::Cookie;
use resyncfs::fs::read::{ReadAnswer, ReadRequest};
use resyncfs::fs::{Filesystem, FsOptions};
use resyncfs::platform::ino::Ino;
use resyncfs::source::EntryPoint;
use resyncfs::source::documents::DocumentCache;
use resyncfs::source::http::{Client, HttpConfig};
use resyncfs::source::zip::{PackageConfig, Packages};
use resyncfs::sync::deletion_guard::MaxDelete;
use resyncfs::sync::selection::Selection;
use resyncfs::sync::{SyncConfig, Synchronizer};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Steps of one history.
const STEPS: usize = 60;

/// What a mount is made of, without the kernel.
struct Subject {
    filesystem: Arc<Filesystem>,
    synchronizer: Synchronizer,
    content: Arc<Content>,
    catalog: Arc<Catalog>,
    runtime: tokio::runtime::Runtime,
}

impl Subject {
    fn start(source: &Source, folder: &Path) -> Subject {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let entry = EntryPoint::parse(&source.url()).unwrap();
        let EntryPoint::Uri(uri) = &entry else { panic!("an address is a URI") };
        let http = HttpConfig {
            own_authority: Some(uri.authority().into()),
            connections: 16,
            connect_timeout: Duration::from_secs(1),
            low_speed_limit: 1,
            low_speed_time: Duration::from_secs(2),
            ..HttpConfig::default()
        };
        let client = Client::new(http).unwrap();
        let path = |name: &str| {
            let path = folder.join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let catalog = Arc::new(Catalog::open(&path("catalog"), "the model").unwrap());
        let content = ContentConfig {
            folder: path("content"),
            metadata_folder: path("observed"),
            source: source.url(),
            quota: Some(64 << 20),
            stall: Duration::from_secs(2),
            size_deadline: Duration::from_secs(2),
            ..ContentConfig::default()
        };
        let (events, _) = tokio::sync::mpsc::unbounded_channel();
        let content = Content::open(content, client.clone(), runtime.handle().clone(), events).unwrap();
        let options = FsOptions {
            entry_ttl: Duration::from_secs(1),
            negative_ttl: Duration::from_secs(1),
            source: source.url(),
            ..FsOptions::default()
        };
        let filesystem = Filesystem::new(catalog.clone(), content.clone(), options, runtime.handle().clone(), 0);
        let filesystem = Arc::new(filesystem);
        let sync = SyncConfig {
            entry,
            set: None,
            host: None,
            maps: Vec::new(),
            extension_by_type: false,
            follows_items: false,
            selection: Selection::default(),
            limits: Limits::default(),
            poll: None,
            max_delete: MaxDelete::percent(100).unwrap(),
            as_of: None,
            reserve: 0,
        };
        std::fs::create_dir_all(path("packages")).unwrap();
        let packages = Packages::open(client.clone(), PackageConfig::new(path("packages"))).unwrap();
        let spool = DocumentCache::open(&path("spool")).unwrap();
        let synchronizer = Synchronizer::new(sync, client, catalog.clone(), spool, packages);
        Subject { filesystem, synchronizer, content, catalog, runtime }
    }

    /// Ends in good order, or drops everything as a crash would.
    fn stop(self, in_good_order: bool) {
        if in_good_order {
            self.runtime.block_on(self.content.close());
        }
        let Subject { filesystem, synchronizer, content, catalog, runtime } = self;
        drop((filesystem, synchronizer));
        runtime.shutdown_timeout(Duration::from_secs(5));
        drop((content, catalog));
    }

    fn refresh(&mut self) -> Result<(), String> {
        let refreshed = self.runtime.block_on(self.synchronizer.refresh(Arc::new(|_| ())));
        self.content.forget_failures();
        refreshed.map(|_| ()).map_err(|cause| cause.to_string())
    }

    /// Every file: its inode and attributes by path. Every name is looked up as well, and must give the same inode.
    fn tree(&self) -> BTreeMap<String, Ino> {
        let mut files = BTreeMap::new();
        let mut folders = vec![(String::new(), Ino(1))];
        while let Some((path, folder)) = folders.pop() {
            let mut entries = Vec::new();
            let listed = self.filesystem.read_folder(folder, Cookie::START, &mut |entry| {
                entries.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.node));
                true
            });
            // Before the first revision there is no root either.
            if listed.is_err() && path.is_empty() {
                return files;
            }
            listed.unwrap();
            for (name, node) in entries.into_iter().filter(|(name, _)| name != "." && name != "..") {
                let found = self
                    .filesystem
                    .lookup(folder, name.as_bytes())
                    .unwrap()
                    .unwrap_or_else(|| panic!("{name} is listed"));
                assert_eq!(found.ino(), node.ino, "{name} is listed and looked up differently");
                let path = if path.is_empty() { name } else { format!("{path}/{name}") };
                match node.kind {
                    Kind::Folder => folders.push((path, node.ino)),
                    Kind::File => assert_eq!(files.insert(path, node.ino), None),
                }
            }
        }
        files
    }

    fn read(&self, ino: Ino) -> Result<Vec<u8>, String> {
        let said = |cause: resyncfs::fs::error::FsError| cause.to_string();
        let size = match self.filesystem.attributes(ino, 0).map_err(said)? {
            Attributes::Known(shown) => shown.attributes.size,
            Attributes::Unsized(file) => {
                self.runtime.block_on(self.filesystem.sized(&file)).map_err(said)?.attributes.size
            }
        };
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let offset = bytes.len() as u64;
            let read = ReadRequest { ino, offset, length: 64 << 10, thread: 0, is_direct: false };
            let piece = match self.filesystem.read(read).map_err(said)? {
                ReadAnswer::Bytes(piece) => piece,
                ReadAnswer::Later(later) => self.runtime.block_on(later).map_err(said)?,
            };
            assert!(!piece.is_empty(), "a read within the size returned nothing");
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }
}

/// The place where the reference expects a published path: `%file` beside a folder is the only rule these names need.
fn shown_path(path: &str, all: &BTreeSet<String>) -> String {
    let folder = format!("{path}/");
    if all.range(folder.clone()..).next().is_some_and(|next| next.starts_with(&folder)) {
        format!("{path}%file")
    } else {
        path.to_owned()
    }
}

/// A resource through its history at the Source.
#[derive(Default)]
struct Versions {
    /// Every version so far: its bytes, and whether a digest of them is published.
    all: Vec<(Vec<u8>, bool)>,
    /// Whether the last one is published now.
    published: bool,
}

/// What a revision of the tree shows at one path.
struct Listed {
    /// The path as published.
    uri: String,
    /// Which of its versions was the newest.
    version: usize,
}

type Histories = BTreeMap<String, Versions>;

/// What the tree must show after a refresh, by shown path.
fn reference(histories: &Histories) -> BTreeMap<String, Listed> {
    let published: BTreeSet<_> =
        histories.iter().filter(|(_, it)| it.published).map(|(path, _)| path.clone()).collect();
    let listed = |path: &String| Listed { uri: path.clone(), version: histories[path].all.len() - 1 };
    published.iter().map(|path| (shown_path(path, &published), listed(path))).collect()
}

impl Versions {
    /// Whether `bytes` may be read under a listing of `version`. With a digest only that version will do; of what is
    /// published without one nobody can tell, but it is never older than the listing.
    fn may_be_read(&self, version: usize, bytes: &[u8]) -> bool {
        match self.all[version] {
            (ref listed, true) => listed == bytes,
            (_, false) => self.all[version..].iter().any(|(served, _)| served == bytes),
        }
    }

    /// Whether the Source still serves what was listed.
    fn still_served(&self, version: usize) -> bool {
        self.published && version == self.all.len() - 1
    }
}

fn random_path(random: &mut Random) -> String {
    let depth = 1 + random.below(3);
    let segments: Vec<String> = (0..depth).map(|_| format!("n{}", random.below(6))).collect();
    segments.join("/")
}

fn random_resource(random: &mut Random, edition: u64) -> Resource {
    let bytes = match random.below(60) {
        0 => Vec::new(),
        1 => random.bytes((17 << 20) + 33),
        scale => {
            let size = 1 + random.below(1 << (scale % 12)) as usize;
            random.bytes(size)
        }
    };
    let lastmod =
        Some(format!("2024-05-{:02}T{:02}:{:02}:00Z", 1 + edition / 1440 % 28, edition / 60 % 24, edition % 60));
    match random.below(4) {
        0 => Resource { lastmod, ..Resource::bare(bytes) },
        1 => Resource { lastmod, etag: None, ..Resource::new(bytes) },
        _ => Resource { lastmod, ..Resource::new(bytes) },
    }
}

/// Damages or cuts some object in the cache.
fn corrupt(folder: &Path, random: &mut Random) {
    let mut objects: Vec<PathBuf> = Vec::new();
    let mut folders = vec![folder.join("content/objects")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { objects.push(path) }
        }
    }
    objects.sort();
    if objects.is_empty() {
        return;
    }
    let object = &objects[random.below(objects.len() as u64) as usize];
    let mut bytes = std::fs::read(object).unwrap();
    if bytes.is_empty() {
        return;
    }
    let place = random.below(bytes.len() as u64) as usize;
    if random.below(2) == 0 {
        bytes[place] ^= 1 << random.below(8);
    } else {
        bytes.truncate(place);
    }
    std::fs::write(object, bytes).unwrap();
}

fn history(seed: u64) {
    let mut random = Random::new(seed);
    let source = Source::start();
    let folder = tempfile::tempdir().unwrap();
    let mut subject = Subject::start(&source, folder.path());
    let mut shown: BTreeMap<String, Listed> = BTreeMap::new();
    let mut histories = Histories::new();
    for step in 0..STEPS {
        let what = random.below(10);
        match what {
            0..=3 => {
                for _ in 0..=random.below(8) {
                    let (path, resource) =
                        (random_path(&mut random), random_resource(&mut random, (seed * 61 + step as u64) * 7 + what));
                    let versions = histories.entry(path.clone()).or_default();
                    versions.all.push((resource.bytes.to_vec(), !resource.md.is_empty()));
                    versions.published = true;
                    source.put(&path, resource);
                }
            }
            4 => {
                let published: Vec<_> = histories.iter_mut().filter(|(_, versions)| versions.published).collect();
                // A Source that lists nothing any more is another story.
                for (path, versions) in published.into_iter().skip(1) {
                    if random.below(4) == 0 {
                        versions.published = false;
                        source.remove(path);
                    }
                }
            }
            5 => {
                if let Some(path) = histories.keys().nth(random.below(histories.len().max(1) as u64) as usize) {
                    let fault = match random.below(4) {
                        0 => Fault::Cut(random.below(5000) as usize),
                        1 => Fault::Status(503, String::new()),
                        2 => Fault::NoRanges,
                        // Of a resource without a published hash, no reader can find the fault.
                        _ if source.is_hashed(path) => Fault::Body(random.bytes(100)),
                        _ => Fault::NoRanges,
                    };
                    source.fault(path, fault, 1);
                }
            }
            6 => {
                source.fault("resourcelist.xml", Fault::Cut(random.below(300) as usize), 50);
                let _ = subject.refresh();
                source.mend();
            }
            7 => {
                subject.stop(random.below(2) == 0);
                corrupt(folder.path(), &mut random);
                subject = Subject::start(&source, folder.path());
            }
            _ => {
                source.mend();
                subject.refresh().unwrap_or_else(|cause| panic!("seed {seed}, step {step}: {cause}"));
                shown = reference(&histories);
            }
        }

        let tree = subject.tree();
        let names: Vec<_> = tree.keys().collect();
        let expected: Vec<_> = shown.keys().collect();
        assert_eq!(names, expected, "seed {seed}, step {step}");
        for (path, ino) in &tree {
            if random.below(3) != 0 {
                continue;
            }
            let Listed { uri, version } = &shown[path];
            let versions = &histories[uri];
            match subject.read(*ino) {
                Ok(bytes) => {
                    assert!(versions.may_be_read(*version, &bytes), "seed {seed}, step {step}: wrong bytes at {path}");
                }
                Err(cause) => {
                    let excused = what == 5 || !versions.still_served(*version);
                    assert!(excused, "seed {seed}, step {step}: {path}: {cause}");
                }
            }
        }
    }
    subject.stop(true);
}

/// Promise: never a wrong byte, never half a tree, whatever happens in whatever order.
#[test]
fn random_histories_equal_the_reference() {
    let seeds: Vec<u64> = (1..=rounds()).collect();
    // A history mostly waits: for retries, for a runtime to end.
    for some in seeds.chunks(8) {
        std::thread::scope(|scope| some.iter().for_each(|seed| _ = scope.spawn(|| history(*seed))));
    }
}
