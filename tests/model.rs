//! Random histories of a Source against a plain reference, with no kernel in the loop: after each step the whole tree is compared.

mod common;

use common::random::Random;
use common::rounds;
use common::source::{Fault, Resource, Source};
use fuser::INodeNo;
use resyncfs::catalog::{Catalog, Kind};
use resyncfs::content::{Content, ContentConfig, Fixity, Mirrors};
use resyncfs::document::Limits;
use resyncfs::fs::attributes::Attributes;
use resyncfs::fs::directory::Cookie;
use resyncfs::fs::{Filesystem, FsOptions};
use resyncfs::source::EntryPoint;
use resyncfs::source::http::{Client, Credentials, HttpConfig};
use resyncfs::source::spool::Spool;
use resyncfs::sync::{SyncConfig, Synchronizer};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Steps of one history.
const STEPS: usize = 60;

/// What a mount is made of, without the kernel.
struct Subject {
    filesystem: Filesystem,
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
            allowed_hosts: Vec::new(),
            rewrites: Vec::new(),
            credentials: Credentials::default(),
            ca_bundle: None,
            client_certificate: None,
            rate: None,
            connections: 16,
            connect_timeout: Duration::from_secs(1),
            low_speed_limit: 1,
            low_speed_time: Duration::from_secs(2),
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
            observed_folder: path("observed"),
            source: source.url(),
            quota: Some(64 << 20),
            reserve: 0,
            fixity: Fixity::Stream,
            mirrors: Mirrors::Auto,
            stall: Duration::from_secs(2),
            size_deadline: Duration::from_secs(2),
        };
        let (events, _) = tokio::sync::mpsc::unbounded_channel();
        let content = Content::open(content, client.clone(), runtime.handle().clone(), events).unwrap();
        let options = FsOptions {
            uid: 0,
            gid: 0,
            umask: 0,
            xattr: true,
            entry_ttl: Duration::from_secs(1),
            negative_ttl: Duration::from_secs(1),
            source: source.url(),
        };
        let filesystem = Filesystem::new(catalog.clone(), content.clone(), options, runtime.handle().clone());
        let sync = SyncConfig {
            entry,
            set: None,
            host: None,
            maps: Vec::new(),
            extension_by_type: false,
            limits: Limits::default(),
            poll: None,
        };
        let synchronizer = Synchronizer::new(sync, client, catalog.clone(), Spool::open(&path("spool")).unwrap());
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
    fn tree(&self) -> BTreeMap<String, INodeNo> {
        let mut files = BTreeMap::new();
        let mut folders = vec![(String::new(), INodeNo(1))];
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
                assert_eq!(found.attributes.ino, node.ino, "{name} is listed and looked up differently");
                let path = if path.is_empty() { name } else { format!("{path}/{name}") };
                match node.kind {
                    Kind::Folder => folders.push((path, node.ino)),
                    Kind::File => assert_eq!(files.insert(path, node.ino), None),
                }
            }
        }
        files
    }

    fn read(&self, ino: INodeNo) -> Result<Vec<u8>, String> {
        let said = |cause: resyncfs::fs::error::FsError| cause.to_string();
        let size = match self.filesystem.attributes(ino).map_err(said)? {
            Attributes::Known(shown) => shown.attributes.size,
            Attributes::Unsized(file) => {
                self.runtime.block_on(self.filesystem.sized(&file)).map_err(said)?.attributes.size
            }
        };
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let offset = bytes.len() as u64;
            let piece = match self.filesystem.read_local(ino, offset, 64 << 10) {
                Some(piece) => piece,
                None => self.runtime.block_on(self.filesystem.read(ino, offset, 64 << 10)).map_err(said)?,
            };
            assert!(!piece.is_empty(), "a read within the size returned nothing");
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }
}

/// Where the reference says that a published path lies: `%file` beside a folder is the only rule these names need.
fn shown_path(path: &str, all: &BTreeSet<String>) -> String {
    let folder = format!("{path}/");
    if all.range(folder.clone()..).next().is_some_and(|next| next.starts_with(&folder)) {
        format!("{path}%file")
    } else {
        path.to_owned()
    }
}

/// What the tree must show after a refresh: by shown path, the published one and the bytes.
fn reference(published: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, (String, Vec<u8>)> {
    let all: BTreeSet<_> = published.keys().cloned().collect();
    published.iter().map(|(path, bytes)| (shown_path(path, &all), (path.clone(), bytes.clone()))).collect()
}

fn random_path(random: &mut Random) -> String {
    let depth = 1 + random.below(3);
    let segments: Vec<String> = (0..depth).map(|_| format!("n{}", random.below(6))).collect();
    segments.join("/")
}

fn random_resource(random: &mut Random, edition: u64) -> Resource {
    let bytes = match random.below(12) {
        0 => Vec::new(),
        1 => random.bytes((17 << 20) + 33),
        scale => {
            let size = 1 + random.below(1 << scale) as usize;
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
    let mut octets = std::fs::read(object).unwrap();
    if octets.is_empty() {
        return;
    }
    let place = random.below(octets.len() as u64) as usize;
    if random.below(2) == 0 {
        octets[place] ^= 1 << random.below(8);
    } else {
        octets.truncate(place);
    }
    std::fs::write(object, octets).unwrap();
}

fn history(seed: u64) {
    let mut random = Random::new(seed);
    let source = Source::start();
    let folder = tempfile::tempdir().unwrap();
    let mut subject = Subject::start(&source, folder.path());
    // What the tree must show, and what of it is served at the Source now.
    let mut shown: BTreeMap<String, (String, Vec<u8>)> = BTreeMap::new();
    let mut published: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for step in 0..STEPS {
        let what = random.below(10);
        match what {
            0..=3 => {
                for _ in 0..=random.below(8) {
                    let (path, resource) =
                        (random_path(&mut random), random_resource(&mut random, (seed * 61 + step as u64) * 7 + what));
                    published.insert(path.clone(), resource.bytes.clone());
                    source.put(&path, resource);
                }
            }
            4 => {
                let gone: Vec<_> = published.keys().filter(|_| random.below(4) == 0).cloned().collect();
                // A Source that lists nothing any more is another story.
                for path in gone.into_iter().take(published.len().saturating_sub(1)) {
                    published.remove(&path);
                    source.remove(&path);
                }
            }
            5 => {
                if let Some(path) = published.keys().nth(random.below(published.len().max(1) as u64) as usize) {
                    let fault = match random.below(4) {
                        0 => Fault::Cut(random.below(5000) as usize),
                        1 => Fault::Status(503, String::new()),
                        2 => Fault::NoRanges,
                        _ => Fault::Body(random.bytes(100)),
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
                shown = reference(&published);
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
            let (listed, listed_bytes) = &shown[path];
            let served = published.get(listed);
            match subject.read(*ino) {
                Ok(bytes) => {
                    // Nothing but the name is published of some: of those the bytes are whichever the Source has now.
                    let right = bytes == *listed_bytes || served == Some(&bytes);
                    assert!(right, "seed {seed}, step {step}: wrong bytes at {path}");
                }
                Err(cause) => {
                    let unchanged = served == Some(listed_bytes);
                    let faulty = what == 5;
                    assert!(!unchanged || faulty, "seed {seed}, step {step}: {path}: {cause}");
                }
            }
        }
    }
    subject.stop(true);
}

/// Promise: never a wrong byte, never half a tree, whatever happens in whatever order.
#[test]
fn random_histories_equal_the_reference() {
    for seed in 1..=rounds() {
        history(seed);
    }
}
