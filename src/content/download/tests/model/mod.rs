//! Random reads of files whose servers are honest or lie, through restarts, evictions and caches that are too small. Whatever
//! happens, what was shown of an inode keeps the promises: no wrong byte, no short read, never two versions, a cache within its quota, no
//! wait without end.
//!
//! The servers are on loopback and time is real: what a seed fixes is the plan, not the order in which threads run.

mod places;
mod random;
mod shown;

use super::server::Server;
use super::*;
use crate::content::LocalRead;
use crate::content::store::{Evicted, Moment};
use places::{Body, MOMENT, Place, bodies};
use random::Random;
use shown::{Pages, Shown};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps of one world, each with some dozens of reads.
const STEPS: usize = 40;

/// Worlds at a time: some wait while others are at work.
const AT_ONCE: usize = 4;

/// Where a read may fail it does so soon.
const SOON: Duration = Duration::from_secs(2);

/// What the index grows by may be over the quota until the next write.
const INDEX: u64 = 1 << 20;

/// Reads of all worlds.
static READS: AtomicU64 = AtomicU64::new(0);

/// A file: its versions, and what is shown of it.
struct File {
    bodies: Vec<Arc<Body>>,
    /// Its own address, and that of a mirror.
    places: [usize; 2],
    has_mirror: bool,
    shown: Shown,
}

/// What reads change: locked for moments.
struct Model {
    files: Vec<File>,
    events: UnboundedReceiver<Event>,
    changed: Vec<INodeNo>,
    /// Inodes that are poisoned and have no name any more.
    poisoned: Vec<FetchSpec>,
}

impl Model {
    /// What content has told since the last look.
    fn hear(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            let (Event::Poisoned(ino)
            | Event::Changed(ino)
            | Event::Unannounced(ino)
            | Event::Recheck(ino, _)
            | Event::Sized(ino, _)) = event;
            let Some(file) = self.files.iter_mut().find(|file| file.shown.spec.ino == ino) else { continue };
            match event {
                Event::Poisoned(_) | Event::Unannounced(_) => file.shown.poison(),
                Event::Recheck(_, range) => file.shown.drop_pages(range),
                Event::Sized(_, size) => file.shown.size(size),
                Event::Changed(_) => self.changed.push(ino),
            }
        }
    }
}

/// A mount with its Source.
struct World {
    random: Random,
    config: ContentConfig,
    client: Client,
    /// None while it starts again.
    content: Option<Arc<Content>>,
    model: Arc<Mutex<Model>>,
    places: Arc<Mutex<Vec<Place>>>,
    server: Arc<Server>,
    inodes: u64,
    is_honest: bool,
    _folder: TempDir,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let is_honest = random.chance(35);
        let places: Arc<Mutex<Vec<Place>>> = Arc::default();
        let (served, faults) = (Arc::clone(&places), Mutex::new(Random(seed ^ 0x5eed)));
        let server = Arc::new(Server::start(move |request| {
            let mut places = served.lock().unwrap();
            let place = request.path.trim_start_matches('/').parse::<usize>().unwrap();
            places[place].answer(request, &mut faults.lock().unwrap())
        }));
        let folder = TempDir::new().unwrap();
        let mut config = config(&folder, &server.uri("/"));
        config.quota = random.one_of(&[None, None, Some(60 << 20), Some(25 << 20), Some(6 << 20), Some(1)]);
        config.fixity = random.one_of(&[Fixity::Stream, Fixity::Stream, Fixity::Stream, Fixity::Strict, Fixity::Off]);
        config.mirrors = random.one_of(&[Mirrors::Auto, Mirrors::First, Mirrors::Last]);
        if !is_honest {
            // A read may fail, and no world is to wait for long.
            (config.stall, config.size_deadline) = (SOON, SOON);
        }
        std::fs::create_dir_all(&config.observed_folder).unwrap();
        let http = HttpConfig { own_authority: Some(server.authority().into()), ..HttpConfig::default() };
        let client = Client::new(http).unwrap();
        let (sender, events) = unbounded_channel();
        let content = Content::open(config.clone(), client.clone(), Handle::current(), sender).unwrap();
        let model = Model { files: Vec::new(), events, changed: Vec::new(), poisoned: Vec::new() };
        let model = Arc::new(Mutex::new(model));
        let _folder = folder;
        let mut world = World {
            random,
            config,
            client,
            content: Some(content),
            model,
            places,
            server,
            inodes: 1,
            is_honest,
            _folder,
        };
        for _ in 0..2 + world.random.below(3) {
            world.add_file();
        }
        world
    }

    fn add_file(&mut self) {
        let bodies = bodies(&mut self.random);
        let has_mirror = self.random.chance(30);
        let first = self.places.lock().unwrap().len();
        for _ in 0..2 {
            let place = Place::honest(&bodies, &mut self.random);
            self.places.lock().unwrap().push(place);
        }
        let places = [first, first + 1];
        let shown = self.named(&bodies, places, has_mirror);
        self.model.lock().unwrap().files.push(File { bodies, places, has_mirror, shown });
        let file = self.model.lock().unwrap().files.len() - 1;
        self.change_servers(file);
    }

    /// A new inode of what is published now.
    fn named(&mut self, bodies: &[Arc<Body>], places: [usize; 2], has_mirror: bool) -> Shown {
        self.inodes += 1;
        let uri = |place: usize| self.server.uri(&format!("/{place}"));
        let mut spec = FetchSpec::new(INodeNo(self.inodes), uri(places[0]));
        let current = self.places.lock().unwrap()[places[0]].current;
        let is_right = self.is_honest || self.random.chance(80);
        let published = if is_right { current } else { self.random.below(bodies.len() as u64) as usize };
        if has_mirror {
            spec.mirrors = vec![(1, uri(places[1]))];
        }
        if self.random.chance(60) {
            spec.length = Some(bodies[published].length());
        }
        if self.random.chance(60) {
            spec.hashes = vec![bodies[published].digest()];
        }
        if !self.is_honest && self.random.chance(5) {
            spec.hashes = vec![digest(Algorithm::Sha256, b"nothing has this")];
        }
        let mut shown = Shown::new(spec, self.config.fixity, bodies);
        shown.is_honest = self.is_honest && published == current && !has_mirror;
        shown
    }

    /// The name of a file has another inode from now on.
    fn renew(&mut self, file: usize) {
        let (bodies, places, has_mirror) = {
            let model = self.model.lock().unwrap();
            let File { bodies, places, has_mirror, .. } = &model.files[file];
            (bodies.clone(), *places, *has_mirror)
        };
        let shown = self.named(&bodies, places, has_mirror);
        {
            let mut model = self.model.lock().unwrap();
            let before = std::mem::replace(&mut model.files[file].shown, shown);
            if before.is_pinned {
                self.content().unpin(before.spec.ino);
            }
            if before.is_poisoned {
                model.poisoned.push(before.spec);
            }
        }
        self.change_servers(file);
    }

    /// Other servers: another version, other faults.
    fn change_servers(&mut self, file: usize) {
        let mut model = self.model.lock().unwrap();
        let File { bodies, places, shown, .. } = &mut model.files[file];
        let is_vouched = !shown.spec.hashes.is_empty() && self.config.fixity != Fixity::Off;
        for place in *places {
            let current = self.places.lock().unwrap()[place].current;
            let new = match self.is_honest {
                // Without a strong ETag or a digest nothing tells a version from the next while it is downloaded.
                true => Place { current, ..Place::honest(bodies, &mut self.random) },
                false => Place::hostile(bodies, (is_vouched, shown.spec.length.is_some()), &mut self.random),
            };
            shown.is_lied_to |= new.is_liar();
            self.places.lock().unwrap()[place] = new;
        }
    }

    /// The Source has another version now.
    fn publish(&mut self, file: usize) {
        let mut model = self.model.lock().unwrap();
        let File { bodies, places, shown, .. } = &mut model.files[file];
        let current = self.random.below(bodies.len() as u64) as usize;
        self.places.lock().unwrap()[places[0]].current = current;
        shown.is_honest = false;
    }

    async fn step(&mut self) {
        let files = self.model.lock().unwrap().files.len() as u64;
        let file = self.random.below(files) as usize;
        match self.random.below(100) {
            0..=54 => self.read_some().await,
            55..=61 => self.change_servers(file),
            62..=68 => self.publish(file),
            69..=74 => self.evict(file).await,
            75..=79 => self.ask_size(file).await,
            80..=84 => self.fetch_ahead(file).await,
            85..=88 => self.renew(file),
            89..=92 => self.restart().await,
            93..=95 => self.pin(file),
            _ => self.content().forget_failures(),
        }
        self.model.lock().unwrap().hear();
        self.check().await;
    }

    /// Several readers at once.
    async fn read_some(&mut self) {
        let files = self.model.lock().unwrap().files.len() as u64;
        let one = self.random.below(files) as usize;
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..1 + self.random.below(4) {
            let file = if self.random.chance(70) { one } else { self.random.below(files) as usize };
            let reader = Reader {
                content: Arc::clone(self.content()),
                model: Arc::clone(&self.model),
                file,
                random: Random(self.random.below(u64::MAX)),
                own: Pages::new(),
            };
            readers.spawn(reader.read());
        }
        while let Some(read) = readers.join_next().await {
            finished(read);
        }
    }

    async fn evict(&mut self, file: usize) {
        let (spec, is_pinned) = self.spec(file);
        let content = Arc::clone(self.content());
        let evicted = tokio::task::spawn_blocking(move || content.evict(&spec)).await.unwrap();
        assert!(!is_pinned || !matches!(evicted, Evicted::Bytes(_)), "an open file was evicted");
    }

    fn spec(&self, file: usize) -> (FetchSpec, bool) {
        let model = self.model.lock().unwrap();
        (model.files[file].shown.spec.clone(), model.files[file].shown.is_pinned)
    }

    async fn ask_size(&mut self, file: usize) {
        let (spec, _) = self.spec(file);
        let is_to_be_read = self.random.chance(50);
        let sized = tokio::time::timeout(HANG, self.content().size(&spec, is_to_be_read)).await.expect("a size hangs");
        let mut model = self.model.lock().unwrap();
        model.hear();
        let shown = &mut model.files[file].shown;
        if let Ok(size) = sized {
            shown.size(size);
        }
    }

    /// Without the patience to wait for it, at times.
    async fn fetch_ahead(&mut self, file: usize) {
        let (spec, _) = self.spec(file);
        let patience = if self.random.chance(40) { MOMENT * self.random.below(30) as u32 } else { HANG };
        let fetched = tokio::time::timeout(patience, self.content().prefetch(&spec, Moment::now())).await;
        assert!(patience < HANG || fetched.is_ok(), "a prefetch hangs");
    }

    fn pin(&mut self, file: usize) {
        let mut model = self.model.lock().unwrap();
        let shown = &mut model.files[file].shown;
        if std::mem::replace(&mut shown.is_pinned, false) {
            self.content().unpin(shown.spec.ino);
        } else if self.content().peek_local(shown.spec.ino).is_some() {
            self.content().pin(shown.spec.ino);
            shown.is_pinned = self.content().peek_local(shown.spec.ino).is_some();
        }
    }

    fn content(&self) -> &Arc<Content> {
        self.content.as_ref().unwrap()
    }

    /// In good order, or without a word.
    async fn restart(&mut self) {
        let content = self.content.take().unwrap();
        let downloads: Vec<_> = content.in_flight.lock().unwrap().values().cloned().collect();
        downloads.iter().for_each(|download| download.cancel());
        drop(downloads);
        until(|| Arc::strong_count(&content) == 1).await;
        if self.random.chance(50) {
            content.close().await;
        }
        drop(content);
        let (sender, events) = unbounded_channel();
        let content = Content::open(self.config.clone(), self.client.clone(), Handle::current(), sender).unwrap();
        self.content = Some(content);
        let mut model = self.model.lock().unwrap();
        model.hear();
        model.events = events;
        for file in &mut model.files {
            // The kernel's pages go with the mount.
            file.shown.drop_pages(0..u64::MAX);
            file.shown.is_pinned = false;
        }
    }

    /// What holds after each step.
    async fn check(&mut self) {
        if let Some(quota) = self.config.quota.filter(|quota| *quota > 1) {
            let mut files = BTreeMap::new();
            allocated(&self.config.folder, &mut files);
            let taken: u64 = files.values().sum();
            assert!(taken <= quota + INDEX, "the cache takes {taken} bytes of {quota}");
        }
        let renewed: Vec<usize> = {
            let mut model = self.model.lock().unwrap();
            let changed = std::mem::take(&mut model.changed);
            for shown in model.files.iter().map(|file| &file.shown).filter(|shown| shown.is_pinned) {
                assert!(
                    self.content().peek_local(shown.spec.ino).is_some(),
                    "{:?} is open and was evicted",
                    shown.spec.ino
                );
            }
            let has_new = |shown: &Shown| shown.is_poisoned || changed.contains(&shown.spec.ino);
            (0..model.files.len()).filter(|file| has_new(&model.files[*file].shown)).collect()
        };
        for file in renewed {
            if self.random.chance(70) {
                self.renew(file);
            }
        }
        let poisoned = self.model.lock().unwrap().poisoned.last().cloned();
        if let Some(spec) = poisoned.filter(|_| self.random.chance(20)) {
            let read = tokio::time::timeout(HANG, self.content().read(&spec, 0, 4096)).await.expect("a read hangs");
            assert!(read.is_err(), "{:?} was poisoned and can be read", spec.ino);
        }
    }
}

/// A process that reads one file.
struct Reader {
    content: Arc<Content>,
    model: Arc<Mutex<Model>>,
    file: usize,
    random: Random,
    /// What it has read.
    own: Pages,
}

impl Reader {
    async fn read(mut self) {
        let spec = self.model.lock().unwrap().files[self.file].shown.spec.clone();
        let size = {
            let model = self.model.lock().unwrap();
            let known = self.content.known_size(spec.ino).or(spec.length);
            known.unwrap_or(model.files[self.file].bodies[0].length())
        };
        let length = self.random.one_of(&[4096, 4096, 16 << 10, 128 << 10, 128 << 10, 1 << 20, 3000]);
        for at in self.plan(size, length) {
            if !self.read_at(&spec, at, length).await {
                return;
            }
        }
    }

    /// Where it reads so many bytes of a file of `size`.
    fn plan(&mut self, size: u64, length: u64) -> Vec<u64> {
        let all = (size / length + 2).min(300);
        let few = 1 + self.random.below(24);
        let page = |random: &mut Random| random.below(size + 1) / 4096 * 4096;
        let end = size.saturating_sub(self.random.below(3) * (128 << 10) + length);
        match self.random.below(10) {
            0..=1 => (0..all).map(|number| number * length).collect(),
            2 => (0..all).rev().map(|number| number * length).collect(),
            3 => {
                let mut pieces: Vec<u64> = (0..all).map(|number| number * length).collect();
                (0..pieces.len()).for_each(|at| pieces.swap(at, self.random.below(all) as usize));
                pieces
            }
            4..=5 => (0..few).map(|number| number * length).collect(),
            6 => (0..few).map(|number| end.saturating_sub(number * length)).collect(),
            7 => (0..few).map(|number| end + number * length).take_while(|at| *at <= size + length).collect(),
            8 => {
                let first = page(&mut self.random);
                (0..few).map(|number| first + number * length).take_while(|at| *at <= size + length).collect()
            }
            _ => (0..few).map(|_| page(&mut self.random)).collect(),
        }
    }

    /// Whether it goes on.
    async fn read_at(&mut self, spec: &FetchSpec, offset: u64, length: u64) -> bool {
        let begun = {
            let mut model = self.model.lock().unwrap();
            model.hear();
            if model.files[self.file].shown.spec.ino != spec.ino {
                return false;
            }
            model.files[self.file].shown.begin()
        };
        READS.fetch_add(1, Ordering::Relaxed);
        let asked = length as u32;
        let read = match self.content.read_in_memory(spec.ino, offset, asked) {
            LocalRead::Bytes(bytes) => Ok(bytes),
            _ => match self.content.read_present(spec, offset, asked).await.filter(|_| self.random.chance(50)) {
                Some(bytes) => Ok(bytes),
                None if self.random.chance(3) => {
                    let patience = MOMENT * self.random.below(20) as u32;
                    match tokio::time::timeout(patience, self.content.read(spec, offset, asked)).await {
                        Ok(read) => read,
                        Err(_) => return true,
                    }
                }
                None => tokio::time::timeout(HANG, self.content.read(spec, offset, asked)).await.expect("a read hangs"),
            },
        };
        let mut model = self.model.lock().unwrap();
        model.hear();
        let shown = &mut model.files[self.file].shown;
        match read {
            Ok(bytes) => {
                shown.read((begun, &mut self.own), (offset, length), &bytes, self.content.known_size(spec.ino))
            }
            Err(error) => {
                assert!(!shown.is_honest || shown.is_poisoned, "{spec:?} at {offset}: {error:?}");
                return self.random.chance(30);
            }
        }
        true
    }
}

/// The files below `folder` by their number, and the bytes of their blocks. What is pinned has two names.
fn allocated(folder: &Path, files: &mut BTreeMap<u64, u64>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => allocated(&entry.path(), files),
            Ok(metadata) => _ = files.insert(metadata.ino(), metadata.blocks() * 512),
            // Evicted meanwhile.
            Err(_) => {}
        }
    }
}

/// A task that failed fails the test.
fn finished<T>(task: Result<T, tokio::task::JoinError>) -> T {
    task.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => panic!("another reader has failed"),
    })
}

async fn live(seed: u64) {
    let mut world = World::new(seed);
    for step in 0..STEPS {
        tracing::trace!(seed, step);
        world.step().await;
    }
    world.restart().await;
    world.check().await;
    world.content().close().await;
}

/// Two worlds a round; SEED is the first.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str, unset| std::env::var(name).map_or(unset, |number| number.parse().unwrap());
    let first = number("SEED", 1);
    first..first + 2 * number("ROUNDS", 5)
}

#[test]
fn random_reads_from_lying_servers_keep_the_promises() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let begun = std::time::Instant::now();
    runtime.block_on(async {
        let mut worlds = tokio::task::JoinSet::new();
        for seed in seeds() {
            while worlds.len() >= AT_ONCE {
                finished(worlds.join_next().await.unwrap());
            }
            worlds.spawn(async move {
                let lived = tokio::spawn(live(seed)).await;
                if lived.is_err() {
                    eprintln!("seed {seed}: SEED={seed} shows it again");
                }
                finished(lived);
            });
        }
        while let Some(lived) = worlds.join_next().await {
            finished(lived);
        }
    });
    println!("{} reads in {:?}", READS.load(Ordering::Relaxed), begun.elapsed());
}
