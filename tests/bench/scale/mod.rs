//! Ten million resources in two hundred lists: first mount, restart, walk, lookups, refreshes; and a tenth of them, so that it
//! shows how times grow.
//!
//! `SCALE_RESOURCES` is another number of them. `SCALE_FOLDER` names a folder that keeps documents and cache from one run to
//! the next, so that parts can be measured alone: `SCALE_ROWS`, separated by commas, are some of `load`, `restart`, `walk`,
//! `lookups`, `unchanged`, `changes`, `killed`, `everything`. `write` alone writes what `everything` will publish.

mod crowds;
mod source;

use crate::common::eventually_within;
use crate::common::mounted::{Mounted, PROGRAM};
use crate::common::random::Random;
use crate::measure::{MemoryWatch, ROUNDS, Row, caught, files, megabytes, percentile, rss_anon, time};
pub use crowds::{flat_folder, million_objects, thousand_readers};
use heed::types::Bytes;
use source::{BigSource, CHANGES};
use std::fs;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What a step over ten million may take before something is wrong.
const PATIENCE: Duration = Duration::from_secs(600);

/// Files asked for by each of two at a time.
const LOOKUPS: usize = 200_000;

/// The folders of a run, and its sizes.
struct Scene {
    source: BigSource,
    resources: u64,
    cache: PathBuf,
    kept: Option<tempfile::TempDir>,
    steps: Mutex<Vec<Step>>,
}

/// What was measured.
#[derive(Clone, Copy)]
struct Step {
    what: &'static str,
    took: Duration,
    /// Resources, lookups, changes: what a time is given for.
    count: u64,
}

impl Step {
    fn each(&self) -> Duration {
        self.took.div_f64(self.count as f64)
    }
}

/// Measures a part.
type Part = fn(&Scene) -> Vec<Row>;

/// All of them, in the order in which each finds what it needs.
const PARTS: [(&str, Part); 9] = [
    ("write", write),
    ("load", load),
    ("restart", restart),
    ("walk", walk),
    ("lookups", lookups),
    ("unchanged", unchanged),
    ("changes", changes),
    ("killed", killed),
    ("everything", everything),
];

/// See the module.
pub fn ten_million() -> Vec<Row> {
    let resources = number("SCALE_RESOURCES").unwrap_or(10_000_000);
    let chosen = std::env::var("SCALE_ROWS").unwrap_or_default();
    let is_chosen = |name: &str| chosen.split(',').any(|part| part == name);
    let tenth = Scene::of(resources / 10);
    let mut rows = tenth.measured(|name| chosen.is_empty() || is_chosen(name));
    let whole = Scene::of(resources);
    // Kills are the same in both.
    rows.extend(whole.measured(|name| if chosen.is_empty() { name != "killed" } else { is_chosen(name) }));
    let steps = whole.steps().clone();
    rows.extend(steps.iter().filter_map(|step| growth(step, &tenth, &whole)));
    rows
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The time that one takes of ten times as many resources, beside that which it takes of these. N log N allows 7/6 from one million
/// to ten for each; the rest is for caches of the processor and pages of the disk, of which a greater tree finds less.
fn growth(step: &Step, tenth: &Scene, whole: &Scene) -> Option<Row> {
    let steps = tenth.steps();
    let few = steps.iter().find(|known| known.what == step.what)?;
    let (few, many) = (few.each().as_secs_f64() * 1e6, step.each().as_secs_f64() * 1e6);
    // What is done for a few of all the resources jumps about in a tree that the processor's caches hold none of.
    let most = if step.count == whole.resources { 1.5 } else { 3.0 };
    Some(Row {
        work: format!("{}, {} resources beside {}", step.what, whole.resources, tenth.resources),
        measured: format!("{many:.2} us"),
        peer: format!("{few:.2} us"),
        ratio: format!("{:.2}", many / few),
        bar: format!("<= {most}"),
        holds: many <= most * few,
    })
}

impl Scene {
    fn of(resources: u64) -> Scene {
        let scratch = tempfile::Builder::new().prefix("resyncfs-scale-").tempdir().unwrap();
        let (folder, kept) = match std::env::var_os("SCALE_FOLDER") {
            Some(folder) => (PathBuf::from(folder).join(resources.to_string()), None),
            None => (scratch.path().to_owned(), Some(scratch)),
        };
        let source = BigSource::in_folder(&folder, resources);
        Scene { source, resources, cache: folder.join("cache"), kept, steps: Mutex::default() }
    }

    fn steps(&self) -> MutexGuard<'_, Vec<Step>> {
        self.steps.lock().unwrap()
    }

    fn note(&self, what: &'static str, took: Duration, count: u64) {
        self.steps().push(Step { what, took, count });
    }

    fn measured(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<Row> {
        let wanted = PARTS.iter().filter(|(name, _)| is_wanted(name));
        wanted
            .flat_map(|(name, part)| caught(&format!("{name}, {} resources", self.resources), || part(self)))
            .collect()
    }

    fn prepared(&self) -> Mounted {
        // Nothing looks at the Source unless a row asks for it. A quota of what the cache is would be half the catalog's.
        Mounted::prepared_with_cache(&self.source.entry_point(), "poll=1d,cache-size=100G", &self.cache)
    }

    fn start(mounted: &Mounted) {
        if let Err(said) = mounted.try_start_within(PATIENCE) {
            panic!("not mounted; the program said: {said}");
        }
    }

    /// The tree, mounted, and what its start asked for done with.
    fn mounted(&self) -> Mounted {
        let mounted = self.prepared();
        Scene::start(&mounted);
        mounted.try_refresh().unwrap();
        mounted
    }

    /// Bytes of the catalog: (of all pages that are in use, allocated on disk).
    fn catalog_bytes(&self) -> (u64, u64) {
        let (mut live, mut on_disk) = (0, 0);
        for file in catalog_files(&self.cache) {
            on_disk += file.metadata().map_or(0, |metadata| metadata.blocks() * 512);
            if file.ends_with("data.mdb") && !file.to_string_lossy().contains("/catalog/tmp/") {
                live += live_bytes(file.parent().unwrap());
            }
        }
        (live, on_disk)
    }

    fn each(&self, bytes: u64) -> f64 {
        bytes as f64 / self.resources as f64
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // The folder goes, not what was to be kept.
        drop(self.kept.take());
    }
}

fn catalog_files(cache: &Path) -> Vec<PathBuf> {
    let mounts = fs::read_dir(cache.join("mounts")).into_iter().flatten().flatten();
    let catalogs = mounts.map(|mount| mount.path().join("catalog")).filter(|catalog| catalog.exists());
    // Files come and go while it is written.
    catalogs.flat_map(|catalog| std::panic::catch_unwind(|| files(&catalog)).unwrap_or_default()).collect()
}

/// Bytes of the pages that hold tables.
fn live_bytes(environment: &Path) -> u64 {
    let mut options = heed::EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(1 << 38).max_dbs(16);
    // SAFETY: it is read alone, and by LMDB's own locks.
    let env = unsafe { options.flags(heed::EnvFlags::READ_ONLY).open(environment) }.unwrap();
    let mut bytes = 0;
    for table in ["entries", "names", "inodes", "orphans", "displaced", "journal", "held", "meta"] {
        let txn = env.read_txn().unwrap();
        let opened = env.open_databases_and_commit(txn, |opener, txn| {
            let table = opener.open_database::<Bytes, Bytes>(txn, Some(table))?;
            Ok::<_, heed::Error>(heed::CommitOrAbort::<_, ()>::Commit(table))
        });
        if let Some(table) = opened.unwrap().commit().flatten() {
            let stat = table.stat(&env.read_txn().unwrap()).unwrap();
            bytes += (stat.branch_pages + stat.leaf_pages + stat.overflow_pages) as u64 * u64::from(stat.page_size);
        }
    }
    bytes
}

/// Every event of every document, from the disk (the page cache) as it comes: the limit of what any program must do.
fn bare_read(documents: &[PathBuf]) -> u64 {
    let mut events = 0;
    let mut buffer = Vec::new();
    for document in documents {
        let file = BufReader::with_capacity(128 << 10, fs::File::open(document).unwrap());
        let mut reader = quick_xml::Reader::from_reader(file);
        while reader.read_event_into(&mut buffer).unwrap() != quick_xml::events::Event::Eof {
            events += 1;
            buffer.clear();
        }
    }
    events
}

/// How often a first mount is timed, in turns with a bare read; the medians count.
const LOADS: usize = 3;

fn load(scene: &Scene) -> Vec<Row> {
    let documents = scene.source.documents();
    let bytes: u64 = documents.iter().map(|document| document.metadata().unwrap().len()).sum();
    let (mut bare, mut first, mut peak) = (Vec::new(), Vec::new(), 0);
    let mounted = scene.prepared();
    for round in 0..LOADS {
        // What a mount still tidies behind its first revision would be work of the next round, on either side.
        if round > 0 {
            mounted.unmount();
        }
        let _ = fs::remove_dir_all(&scene.cache);
        let (took, events) = time(|| bare_read(&documents));
        assert!(events > scene.resources);
        bare.push(took);
        let watch = MemoryWatch::of_process_with(&mounted.path());
        first.push(time(|| Scene::start(&mounted)).0);
        peak = peak.max(watch.peak());
    }
    let tidied = tidied(&mounted);
    let (live, on_disk) = scene.catalog_bytes();
    let slowest = percentile(&mut first, 100).as_secs_f64();
    let (bare, first) = (percentile(&mut bare, 50), percentile(&mut first, 50));
    scene.note("first mount, a resource", first, scene.resources);
    let (bare, first) = (bare.as_secs_f64(), first.as_secs_f64());
    vec![
        Row {
            work: format!(
                "first mount of {} resources in {} documents ({})",
                scene.resources,
                documents.len(),
                megabytes(bytes)
            ),
            measured: format!("{first:.1} s, slowest {slowest:.1} s"),
            peer: format!("bare quick-xml {bare:.1} s"),
            ratio: format!("{:.1}", first / bare),
            bar: "<= 5".into(),
            holds: first <= 5.0 * bare,
        },
        memory("peak RssAnon of it", peak),
        Row::bound(
            "bytes of the catalog for each resource",
            format!(
                "{:.0} live, {:.0} on disk (documents small again after {:.0} s)",
                scene.each(live),
                scene.each(on_disk),
                tidied.as_secs_f64()
            ),
            "<= 220 live, <= 450 on disk",
            scene.each(live) <= 220.0 && scene.each(on_disk) <= 450.0,
        ),
    ]
}

fn memory(work: &str, peak: u64) -> Row {
    Row::bound(work, megabytes(peak), "<= 256 MB", peak > 0 && peak <= 256_000_000)
}

/// How long the program still works after a commit: until it has made room and uses no processor any more.
fn tidied(mounted: &Mounted) -> Duration {
    let began = Instant::now();
    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", mounted.pid())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_ascii_whitespace().collect();
        // utime and stime (proc_pid_stat(5)).
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let mut before = ticks();
    eventually_within(PATIENCE, "the program is idle", || {
        std::thread::sleep(Duration::from_millis(500));
        let now = ticks();
        let is_idle = now - before < 5;
        before = now;
        is_idle
    });
    began.elapsed()
}

fn restart(scene: &Scene) -> Vec<Row> {
    let mounted = scene.prepared();
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let (took, ()) = time(|| {
                Scene::start(&mounted);
                assert!(fs::read_dir(mounted.path()).unwrap().next().is_some());
            });
            mounted.unmount();
            took
        })
        .collect();
    let (median, worst) = (percentile(&mut times, 50), percentile(&mut times, 100));
    vec![Row::bound(
        &format!("restart with {} resources to the first name read", scene.resources),
        format!("{:.3} s, slowest {:.3} s", median.as_secs_f64(), worst.as_secs_f64()),
        "<= 0.1 s, the slowest too",
        worst <= Duration::from_millis(100),
    )]
}

fn walk(scene: &Scene) -> Vec<Row> {
    let mounted = scene.mounted();
    let watch = MemoryWatch::of_process_with(&mounted.path());
    let before = scene.source.requests();
    let (took, found) = time(|| {
        let find = "find \"$1\" -type f | wc -l";
        Command::new("bash").args(["-c", find, "bash"]).arg(mounted.path()).output().unwrap()
    });
    scene.note("a full walk, a resource", took, scene.resources);
    let found: u64 = String::from_utf8_lossy(&found.stdout).trim().parse().unwrap();
    let requests = scene.source.requests() - before;
    let published = scene.source.files();
    vec![
        Row::bound(
            &format!("`find -type f` of {} resources, cold", scene.resources),
            format!(
                "{found} files of {published} in {:.1} s, {:.0}/s, {requests} requests",
                took.as_secs_f64(),
                found as f64 / took.as_secs_f64()
            ),
            "every file, 0 requests",
            found == published && requests == 0,
        ),
        memory("peak RssAnon of it", watch.peak()),
    ]
}

fn lookups(scene: &Scene) -> Vec<Row> {
    let mounted = scene.mounted();
    let watch = MemoryWatch::of_process_with(&mounted.path());
    let began = Instant::now();
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let storms = [1, 2].map(|seed| {
            let (mounted, source) = (&mounted, &scene.source);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let mut times = Vec::with_capacity(LOOKUPS);
                for _ in 0..LOOKUPS {
                    let published = source.resource(random.below(scene.resources));
                    let path = mounted.join(&published.path);
                    let asked = Instant::now();
                    // Some were deleted, and some have changed since.
                    let _ = fs::symlink_metadata(path);
                    times.push(asked.elapsed());
                }
                times
            })
        });
        storms.into_iter().flat_map(|storm| storm.join().unwrap()).collect()
    });
    let took = began.elapsed();
    scene.note("lookups, each", took, 2 * LOOKUPS as u64);
    let (took, count) = (took.as_secs_f64(), times.len() as f64);
    let (median, p99, worst) = (percentile(&mut times, 50), percentile(&mut times, 99), percentile(&mut times, 100));
    vec![
        Row::bound(
            &format!("`stat` of files of {} resources at random, two at a time, cold", scene.resources),
            format!(
                "{:.0}/s, median {} us, p99 {} us, slowest {} us",
                count / took,
                median.as_micros(),
                p99.as_micros(),
                worst.as_micros()
            ),
            "p99 <= 1 ms",
            p99 <= Duration::from_millis(1),
        ),
        memory("peak RssAnon of it", watch.peak()),
    ]
}

/// How long the last refresh took, what it did, and what the program took meanwhile.
struct Refreshed {
    took: Duration,
    changed: u64,
    peak: u64,
    /// Of lookups of names that are not there.
    lookups: Vec<Duration>,
    /// The most bytes that the catalog's files took.
    disk: u64,
}

/// Has the mount look at its Source, and looks names up meanwhile.
fn refreshed(scene: &Scene, mounted: &Mounted) -> Refreshed {
    let watch = MemoryWatch::of_process_with(&mounted.path());
    let (done, disk) = (AtomicBool::new(false), AtomicU64::new(0));
    let lookups = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let (mut random, mut times) = (Random::new(3), Vec::new());
            while !done.load(Ordering::Relaxed) {
                let near = scene.source.resource(random.below(scene.resources)).path;
                let folder = near.rsplit_once('/').map_or("", |(folder, _)| folder);
                let path = mounted.join(&format!("{folder}/absent-{}", random.below(1 << 40)));
                let asked = Instant::now();
                let _ = fs::symlink_metadata(path);
                times.push(asked.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
            times
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let bytes = catalog_files(&scene.cache)
                    .iter()
                    .map(|file| file.metadata().map_or(0, |metadata| metadata.blocks() * 512))
                    .sum();
                disk.fetch_max(bytes, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let refreshed = mounted.try_refresh();
        done.store(true, Ordering::Relaxed);
        refreshed.unwrap();
        asking.join().unwrap()
    });
    let (took, changed) = last_refresh(&status(mounted));
    Refreshed { took, changed, peak: watch.peak(), lookups, disk: disk.into_inner() }
}

fn status(mounted: &Mounted) -> serde_json::Value {
    let output = Command::new(PROGRAM).args(["status", "--json"]).arg(mounted.path()).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn is_looking(mounted: &Mounted) -> bool {
    !status(mounted)["sync"]["refreshing_since"].is_null()
}

/// How long it took, and how many files it changed.
fn last_refresh(status: &serde_json::Value) -> (Duration, u64) {
    let last = &status["sync"]["last_refresh"];
    let count = |what: &str| last["outcome"]["committed"][what].as_u64().unwrap_or(0);
    (
        Duration::from_millis(last["milliseconds"].as_u64().unwrap()),
        count("created") + count("updated") + count("deleted"),
    )
}

impl Refreshed {
    fn lookups_given(&mut self) -> String {
        let (p99, worst) = (percentile(&mut self.lookups, 99), percentile(&mut self.lookups, 100));
        format!("lookups meanwhile p99 {} us, slowest {} us", p99.as_micros(), worst.as_micros())
    }
}

fn unchanged(scene: &Scene) -> Vec<Row> {
    let mounted = scene.mounted();
    let mut refreshed = refreshed(scene, &mounted);
    let lookups = refreshed.lookups_given();
    let measured = format!("{:.3} s, {} changed; {lookups}", refreshed.took.as_secs_f64(), refreshed.changed);
    vec![
        Row::bound(
            &format!("a refresh of {} resources of which nothing has changed", scene.resources),
            measured,
            "<= 1 s",
            refreshed.took <= Duration::from_secs(1),
        ),
        memory("peak RssAnon of it", refreshed.peak),
    ]
}

fn changes(scene: &Scene) -> Vec<Row> {
    let mounted = scene.mounted();
    let mut missed = 0;
    let mut days: Vec<Refreshed> = (0..ROUNDS)
        .map(|_| {
            scene.source.change_some();
            let refreshed = refreshed(scene, &mounted);
            missed += CHANGES.abs_diff(refreshed.changed);
            refreshed
        })
        .collect();
    let mut times: Vec<_> = days.iter().map(|day| day.took).collect();
    let (median, worst) = (percentile(&mut times, 50), percentile(&mut times, 100));
    scene.note("changes of a Change List, each", median, CHANGES);
    let peak = days.iter().map(|day| day.peak).max().unwrap_or(0);
    let lookups = days[ROUNDS - 1].lookups_given();
    vec![
        Row::bound(
            &format!("{CHANGES} changes of a Change List of {} resources, {ROUNDS} times", scene.resources),
            format!(
                "{:.3} s, slowest {:.3} s, {missed} of them missed; {lookups}",
                median.as_secs_f64(),
                worst.as_secs_f64()
            ),
            "<= 1 s, the slowest too, all of them",
            worst <= Duration::from_secs(1) && missed == 0,
        ),
        memory("peak RssAnon of it", peak),
    ]
}

fn write(scene: &Scene) -> Vec<Row> {
    let (took, ()) = time(|| scene.source.write_next());
    let work = format!("documents of {} resources written for the refresh of everything", scene.resources);
    vec![Row::bound(&work, format!("{:.1} s", took.as_secs_f64()), "", true)]
}

/// Kills of the program in the midst of a refresh that changes everything: the next start shows the one edition or the other.
const KILLS: usize = 3;

fn killed(scene: &Scene) -> Vec<Row> {
    let mounted = scene.mounted();
    scene.source.change_everything();
    mounted.try_refresh().unwrap();
    let whole = last_refresh(&status(&mounted)).0;
    let mut random = Random::new(9);
    let (mut times, mut elapsed) = (Vec::new(), Vec::new());
    while times.len() < KILLS {
        assert!(elapsed.len() < 4 * KILLS, "the refreshes end too soon to be killed in their midst: {elapsed:?}");
        scene.source.change_everything();
        mounted.refresh();
        eventually_within(PATIENCE, "a look is under way", || is_looking(&mounted));
        let began = Instant::now();
        std::thread::sleep(whole * (5 + random.below(90) as u32) / 100);
        let in_the_midst = is_looking(&mounted);
        mounted.kill();
        elapsed.push(began.elapsed());

        let (took, ()) = time(|| {
            Scene::start(&mounted);
            assert!(fs::read_dir(mounted.path()).unwrap().next().is_some());
        });
        let numbers: Vec<u64> = (0..200).map(|_| random.below(scene.resources)).collect();
        let shown = |number: &u64| {
            let path = mounted.join(&scene.source.resource(*number).path);
            fs::symlink_metadata(path).unwrap().len()
        };
        let lengths: Vec<u64> = numbers.iter().map(shown).collect();
        let before: Vec<u64> = numbers.iter().map(|number| scene.source.earlier_length(*number)).collect();
        let after: Vec<u64> = numbers.iter().map(|number| scene.source.resource(*number).length).collect();
        // One after the other: the mount that was started continues the refresh, and shows all of it at once.
        let changes_at = (0..numbers.len()).find(|at| lengths[*at] != before[*at]).unwrap_or(numbers.len());
        let other = (changes_at..numbers.len()).find(|at| lengths[*at] != after[*at]);
        assert!(other.is_none(), "new from {changes_at} on, and again another edition at {other:?}: {numbers:?}");
        mounted.try_refresh().unwrap();
        assert_eq!(numbers.iter().map(shown).collect::<Vec<_>>(), after, "what was cut off is done again");
        if in_the_midst {
            times.push(took);
        }
    }
    let worst = percentile(&mut times, 100);
    let spelt: Vec<String> = elapsed.iter().map(|elapsed| format!("{:.1}", elapsed.as_secs_f64())).collect();
    vec![Row::bound(
        &format!(
            "restart after kill -9 in the midst of a refresh that changes all of {} resources, {KILLS} times",
            scene.resources
        ),
        format!(
            "slowest {:.3} s to the first name, each time the old tree or the new one (killed after {} of some {:.1} s)",
            worst.as_secs_f64(),
            spelt.join(", "),
            whole.as_secs_f64()
        ),
        "<= 0.1 s",
        worst <= Duration::from_millis(100),
    )]
}

fn everything(scene: &Scene) -> Vec<Row> {
    let mounted = scene.mounted();
    let (_, before) = scene.catalog_bytes();
    scene.source.change_everything();
    let (bare, _) = time(|| bare_read(&scene.source.documents()));
    let mut refreshed = refreshed(scene, &mounted);
    let after = rss_anon(mounted.pid()).unwrap_or(0);

    let mut random = Random::new(4);
    for _ in 0..1000 {
        let published = scene.source.resource(random.below(scene.resources));
        let shown = fs::symlink_metadata(mounted.join(&published.path)).unwrap();
        assert_eq!(shown.len(), published.length, "{} is shown as it is published now", published.path);
    }

    let watch = MemoryWatch::of_process_with(&mounted.path());
    let tidied = tidied(&mounted);
    let (live, on_disk) = scene.catalog_bytes();
    let revision = || mounted.said().matches("copied without its holes").count();
    let (took, bare) = (refreshed.took.as_secs_f64(), bare.as_secs_f64());
    scene.note("a refresh that changes everything, a resource", refreshed.took, scene.resources);
    let lookups = refreshed.lookups_given();
    let p99 = percentile(&mut refreshed.lookups, 99);
    vec![
        Row {
            work: format!("a refresh that changes everything ({} files)", refreshed.changed),
            measured: format!("{took:.1} s; {lookups}"),
            peer: format!("bare quick-xml {bare:.1} s"),
            ratio: format!("{:.1}", took / bare),
            bar: "all of them, lookups p99 <= 1 ms".into(),
            holds: refreshed.changed >= scene.resources && p99 <= Duration::from_millis(1),
        },
        memory(&format!("peak RssAnon of it ({} at its end)", megabytes(after)), refreshed.peak),
        memory("peak RssAnon behind it, while room is made", watch.peak()),
        Row::bound(
            "bytes of the catalog for each resource, before, at most, and after",
            format!(
                "{:.0}, {:.0}, {:.0} on disk, {:.0} live; idle after {:.0} s, copied {} times",
                scene.each(before),
                scene.each(refreshed.disk),
                scene.each(on_disk),
                scene.each(live),
                tidied.as_secs_f64(),
                revision()
            ),
            "<= 220 live, <= 450 on disk at any time",
            scene.each(live) <= 220.0 && scene.each(refreshed.disk.max(on_disk)) <= 450.0,
        ),
    ]
}
