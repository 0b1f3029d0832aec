//! Random histories of a Source, announced in random styles, through the real mount: servers fail, the mount is
//! stopped and killed, and somebody reads all the time.

mod common;

use common::hub::Hub;
use common::mounted::{Mounted, PROGRAM};
use common::publisher::{Changes, Lastmod, Publisher, PublishingStyle, Time, Version};
use common::random::Random;
use common::source::{Fault, Resource, Source, URLSET};
use common::{eventually, rounds};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const STEPS: usize = 40;
const OPTIONS: &str =
    "poll=1h,max-delete=100,timeout=3s,connect-timeout=1s,allow-host=127.0.0.1,websub-listen=127.0.0.1:0";

/// Of so many URIs that share a path only the first are shown.
const CROWD: usize = 150;
const SHOWN_OF_CROWD: usize = 100;

/// More changes between two looks than are applied in one step.
const MANY: usize = 52_000;

/// Every version that there ever was, by path.
type Ever = Arc<Mutex<BTreeMap<String, Vec<Vec<u8>>>>>;

/// The Source: its resources in one set or two, the time there, and how it serves its documents.
struct World {
    random: Random,
    source: Source,
    hub: Option<Hub>,
    publishers: Vec<Publisher>,
    /// The sets that the Source Description lists, in its order. The first set is always among them.
    offered: Vec<usize>,
    /// Whether deletions may be held back that a person has to accept: a set has gone or has another name.
    is_to_accept: bool,
    /// Whether there are ever so many changes that they are applied in batches.
    has_many: bool,
    /// Real time where changes bear none: then only the time of the look tells.
    is_real_time: bool,
    lastmod: Lastmod,
    now: Time,
    edition: i64,
    ever: Ever,
}

impl World {
    fn begin(seed: u64, has_many: bool) -> World {
        let mut random = Random::new(seed);
        let source = Source::start();
        let is_dated = random.below(4) > 0;
        let hub = (random.below(3) == 0).then(Hub::start);
        let mut world = World {
            source,
            hub,
            publishers: Vec::new(),
            offered: Vec::new(),
            is_to_accept: false,
            has_many,
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
            let mut style = PublishingStyle::any(&mut world.random, is_dated);
            while has_many && matches!(style.changes, Changes::None | Changes::Rolling(_)) {
                style = PublishingStyle::any(&mut world.random, is_dated);
            }
            world.offered.push(world.publishers.len());
            world.publishers.push(Publisher::start(&world.source, prefix, style, world.now));
        }
        let is_old = world.publishers.iter().any(|publisher| publisher.style().is_old_version);
        world.lastmod = match world.random.below(3) {
            0 if !is_old => Lastmod::Old,
            1 if !is_old => Lastmod::None,
            _ => Lastmod::OfChange,
        };
        if let Some(hub) = &world.hub {
            for publisher in &mut world.publishers {
                let topic = format!("{}{}topic", world.source.url(), publisher.capability_list());
                publisher.channel = format!(
                    "<url><loc>{topic}</loc><rs:ln rel=\"hub\" href=\"{}\"/>\
                     <rs:md capability=\"framework-notification\"/></url>",
                    hub.url()
                );
            }
        }
        world.describe();
        for path in world.anchors() {
            world.ever.lock().unwrap().insert(path.clone(), vec![path.into_bytes()]);
        }
        world.make_lists();
        world
    }

    /// Serves the Source Description.
    fn describe(&self) {
        let base = self.source.url();
        let sets = self.offered.iter().map(|which| self.publishers[*which].capability_list());
        let sets = sets.map(|name| format!("<url><loc>{base}{name}</loc><rs:md capability=\"capabilitylist\"/></url>"));
        let description = format!("{URLSET}<rs:md capability=\"description\"/>{}</urlset>", sets.collect::<String>());
        self.source.document(".well-known/resourcesync", description);
    }

    /// A set goes or is there again, or the order of the sets changes, or a set is renamed.
    fn change_sets(&mut self) {
        self.pass();
        match self.random.below(4) {
            0 => self.rename_a_set(),
            1 => self.offered.reverse(),
            _ => _ = self.toggle_a_set(),
        }
        self.note(&format!("{}: sets {:?} are offered", self.now, self.offered));
        self.describe();
    }

    fn rename_a_set(&mut self) {
        let which = self.offered[self.random.below(self.offered.len() as u64) as usize];
        self.publishers[which].rename(self.now);
        self.is_to_accept = true;
    }

    /// Answers whether there is a set that can go.
    fn toggle_a_set(&mut self) -> bool {
        let Some(last) = self.publishers.len().checked_sub(1).filter(|last| *last > 0) else { return false };
        match self.offered.iter().position(|which| *which == last) {
            Some(at) => {
                self.offered.remove(at);
                self.is_to_accept = true;
            }
            None => {
                let at = self.random.below(2) as usize;
                self.offered.insert(at, last);
                self.publishers[last].come_back();
            }
        }
        true
    }

    /// A Resource List leaves out some that exist; with `is_garbled` it has an entry that cannot be understood too.
    fn lose_entries(&mut self, is_garbled: bool, part: u64) {
        self.pass();
        let which = self.random.below(self.publishers.len() as u64) as usize;
        let anchors = self.anchors();
        let members = self.publishers[which].members().keys().filter(|path| !anchors.contains(path));
        let omitted = members.filter(|_| self.random.below(part) == 0).cloned().collect();
        self.publishers[which].list_without(omitted, is_garbled, self.now);
    }

    /// All Resource Lists leave out what begins so, more than half of all.
    fn lose_all(&mut self, begin: &str) {
        self.pass();
        for publisher in &mut self.publishers {
            let omitted = publisher.members().keys().filter(|path| path.starts_with(begin)).cloned().collect();
            publisher.list_without(omitted, false, self.now);
        }
    }

    /// A new resource of some set.
    fn create(&mut self, path: &str) {
        self.pass();
        let version = self.version(path);
        self.serve(path, &version);
        let which = self.random.below(self.publishers.len() as u64) as usize;
        self.publishers[which].put(&mut self.random, path, version, self.now);
    }

    /// A document that an index lists answers 404 for two looks; `false`: there is none.
    fn lose_a_child(&mut self, kind: &str) -> bool {
        let is_child = |name: &&String| name.contains("resourcelist-") || name.contains("changes-");
        let children = self.publishers.iter().flat_map(Publisher::documents).filter(is_child);
        let children: Vec<String> = children.filter(|name| name.contains(kind)).cloned().collect();
        if children.is_empty() {
            return false;
        }
        let name = &children[self.random.below(children.len() as u64) as usize];
        self.source.fault(name, Fault::Status(404, String::new()), 2);
        self.note(&format!("{name}: 404 for two looks"));
        true
    }

    /// URIs of one path come all at once, change, or go all at once.
    fn crowd(&mut self) {
        self.pass();
        let names: Vec<String> = (0..CROWD).map(crowded_name).collect();
        let is_there = self.publishers[0].has(&names[0]);
        if is_there && self.random.below(2) == 0 {
            names.iter().for_each(|name| self.source.remove(name));
            return self.publishers[0].drop_many(&names, self.now);
        }
        let (lastmod, mut versions) = (self.next_lastmod(), BTreeMap::new());
        for name in names {
            if !is_there || self.random.below(8) == 0 {
                let version = Version { bytes: self.random.bytes(24), has_hash: true, has_length: true, lastmod };
                self.serve(&name, &version);
                versions.insert(name, version);
            }
        }
        self.publishers[0].put_many(versions, self.now);
    }

    /// More changes than are applied in one step: most of very many resources come, change or go.
    fn change_many(&mut self) {
        self.pass();
        let name = |number: usize| format!("many/{}/{number}", number % 40);
        let is_there = self.publishers[0].has(&name(0));
        if is_there && self.random.below(2) == 0 {
            let names: Vec<String> = (0..MANY - 1000).map(name).collect();
            names.iter().for_each(|name| self.source.remove(name));
            return self.publishers[0].drop_many(&names, self.now);
        }
        let (lastmod, mut versions) = (self.next_lastmod(), BTreeMap::new());
        for number in 0..MANY {
            let version = Version { bytes: self.random.bytes(16), has_hash: true, has_length: true, lastmod };
            self.source.put(&name(number), Resource::bare(version.bytes.clone()));
            versions.insert(name(number), version);
        }
        self.publishers[0].put_many(versions, self.now);
    }

    fn make_lists(&mut self) {
        for publisher in &mut self.publishers {
            publisher.list(self.now);
        }
        self.publish(true);
    }

    fn anchors(&self) -> Vec<String> {
        self.publishers.iter().flat_map(Publisher::anchors).collect()
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
        let which = self.random.below(self.publishers.len() as u64) as usize;
        match self.random.below(10) {
            0 => self.publishers[which].drop_nothing(&mut self.random, self.now),
            1..=3 => {
                let is_whole = self.random.below(2) == 0;
                let elsewhere = self.publishers.iter().enumerate().any(|(at, it)| at != which && it.has(&path));
                let is_there = elsewhere && !is_whole;
                for (number, publisher) in self.publishers.iter_mut().enumerate() {
                    if number == which || is_whole {
                        publisher.drop_from(&mut self.random, &path, self.now, is_there);
                    }
                }
                if !self.publishers.iter().any(|publisher| publisher.has(&path)) {
                    self.source.remove(&path);
                }
            }
            _ => {
                let version = self.version(&path);
                self.serve(&path, &version);
                for (number, publisher) in self.publishers.iter_mut().enumerate() {
                    if number == which || publisher.has(&path) {
                        publisher.put(&mut self.random, &path, version.clone(), self.now);
                    }
                }
            }
        }
    }

    fn next_lastmod(&mut self) -> Option<Time> {
        self.edition += 1;
        match self.lastmod {
            Lastmod::OfChange => Some(self.now),
            Lastmod::Old => Some(946_684_800_000 + self.edition * 1000),
            Lastmod::None => None,
        }
    }

    /// The next version of a resource. What is published of it depends on its path; without a hash something else that is
    /// published always tells one version from the next.
    fn version(&mut self, path: &str) -> Version {
        let scale = self.random.below(16);
        let size = 16 + self.random.below(2 << scale) as usize;
        let bytes = self.random.bytes(size);
        let lastmod = self.next_lastmod();
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
        for publisher in &mut self.publishers {
            publisher.publish(&mut self.random, self.now, is_quiet);
        }
    }

    /// A document is answered wrongly for a while.
    fn break_a_document(&mut self) {
        let mut names: Vec<_> = self.publishers.iter().flat_map(Publisher::documents).cloned().collect();
        names.push(".well-known/resourcesync".to_owned());
        let name = names[self.random.below(names.len() as u64) as usize].clone();
        let fault = match self.random.below(6) {
            0 => Fault::Status(503, String::new()),
            1 => Fault::Cut(self.random.below(2000) as usize),
            // Each 16 KiB takes so long, and some documents have very many.
            2 => Fault::Slow(Duration::from_millis(self.random.below(if self.has_many { 3 } else { 100 }))),
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
            // Of a resource without a published hash, no reader can find the fault.
            _ if version.has_hash => Fault::Body(self.random.bytes(100)),
            _ => Fault::Status(500, String::new()),
        };
        self.source.fault(path, fault, 1 + self.random.below(2));
    }

    /// Announces the Resource List of some set, whether it is new or not.
    fn announce(&mut self) {
        let Some(hub) = &self.hub else { return };
        let publisher = &self.publishers[self.random.below(self.publishers.len() as u64) as usize];
        let base = self.source.url();
        let list = publisher.capability_list();
        let topic = format!("{base}{}capabilitylist.xmltopic", publisher.prefix());
        if hub.subscribers(&topic) == 0 {
            return;
        }
        let capability = ["resourcelist", "changelist", "changedump"][self.random.below(3) as usize];
        let notification = format!(
            "{URLSET}<rs:ln rel=\"up\" href=\"{base}{list}\"/><rs:md capability=\"framework-notification\"/>\
             <url><loc>{base}{}{capability}.xml</loc><rs:md change=\"updated\" capability=\"{capability}\"/></url></urlset>",
            publisher.prefix()
        );
        hub.publish(&topic, &format!("{base}{list}"), &notification);
    }

    fn note(&mut self, what: &str) {
        self.publishers.iter_mut().for_each(|publisher| publisher.note(what));
    }

    fn diary(&self) -> String {
        let diaries = self
            .publishers
            .iter()
            .map(|publisher| format!("\n{:?}\n{}", publisher.style(), publisher.diary().join("\n")));
        diaries.collect()
    }

    /// Resources that the documents list, by published path.
    fn members(&self) -> BTreeMap<String, Version> {
        let offered = self.offered.iter().map(|which| &self.publishers[*which]);
        let listed = offered
            .flat_map(|publisher| publisher.members().iter().filter(|(path, _)| !publisher.omitted().contains(*path)));
        listed.map(|(path, version)| (path.clone(), version.clone())).collect()
    }

    /// Looks at the Source while all can be known, and accepts what is held back where that is to be.
    fn look(&mut self, mounted: &Mounted, when: &str) {
        self.source.mend();
        self.publish(true);
        mounted.try_refresh().unwrap_or_else(|said| panic!("{when}: {said}"));
        if std::mem::take(&mut self.is_to_accept) {
            accept(mounted);
        }
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

/// One of the URIs of one path: they differ in which of their commas are escaped, and follow each other in the order of URIs.
fn crowded_name(number: usize) -> String {
    let name: String = (0..8).rev().map(|bit| if number >> bit & 1 == 1 { "," } else { "%2C" }).collect();
    format!("crowd/{name}")
}

/// A person accepts the deletions that are held back.
fn accept(mounted: &Mounted) {
    let output = Command::new(PROGRAM).args(["refresh", "--accept-deletions"]).arg(mounted.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
        let anchors = world.publishers[0].anchors();
        let (root, ever, stop) = (mounted.path(), world.ever.clone(), ending.clone());
        // What takes long gives way to who reads.
        let rest = Duration::from_millis(if world.has_many { 100 } else { 0 });
        let thread = std::thread::spawn(move || read_constantly(seed, &root, &anchors, &ever, &stop, rest));
        Reader { ending, thread }
    }

    /// To be called before the mount ends.
    fn end(self) {
        self.ending.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
    }
}

/// A read may fail; what it returns was published. What never goes at the Source is always there.
fn read_constantly(
    seed: u64,
    root: &std::path::Path,
    anchors: &[String],
    ever: &Ever,
    ending: &AtomicBool,
    rest: Duration,
) {
    let mut random = Random::new(seed);
    while !ending.load(Ordering::SeqCst) {
        std::thread::sleep(rest);
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
    let mut members = world.members();
    let crowd: Vec<Version> = (0..CROWD).filter_map(|number| members.remove(&crowded_name(number))).collect();
    let all: BTreeSet<String> = members.keys().cloned().collect();
    let expected: BTreeMap<PathBuf, &Version> =
        members.iter().map(|(path, version)| (shown_path(path, &all), version)).collect();
    let mut shown = names(mounted);
    let of_crowd: Vec<PathBuf> = shown.iter().filter(|path| path.starts_with("crowd")).cloned().collect();
    shown.retain(|path| !path.starts_with("crowd"));
    let first = &crowd[..crowd.len().min(SHOWN_OF_CROWD)];
    assert_eq!(of_crowd.len(), first.len(), "of one path the first URIs are shown: {when}{}", world.diary());
    let read = |path: &PathBuf| {
        let mut got = Vec::new();
        // A host that failed a moment ago is left alone for a while.
        eventually(&format!("{when}: {} can be read", path.display()), || {
            fs::read(mounted.path().join(path)).is_ok_and(|bytes| {
                got = bytes;
                true
            })
        });
        got
    };
    let got: BTreeSet<Vec<u8>> = of_crowd.iter().map(read).collect();
    let wanted_bytes: BTreeSet<Vec<u8>> = first.iter().map(|version| version.bytes.clone()).collect();
    assert!(got == wanted_bytes, "{when}: the URIs of one path are not what the Source has{}", world.diary());
    let wanted: BTreeSet<_> = expected.keys().cloned().collect();
    assert_eq!(&shown - &wanted, BTreeSet::new(), "nothing else is shown: {when}{}", world.diary());
    assert_eq!(&wanted - &shown, BTreeSet::new(), "all is shown: {when}{}", world.diary());
    for (number, (path, version)) in expected.into_iter().enumerate() {
        // Of very many some are read.
        if !path.starts_with("many") || number % 2000 == 0 {
            assert!(
                read(&path) == version.bytes,
                "{when}: {} is not what the Source has{}",
                path.display(),
                world.diary()
            );
        }
    }
}

fn history(seed: u64) {
    let has_many = seed % 10 == 5;
    let mut world = World::begin(seed, has_many);
    let mounted = Mounted::new(&world.source.url(), OPTIONS);
    let mut reader = Reader::start(seed, &world, &mounted);
    for step in 0..STEPS {
        let when = format!("seed {seed}, step {step}");
        let what = if has_many && step % 13 == 12 { 16 } else { world.random.below(16) };
        world.note(&format!("{when}: {what}"));
        match what {
            0..=3 => (0..=world.random.below(10)).for_each(|_| world.live()),
            4 => {
                world.publish(false);
                mounted.refresh();
            }
            5 => {
                let now = world.now;
                let which = world.random.below(world.publishers.len() as u64) as usize;
                world.publishers[which].draw_up(now);
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
            10 => {
                world.change_sets();
                if world.chance(2) {
                    world.publish(false);
                    let _ = mounted.try_refresh();
                }
            }
            11 => {
                let is_garbled = world.chance(2);
                world.lose_entries(is_garbled, 3);
                let _ = mounted.try_refresh();
            }
            12 => {
                world.publish(false);
                if world.lose_a_child("") {
                    let _ = mounted.try_refresh();
                    let _ = mounted.try_refresh();
                }
            }
            13 => world.crowd(),
            16 => world.change_many(),
            _ => {
                world.look(&mounted, &when);
                compare(&world, &mounted, &when);
                let offered = world.offered.clone();
                offered.into_iter().for_each(|which| world.publishers[which].was_read());
            }
        }
    }
    reader.end();
}

/// What the Source loses is held back, and all of it is shown until it is accepted or there again.
fn held(seed: u64) {
    let mut world = World::begin(seed, false);
    for number in 0..30 {
        world.create(&format!("k{}/{number}", number % 4));
    }
    world.make_lists();
    let mounted = Mounted::new(&world.source.url(), &OPTIONS.replace("max-delete=100", "max-delete=50"));
    let reader = Reader::start(seed, &world, &mounted);
    for round in 0..8 {
        let when = format!("seed {seed}, round {round}");
        world.look(&mounted, &when);
        compare(&world, &mounted, &when);
        world.publishers.iter_mut().for_each(Publisher::was_read);
        let before = names(&mounted);

        world.create(&format!("round-{round}"));
        world.publish(true);
        let way = world.random.below(5);
        // Nobody can accept what nothing announced.
        let is_told = match way {
            0 => world.toggle_a_set(),
            1 => {
                world.rename_a_set();
                true
            }
            2 => {
                world.publishers.iter_mut().for_each(|publisher| publisher.list(world.now));
                world.lose_a_child("resourcelist-");
                false
            }
            3 => {
                world.lose_entries(true, 4);
                false
            }
            _ => {
                world.lose_all("k");
                // A list that speaks for no time takes no change back.
                world.publishers.iter().all(|publisher| publisher.style().has_at)
            }
        };
        world.describe();
        for look in ["first", "second"] {
            let _ = mounted.try_refresh();
            let gone = &before - &names(&mounted);
            assert_eq!(gone, BTreeSet::new(), "{when}, way {way}: gone after the {look} look{}", world.diary());
        }
        if is_told && world.chance(2) {
            accept(&mounted);
            compare(&world, &mounted, &format!("{when}, accepted"));
        }
        if world.offered.len() < world.publishers.len() {
            world.toggle_a_set();
            world.describe();
        }
    }
    reader.end();
}

fn all_seeds() -> Vec<u64> {
    match std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=rounds()).collect(),
    }
}

/// A history mostly waits.
fn side_by_side(history: fn(u64)) {
    for some in all_seeds().chunks(5) {
        std::thread::scope(|scope| some.iter().for_each(|seed| _ = scope.spawn(|| history(*seed))));
    }
}

/// Promise: at each quiet point the mount is what the Source published, however it says so; never a wrong byte, never an empty tree.
#[test]
fn histories_in_any_style_are_followed() {
    side_by_side(history);
}

/// Promise: never an accidental emptiness, however the Source loses what it has.
#[test]
fn nothing_that_is_held_back_is_gone() {
    side_by_side(held);
}
