//! What a walk costs in connections, as the real nginx sees it, and how many requests at a time a host gets.

mod common;

use common::far::Far;
use common::mounted::Mounted;
use common::nginx::Nginx;
use common::random::Random;
use common::source::{Resource, Source};
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const FILES: u64 = 400;

fn mounted(nginx: &Nginx, options: &str) -> Mounted {
    Mounted::new(&nginx.url(), &format!("ca={},{options}", nginx.ca().display()))
}

/// Reads all files below `folder`, one after the other.
fn walk(mounted: &Mounted, folder: &str) {
    let output = Command::new("grep").args(["-rc", "x", folder]).current_dir(mounted.path()).output().unwrap();
    assert!(output.status.code().is_some_and(|code| code < 2), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The numbers of the connections over which these requests came.
fn connections(log: &[String]) -> BTreeSet<&str> {
    log.iter().filter_map(|line| line.rsplit('"').next()?.split_whitespace().next()).collect()
}

#[test]
fn over_http_2_all_requests_share_one_connection() {
    let nginx = Nginx::serving_tls(FILES);
    let mounted = mounted(&nginx, "connections=64");

    walk(&mounted, ".");

    let log = nginx.access_log();
    // Nothing is asked of those that are published as empty.
    assert!(log.len() as u64 > FILES * 3 / 4 && log.iter().all(|line| line.contains("HTTP/2.0")), "{}", log.len());
    assert_eq!(connections(&log).len(), 1);
}

#[test]
fn over_http_1_1_connections_are_kept_and_tls_sessions_resumed() {
    const AT_ONCE: usize = 16;
    let nginx = Nginx::serving_tls_without_http2(FILES);
    let mounted = mounted(&nginx, &format!("connections={AT_ONCE}"));

    walk(&mounted, "plain");
    walk(&mounted, "nested");

    let before = nginx.access_log();
    let opened = connections(&before);
    assert!(before.iter().all(|line| line.contains("HTTP/1.1")));
    // Beside the places there is one for lists.
    assert!(opened.len() > 1 && opened.len() <= AT_ONCE + 1, "{}", opened.len());
    assert!(before.iter().any(|line| line.ends_with(" r")), "sessions are resumed");

    walk(&mounted, "with blank");

    let log = nginx.access_log();
    let later = connections(&log[before.len()..]);
    assert!(log.len() > before.len() + 20);
    // How many are under way at once differs from walk to walk: another is opened where all that were kept are taken.
    assert!(!later.is_disjoint(&opened), "{later:?} although {opened:?} were open");
    assert!(connections(&log).len() <= AT_ONCE + 1, "{later:?} beside {opened:?}");
}

/// Octets of a file that comes in several ranges at once where the Source is far.
const LARGE: usize = 80 << 20;

/// Two large files and a small one, the same whenever they are made.
fn make_large(root: &Path) {
    fs::create_dir_all(root).unwrap();
    for (seed, name) in ["first", "second"].into_iter().enumerate() {
        fs::write(root.join(name), Random::new(seed as u64).bytes(LARGE)).unwrap();
    }
    fs::write(root.join("small"), "small").unwrap();
}

/// A mount of it from afar.
fn mounted_afar(nginx: &Nginx, far: &Far, options: &str) -> Mounted {
    let there = format!("https://127.0.0.1:{}/", far.port());
    mounted(nginx, &format!("rewrite={}={there},poll=1h,{options}", nginx.url()))
}

/// Reads `name` to its end, which must be what is published.
fn read_all(mounted: &Mounted, nginx: &Nginx, name: &str) {
    assert!(fs::read(mounted.join(name)).unwrap() == fs::read(nginx.files().join(name)).unwrap(), "{name}");
}

/// The lines about answers of this status.
fn answered(log: &[String], status: u16) -> Vec<String> {
    log.iter().filter(|line| line.contains(&format!("\" {status} "))).cloned().collect()
}

/// One connection brings a window in a round trip, several bring several.
#[test]
fn ranges_over_http_2_take_bounded_connections_of_their_own() {
    const PLACES: usize = 6;
    let nginx = Nginx::serving_tls_at("127.0.0.1", make_large);
    let far = Far::to(nginx.port(), Duration::from_millis(20));
    let mounted = mounted_afar(&nginx, &far, &format!("connections={PLACES}"));

    read_all(&mounted, &nginx, "first");
    read_all(&mounted, &nginx, "small");
    read_all(&mounted, &nginx, "second");

    let log = nginx.access_log();
    let ranges = answered(&log, 206);
    let others: Vec<_> = log.iter().filter(|line| !ranges.contains(line)).cloned().collect();
    assert!(ranges.len() > 8 && ranges.iter().all(|line| line.contains("HTTP/1.1")), "{ranges:?}");
    assert!(others.iter().all(|line| line.contains("HTTP/2.0")) && connections(&others).len() == 1, "{others:?}");
    let opened = connections(&ranges);
    // Both files use the same ones, but for those that were let go with a range that nobody waited for any more.
    assert!(opened.len() > 2 && opened.len() < ranges.len() / 2, "{} connections for {ranges:?}", opened.len());
    assert!(far.most_open() <= PLACES + 1, "{} open at once", far.most_open());
}

/// Promise: nobody sees an error.
#[test]
fn ranges_refused_over_http_1_1_are_requested_over_http_2() {
    let nginx = Nginx::serving_http2_alone_at("127.0.0.1", make_large);
    let far = Far::to(nginx.port(), Duration::from_millis(20));
    let mounted = mounted_afar(&nginx, &far, "connections=16");

    read_all(&mounted, &nginx, "first");
    let refused = answered(&nginx.access_log(), 426).len();
    read_all(&mounted, &nginx, "second");

    let log = nginx.access_log();
    assert!((1..=14).contains(&refused), "{refused} of those that were sent at once at first: {log:?}");
    assert_eq!(answered(&log, 426).len(), refused, "it is remembered");
    let ranges = answered(&log, 206);
    assert!(ranges.len() > 8 && ranges.iter().all(|line| line.contains("HTTP/2.0")), "{ranges:?}");
}

/// Reads some files at once, then three more after all idle connections have died without a sign.
fn read_after_a_change_of_network(mounted: &Mounted, far: &Far, name: fn(usize) -> String) {
    std::thread::scope(|scope| {
        for number in 0..12 {
            scope.spawn(move || fs::read(mounted.join(&name(number))).unwrap());
        }
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(far.forget_connections() > 0);
    let began = Instant::now();

    for number in 20..23 {
        assert_eq!(fs::read_to_string(mounted.join(&name(number))).unwrap(), name(number));
    }

    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

fn small(number: usize) -> String {
    format!("small-{number}")
}

/// Promise: a dead connection costs seconds, never an error. Over HTTP/1.1.
#[test]
fn dead_idle_connections_cost_seconds_and_no_errors() {
    let source = Source::start();
    (0..30).for_each(|number| source.put(&small(number), Resource::new(small(number))));
    let far = Far::to(source.url().trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap(), Duration::ZERO);
    let rewrite = format!("rewrite={}=http://127.0.0.1:{}/", source.url(), far.port());
    let mounted = Mounted::new(&source.list_url(), &format!("{rewrite},poll=1h,readahead=0"));

    read_after_a_change_of_network(&mounted, &far, small);

    let asked = (20..23).map(|number| source.requests_of(&small(number)).len()).sum::<usize>();
    assert_eq!(asked, 3, "what was sent over a dead connection did not come");
}

/// The same over HTTP/2.
#[test]
fn a_dead_shared_connection_costs_seconds_and_no_errors() {
    let nginx = Nginx::serving_tls_at("127.0.0.1", |root| {
        fs::create_dir_all(root).unwrap();
        (0..30).for_each(|number| fs::write(root.join(small(number)), small(number)).unwrap());
    });
    let far = Far::to(nginx.port(), Duration::ZERO);
    let mounted = mounted_afar(&nginx, &far, "readahead=0");

    read_after_a_change_of_network(&mounted, &far, small);

    assert!(nginx.access_log().iter().all(|line| line.contains("HTTP/2.0")));
}

#[test]
fn a_slow_host_is_asked_twice_once() {
    let source = Source::start();
    (0..4).for_each(|number| source.put(&small(number), Resource::new(small(number))));
    let mounted = Mounted::new(&source.list_url(), "poll=1h,readahead=0");
    fs::read(mounted.join(&small(0))).unwrap();
    source.pause(Duration::from_millis(3500));

    for number in 1..4 {
        assert_eq!(fs::read_to_string(mounted.join(&small(number))).unwrap(), small(number));
    }

    std::thread::sleep(Duration::from_secs(4));
    let asked: Vec<_> = (1..4).map(|number| source.requests_of(&small(number)).len()).collect();
    assert_eq!(asked, [2, 1, 1]);
}

fn name(number: usize) -> String {
    format!("{:02}/{number}", number % 50)
}

/// A Source of so many small files.
fn of_files(count: usize) -> Source {
    let source = Source::start();
    (0..count).for_each(|number| source.put(&name(number), Resource::new(number.to_string())));
    source
}

/// Reads those files, by many readers at once; the most requests that were under way at once meanwhile.
fn read_at_once(mounted: &Mounted, source: &Source, files: Range<usize>) -> usize {
    let next = AtomicUsize::new(files.start);
    source.take_most_at_once();
    std::thread::scope(|scope| {
        for _ in 0..96 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= files.end {
                        return;
                    }
                    let read = fs::read_to_string(mounted.join(&name(number)));
                    assert_eq!(read.unwrap(), number.to_string());
                }
            });
        }
    });
    source.take_most_at_once()
}

/// Its answers take four times as long where twice as many are under way as it bears.
#[test]
fn a_host_that_slows_down_is_asked_less_until_it_is_fast_again() {
    const BEARS: usize = 8;
    const FILES: usize = 6700;
    let source = of_files(FILES);
    source.pause(Duration::from_millis(50));
    source.bears(Some(BEARS));
    let mounted = Mounted::new(&source.list_url(), "poll=1h,connections=64");

    read_at_once(&mounted, &source, 0..500);
    let pressed = read_at_once(&mounted, &source, 500..700);
    source.bears(None);
    // One more a round trip, unless this machine itself is slow for a while.
    let recovered: Vec<_> = (700..FILES)
        .step_by(500)
        .map(|first| read_at_once(&mounted, &source, first..first + 500))
        .take_while(|at_once| *at_once < 40)
        .collect();

    assert!((BEARS / 2..=4 * BEARS).contains(&pressed), "{pressed} at once, of 64, where {BEARS} are fast");
    assert!(recovered.len() < (FILES - 700) / 500, "{recovered:?} at once although all are fast");
}

#[test]
fn a_host_that_is_far_is_asked_as_much_as_is_allowed() {
    let source = of_files(1000);
    source.pause(Duration::from_millis(250));
    let mounted = Mounted::new(&source.list_url(), "poll=1h,connections=64");

    read_at_once(&mounted, &source, 0..700);

    let at_once = read_at_once(&mounted, &source, 700..1000);
    assert!(at_once >= 60, "{at_once} at once");
}
