//! Cold work over a network with delay: unmodified programs through the mount, each beside what fetches the same without it.
//!
//! Every row enters a network namespace of its own, in a thread of its own, where nginx is a round trip of [`ROUND_TRIP`] away.
//! A round of ours begins with a mount that has an empty cache; what is timed is the program alone.

use crate::common::eventually;
use crate::common::mounted::Mounted;
use crate::common::nginx::Nginx;
use crate::common::random::Random;
use crate::delay::{self, FAR, Line};
use crate::measure::{ROUNDS, Row, caught, files, forget, keep, megabytes, percentile, settle, time};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// From here to the Source and back.
pub const ROUND_TRIP: Duration = Duration::from_millis(40);

/// Requests that curl has under way at once.
const AT_ONCE: usize = 64;

/// Measures in a thread of its own, a round trip away from what it measures, by these programs.
pub fn far_away(work: &str, programs: &[&str], rows: impl FnOnce() -> Vec<Row> + Send + 'static) -> Vec<Row> {
    behind(Line { round_trip: ROUND_TRIP, rate: None }, work, programs, rows)
}

/// The same behind a line of so many bytes a second.
pub fn far_away_at(
    rate: u64,
    work: &str,
    programs: &[&str],
    rows: impl FnOnce() -> Vec<Row> + Send + 'static,
) -> Vec<Row> {
    behind(Line { round_trip: ROUND_TRIP, rate: Some(rate) }, work, programs, rows)
}

fn behind(line: Line, work: &str, programs: &[&str], rows: impl FnOnce() -> Vec<Row> + Send + 'static) -> Vec<Row> {
    with_programs(work, &[&["ip"], programs].concat(), || {
        let thread = std::thread::spawn(move || delay::enter(line).map(|()| rows()));
        match thread.join() {
            Ok(Ok(rows)) => rows,
            Ok(Err(cause)) => vec![Row::not_measured(work, &format!("no network with delay can be made: {cause}"))],
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// The rows of `work`, or one that says which of these programs, or the server, are missing, or why it broke off.
pub fn with_programs(work: &str, programs: &[&str], rows: impl FnOnce() -> Vec<Row>) -> Vec<Row> {
    let programs = ["nginx"].iter().chain(programs).copied();
    let missing: Vec<&str> = programs.filter(|program| !is_installed(program)).collect();
    match missing.is_empty() {
        true => caught(work, rows),
        false => vec![Row::not_measured(work, &format!("not installed: {}", missing.join(", ")))],
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A server that stands where it should: a connection to it takes a round trip.
pub fn far(nginx: Nginx) -> Nginx {
    let url = url::Url::parse(&nginx.url()).unwrap();
    let server = url.socket_addrs(|| None).unwrap()[0];
    delay::assert_away(server, ROUND_TRIP);
    nginx
}

/// Options of a mount of it.
pub fn options(nginx: &Nginx) -> String {
    match is_tls(nginx) {
        true => format!("poll=1h,ca={}", nginx.ca().display()),
        false => "poll=1h".into(),
    }
}

/// curl that gets something from it, over the same protocol as a mount.
pub fn curl_from(nginx: &Nginx) -> Command {
    let mut curl = Command::new("curl");
    curl.arg("-sSf");
    if is_tls(nginx) {
        curl.arg("--http2").arg("--cacert").arg(nginx.ca());
    }
    curl
}

fn is_tls(nginx: &Nginx) -> bool {
    nginx.url().starts_with("https:")
}

/// `bytes` of lines of small letters.
fn text(random: &mut Random, bytes: u64) -> Vec<u8> {
    let mut bytes = random.bytes(bytes as usize);
    for byte in &mut bytes {
        *byte = if *byte % 61 == 0 { b'\n' } else { b'a' + *byte % 26 };
    }
    bytes
}

/// `count` files of `usual` bytes in the mean, in folders of `in_folder`.
pub fn make_files(root: &Path, count: u64, in_folder: u64, usual: u64) {
    let mut random = Random::new(count);
    for number in 0..count {
        let folder = root.join(format!("d{:03}", number / in_folder));
        fs::create_dir_all(&folder).unwrap();
        let bytes = usual / 4 + random.below(usual * 3 / 2);
        fs::write(folder.join(format!("file-{number:05}.txt")), text(&mut random, bytes)).unwrap();
    }
}

/// The bytes and URIs of the published files below `folder`.
pub fn published(nginx: &Nginx, folder: &str) -> (u64, Vec<String>) {
    let (root, mut bytes) = (nginx.files(), 0);
    let mut uris = Vec::new();
    for file in files(&root.join(folder)) {
        bytes += file.metadata().unwrap().len();
        uris.push(format!("{}{}", nginx.url(), file.strip_prefix(&root).unwrap().display()));
    }
    (bytes, uris)
}

/// The arguments of curl: these URIs, all to nowhere.
pub fn list_for_curl(uris: &[String]) -> tempfile::NamedTempFile {
    let mut list = String::new();
    for uri in uris {
        let _ = writeln!(list, "url = \"{uri}\"\noutput = \"/dev/null\"");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), list).unwrap();
    file
}

/// How long curl takes for all of `list`, [`AT_ONCE`] at a time.
pub fn curl(nginx: &Nginx, list: &Path, arguments: &[&str]) -> Duration {
    let mut curl = curl_from(nginx);
    curl.args(["-Z", "--parallel-max", &AT_ONCE.to_string(), "-K"]).arg(list).args(arguments);
    run(&mut curl).0
}

pub fn run(command: &mut Command) -> (Duration, String) {
    let (took, output) = time(|| command.stdin(Stdio::null()).output().unwrap());
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    (took, String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Lines of `grep -rc` that count something; it reads every file to its end.
pub fn grep(folder: &Path) -> (Duration, usize) {
    let (took, counts) = run(Command::new("grep").args(["-rc", "a"]).arg(folder));
    (took, counts.lines().filter(|line| !line.ends_with(":0")).count())
}

/// What this program has asked of the Source, once all of it is logged: requests, and bytes of their bodies.
#[derive(Clone, Copy, Default)]
pub struct Asked {
    pub requests: u64,
    pub bytes: u64,
}

impl Asked {
    /// In all so far, of paths that begin with `below`.
    pub fn so_far(nginx: &Nginx, below: &str) -> Asked {
        let mut asked = Asked::default();
        let protocol = if is_tls(nginx) { "HTTP/2.0" } else { "HTTP/1.1" };
        for line in nginx.access_log().iter().filter(|line| line.contains("\"resyncfs/")) {
            // ADDRESS - - [TIME] "METHOD PATH HTTP/1.1" STATUS OCTETS "REFERRER" "AGENT"
            let mut quoted = line.split('"');
            let request = quoted.nth(1).unwrap_or_default();
            let path = request.split(' ').nth(1).unwrap_or_default();
            if path.starts_with(below) {
                let mut fields = quoted.next().unwrap_or_default().split_whitespace();
                // Ranges of large files may go over connections of their own, of HTTP/1.1.
                let is_range = fields.next() == Some("206");
                assert!(is_range || request.ends_with(protocol), "{request} should have come over {protocol}");
                asked.requests += 1;
                asked.bytes += fields.next().and_then(|bytes| bytes.parse::<u64>().ok()).unwrap_or_default();
            }
        }
        asked
    }

    pub fn since(self, before: Asked) -> Asked {
        Asked { requests: self.requests - before.requests, bytes: self.bytes - before.bytes }
    }
}

/// Waits until no connection of this namespace is open: then nginx has logged every request.
pub fn wait_for_the_last_connection() {
    let is_open = |line: &str| !matches!(line.split_whitespace().nth(3), Some("0A" | "06") | None);
    eventually("all connections are closed", || {
        let sockets = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        !sockets.lines().skip(1).any(is_open)
    });
}

/// Does `work` through fresh mounts of `document` and what a peer does in turns: the median seconds of both, and what was
/// asked of the Source, for paths that begin with `below`, in the mean of a round.
pub fn in_turns(
    nginx: &Nginx,
    document: &str,
    below: &str,
    work: impl Fn(&Mounted) -> Duration,
    peer: impl Fn() -> Duration,
) -> (f64, f64, Asked) {
    in_turns_with(&options(nginx), nginx, document, below, work, peer)
}

/// The same with mounts that have these options.
pub fn in_turns_with(
    options: &str,
    nginx: &Nginx,
    document: &str,
    below: &str,
    work: impl Fn(&Mounted) -> Duration,
    peer: impl Fn() -> Duration,
) -> (f64, f64, Asked) {
    let (mut ours, mut theirs, mut asked) = (Vec::new(), Vec::new(), Asked::default());
    for _ in 0..ROUNDS {
        settle();
        let mounted = Mounted::new(&format!("{}documents/{document}", nginx.url()), options);
        let before = Asked::so_far(nginx, below);
        ours.push(work(&mounted));
        mounted.unmount();
        forget(mounted.cache());
        keep(mounted);
        wait_for_the_last_connection();
        let now = Asked::so_far(nginx, below).since(before);
        asked = Asked { requests: asked.requests + now.requests, bytes: asked.bytes + now.bytes };
        settle();
        theirs.push(peer());
    }
    let asked = Asked { requests: asked.requests / ROUNDS as u64, bytes: asked.bytes / ROUNDS as u64 };
    (percentile(&mut ours, 50).as_secs_f64(), percentile(&mut theirs, 50).as_secs_f64(), asked)
}

/// A row of seconds beside a peer's, of which ours may be `most` times as many.
pub fn beside(work: &str, ours: f64, asked: Asked, peer: &str, theirs: f64, most: f64) -> Row {
    let ratio = ours / theirs;
    Row {
        work: work.into(),
        measured: format!("{ours:.2} s, {} requests, {}", asked.requests, megabytes(asked.bytes)),
        peer: format!("{peer} {theirs:.2} s"),
        ratio: format!("{ratio:.2}"),
        bar: format!("<= {most}"),
        holds: ratio <= most,
    }
}

/// Files of the walks by `grep`, each folder of 25.
const FILES: u64 = 726;

pub fn make_some(root: &Path) {
    make_files(root, FILES, 25, 13_800);
}

/// How long `grep -r` takes, which must find every file.
pub fn grep_all(folder: &Path) -> Duration {
    let (took, found) = grep(folder);
    assert_eq!(found as u64, FILES, "every file is read");
    took
}

/// `grep -r` over a few hundred files.
pub fn grep_through_files() -> Vec<Row> {
    far_away("`grep -r`, 726 files, cold, RTT 40 ms", &["curl"], || {
        let nginx = far(Nginx::serving_at(FAR, make_some));
        let (ours, row) = grep_beside_curl(&nginx, "RTT 40 ms");
        let work = "the same beside another mount, RTT 40 ms";
        let beside_rclone = with_programs(work, &["rclone"], || {
            let theirs = grep_all(Rclone::mount(&nginx, &[]).folder.path()).as_secs_f64();
            let ratio = theirs / ours;
            vec![Row {
                work: work.into(),
                measured: format!("{ours:.2} s"),
                peer: format!("rclone mount {theirs:.2} s"),
                ratio: format!("{ratio:.1} times as fast"),
                bar: ">= 25".into(),
                holds: ratio >= 25.0,
            }]
        });
        keep(nginx);
        [vec![row], beside_rclone].concat()
    })
}

/// The same over TLS, all requests in one connection.
pub fn grep_over_http2() -> Vec<Row> {
    far_away("`grep -r`, 726 files, cold, RTT 40 ms, TLS and HTTP/2", &["curl", "openssl"], || {
        let nginx = far(Nginx::serving_tls_at(FAR, make_some));
        let row = grep_beside_curl(&nginx, "RTT 40 ms, TLS and HTTP/2").1;
        keep(nginx);
        vec![row]
    })
}

/// How many seconds `grep -r` takes, and its row.
fn grep_beside_curl(nginx: &Nginx, network: &str) -> (f64, Row) {
    let (bytes, uris) = published(nginx, "");
    let list = list_for_curl(&uris);
    let work = |mounted: &Mounted| grep_all(&mounted.path());
    let (ours, theirs, asked) = in_turns(nginx, "resourcelist.xml", "/d", work, || curl(nginx, list.path(), &[]));
    let work = format!("`grep -r`, {} files, {}, cold, {network}", uris.len(), megabytes(bytes));
    (ours, beside(&work, ours, asked, "curl with 64 GETs at once", theirs, 1.5))
}

/// The same files as members of one package.
pub fn grep_through_a_dump() -> Vec<Row> {
    far_away("`grep -r`, 726 files of a Resource Dump, cold, RTT 40 ms", &["curl"], || {
        let nginx = far(Nginx::serving_at(FAR, make_some));
        let package = publish_one_package(&nginx);
        let uri = format!("{}documents/{}", nginx.url(), package.file_name().unwrap().to_str().unwrap());
        let work = |mounted: &Mounted| grep_all(&mounted.path());
        let get = || run(curl_from(&nginx).args(["-o", "/dev/null", &uri])).0;
        let (ours, theirs, asked) = in_turns(&nginx, "capabilitylist.xml", "/", work, get);
        let bytes = megabytes(package.metadata().unwrap().len());
        keep(nginx);
        let work = format!("`grep -r`, {FILES} files of a Resource Dump, one package of {bytes}, cold, RTT 40 ms");
        vec![beside(&work, ours, asked, "GET of the package", theirs, 1.15)]
    })
}

/// Publishes the files as one package, and nothing else; returns its address.
pub fn publish_one_package(nginx: &Nginx) -> PathBuf {
    nginx.write_dump(50_000, false);
    let package = files(&nginx.documents()).into_iter().find(|file| file.extension().is_some_and(|it| it == "zip"));
    package.expect("there is a package")
}

/// `rclone mount` of the same files, by the pages of their folders.
pub struct Rclone {
    /// Where it is mounted.
    pub folder: tempfile::TempDir,
    process: Child,
}

impl Rclone {
    /// With these arguments beside those that it needs.
    pub fn mount(nginx: &Nginx, arguments: &[&str]) -> Rclone {
        let folder = tempfile::tempdir().unwrap();
        let mut rclone = Command::new("rclone");
        rclone.args(["mount", ":http:"]).arg(folder.path()).args(arguments);
        rclone.args(["--read-only", "--config", "", "--http-url"]);
        rclone.arg(nginx.index_url().expect("its folders have pages")).stdin(Stdio::null()).stderr(Stdio::null());
        let process = rclone.spawn().unwrap();
        let rclone = Rclone { folder, process };
        eventually("rclone has mounted", || rclone.is_mounted());
        rclone
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.lines().any(|line| line.split(' ').nth(4).map(PathBuf::from).as_deref() == Some(self.folder.path()))
    }
}

impl Drop for Rclone {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
