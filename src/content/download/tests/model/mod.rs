//! Random reads of files whose servers are honest or lie, through restarts, evictions and caches that are too small. Whatever
//! happens, what was shown of an inode keeps the promises: no wrong byte, no short read, never two versions, a cache within its quota, no
//! wait without end.
//!
//! The model knows [`Content`] as the rest of the mount does: by its public functions and its events. Each mount has a runtime that ends
//! with it, and downloads under way end as those of a killed process do.
//!
//! The servers are on loopback and time is real: what a seed fixes is the plan, not the order in which threads run.

mod places;
mod random;
mod reader;
mod shown;

use super::*;
use crate::content::State;
use crate::content::store::{Evicted, Moment};
use crate::source::tests::server::Server;
use places::{Body, MOMENT, Place, bodies};
use random::Random;
use reader::{Manner, Reader};
use shown::{Pages, Shown};
use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::runtime::{Builder, Runtime};

/// Steps of one world, each with some dozens of reads.
const STEPS: usize = 40;

/// Worlds at a time: some wait while others are at work.
const AT_ONCE: usize = 6;

/// Where a read may fail it does so soon.
const SOON: Duration = Duration::from_secs(2);

/// The longest time that anything may take on a busy machine.
const HANG: Duration = Duration::from_secs(60);

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
    changed: Vec<Ino>,
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

/// What happens next, mostly to the file that the world looks at.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read(Manner),
    /// Its servers have other faults.
    Servers,
    /// The Source has another version.
    Publish,
    /// Its servers break every answer off, or none.
    Cut(u64),
    Evict,
    Size,
    Ahead,
    /// Its name has another inode.
    Renew,
    Restart,
    Pin,
    Forget,
    /// The world looks at another file.
    Turn,
}

/// What a file goes through where a fault would show: sampled, read whole, evicted, changed in between.
const SCENES: [&[Step]; 10] = [
    &[Step::Read(Manner::Sample), Step::Publish, Step::Forget, Step::Read(Manner::Sample), Step::Read(Manner::Whole)],
    &[Step::Read(Manner::Whole), Step::Evict, Step::Publish, Step::Read(Manner::Sample), Step::Read(Manner::Whole)],
    &[Step::Read(Manner::Whole), Step::Evict, Step::Restart, Step::Publish, Step::Read(Manner::Any)],
    &[Step::Read(Manner::End), Step::Publish, Step::Read(Manner::Whole)],
    &[Step::Cut(100), Step::Read(Manner::Beginning), Step::Publish, Step::Cut(0), Step::Read(Manner::Stretch)],
    &[Step::Cut(90), Step::Read(Manner::Whole), Step::Publish, Step::Restart, Step::Cut(0), Step::Read(Manner::Whole)],
    &[Step::Size, Step::Publish, Step::Read(Manner::Sample), Step::Read(Manner::Whole)],
    &[Step::Renew, Step::Servers, Step::Read(Manner::Shuffled), Step::Read(Manner::Backwards)],
    &[Step::Read(Manner::Sample), Step::Renew, Step::Read(Manner::Sample), Step::Read(Manner::Whole), Step::Evict],
    &[Step::Read(Manner::Whole), Step::Read(Manner::Sample), Step::Read(Manner::Backwards)],
];

/// Content while it is mounted.
struct Mount {
    runtime: Runtime,
    content: Arc<Content>,
}

impl Mount {
    fn new(config: &ContentConfig, server: &Server) -> (Mount, UnboundedReceiver<Event>) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let guard = runtime.enter();
        let http = HttpConfig { own_authority: Some(server.authority().into()), ..HttpConfig::default() };
        let (sender, events) = unbounded_channel();
        let client = Client::new(http).unwrap();
        let content = Content::open(config.clone(), client, runtime.handle().clone(), sender).unwrap();
        drop(guard);
        (Mount { runtime, content }, events)
    }

    /// In good order, or without a word.
    fn end(self, is_orderly: bool) {
        if is_orderly {
            self.runtime.block_on(self.content.close());
        }
        self.runtime.shutdown_timeout(HANG);
        let begun = std::time::Instant::now();
        while Arc::strong_count(&self.content) > 1 {
            assert!(begun.elapsed() < HANG, "a task outlives its runtime");
            std::thread::sleep(MOMENT);
        }
    }
}

/// A Source, and the mounts of it.
struct World {
    random: Random,
    config: ContentConfig,
    /// None while it starts again.
    mount: Option<Mount>,
    model: Arc<Mutex<Model>>,
    places: Arc<Mutex<Vec<Place>>>,
    server: Arc<Server>,
    inodes: u64,
    is_honest: bool,
    /// The file that the world looks at, and what happens to it next.
    file: usize,
    steps: VecDeque<Step>,
    _folder: TempDir,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let is_honest = random.chance(25);
        let places: Arc<Mutex<Vec<Place>>> = Arc::default();
        let (served, faults) = (Arc::clone(&places), Mutex::new(Random(seed ^ 0x5eed)));
        let server = Arc::new(Server::start(move |request| {
            let place = request.path.trim_start_matches('/').parse::<usize>().unwrap();
            let (reply, delay) = served.lock().unwrap()[place].answer(request, &mut faults.lock().unwrap());
            std::thread::sleep(delay);
            reply
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
        std::fs::create_dir_all(&config.metadata_folder).unwrap();
        let (mount, events) = Mount::new(&config, &server);
        let model = Model { files: Vec::new(), events, changed: Vec::new(), poisoned: Vec::new() };
        let mut world = World {
            random,
            config,
            mount: Some(mount),
            model: Arc::new(Mutex::new(model)),
            places,
            server,
            inodes: 1,
            is_honest,
            file: 0,
            steps: VecDeque::new(),
            _folder: folder,
        };
        for _ in 0..2 + world.random.below(2) {
            world.add_file();
        }
        world
    }

    fn add_file(&mut self) {
        let bodies = bodies(&mut self.random);
        let has_mirror = self.random.chance(30);
        let first = self.places.lock().unwrap().len();
        for rotation in 0..2 {
            let place = Place::honest(&bodies, rotation, &mut self.random);
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
        let mut spec = FetchSpec::new(Ino(self.inodes), uri(places[0]));
        let current = self.places.lock().unwrap()[places[0]].current;
        let is_right = self.is_honest || self.random.chance(75);
        let published = if is_right { current } else { self.random.below(bodies.len() as u64) as usize };
        if has_mirror {
            spec.mirrors = vec![uri(places[1])];
        }
        if self.random.chance(60) {
            spec.length = Some(bodies[published].length());
        }
        if self.random.chance(55) {
            spec.hashes = vec![bodies[published].digest()];
        }
        if !self.is_honest && self.random.chance(4) {
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
            let (current, rotation) = {
                let places = self.places.lock().unwrap();
                (places[place].current, places[place].rotation)
            };
            let new = match self.is_honest {
                // Without a strong ETag or a digest nothing tells a version from the next while it is downloaded.
                true => Place { current, ..Place::honest(bodies, rotation, &mut self.random) },
                false => {
                    let published = (is_vouched, shown.spec.length.is_some());
                    Place::hostile(bodies, rotation, published, &mut self.random)
                }
            };
            shown.is_lied_to |= new.is_liar();
            shown.hides_length |= new.hides_length();
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

    fn cut(&mut self, file: usize, cuts: u64) {
        if !self.is_honest {
            for place in self.model.lock().unwrap().files[file].places {
                self.places.lock().unwrap()[place].cuts = cuts;
            }
        }
    }

    /// The next step: of the scene under way, or by chance.
    fn next_step(&mut self) -> Step {
        if let Some(step) = self.steps.pop_front() {
            return step;
        }
        match self.random.below(100) {
            0..=27 => Step::Read(Manner::Any),
            28..=49 => {
                let scene = self.random.one_of(&SCENES);
                self.steps.extend(scene);
                Step::Turn
            }
            50..=57 => Step::Servers,
            58..=64 => Step::Publish,
            65..=69 => Step::Evict,
            70..=73 => Step::Size,
            74..=77 => Step::Ahead,
            78..=80 => Step::Renew,
            81..=84 => Step::Restart,
            85..=88 => Step::Pin,
            89..=94 => Step::Forget,
            _ => Step::Turn,
        }
    }

    fn step(&mut self) {
        let (step, file) = (self.next_step(), self.file);
        tracing::trace!(?step, file);
        match step {
            Step::Read(manner) => self.read_some(manner),
            Step::Servers => self.change_servers(file),
            Step::Publish => self.publish(file),
            Step::Cut(cuts) => self.cut(file, cuts),
            Step::Evict => self.evict(file),
            Step::Size => self.ask_size(file),
            Step::Ahead => self.fetch_ahead(file),
            Step::Renew => self.renew(file),
            Step::Restart => self.restart(),
            Step::Pin => self.pin(file),
            Step::Forget => self.content().forget_failures(),
            Step::Turn => {
                let files = self.model.lock().unwrap().files.len() as u64;
                self.file = self.random.below(files) as usize;
            }
        }
        self.check();
    }

    /// Several readers at once; the first reads in this manner.
    fn read_some(&mut self, manner: Manner) {
        let files = self.model.lock().unwrap().files.len() as u64;
        let mut readers = Vec::new();
        for number in 0..1 + self.random.below(4) {
            let file = match self.random.chance(75) || number == 0 {
                true => self.file,
                false => self.random.below(files) as usize,
            };
            readers.push(Reader {
                content: Arc::clone(self.content()),
                model: Arc::clone(&self.model),
                file,
                manner: if number == 0 { manner } else { Manner::Any },
                random: Random(self.random.below(u64::MAX)),
                own: Pages::new(),
            });
        }
        self.runtime().block_on(async {
            let mut reading = tokio::task::JoinSet::new();
            readers.into_iter().for_each(|reader| _ = reading.spawn(reader.read()));
            while let Some(read) = reading.join_next().await {
                finished(read.map_err(|error| error.into_panic()));
            }
        });
    }

    fn evict(&mut self, file: usize) {
        let (spec, is_pinned) = self.spec(file);
        let evicted = self.content().evict(&spec);
        assert!(!is_pinned || !matches!(evicted, Evicted::Bytes(_)), "an open file was evicted");
    }

    fn spec(&self, file: usize) -> (FetchSpec, bool) {
        let model = self.model.lock().unwrap();
        (model.files[file].shown.spec.clone(), model.files[file].shown.is_pinned)
    }

    fn ask_size(&mut self, file: usize) {
        let (spec, _) = self.spec(file);
        let is_to_be_read = self.random.chance(50);
        let asking =
            async { tokio::time::timeout(HANG, self.content().size(&spec, Requester::default(), is_to_be_read)).await };
        let sized = self.runtime().block_on(asking).expect("a size hangs");
        let mut model = self.model.lock().unwrap();
        model.hear();
        let shown = &mut model.files[file].shown;
        if let Ok(size) = sized {
            shown.size(size);
        }
    }

    /// Without the patience to wait for it, at times.
    fn fetch_ahead(&mut self, file: usize) {
        let (spec, _) = self.spec(file);
        let patience = if self.random.chance(40) { MOMENT * self.random.below(30) as u32 } else { HANG };
        let fetching = async { tokio::time::timeout(patience, self.content().prefetch(&spec, Moment::now())).await };
        let fetched = self.runtime().block_on(fetching);
        assert!(patience < HANG || fetched.is_ok(), "a prefetch hangs");
    }

    fn pin(&mut self, file: usize) {
        let mut model = self.model.lock().unwrap();
        let shown = &mut model.files[file].shown;
        if std::mem::replace(&mut shown.is_pinned, false) {
            self.content().unpin(shown.spec.ino);
        } else if self.content().is_whole(shown.spec.ino) {
            self.content().pin(shown.spec.ino);
            shown.is_pinned = self.is_on_disk(shown.spec.ino);
        }
    }

    /// What is held in memory alone cannot be pinned.
    fn is_on_disk(&self, ino: Ino) -> bool {
        self.content().object(ino).is_some() && self.content().is_whole(ino)
    }

    fn content(&self) -> &Arc<Content> {
        &self.mount.as_ref().unwrap().content
    }

    fn runtime(&self) -> &Runtime {
        &self.mount.as_ref().unwrap().runtime
    }

    fn restart(&mut self) {
        let is_orderly = self.random.chance(60);
        self.mount.take().unwrap().end(is_orderly);
        let (mount, events) = Mount::new(&self.config, &self.server);
        self.mount = Some(mount);
        let mut model = self.model.lock().unwrap();
        model.hear();
        model.events = events;
        model.files.iter_mut().for_each(|file| file.shown.restart(is_orderly));
    }

    /// What holds after each step.
    fn check(&mut self) {
        self.model.lock().unwrap().hear();
        if let Some(quota) = self.config.quota.filter(|quota| *quota > 1) {
            let mut files = BTreeMap::new();
            allocated(&self.config.folder, &mut files);
            let taken: u64 = files.values().sum();
            assert!(taken <= quota + INDEX, "the cache takes {taken} bytes of {quota}");
        }
        let files = self.model.lock().unwrap().files.len();
        (0..files).for_each(|file| self.check_file(file));
        let changed = std::mem::take(&mut self.model.lock().unwrap().changed);
        for file in 0..files {
            let is_past = {
                let shown = &self.model.lock().unwrap().files[file].shown;
                shown.is_poisoned || changed.contains(&shown.spec.ino)
            };
            if is_past && self.random.chance(60) {
                self.renew(file);
            }
        }
        let poisoned = self.model.lock().unwrap().poisoned.last().cloned();
        if let Some(spec) = poisoned.filter(|_| self.random.chance(20)) {
            let reading =
                async { tokio::time::timeout(HANG, self.content().read(&spec, Requester::default(), 0, 4096)).await };
            let read = self.runtime().block_on(reading).expect("a read hangs");
            assert!(read.is_err(), "{:?} was poisoned and can be read", spec.ino);
        }
    }

    /// What is here whole is one version, and all that was shown is of it.
    fn check_file(&self, file: usize) {
        let mut model = self.model.lock().unwrap();
        let spec = model.files[file].shown.spec.clone();
        let (state, verified) = self.content().state(spec.ino);
        model.hear();
        let shown = &mut model.files[file].shown;
        assert!(!shown.is_pinned || self.is_on_disk(spec.ino), "{:?} is open and was evicted", spec.ino);
        if state != State::Cached || shown.is_poisoned {
            return;
        }
        let size = self.content().known_size(spec.ino);
        let bodies = shown.bodies.clone();
        for at in bodies.iter().flat_map(|body| body.telling()).filter(|at| size.is_some_and(|size| *at < size)) {
            let begun = shown.begin();
            if let Some(bytes) = self.content().read_local(spec.ino, at, 4096) {
                shown.read((begun, &mut Pages::new()), (at, 4096), &bytes, size);
            }
        }
        shown.is_here(verified);
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

/// What fails in one thread fails the test.
fn finished<T>(task: std::thread::Result<T>) -> T {
    task.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn live(seed: u64) {
    let mut world = World::new(seed);
    for step in 0..STEPS {
        tracing::trace!(seed, step);
        world.step();
    }
    world.restart();
    world.check();
    world.mount.take().unwrap().end(true);
}

/// Two worlds a round; SEED is the first.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str, unset| std::env::var(name).map_or(unset, |number| number.parse().unwrap());
    let first = number("SEED", 1);
    first..first + 2 * number("ROUNDS", 5)
}

#[test]
fn random_reads_from_lying_servers_keep_the_promises() {
    let begun = std::time::Instant::now();
    let seeds = Mutex::new(seeds());
    std::thread::scope(|scope| {
        let lives: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let next = seeds.lock().unwrap().next();
                        let Some(seed) = next else { break };
                        let lived = std::panic::catch_unwind(|| live(seed));
                        if lived.is_err() {
                            // No other world begins.
                            seeds.lock().unwrap().by_ref().for_each(drop);
                            eprintln!("seed {seed}: SEED={seed} shows it again");
                        }
                        finished(lived);
                    }
                })
            })
            .collect();
        lives.into_iter().for_each(|live| finished(live.join()));
    });
    println!("{} reads in {:?}", READS.load(Ordering::Relaxed), begun.elapsed());
}
