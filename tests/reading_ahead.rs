//! Files fetched ahead of programs that read one after the other, as the Source sees it.

mod common;

use common::mounted::Mounted;
use common::small_disk::SmallDisk;
use common::source::{Fault, Resource, Source, URLSET};
use common::{eventually, tree};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Each response takes so long, as over a network.
const PAUSE: Duration = Duration::from_millis(20);

/// `files` in each of `folders` folders.
fn collection(folders: usize, files: usize, make: fn(String) -> Resource) -> Source {
    let source = Source::start();
    for folder in 0..folders {
        for file in 0..files {
            let path = format!("top/d{folder:02}/f{file:03}.txt");
            source.put(&path, make(format!("{path} holds storm {file}\n")));
        }
    }
    source
}

/// How often each resource was asked for, by method and path; documents are left out.
fn requests(source: &Source) -> BTreeMap<(String, String), usize> {
    let mut seen = BTreeMap::new();
    for request in source.take_log().into_iter().filter(|request| request.path.starts_with("/top/")) {
        *seen.entry((request.method, request.path)).or_default() += 1;
    }
    seen
}

fn run(program: &str, arguments: &[&str], mounted: &Mounted) -> String {
    let output = Command::new(program).args(arguments).current_dir(mounted.path()).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn grep_fetches_many_files_at_once_and_each_once() {
    let source = collection(10, 30, Resource::new);
    let mounted = Mounted::new(&source.list_url(), "");
    source.pause(PAUSE);
    source.take_log();
    source.take_most_at_once();

    let found = run("grep", &["-rc", "storm", "top"], &mounted);

    assert_eq!(found.lines().filter(|line| line.ends_with(":1")).count(), 300);
    let seen = requests(&source);
    assert_eq!(seen.len(), 300, "{seen:?}");
    assert!(seen.iter().all(|((method, _), times)| method == "GET" && *times == 1), "{seen:?}");
    assert!(source.take_most_at_once() >= 8, "many at a time");
    assert_eq!(
        tree(&mounted.path()),
        source.published().into_iter().map(|(path, bytes)| (path.into(), bytes)).collect()
    );
}

#[test]
fn rsync_fetches_many_files_at_once_and_each_once() {
    let source = collection(6, 40, Resource::new);
    for number in 0..40 {
        source.put(&format!("top/e{number:02}.txt"), Resource::new(format!("{number}")));
    }
    let mounted = Mounted::new(&source.list_url(), "");
    let copy = tempfile::tempdir().unwrap();
    source.pause(PAUSE);
    source.take_log();
    source.take_most_at_once();

    run("rsync", &["-a", "top/", copy.path().to_str().unwrap()], &mounted);

    let seen = requests(&source);
    assert_eq!(seen.len(), 280);
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
    assert!(source.take_most_at_once() >= 8, "many at a time");
}

#[test]
fn files_of_unknown_length_take_one_get_each() {
    let source = collection(1, 100, |text| Resource { etag: None, ..Resource::bare(text) });
    let mounted = Mounted::new(&source.list_url(), "");
    source.pause(PAUSE);
    source.take_log();

    run("grep", &["-rc", "storm", "top"], &mounted);

    let seen = requests(&source);
    let heads = seen.keys().filter(|(method, _)| method == "HEAD").count();
    assert!(heads <= 3, "only what was asked before the walk was known: {heads}");
    assert_eq!(seen.iter().filter(|((method, _), _)| method == "GET").map(|(_, times)| times).sum::<usize>(), 100);
}

/// Tools that read all of `top`, each run where the mount is; the copies go to `{}`.
const TOOLS: [&str; 7] = [
    "grep -rc storm top > /dev/null",
    "rsync -a top/ {}/",
    "tar -cf - top | cat > /dev/null",
    "cp -r top {}/",
    "md5sum top/*/* > /dev/null",
    "find top -type f -exec cat {} \\; > /dev/null",
    "find top -type f -exec cat {} + > /dev/null",
];

/// Runs one of [`TOOLS`] on a cold mount: what was asked for, and how much of that at once.
fn asked_by(tool: &str, source: &Source) -> (BTreeMap<(String, String), usize>, usize) {
    let mounted = Mounted::new(&source.list_url(), "");
    let copy = tempfile::tempdir().unwrap();
    let tool = if tool.contains("-exec") { tool.to_owned() } else { tool.replace("{}", copy.path().to_str().unwrap()) };
    source.pause(PAUSE);
    source.take_log();
    source.take_most_at_once();

    run("sh", &["-c", &tool], &mounted);

    source.wait_for_quiet();
    source.pause(Duration::ZERO);
    (requests(source), source.take_most_at_once())
}

#[test]
fn a_walk_through_a_cold_tree_takes_one_request_a_file() {
    let source = collection(6, 20, Resource::new);
    for tool in TOOLS {
        let (seen, most) = asked_by(tool, &source);

        assert_eq!(seen.len(), 120, "{tool}: {seen:?}");
        assert!(seen.iter().all(|((method, _), times)| method == "GET" && *times == 1), "{tool}: {seen:?}");
        assert!(most >= 6, "{tool}: {most} at a time");
    }
}

#[test]
fn a_cold_walk_takes_one_get_a_file_where_lengths_are_unknown() {
    let source = collection(6, 20, |text| Resource { etag: None, ..Resource::bare(text) });
    // rsync asks for all sizes of a folder before it reads a file.
    for tool in TOOLS.into_iter().filter(|tool| !tool.starts_with("rsync")) {
        let (seen, most) = asked_by(tool, &source);

        let of = |wanted: &str| seen.iter().filter(|((method, _), _)| method == wanted).map(|(_, times)| times).sum();
        let (heads, gets): (usize, usize) = (of("HEAD"), of("GET"));
        assert!(heads <= 3, "{tool}: only what was asked before the walk was known: {heads}");
        assert_eq!(gets, 120, "{tool}");
        assert!(most >= 6, "{tool}: {most} at a time");
    }
}

#[test]
fn programs_of_one_file_each_count_as_one_walk() {
    let source = collection(60, 1, Resource::new);

    let (seen, most) = asked_by("find top -type f -exec cat {} \\; > /dev/null", &source);

    assert!(seen.len() == 60 && seen.values().all(|times| *times == 1), "{seen:?}");
    assert!(most >= 6, "{most} at a time");
}

#[test]
fn a_listing_of_sizes_fetches_no_bodies() {
    let source = collection(1, 100, Resource::bare);
    let mounted = Mounted::new(&source.list_url(), "");
    source.take_log();

    run("ls", &["-lR", "top"], &mounted);

    assert!(requests(&source).keys().all(|(method, _)| method == "HEAD"));
}

#[test]
fn a_reader_that_jumps_gets_what_it_reads_and_nothing_else() {
    let source = collection(10, 100, Resource::new);
    let mounted = Mounted::new(&source.list_url(), "");
    source.take_log();

    for step in 1..=60usize {
        let number = step * 379 % 1000;
        fs::read(mounted.join(&format!("top/d{:02}/f{:03}.txt", number / 100, number % 100))).unwrap();
    }

    source.wait_for_quiet();
    assert_eq!(requests(&source).len(), 60);
}

#[test]
fn one_folder_read_through_leaves_its_neighbours_alone() {
    let source = collection(5, 30, Resource::new);
    let mounted = Mounted::new(&source.list_url(), "");
    source.take_log();

    run("sh", &["-c", "md5sum top/d01/*"], &mounted);

    source.wait_for_quiet();
    assert!(requests(&source).keys().all(|(_, path)| path.starts_with("/top/d01/")));
}

#[test]
fn programs_run_folder_by_folder_prefetch_no_other_folder() {
    let source = collection(6, 30, Resource::new);
    let mounted = Mounted::new(&source.list_url(), "");
    source.take_log();

    for folder in ["top/d01", "top/d02", "top/d03"] {
        run("grep", &["-rc", "storm", folder], &mounted);
    }

    source.wait_for_quiet();
    assert_eq!(requests(&source).len(), 90);
}

#[test]
fn a_reader_comes_before_files_prefetched_for_another() {
    let source = collection(2, 400, |text| Resource::new(text.repeat(100)));
    source.put("top/wanted.txt", Resource::new("wanted"));
    let mounted = Mounted::new(&source.list_url(), "connections=4");
    source.pause(Duration::from_millis(50));
    let mut walk = Command::new("grep").args(["-rc", "storm", "top/d00"]).current_dir(mounted.path()).spawn().unwrap();
    eventually("the walk is known", || source.log().iter().filter(|it| it.path.starts_with("/top/d00")).count() > 8);

    let begun = source.log().len();
    let bytes = fs::read(mounted.join("top/wanted.txt")).unwrap();

    assert_eq!(bytes, b"wanted");
    // One permit of four is kept free of prefetching.
    let between = source.log().len() - begun;
    assert!(between <= 12, "{between} requests were sent before it ended");
    walk.kill().unwrap();
    walk.wait().unwrap();
}

#[test]
fn a_failed_prefetch_fails_no_other_read() {
    let source = collection(1, 60, Resource::new);
    for number in (10..60).step_by(7) {
        source.fault(&format!("top/d00/f{number:03}.txt"), Fault::Status(404, String::new()), u64::MAX);
    }
    let mounted = Mounted::new(&source.list_url(), "");

    let mut failed = Vec::new();
    for number in 0..60 {
        match fs::read(mounted.join(&format!("top/d00/f{number:03}.txt"))) {
            Ok(bytes) => assert_eq!(bytes, format!("top/d00/f{number:03}.txt holds storm {number}\n").into_bytes()),
            Err(_) => failed.push(number),
        }
    }

    assert_eq!(failed, (10..60).step_by(7).collect::<Vec<_>>());
}

#[test]
fn prefetching_begins_again_once_a_host_has_recovered() {
    let source = collection(2, 200, Resource::new);
    for number in 4..200 {
        source.fault(&format!("top/d00/f{number:03}.txt"), Fault::Status(429, String::new()), u64::MAX);
    }
    let mounted = Mounted::new(&source.list_url(), "timeout=2s");
    for number in 0..8 {
        assert_eq!(fs::read(mounted.join(&format!("top/d00/f{number:03}.txt"))).is_ok(), number < 4);
    }
    source.wait_for_quiet();
    source.mend();
    eventually("the host is asked again", || fs::read(mounted.join("top/d01/f000.txt")).is_ok());
    source.pause(PAUSE);
    source.take_most_at_once();

    run("grep", &["-rc", "storm", "top/d01"], &mounted);

    let most = source.take_most_at_once();
    assert!(most >= 6, "{most} at a time");
}

#[test]
fn without_readahead_only_read_files_are_fetched() {
    let source = collection(1, 60, Resource::new);
    let mounted = Mounted::new(&source.list_url(), "readahead=0");
    source.take_log();
    source.take_most_at_once();

    run("sh", &["-c", "ls top/d00 && head -qn1 top/d00/f00*"], &mounted);

    source.wait_for_quiet();
    assert_eq!(requests(&source).len(), 10);
    assert_eq!(source.take_most_at_once(), 1);
}

#[test]
fn the_first_files_of_a_listed_tree_begin_a_walk() {
    let source = collection(3, 20, Resource::new);
    let mounted = Mounted::new(&source.list_url(), "");
    source.take_log();
    let mut folders = fs::read_dir(mounted.join("top")).unwrap().map(|it| it.unwrap().path()).collect::<Vec<_>>();
    folders.sort();
    let files: Vec<_> = fs::read_dir(&folders[0]).unwrap().map(|it| it.unwrap().path()).collect();

    fs::read(&files[0]).unwrap();
    source.wait_for_quiet();
    let after_one = requests(&source).len();
    fs::read(&files[1]).unwrap();
    source.wait_for_quiet();

    assert!((2..=5).contains(&after_one), "{after_one}");
    assert!(requests(&source).len() >= 12, "beyond the first folder, in the next");
}

#[test]
fn a_walk_through_folders_prefetches_the_next_folder() {
    let source = collection(40, 3, Resource::new);
    let mounted = Mounted::new(&source.list_url(), "");
    let listed = |path: &str| -> Vec<String> {
        let entries = fs::read_dir(mounted.join(path)).unwrap();
        entries.map(|entry| format!("{path}/{}", entry.unwrap().file_name().into_string().unwrap())).collect()
    };
    let folders = listed("top");
    source.take_log();

    for path in [&listed(&folders[0])[..], &listed(&folders[1])[..1]].concat() {
        fs::read(mounted.join(&path)).unwrap();
    }
    source.wait_for_quiet();

    let asked: Vec<String> = source.take_log().into_iter().map(|logged| logged.path[1..].to_owned()).collect();
    let in_order: Vec<String> = folders.iter().flat_map(|folder| listed(folder)).collect();
    assert!(
        in_order[..12].iter().all(|path| asked.contains(path)),
        "those that follow, of the next folders: {asked:?}"
    );
    assert!(in_order[36..].iter().all(|path| !asked.contains(path)), "and not those far away: {asked:?}");
}

#[test]
fn prefetched_files_take_an_eighth_of_the_cache() {
    const FILE: usize = 128 << 10;
    const DISK: usize = 64 << 20;
    let disk = SmallDisk::of(DISK as u64);
    let source = collection(1, 60, |text| Resource::new(text.repeat(FILE / 34)));
    let mounted = Mounted::with_cache(&source.list_url(), "cache-reserve=0", disk.path());
    source.take_log();

    for number in 0..3 {
        fs::read(mounted.join(&format!("top/d00/f{number:03}.txt"))).unwrap();
    }

    source.wait_for_quiet();
    let ahead = requests(&source).len() - 3;
    assert!(ahead > 0 && ahead * FILE <= DISK / 10 / 8, "{ahead} files of {FILE} bytes");
}

#[test]
fn walks_through_a_small_full_cache_use_prefetched_files() {
    const EACH: usize = 120;
    let disk = SmallDisk::of(64 << 20);
    let source = collection(3, EACH, |text| Resource::new(text.repeat(1500)));
    let mounted = Mounted::with_cache(&source.list_url(), "cache-reserve=0", disk.path());
    source.pause(Duration::from_millis(2));
    source.take_log();

    run("grep", &["-rc", "storm", "top/d00"], &mounted);
    let begun = Instant::now();
    let mut walk = Command::new("grep").args(["-rc", "storm", "top/d01"]).current_dir(mounted.path()).spawn().unwrap();
    for step in 1..=40usize {
        let path = format!("top/d02/f{:03}.txt", step * 37 % EACH);
        fs::read(mounted.join(&path)).unwrap();
    }

    assert!(walk.wait().unwrap().success());
    let seen = requests(&source);
    assert_eq!(seen.len(), 2 * EACH + 40);
    // Where the first have no room, prefetching stops for some seconds, and these files are asked for again when they are read.
    let tried = 1 + begun.elapsed().as_secs() as usize / 2;
    let twice: Vec<_> = seen.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.len() <= 16 * tried && twice.iter().all(|(_, times)| **times == 2), "{twice:?}");
}

/// A program that is killed, not waited for.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A mount of the resources of `alive` and of `late` resources of another host, which answers for the first three alone; and
/// the folder of these.
fn beside_a_silent_host(alive: &Source, late: usize, make: fn(String) -> Resource) -> (Source, Mounted, PathBuf) {
    let silent = Source::start();
    let mut list = format!("{URLSET}<rs:md capability=\"resourcelist\" at=\"2026-01-02T03:04:05Z\"/>\n");
    for number in 0..late {
        let path = format!("slow/f{number:03}.txt");
        let resource = make(format!("late {number:03}"));
        let _ = writeln!(list, "<url><loc>{}{path}</loc><rs:md {}/></url>", silent.url(), resource.md);
        silent.put(&path, resource);
        if number > 2 {
            silent.fault(&path, Fault::StallHead(Duration::from_secs(10)), u64::MAX);
        }
    }
    for (path, bytes) in alive.published() {
        let md = make(String::from_utf8(bytes).unwrap()).md;
        let _ = writeln!(list, "<url><loc>{}{path}</loc><rs:md {md}/></url>", alive.url());
    }
    alive.document("both.xml", list + "</urlset>");
    let authority = silent.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let options = format!("allow-host={authority},connections=8");
    let mounted = Mounted::new(&format!("{}both.xml", alive.url()), &options);
    let slow = mounted.join(&format!("%host/{authority}/slow"));
    (silent, mounted, slow)
}

#[test]
fn a_silent_host_delays_no_files_of_another() {
    let alive = collection(1, 120, Resource::new);
    let (silent, mounted, slow) = beside_a_silent_host(&alive, 60, Resource::new);
    (0..3).for_each(|number| drop(fs::read(slow.join(format!("f{number:03}.txt"))).unwrap()));
    eventually("all permits of the silent host are used", || silent.log().len() >= 9);
    alive.pause(PAUSE);
    alive.take_most_at_once();

    run("grep", &["-rc", "storm", "top"], &mounted);

    let most = alive.take_most_at_once();
    assert!(most >= 6, "{most} at a time");
}

#[test]
fn a_silent_host_delays_no_sizes_of_another() {
    let alive = collection(1, 120, Resource::bare);
    let (silent, mounted, slow) = beside_a_silent_host(&alive, 200, Resource::bare);
    let _waiting = Killed(Command::new("ls").arg("-l").arg(slow).stdout(Stdio::null()).spawn().unwrap());
    eventually("all permits of the silent host are used", || silent.log().len() >= 3 + 8);
    alive.pause(PAUSE);
    alive.take_most_at_once();

    let listed = run("ls", &["-l", "top/d00"], &mounted);

    let most = alive.take_most_at_once();
    assert!(most >= 6, "{most} at a time");
    assert_eq!(listed.lines().filter(|line| line.ends_with(".txt")).count(), 120);
}

/// The host gets no queued request of a program that was killed.
#[test]
fn what_is_fetched_ahead_of_a_process_ends_with_it() {
    let source = collection(1, 120, Resource::new);
    let mounted = Mounted::new(&source.list_url(), "connections=2");
    (0..16).for_each(|number| drop(fs::read(mounted.join(&format!("top/d00/f{number:03}.txt"))).unwrap()));
    source.wait_for_quiet();
    source.pause(Duration::from_millis(1500));
    source.take_log();
    let grep = Command::new("grep").args(["-rc", "storm", "top/d00"]).current_dir(mounted.path()).spawn().unwrap();
    let walk = Killed(grep);
    eventually("its files are fetched ahead", || source.log().len() >= 2);

    drop(walk);
    std::thread::sleep(Duration::from_secs(4));
    let after_kill = source.log().len();
    std::thread::sleep(Duration::from_secs(4));

    assert!(source.log().len() <= after_kill + 1, "{after_kill}, then {}", source.log().len());
}

#[test]
fn two_walks_and_a_reader_that_jumps_all_get_on() {
    const EACH: usize = 300;
    let source = collection(3, EACH, Resource::new);
    let mounted = Mounted::new(&source.list_url(), "connections=8");
    source.pause(Duration::from_millis(10));
    source.take_log();
    let walks: Vec<_> = ["top/d00", "top/d01"]
        .map(|folder| Command::new("grep").args(["-rc", "storm", folder]).current_dir(mounted.path()).spawn().unwrap())
        .into();
    eventually("both walks are known", || {
        let log = source.log();
        ["/top/d00", "/top/d01"].iter().all(|below| log.iter().filter(|it| it.path.starts_with(below)).count() > 8)
    });

    let mut waited = Vec::new();
    for step in 1..=20usize {
        let path = format!("top/d02/f{:03}.txt", step * 137 % EACH);
        let before = source.log().len();
        assert_eq!(
            fs::read(mounted.join(&path)).unwrap(),
            format!("{path} holds storm {}\n", step * 137 % EACH).into_bytes()
        );
        waited.push(source.log().len() - before);
    }

    for mut walk in walks {
        assert!(walk.wait().unwrap().success());
    }
    // Readers come before prefetching: no read waits for more than the requests under way and those sent meanwhile.
    waited.sort_unstable();
    assert!(waited[10] <= 16, "requests between the beginning and the end of a read: {waited:?}");
    let log = source.log();
    let of = |folder: &str| log.iter().map(|it| it.path.starts_with(folder)).collect::<Vec<_>>();
    let (first, second) = (of("/top/d00"), of("/top/d01"));
    // Neither walk starves: when one is at its middle, the other has a quarter of that at least.
    for (one, other) in [(&first, &second), (&second, &first)] {
        let middle = (0..log.len()).filter(|place| one[*place]).nth(EACH / 2).unwrap();
        let had = other[..middle].iter().filter(|it| **it).count();
        assert!(had >= EACH / 8, "{had} of the other's where one had {}", EACH / 2);
    }
    assert_eq!(log.iter().filter(|it| it.path.starts_with("/top/d02")).count(), 20);
}
