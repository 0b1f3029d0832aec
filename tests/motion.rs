//! A big Source in fast motion: a day of changes in seconds, heard of or not, by a mount that comes and goes.

mod common;

use common::changing::{ChangingSource, Style};
use common::mounted::Mounted;
use common::random::Random;
use common::source::Resource;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const RESOURCES: u64 = 100_000;
const CHANGES_A_DAY: u64 = 1600;
const SECONDS_A_DAY: i64 = 86_400;
/// Times a day that the Source publishes what has changed.
const PUBLICATIONS_A_DAY: u64 = 8;
/// Files whose content is compared each day, beside all that have changed.
const SAMPLE: u64 = 200;

/// 3 in the suite, 30 in the long run.
fn days() -> u64 {
    if common::rounds() > 5 { 30 } else { 3 }
}

/// The resources as they are, and their motion.
struct World {
    random: Random,
    source: ChangingSource,
    /// Every resource, by path: its bytes follow from its version.
    versions: BTreeMap<String, u64>,
    paths: Vec<String>,
    next: u64,
}

fn bytes(path: &str, version: u64) -> Vec<u8> {
    format!("{path} in version {version}\n").repeat(1 + (version % 5) as usize).into_bytes()
}

fn path(number: u64) -> String {
    format!("{:02}/{:02}/record-{number}.xml", number % 50, number / 50 % 20)
}

impl World {
    fn begin(style: Style, seed: u64) -> World {
        let versions: BTreeMap<_, _> = (0..RESOURCES).map(|number| (path(number), 0)).collect();
        let resources = versions.keys().map(|path| (path.clone(), Resource::new(bytes(path, 0))));
        World {
            random: Random::new(seed),
            source: ChangingSource::start(style, resources),
            paths: versions.keys().cloned().collect(),
            versions,
            next: RESOURCES,
        }
    }

    /// One change; the path that it is about.
    fn change(&mut self) -> String {
        self.source.pass(SECONDS_A_DAY / CHANGES_A_DAY as i64);
        let index = self.random.below(self.paths.len() as u64) as usize;
        match self.random.below(10) {
            0..=3 => {
                let path = self.paths[index].clone();
                self.put(&path);
                path
            }
            4..=7 => {
                let path = path(self.next);
                self.next += 1;
                self.paths.push(path.clone());
                self.put(&path);
                path
            }
            _ => {
                let path = self.paths.swap_remove(index);
                self.versions.remove(&path);
                self.source.delete(&path);
                path
            }
        }
    }

    fn put(&mut self, path: &str) {
        let version = self.versions.get(path).map_or(0, |version| version + 1);
        self.versions.insert(path.to_owned(), version);
        self.source.put(path, Resource::new(bytes(path, version)));
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.random.below(one_in) == 0
    }

    /// Names and sizes of everything, the bytes of `changed` and of a sample.
    fn compare(&mut self, mounted: &Mounted, changed: &BTreeSet<String>, day: u64) {
        let shown = sizes(&mounted.path());
        let expected: BTreeMap<String, u64> =
            self.versions.iter().map(|(path, version)| (path.clone(), bytes(path, *version).len() as u64)).collect();
        if shown != expected {
            let missing: Vec<_> = expected.iter().filter(|(path, _)| !shown.contains_key(*path)).take(5).collect();
            let extra: Vec<_> = shown.iter().filter(|(path, _)| !expected.contains_key(*path)).take(5).collect();
            let other: Vec<_> = expected
                .iter()
                .filter(|(path, size)| shown.get(*path).is_some_and(|shown| shown != *size))
                .take(5)
                .collect();
            panic!(
                "day {day}: {} shown, {} expected; missing {missing:?}, extra {extra:?}, other sizes {other:?}",
                shown.len(),
                expected.len()
            );
        }
        let sample: Vec<_> =
            (0..SAMPLE).map(|_| self.paths[self.random.below(self.paths.len() as u64) as usize].clone()).collect();
        for path in sample.iter().chain(changed) {
            if let Some(version) = self.versions.get(path) {
                assert!(fs::read(mounted.join(path)).unwrap() == bytes(path, *version), "day {day}: {path}");
            }
        }
    }
}

/// Every file below `folder` with its size, by relative path.
fn sizes(folder: &Path) -> BTreeMap<String, u64> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for entry in fs::read_dir(&current).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                let path = entry.path().strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                files.insert(path, entry.metadata().unwrap().len());
            }
        }
    }
    files
}

fn in_motion(style: Style, seed: u64) {
    let mut world = World::begin(style, seed);
    let mounted = Mounted::new(&world.source.source().url(), "poll=1d");
    // Whether a Resource List is out that no refresh has read to its end for certain, and how often the mount was stopped while
    // it may have been reading one: that one comes again.
    let (mut is_unread, mut interrupted) = (false, 0);
    for day in 0..days() {
        let mut changed = BTreeSet::new();
        for publication in 0..PUBLICATIONS_A_DAY {
            changed.extend((0..CHANGES_A_DAY / PUBLICATIONS_A_DAY).map(|_| world.change()));
            world.source.publish();
            // A Resource List that is made at times is older than the changes that come after it.
            if publication == 3 && day % 3 == 1 {
                world.source.list();
                is_unread = true;
            }
            if world.chance(2) {
                mounted.try_refresh().unwrap();
                is_unread = false;
            }
            let stop = world.random.below(12);
            interrupted += u64::from(is_unread && stop < 2);
            match stop {
                0 => mounted.remount(),
                1 => {
                    mounted.kill();
                    mounted.start();
                }
                _ => {}
            }
        }
        if style == Style::Closed {
            world.source.close();
        }
        mounted.try_refresh().unwrap();
        is_unread = false;
        world.compare(&mounted, &changed, day);
    }
    let lists = world.source.source().requests_of("resourcelist.xml");
    let whole = lists.iter().filter(|request| request.status == 200).count() as u64;
    let most = 1 + days().div_ceil(3) + interrupted;
    assert!(whole <= most, "the Resource List came whole {whole} times, of {most} at most");
}

#[test]
fn a_rolling_change_list_is_followed() {
    in_motion(Style::Rolling(2 * CHANGES_A_DAY as usize), 1);
}

#[test]
fn closed_change_lists_and_their_index_are_followed() {
    in_motion(Style::Closed, 2);
}
