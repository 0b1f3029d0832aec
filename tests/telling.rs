//! Random histories of a Source that tells of them in random manners, through the real mount: servers fail, the mount is
//! stopped and killed, and somebody reads all the time.

mod common;

use common::hub::Hub;
use common::mounted::Mounted;
use common::random::Random;
use common::source::{Fault, Resource, Source, URLSET};
use common::teller::{Lastmod, Teller, Telling, Time, Version};
use common::{eventually, rounds};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const STEPS: usize = 40;
const OPTIONS: &str =
    "poll=1h,max-delete=100,timeout=3s,connect-timeout=1s,allow-host=127.0.0.1,websub-listen=127.0.0.1:0";

/// Every version that there ever was, by path.
type Ever = Arc<Mutex<BTreeMap<String, Vec<Vec<u8>>>>>;

/// The Source: its resources in one set or two, the time there, and how it serves its documents.
struct World {
    random: Random,
    source: Source,
    hub: Option<Hub>,
    tellers: Vec<Teller>,
    /// Real time where changes bear none: then only the time of the look tells.
    is_real_time: bool,
    lastmod: Lastmod,
    now: Time,
    edition: i64,
    ever: Ever,
}

impl World {
    fn begin(seed: u64) -> World {
        let mut random = Random::new(seed);
        let source = Source::start();
        let is_dated = random.below(4) > 0;
        let hub = (random.below(3) == 0).then(Hub::start);
        let mut world = World {
            source,
            hub,
            tellers: Vec::new(),
            is_real_time: !is_dated,
            lastmod: Lastmod::OfChange,
            now: real_now() - if is_dated { 5 * 86_400_000 } else { 0 },
            edition: 0,
            ever: Ever::default(),
            random,
        };
        // Times of whole seconds are exact there.
        world.now -= if is_dated { world.now % 1000 } else { 0 };
        let prefixes: &[&str] = if world.random.below(3) == 0 { &["", "two/"] } else { &[""] };
        for prefix in prefixes {
            let telling = Telling::any(&mut world.random, is_dated);
            world.tellers.push(Teller::start(&world.source, prefix, telling, world.now));
        }
        let is_old = world.tellers.iter().any(|teller| teller.telling().is_old_version);
        world.lastmod = match world.random.below(3) {
            0 if !is_old => Lastmod::Old,
            1 if !is_old => Lastmod::None,
            _ => Lastmod::OfChange,
        };
        if let Some(hub) = &world.hub {
            for teller in &mut world.tellers {
                let topic = format!("{}{}topic", world.source.url(), teller.capability_list());
                teller.channel = format!(
                    "<url><loc>{topic}</loc><rs:ln rel=\"hub\" href=\"{}\"/>\
                     <rs:md capability=\"framework-notification\"/></url>",
                    hub.url()
                );
            }
        }
        let base = world.source.url();
        let sets = world.tellers.iter().map(|teller| {
            format!("<url><loc>{base}{}</loc><rs:md capability=\"capabilitylist\"/></url>", teller.capability_list())
        });
        let description = format!("{URLSET}<rs:md capability=\"description\"/>{}</urlset>", sets.collect::<String>());
        world.source.document(".well-known/resourcesync", description);
        for path in world.anchors() {
            world.ever.lock().unwrap().insert(path.clone(), vec![path.into_bytes()]);
        }
        world.make_lists();
        world
    }

    fn make_lists(&mut self) {
        for teller in &mut self.tellers {
            teller.list(self.now);
        }
        self.publish(true);
    }

    fn anchors(&self) -> Vec<String> {
        self.tellers.iter().flat_map(Teller::anchors).collect()
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.random.below(one_in) == 0
    }

    fn pass(&mut self) {
        let least = self.now + 1;
        self.now = match self.is_real_time {
            true => real_now().max(least),
            false => self.now + 1000 * (1 + self.random.below(300) as Time),
        };
    }

    /// One change.
    fn live(&mut self) {
        self.pass();
        let path = random_path(&mut self.random);
        let which = self.random.below(self.tellers.len() as u64) as usize;
        match self.random.below(10) {
            0 => self.tellers[which].drop_nothing(&mut self.random, self.now),
            1..=3 => {
                let is_whole = self.random.below(2) == 0;
                let elsewhere = self.tellers.iter().enumerate().any(|(at, it)| at != which && it.has(&path));
                let is_there = elsewhere && !is_whole;
                for (number, teller) in self.tellers.iter_mut().enumerate() {
                    if number == which || is_whole {
                        teller.drop_from(&mut self.random, &path, self.now, is_there);
                    }
                }
                if !self.tellers.iter().any(|teller| teller.has(&path)) {
                    self.source.remove(&path);
                }
            }
            _ => {
                let version = self.version(&path);
                self.serve(&path, &version);
                for (number, teller) in self.tellers.iter_mut().enumerate() {
                    if number == which || teller.has(&path) {
                        teller.put(&mut self.random, &path, version.clone(), self.now);
                    }
                }
            }
        }
    }

    /// The next version of a resource. What is published of it depends on its path; without a hash something else that is
    /// published always tells one version from the next.
    fn version(&mut self, path: &str) -> Version {
        self.edition += 1;
        let scale = self.random.below(16);
        let size = 16 + self.random.below(2 << scale) as usize;
        let bytes = self.random.bytes(size);
        let lastmod = match self.lastmod {
            Lastmod::OfChange => Some(self.now),
            Lastmod::Old => Some(946_684_800_000 + self.edition * 1000),
            Lastmod::None => None,
        };
        let kind = path.bytes().map(u64::from).sum::<u64>() % 4;
        let has_hash = kind < 2 || lastmod.is_none();
        Version { bytes, has_hash, has_length: kind != 2, lastmod }
    }

    fn serve(&mut self, path: &str, version: &Version) {
        let bytes = version.bytes.clone();
        self.ever.lock().unwrap().entry(path.to_owned()).or_default().push(bytes.clone());
        let resource = Resource::bare(bytes);
        let etag = resource.etag.clone().filter(|_| self.random.below(4) > 0);
        self.source.put(path, Resource { etag, ..resource });
    }

    fn publish(&mut self, is_quiet: bool) {
        self.pass();
        for teller in &mut self.tellers {
            teller.publish(&mut self.random, self.now, is_quiet);
        }
    }

    /// A document is answered wrongly for a while.
    fn break_a_document(&mut self) {
        let mut names: Vec<_> = self.tellers.iter().flat_map(Teller::documents).cloned().collect();
        names.push(".well-known/resourcesync".to_owned());
        let name = names[self.random.below(names.len() as u64) as usize].clone();
        let fault = match self.random.below(6) {
            0 => Fault::Status(503, String::new()),
            1 => Fault::Cut(self.random.below(2000) as usize),
            2 => Fault::Slow(Duration::from_millis(self.random.below(100))),
            3 => Fault::StallBody(self.random.below(200) as usize, Duration::from_secs(1)),
            4 => Fault::Body(b"<html><body>maintenance</body></html>".to_vec()),
            // A list of resources that is gone is a matter for a person.
            _ if name.contains("change") => Fault::Status(410, String::new()),
            _ => Fault::Status(500, String::new()),
        };
        self.note(&format!("{name}: {fault:?}"));
        self.source.fault(&name, fault, 1 + self.random.below(2));
    }

    fn break_a_resource(&mut self) {
        let all: Vec<_> = self.members().into_iter().collect();
        let (path, version) = &all[self.random.below(all.len() as u64) as usize];
        let fault = match self.random.below(6) {
            0 => Fault::Cut(self.random.below(3000) as usize),
            1 => Fault::Status(503, String::new()),
            2 => Fault::NoRanges,
            3 => Fault::Slow(Duration::from_millis(20)),
            // Of what is published without a hash nobody can tell that it is wrong.
            _ if version.has_hash => Fault::Body(self.random.bytes(100)),
            _ => Fault::Status(500, String::new()),
        };
        self.source.fault(path, fault, 1 + self.random.below(2));
    }

    /// Announces the Resource List of some set, whether it is new or not.
    fn announce(&mut self) {
        let Some(hub) = &self.hub else { return };
        let teller = &self.tellers[self.random.below(self.tellers.len() as u64) as usize];
        let base = self.source.url();
        let list = teller.capability_list();
        let topic = format!("{base}{list}topic");
        if hub.subscribers(&topic) == 0 {
            return;
        }
        let capability = ["resourcelist", "changelist", "changedump"][self.random.below(3) as usize];
        let notification = format!(
            "{URLSET}<rs:ln rel=\"up\" href=\"{base}{list}\"/><rs:md capability=\"framework-notification\"/>\
             <url><loc>{base}{}</loc><rs:md change=\"updated\" capability=\"{capability}\"/></url></urlset>",
            list.replace("capabilitylist", capability)
        );
        hub.publish(&topic, &format!("{base}{list}"), &notification);
    }

    fn note(&mut self, what: &str) {
        self.tellers.iter_mut().for_each(|teller| teller.note(what));
    }

    fn diary(&self) -> String {
        let diaries =
            self.tellers.iter().map(|teller| format!("\n{:?}\n{}", teller.telling(), teller.diary().join("\n")));
        diaries.collect()
    }

    /// What there is, by published path.
    fn members(&self) -> BTreeMap<String, Version> {
        self.tellers.iter().flat_map(|teller| teller.members().clone()).collect()
    }
}

fn real_now() -> Time {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as Time
}

fn random_path(random: &mut Random) -> String {
    let depth = 1 + random.below(2);
    let segments: Vec<String> = (0..depth).map(|_| format!("n{}", random.below(7))).collect();
    segments.join("/")
}

/// `%file` beside a folder is the only rule that these names need.
fn shown_path(path: &str, all: &BTreeSet<String>) -> PathBuf {
    let folder = format!("{path}/");
    let is_folder = all.range(folder.clone()..).next().is_some_and(|next| next.starts_with(&folder));
    PathBuf::from(if is_folder { format!("{path}%file") } else { path.to_owned() })
}

/// Reads the mount all the time.
struct Reader {
    ending: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Reader {
    fn start(seed: u64, world: &World, mounted: &Mounted) -> Reader {
        let ending = Arc::new(AtomicBool::new(false));
        let (root, anchors, ever, stop) = (mounted.path(), world.anchors(), world.ever.clone(), ending.clone());
        let thread = std::thread::spawn(move || read_constantly(seed, &root, &anchors, &ever, &stop));
        Reader { ending, thread }
    }

    /// To be called before the mount ends.
    fn end(self) {
        self.ending.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
    }
}

/// A read may fail; what it returns was published. What never goes at the Source is always there.
fn read_constantly(seed: u64, root: &std::path::Path, anchors: &[String], ever: &Ever, ending: &AtomicBool) {
    let mut random = Random::new(seed);
    while !ending.load(Ordering::SeqCst) {
        for anchor in anchors {
            assert!(root.join(anchor).exists() || ending.load(Ordering::SeqCst), "{anchor} is not there");
        }
        let path = random_path(&mut random);
        for name in [path.clone(), format!("{path}%file")] {
            let Ok(bytes) = fs::read(root.join(&name)) else { continue };
            let ever = ever.lock().unwrap();
            let was = ever.get(&path).is_some_and(|versions| versions.contains(&bytes));
            assert!(was, "{name} is no version that ever was: {} bytes", bytes.len());
        }
    }
}

/// Every file's path.
fn names(mounted: &Mounted) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![mounted.path()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => _ = found.insert(entry.path().strip_prefix(mounted.path()).unwrap().to_owned()),
            }
        }
    }
    found
}

/// The mount shows what the Source has.
fn compare(world: &World, mounted: &Mounted, when: &str) {
    let members = world.members();
    let all: BTreeSet<String> = members.keys().cloned().collect();
    let expected: BTreeMap<PathBuf, &Version> =
        members.iter().map(|(path, version)| (shown_path(path, &all), version)).collect();
    let shown = names(mounted);
    let wanted: BTreeSet<_> = expected.keys().cloned().collect();
    assert_eq!(&shown - &wanted, BTreeSet::new(), "nothing else is shown: {when}{}", world.diary());
    assert_eq!(&wanted - &shown, BTreeSet::new(), "all is shown: {when}{}", world.diary());
    for (path, version) in expected {
        let mut got = Vec::new();
        // A host that failed a moment ago is left alone for a while.
        eventually(&format!("{when}: {} can be read", path.display()), || {
            fs::read(mounted.join(path.to_str().unwrap())).is_ok_and(|bytes| {
                got = bytes;
                true
            })
        });
        assert!(got == version.bytes, "{when}: {} is not what the Source has{}", path.display(), world.diary());
    }
}

fn history(seed: u64) {
    let mut world = World::begin(seed);
    let mounted = Mounted::new(&world.source.url(), OPTIONS);
    let mut reader = Reader::start(seed, &world, &mounted);
    for step in 0..STEPS {
        let when = format!("seed {seed}, step {step}");
        let what = world.random.below(12);
        world.note(&format!("{when}: {what}"));
        match what {
            0..=3 => (0..=world.random.below(10)).for_each(|_| world.live()),
            4 => {
                world.publish(false);
                mounted.refresh();
            }
            5 => {
                let now = world.now;
                let which = world.random.below(world.tellers.len() as u64) as usize;
                world.tellers[which].draw_up(now);
            }
            6 => {
                world.break_a_document();
                world.publish(false);
                let _ = mounted.try_refresh();
            }
            7 => world.break_a_resource(),
            8 => world.announce(),
            9 => {
                reader.end();
                if world.chance(2) {
                    world.break_a_document();
                }
                match world.random.below(3) {
                    0 => {
                        mounted.terminate();
                        mounted.start();
                    }
                    _ => {
                        world.publish(false);
                        mounted.refresh();
                        // Before, while and after it is committed.
                        std::thread::sleep(Duration::from_millis(world.random.below(150)));
                        mounted.kill();
                        mounted.start();
                    }
                }
                reader = Reader::start(seed, &world, &mounted);
            }
            _ => {
                world.source.mend();
                world.publish(true);
                mounted.try_refresh().unwrap_or_else(|said| panic!("{when}: {said}"));
                compare(&world, &mounted, &when);
                world.tellers.iter_mut().for_each(Teller::was_read);
            }
        }
    }
    reader.end();
}

/// Promise: at each quiet point the mount is what the Source told, in whatever manner; never a wrong byte, never an empty tree.
#[test]
fn histories_told_in_any_manner_are_followed() {
    let seeds: Vec<u64> = match std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=rounds()).collect(),
    };
    // A history mostly waits.
    for some in seeds.chunks(5) {
        std::thread::scope(|scope| some.iter().for_each(|seed| _ = scope.spawn(|| history(*seed))));
    }
}
