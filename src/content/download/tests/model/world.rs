//! A Source, and the mounts of it.

use super::super::*;
use super::bodies::{Length, Variant, bodies};
use super::mount::{Mount, allocated};
use super::places::{MOMENT, Place};
use super::random::Random;
use super::reader::{Manner, Reader};
use super::scenes::{At, Kind, Scene, Serve, Step, Turn, Version, scenes};
use super::shown::{Pages, Shown};
use super::{File, HANG, IS_BROKEN, Model, SOON, finished};
use crate::content::State;
use crate::content::store::{Evicted, Moment};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use tokio::runtime::Runtime;

/// Files that are looked at: older ones have no name any more.
const FILES: usize = 4;

/// Steps by chance at the end of a world.
const STEPS: u64 = 12;

/// Bytes by which the index may grow over the quota until the next write.
const INDEX: u64 = 1 << 20;

/// The settings of a world's mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
    /// Nothing is at fault.
    Honest,
    /// The cache has room.
    Roomy,
    /// It has room for a few files alone.
    Tight,
    /// It has none.
    Memory,
    Strict,
    /// Digests do not count.
    Off,
}

/// The themes of worlds that follow one another.
const THEMES: [Theme; 10] = [
    Theme::Honest,
    Theme::Roomy,
    Theme::Memory,
    Theme::Roomy,
    Theme::Tight,
    Theme::Strict,
    Theme::Roomy,
    Theme::Off,
    Theme::Memory,
    Theme::Roomy,
];

pub(super) struct World {
    seed: u64,
    random: Random,
    config: ContentConfig,
    /// None while it starts again.
    mount: Option<Mount>,
    model: Arc<Mutex<Model>>,
    places: Arc<Mutex<Vec<Place>>>,
    server: Arc<Server>,
    inodes: u64,
    is_honest: bool,
    /// The file that the world looks at, and that with the same versions.
    file: usize,
    twin: usize,
    /// Files that there were.
    named: usize,
    _folder: TempDir,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let theme = THEMES[(seed % THEMES.len() as u64) as usize];
        let is_honest = theme == Theme::Honest;
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
        config.quota = match theme {
            Theme::Honest => random.one_of(&[None, None, Some(60 << 20), Some(25 << 20), Some(6 << 20), Some(1)]),
            Theme::Tight => Some(random.one_of(&[40 << 20, 25 << 20])),
            Theme::Memory => Some(1),
            Theme::Roomy | Theme::Strict | Theme::Off => None,
        };
        config.fixity = match theme {
            Theme::Honest => random.one_of(&[Fixity::Stream, Fixity::Stream, Fixity::Strict, Fixity::Off]),
            Theme::Strict => Fixity::Strict,
            Theme::Off => Fixity::Off,
            Theme::Roomy | Theme::Tight | Theme::Memory => Fixity::Stream,
        };
        config.mirrors = random.one_of(&[Mirrors::Auto, Mirrors::First, Mirrors::Last]);
        if !is_honest {
            // A read may fail, and no world is to wait for long.
            (config.stall, config.size_deadline) = (SOON, SOON);
        }
        std::fs::create_dir_all(&config.metadata_folder).unwrap();
        let (mount, events) = Mount::new(&config, &server);
        let model = Model { files: Vec::new(), events, changed: Vec::new(), poisoned: Vec::new() };
        World {
            seed,
            random,
            config,
            mount: Some(mount),
            model: Arc::new(Mutex::new(model)),
            places,
            server,
            inodes: 1,
            is_honest,
            file: 0,
            twin: 0,
            named: 0,
            _folder: folder,
        }
    }

    /// Half of all: worlds of one theme have those of each other's.
    fn scenes(&self) -> Vec<Scene> {
        let first = if self.is_honest { 0 } else { self.seed as usize / 2 % 2 };
        let scenes = scenes(self.is_honest).into_iter().skip(first);
        let scenes = scenes.step_by(if self.is_honest { 1 } else { 2 });
        scenes.filter(|scene| self.config.fixity != Fixity::Off || !scene.needs_digest()).collect()
    }

    /// Its scenes, and what comes by chance.
    pub(super) fn live(mut self) {
        let mut scenes = self.scenes();
        (1..scenes.len()).for_each(|at| scenes.swap(at, self.random.below(at as u64 + 1) as usize));
        for scene in scenes {
            self.twin = self.add_file(scene.kind, None);
            self.file = self.add_file(scene.kind, Some(self.twin));
            for step in scene.steps {
                self.step(*step);
                if self.random.chance(6) {
                    let step = self.random.one_of(&[Step::Size, Step::Ahead, Step::Forget]);
                    self.step(step);
                }
            }
            for _ in 0..self.random.below(2) {
                self.step_by_chance();
            }
        }
        self.change_servers(self.file);
        (0..STEPS).for_each(|_| self.step_by_chance());
        self.step(Step::Restart);
        self.mount.take().unwrap().end(true);
    }

    /// A new file, in the place of the oldest. `twin`: it has the same versions, and the same is published of it.
    fn add_file(&mut self, kind: Kind, twin: Option<usize>) -> usize {
        let like = twin.map(|twin| {
            let model = self.model.lock().unwrap();
            let twin = &model.files[twin];
            (twin.bodies.clone(), twin.cast, twin.shown.spec.clone())
        });
        let (bodies, cast, like) = match like {
            Some((bodies, cast, spec)) => (bodies, cast, Some(spec)),
            None => {
                let bodies = bodies(kind.length, &mut self.random);
                let cast = self.cast(kind, &bodies);
                (bodies, cast, None)
            }
        };
        let has_mirror = kind.has_mirror.unwrap_or_else(|| self.random.chance(30));
        let first = self.places.lock().unwrap().len();
        for rotation in 0..2 {
            let mut place = Place::honest(&bodies, rotation, &mut self.random);
            place.current = cast[0];
            self.places.lock().unwrap().push(place);
        }
        let mut file = File { kind, bodies, cast, places: [first, first + 1], has_mirror, shown: Shown::of_nothing() };
        file.shown = self.named(&file, cast[0], like.as_ref());
        let slot = self.named % FILES;
        self.named += 1;
        let mut model = self.model.lock().unwrap();
        if slot == model.files.len() {
            model.files.push(file);
        } else {
            let before = std::mem::replace(&mut model.files[slot], file).shown;
            self.lose_name(&mut model, &before);
        }
        slot
    }

    /// An inode has no name any more.
    fn lose_name(&self, model: &mut Model, shown: &Shown) {
        if shown.is_pinned {
            self.content().unpin(shown.spec.ino);
        }
        if shown.is_poisoned {
            model.poisoned.push(shown.spec.clone());
        }
    }

    /// The published version and a wrong one of a scene.
    fn cast(&mut self, kind: Kind, bodies: &[Arc<super::Body>]) -> [usize; 2] {
        let number = |variant: Variant| bodies.iter().position(|body| body.variant == variant);
        let as_long = |than: usize| {
            let others = (0..bodies.len()).filter(move |other| *other != than);
            others.filter(move |other| bodies[*other].length() == bodies[than].length()).collect::<Vec<_>>()
        };
        let right = match kind.published.and_then(number) {
            Some(right) => right,
            None if self.random.chance(60) || as_long(0).is_empty() => 0,
            None => self.random.one_of(&as_long(0)),
        };
        let wrong = match number(Variant::Other).filter(|other| *other != right && self.random.chance(40)) {
            Some(other) => other,
            None if as_long(right).is_empty() => self.random.below(bodies.len() as u64) as usize,
            None => self.random.one_of(&as_long(right)),
        };
        [right, wrong]
    }

    /// A new inode of a file: what is published of it is that of the version `published`, or what is published of `like`.
    fn named(&mut self, file: &File, published: usize, like: Option<&FetchSpec>) -> Shown {
        self.inodes += 1;
        let uri = |place: usize| self.server.uri(&format!("/{place}"));
        let mut spec = FetchSpec::new(Ino(self.inodes), uri(file.places[0]));
        if file.has_mirror {
            spec.mirrors = vec![uri(file.places[1])];
        }
        let (kind, body) = (file.kind, &file.bodies[published]);
        if kind.is_measured.unwrap_or_else(|| self.random.chance(60)) {
            spec.length = Some(body.length());
        }
        if kind.is_vouched.unwrap_or_else(|| self.random.chance(55)) {
            spec.hashes = vec![body.digest()];
        }
        if !self.is_honest && kind.is_vouched.is_none() && self.random.chance(4) {
            spec.hashes = vec![digest(Algorithm::Sha256, b"nothing has this")];
        }
        if let Some(like) = like {
            (spec.length, spec.hashes) = (like.length, like.hashes.clone());
        }
        let mut shown = Shown::new(spec, self.config.fixity, &file.bodies);
        let places = self.places.lock().unwrap();
        file.places.iter().for_each(|place| shown.meet(&places[*place]));
        shown.is_passing = self.config.quota == Some(1);
        shown.is_honest = self.is_honest && published == places[file.places[0]].current && !file.has_mirror;
        shown
    }

    /// The name of a file has another inode from now on: in a scene of the same version, else of any.
    fn renew(&mut self, file: usize) {
        let model = Arc::clone(&self.model);
        let mut model = model.lock().unwrap();
        let (current, met) = {
            let places = self.places.lock().unwrap();
            let [own, mirror] = model.files[file].places.map(|place| &places[place]);
            (own.current, own.met | mirror.met)
        };
        let published = match model.files[file].kind.length {
            Length::Any if self.is_honest || self.random.chance(75) => current,
            Length::Any => self.random.below(model.files[file].bodies.len() as u64) as usize,
            _ => model.files[file].cast[0],
        };
        let mut shown = self.named(&model.files[file], published, None);
        shown.follow(&model.files[file].shown, met);
        let before = std::mem::replace(&mut model.files[file].shown, shown);
        self.lose_name(&mut model, &before);
    }

    /// Other servers: another version, other faults.
    fn change_servers(&mut self, file: usize) {
        let mut model = self.model.lock().unwrap();
        let File { bodies, places, shown, .. } = &mut model.files[file];
        let is_vouched = !shown.spec.hashes.is_empty() && self.config.fixity != Fixity::Off;
        let published = (is_vouched, shown.spec.length.is_some());
        for place in *places {
            let place = &mut self.places.lock().unwrap()[place];
            let new = match self.is_honest {
                // Without a strong ETag or a digest nothing tells a version from the next while it is downloaded.
                true => Place { current: place.current, ..Place::honest(bodies, place.rotation, &mut self.random) },
                false => Place::hostile(bodies, place.rotation, published, &mut self.random),
            };
            shown.meet(&new);
            shown.is_honest &= self.is_honest;
            *place = Place { met: place.met, ..new };
        }
    }

    /// The servers of a file do what a scene says.
    fn direct(&mut self, file: usize, serve: &Serve) {
        let mut model = self.model.lock().unwrap();
        let File { bodies, places, cast, shown, .. } = &mut model.files[file];
        let mut places_of_all = self.places.lock().unwrap();
        let alike = (cast[0] + bodies.len() + 1) % bodies.len();
        let number = |version: Version| match version {
            Version::Right => cast[0],
            Version::Wrong => cast[1],
            Version::Of(variant) => bodies.iter().position(|body| body.variant == variant).unwrap_or(cast[1]),
            Version::Alike => alike,
        };
        for (at, place) in [At::Own, At::Mirror].into_iter().zip(*places) {
            if serve.at == At::Both || serve.at == at {
                let turns = serve.turns.iter().map(|turn| match *turn {
                    Turn::Cut(percent) => Turn::Cut(percent),
                    Turn::Refuse => Turn::Refuse,
                    Turn::Become(version) => Turn::Become(number(version)),
                    Turn::Unsized => Turn::Unsized,
                });
                let turns = turns.collect();
                let place = &mut places_of_all[place];
                let new = place.directed(serve, (number(serve.version), turns), &mut self.random);
                shown.meet(&new);
                *place = Place { met: place.met, ..new };
            }
        }
        shown.is_honest = false;
    }

    /// Nothing is at fault from now on, where nothing keeps the file from being read.
    fn calm(&mut self, file: usize) {
        let ino = self.spec(file).0.ino;
        let is_under_way = self.content().downloads().iter().any(|(other, ..)| *other == ino);
        let shown = &mut self.model.lock().unwrap().files[file].shown;
        shown.is_honest = shown.is_honest || (!is_under_way && !shown.is_passing && shown.may_become_right());
        self.content().forget_failures();
    }

    /// The Source has another version now.
    fn publish(&mut self, file: usize) {
        let mut model = self.model.lock().unwrap();
        let File { bodies, places, shown, .. } = &mut model.files[file];
        let current = self.random.below(bodies.len() as u64) as usize;
        self.places.lock().unwrap()[places[0]].current = current;
        shown.is_honest = false;
    }

    fn step_by_chance(&mut self) {
        let step = match self.random.below(100) {
            0..=44 => Step::Read(Manner::Any),
            45..=54 => Step::Servers,
            55..=62 => Step::Publish,
            63..=67 => Step::Evict,
            68..=72 => Step::Size,
            73..=76 => Step::Ahead,
            77..=80 => Step::Renew,
            81..=84 => Step::Restart,
            85..=88 => Step::Pin,
            89..=94 => Step::Forget,
            _ => Step::Turn,
        };
        self.step(step);
        self.renew_past_files();
    }

    fn step(&mut self, step: Step) {
        if IS_BROKEN.load(Ordering::Relaxed) {
            return;
        }
        let file = self.file;
        tracing::trace!(?step, file);
        match step {
            Step::Read(manner) => self.read_some(manner),
            Step::Serve(serve) => self.direct(file, &serve),
            Step::Servers => self.change_servers(file),
            Step::Publish => self.publish(file),
            Step::Evict => self.evict(file),
            Step::Size => self.ask_size(file),
            Step::Ahead => self.fetch_ahead(file),
            Step::Renew => self.renew(file),
            Step::Restart => self.restart(),
            Step::Pin => self.pin(file),
            Step::Forget => self.content().forget_failures(),
            Step::Turn => self.file = self.random.below(self.files() as u64) as usize,
            Step::Twin => std::mem::swap(&mut self.file, &mut self.twin),
            Step::Calm => self.calm(file),
        }
        self.check();
    }

    fn files(&self) -> usize {
        self.model.lock().unwrap().files.len()
    }

    /// Several readers at once; the first reads in this manner.
    fn read_some(&mut self, manner: Manner) {
        let files = self.files() as u64;
        let others = if self.random.chance(40) { self.random.below(4) } else { 0 };
        let mut readers = Vec::new();
        for number in 0..1 + others {
            let file = match self.random.chance(75) || number == 0 {
                true => self.file,
                false => self.random.below(files) as usize,
            };
            let bodies = self.model.lock().unwrap().files[file].bodies.clone();
            readers.push(Reader {
                content: Arc::clone(self.content()),
                model: Arc::clone(&self.model),
                file,
                manner: if number == 0 { manner } else { Manner::Any },
                random: Random(self.random.below(u64::MAX)),
                telling: bodies.iter().flat_map(|body| body.telling()).collect(),
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
        let is_to_be_read = self.random.chance(30);
        let asking =
            async { tokio::time::timeout(HANG, self.content().size(&spec, Requester::default(), is_to_be_read)).await };
        let sized = self.runtime().block_on(asking).expect("a size hangs");
        let mut model = self.model.lock().unwrap();
        model.hear();
        let shown = &mut model.files[file].shown;
        match sized {
            Ok(size) => shown.size(size),
            Err(error) => assert!(!shown.is_honest, "{spec:?} has no size: {error:?}"),
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

    /// Returns whether it is on the disk: an object in memory alone cannot be pinned.
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

    /// Checks the promises after a step.
    fn check(&mut self) {
        self.model.lock().unwrap().hear();
        self.check_quota();
        (0..self.files()).for_each(|file| self.check_file(file));
        let poisoned = self.model.lock().unwrap().poisoned.last().cloned();
        if let Some(spec) = poisoned.filter(|_| self.random.chance(20)) {
            let reading =
                async { tokio::time::timeout(HANG, self.content().read(&spec, Requester::default(), 0, 4096)).await };
            let read = self.runtime().block_on(reading).expect("a read hangs");
            assert!(read.is_err(), "{:?} was poisoned and can be read", spec.ino);
        }
    }

    /// Downloads go on meanwhile: one file may be counted before it goes, and the next when it has come. Such an excess does not last.
    fn check_quota(&self) {
        let Some(quota) = self.config.quota.filter(|quota| *quota > 1) else { return };
        let begun = std::time::Instant::now();
        loop {
            let mut files = BTreeMap::new();
            allocated(&self.config.folder, &mut files);
            let taken: u64 = files.values().map(|(bytes, _)| bytes).sum();
            if taken <= quota + INDEX {
                return;
            }
            let told = self.content().metrics().bytes;
            assert!(begun.elapsed() < SOON, "the cache takes {taken} bytes of {quota}, and tells of {told}: {files:?}");
            std::thread::sleep(20 * MOMENT);
        }
    }

    /// Gives new inodes to the files that an event was about, as the rest of a mount does.
    fn renew_past_files(&mut self) {
        let changed = std::mem::take(&mut self.model.lock().unwrap().changed);
        for file in 0..self.files() {
            let is_past = {
                let shown = &self.model.lock().unwrap().files[file].shown;
                shown.is_poisoned || changed.contains(&shown.spec.ino)
            };
            if is_past && self.random.chance(60) {
                self.renew(file);
                self.change_servers(file);
            }
        }
    }

    /// Checks a file that is here whole: it is one version, all that was shown is of it, and `status` tells the truth.
    fn check_file(&self, file: usize) {
        let mut model = self.model.lock().unwrap();
        let spec = model.files[file].shown.spec.clone();
        let (state, verified) = self.content().state(spec.ino);
        let begun = std::time::Instant::now();
        loop {
            model.hear();
            if state != State::Poisoned || model.files[file].shown.is_poisoned {
                break;
            }
            assert!(begun.elapsed() < SOON, "{:?} is poisoned, and no event says so", spec.ino);
            std::thread::sleep(MOMENT);
        }
        let shown = &mut model.files[file].shown;
        assert!(!shown.is_pinned || self.is_on_disk(spec.ino), "{:?} is open and was evicted", spec.ino);
        let size = self.content().known_size(spec.ino);
        size.into_iter().for_each(|size| shown.size(size));
        if state != State::Cached || shown.is_poisoned {
            return;
        }
        let bodies = shown.bodies.clone();
        for at in bodies.iter().flat_map(|body| body.telling()).filter(|at| size.is_some_and(|size| *at < size)) {
            let begun = shown.begin();
            if let Some(bytes) = self.content().read_local(spec.ino, at, 4096) {
                shown.read((begun, &mut Pages::new()), (at, 4096), &bytes, size);
            }
        }
        shown.is_here(verified, size);
    }
}
