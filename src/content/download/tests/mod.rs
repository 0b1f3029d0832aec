//! Whole downloads from honest servers and from servers that lie: right bytes or a clear error, never a wait
//! without end.

mod checks;
mod followed;
mod jumps;
mod lies;
mod members;
mod mementos;
mod model;
mod nodes;
mod past;
mod patches;
mod priority;
mod random;
mod ranges;
mod revalidation;
mod shared_cache;
mod shares;
mod sizes;
mod streams;
mod unread;

use super::super::{ContentConfig, Fixity, Mirrors, Unannounced, Verified};
use super::*;
use crate::content::fixity::{BLOCK, Verifier, WHOLE_LIMIT};
use crate::document::Uri;
use crate::document::{Algorithm, Digest, Timestamp};
use crate::source::http::{Client, HttpConfig, Requester};
use crate::source::tests::server::{self, Server};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Long enough for a busy machine; no test waits for it to pass.
const PLENTY: Duration = Duration::from_secs(60);

/// Nothing may hang longer.
const HANG: Duration = Duration::from_secs(120);

/// Bytes of an object that is streamed.
const LARGE: usize = WHOLE_LIMIT as usize + 3 * BLOCK as usize + 12_345;

impl Content {
    /// While this is held, a thread that takes a lock of downloads, or learns something, waits. What is known of `known` was committed.
    pub(crate) fn locked(&self, known: &[Ino]) -> impl Sized {
        let in_flight = self.table.lock();
        let others = (self.failures.lock().unwrap(), self.local.served.lock(), self.local.pins.lock());
        (in_flight, others, self.local.metadata.locked(known))
    }
}

/// A mount's content and its events.
struct Mounted {
    content: Arc<Content>,
    events: UnboundedReceiver<Event>,
    config: ContentConfig,
    folder: TempDir,
}

impl Mounted {
    fn new(server: &Server, change: impl FnOnce(&mut ContentConfig)) -> Mounted {
        let folder = TempDir::new().unwrap();
        let mut config = config(&folder, &server.uri("/"));
        change(&mut config);
        Mounted::open(server, config, folder)
    }

    fn open(server: &Server, config: ContentConfig, folder: TempDir) -> Mounted {
        Mounted::asking(server, config, folder, HttpConfig::default().connections)
    }

    fn asking(server: &Server, config: ContentConfig, folder: TempDir, connections: usize) -> Mounted {
        let own = Some(server.authority().into());
        Mounted::over(HttpConfig { own_authority: own, connections, ..HttpConfig::default() }, config, folder)
    }

    fn over(http: HttpConfig, config: ContentConfig, folder: TempDir) -> Mounted {
        std::fs::create_dir_all(&config.metadata_folder).unwrap();
        let (sender, events) = unbounded_channel();
        let client = Client::new(http).unwrap();
        let content = Content::open(config.clone(), client, Handle::current(), sender).unwrap();
        Mounted { content, events, config, folder }
    }

    /// The same mount after a restart.
    async fn restarted(self, server: &Server) -> Mounted {
        self.content.close().await;
        drop(self.content);
        Mounted::open(server, self.config, self.folder)
    }

    fn plain(server: &Server) -> Mounted {
        Mounted::new(server, |_| {})
    }

    async fn read(&self, spec: &FetchSpec, offset: u64, length: u32) -> Result<Bytes, ContentError> {
        tokio::time::timeout(HANG, self.content.read(spec, Requester::default(), offset, length))
            .await
            .expect("a read hangs")
    }

    async fn size(&self, spec: &FetchSpec) -> Result<u64, ContentError> {
        tokio::time::timeout(HANG, self.content.size(spec, Requester::default(), false)).await.expect("a size hangs")
    }

    /// See [`read_all`].
    async fn read_all(&self, spec: &FetchSpec) -> Result<Vec<u8>, ContentError> {
        read_all(&self.content, spec).await
    }

    /// Waits until the download of `spec` ends for want of readers: soon, as many others are under way.
    async fn gives_way(&self, spec: &FetchSpec) {
        for ino in 1000..1100 {
            let other = self.content.new_download();
            self.content.table.lock().insert(Ino(ino), Arc::new(other));
        }
        until(|| self.content.table.get(spec.ino).is_none()).await;
        self.content.table.lock().clear();
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }
}

/// What most mounts have, in `folder`.
fn config(folder: &TempDir, source: &Uri) -> ContentConfig {
    ContentConfig {
        folder: folder.path().join("cache"),
        metadata_folder: folder.path().join("metadata"),
        source: source.to_string(),
        stall: PLENTY,
        size_deadline: PLENTY,
        ..ContentConfig::default()
    }
}

/// Reads as `cat` does, to the end.
async fn read_all(content: &Arc<Content>, spec: &FetchSpec) -> Result<Vec<u8>, ContentError> {
    let mut bytes = Vec::new();
    loop {
        let read = content.read(spec, Requester::default(), bytes.len() as u64, 1 << 20);
        let piece = tokio::time::timeout(HANG, read).await.expect("a read hangs")?;
        bytes.extend_from_slice(&piece);
        if piece.len() < 1 << 20 {
            return Ok(bytes);
        }
    }
}

/// Waits until it is so.
async fn until(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, waiting).await.expect("it never comes to that");
}

/// Bytes without pattern, the same for the same arguments.
fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn digest(algorithm: Algorithm, bytes: &[u8]) -> Digest {
    let mut verifier = Verifier::new(algorithm);
    verifier.update(bytes);
    verifier.finish().digest
}

/// A resource of which nothing but the URI is published.
fn bare(server: &Server, path: &str) -> FetchSpec {
    FetchSpec::new(Ino(2), server.uri(path))
}

/// A resource of published length.
fn measured(server: &Server, body: &[u8]) -> FetchSpec {
    FetchSpec { length: Some(body.len() as u64), ..bare(server, "/a") }
}

/// A resource of published length and digest.
fn vouched(server: &Server, body: &[u8]) -> FetchSpec {
    FetchSpec { hashes: vec![digest(Algorithm::Sha256, body)], ..measured(server, body) }
}

fn is_mismatch(result: &Result<Vec<u8>, ContentError>) -> bool {
    matches!(result, Err(ContentError::Mismatch { .. }))
}

/// The status that the Source answered, where that was the failure.
fn status_of<T>(result: Result<T, ContentError>) -> Option<u16> {
    match result {
        Err(ContentError::Fetch { cause, .. }) => cause.status(),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_is_fetched_once_verified_and_kept() {
    let body = bytes(300_000, 1);
    let server = Server::of(&body, Some("\"v1\""));
    let mut mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    assert_eq!(mounted.content.state(spec.ino), (crate::content::State::Remote, Verified::NotYet));
    assert_eq!(mounted.content.read_local(spec.ino, 0, 10), None);

    let (first, middle, end) = tokio::join!(
        mounted.read(&spec, 0, 1000),
        mounted.read(&spec, 150_000, 70_000),
        mounted.read(&spec, 299_990, 4096),
    );

    assert_eq!(first.unwrap(), body[..1000]);
    assert_eq!(middle.unwrap(), body[150_000..220_000]);
    assert_eq!(end.unwrap(), body[299_990..]);
    assert_eq!(mounted.read(&spec, 300_000, 10).await.unwrap(), b""[..]);
    assert_eq!(server.received().len(), 1, "many readers, one request");
    assert_eq!(mounted.content.read_local(spec.ino, 10, 20).unwrap(), body[10..30]);
    assert_eq!(mounted.content.known_size(spec.ino), Some(300_000));
    let state = (crate::content::State::Cached, Verified::Digest(Algorithm::Sha256));
    assert_eq!(mounted.content.state(spec.ino), state);
    assert_eq!(mounted.events(), [Event::Sized(spec.ino, 300_000)]);
    mounted.content.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_bytes_of_another_inode_are_found_under_their_digest() {
    let body = bytes(5_000, 2);
    let server = Server::of(&body, None);
    let mounted = Mounted::plain(&server);
    let first = vouched(&server, &body);
    let second = FetchSpec { ino: Ino(3), uri: server.uri("/elsewhere"), ..first.clone() };
    let too_long = FetchSpec { ino: Ino(4), length: Some(5_001), ..second.clone() };
    mounted.read_all(&first).await.unwrap();

    assert_eq!(mounted.read_all(&second).await.unwrap(), body);
    assert_eq!(server.received().len(), 1);
    assert!(is_mismatch(&mounted.read_all(&too_long).await), "the length counts as the digest does");
}

/// Damages the first byte of every file below `folder`.
fn flip_bits(folder: &std::path::Path) {
    use std::os::unix::fs::FileExt;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            flip_bits(&path);
            continue;
        }
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 0).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 0).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_room_on_disk_small_objects_are_held_in_memory() {
    let small = bytes(400_000, 4);
    let server = Server::of(&small, None);
    let mounted = Mounted::new(&server, |config| config.quota = Some(1));
    let spec = vouched(&server, &small);

    assert_eq!(mounted.read_all(&spec).await.unwrap(), small);
    let requests = server.received().len();
    assert_eq!(mounted.read_all(&spec).await.unwrap(), small);
    assert_eq!(server.received().len(), requests, "bytes in memory are not requested again");
    assert_eq!(mounted.content.read_local(spec.ino, 0, 7).unwrap(), small[..7]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_read_is_not_asked_again_at_once_but_after_a_refresh() {
    let server = Server::start(|_| server::Reply::status(404));
    let mounted = Mounted::plain(&server);
    let spec = bare(&server, "/a");

    for _ in 0..3 {
        assert_eq!(status_of(mounted.read(&spec, 4096, 4096).await), Some(404));
    }
    assert_eq!(server.received().len(), 1, "the kernel repeats every failed READ");
    mounted.content.forget_failures();
    assert_eq!(status_of(mounted.read(&spec, 4096, 4096).await), Some(404));
    assert_eq!(server.received().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_pinned_before_it_came_is_pinned_when_it_comes() {
    let body = bytes(5_000, 5);
    let server = Server::of(&body, None);
    let mounted = Mounted::plain(&server);
    let (one, other) = (vouched(&server, &body), FetchSpec { ino: Ino(3), ..vouched(&server, &body) });
    mounted.content.pin(one.ino);
    mounted.content.pin(other.ino);
    mounted.read_all(&one).await.unwrap();
    mounted.read_all(&other).await.unwrap();
    let pins = || walk(&mounted.config.folder.join("pins"));

    assert_eq!(pins(), 1, "they share one object");
    mounted.content.unpin(one.ino);
    assert_eq!(pins(), 1, "the other inode still needs it");
    mounted.content.unpin(other.ino);
    assert_eq!(pins(), 0);
}

/// Number of files below `folder` in which there is anything.
fn walk(folder: &std::path::Path) -> usize {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => walk(&entry.path()),
            false => usize::from(entry.metadata().unwrap().len() > 0),
        })
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_fetched_and_learnt_survives_a_restart() {
    let body = bytes(300_000, 6);
    let server = Server::of(&body, None);
    let mounted = Mounted::plain(&server);
    let spec = bare(&server, "/a");
    mounted.read_all(&spec).await.unwrap();

    let mounted = mounted.restarted(&server).await;

    assert_eq!(mounted.content.known_size(spec.ino), Some(300_000));
    assert_eq!(mounted.content.read_local(spec.ino, 5, 5).unwrap(), body[5..10]);
    assert_eq!(server.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_gives_up_does_not_end_the_fetch() {
    let body = bytes(300_000, 7);
    let (gate, whole) = (server::Gate::default(), body.clone());
    let held = gate.clone();
    let server = Server::start(move |request| server::honest(request, &whole, None).gated_at(1_000, &held));
    let mut mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    let reader = mounted.read(&spec, 0, 10);
    assert!(tokio::time::timeout(Duration::from_millis(100), reader).await.is_err());
    gate.open();

    let event = tokio::time::timeout(HANG, mounted.events.recv()).await.unwrap();

    assert_eq!(event, Some(Event::Sized(spec.ino, 300_000)));
    assert_eq!(mounted.content.read_local(spec.ino, 0, 10).unwrap(), body[..10]);
    assert_eq!(server.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_mounts_of_one_cache_folder_share_what_a_digest_names() {
    let body = bytes(300_000, 8);
    let server = Server::of(&body, None);
    let one = Mounted::plain(&server);
    let shared = one.config.folder.clone();
    let other = Mounted::new(&server, |config| config.folder = shared);
    let spec = vouched(&server, &body);
    one.read_all(&spec).await.unwrap();

    assert_eq!(other.read_all(&spec).await.unwrap(), body);
    assert_eq!(server.received().len(), 1);
}

/// A slow disk or database under one read keeps no other file's read from the table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_in_flight_table_is_free_during_a_lookup() {
    let body = bytes(5_000, 10);
    let server = Server::of(&body, None);
    let mounted = Mounted::plain(&server);
    let first = vouched(&server, &body);
    mounted.read_all(&first).await.unwrap();
    let (second, content) = (FetchSpec { ino: Ino(3), ..first }, Arc::clone(&mounted.content));
    let slow = mounted.content.local.metadata.locked(&[]);
    let reading = tokio::spawn(async move { content.read(&second, Requester::default(), 0, 5_000).await });

    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!reading.is_finished(), "it waits to note that the object is its own");
    let other = Arc::clone(&mounted.content);
    let looked = tokio::task::spawn_blocking(move || other.table.len());
    tokio::time::timeout(HANG, looked).await.expect("the table is locked").unwrap();
    drop(slow);
    assert_eq!(reading.await.unwrap().unwrap(), body);
}

/// A download that gave way (a prefetch without room, say) is no damage of the disk: its readers begin another, however often.
#[tokio::test]
async fn a_read_outlives_downloads_that_give_way() {
    use futures_util::FutureExt;
    let body = bytes(5_000, 9);
    let server = Server::of(&body, None);
    let mounted = Mounted::plain(&server);
    let (spec, content) = (vouched(&server, &body), &mounted.content);
    let put = || {
        let download = Arc::new(content.new_download());
        content.table.lock().insert(spec.ino, Arc::clone(&download));
        download
    };
    let mut last = put();
    let read = mounted.read(&spec, 0, 5_000);
    tokio::pin!(read);
    for _ in 0..3 * ROUNDS {
        assert!((&mut read).now_or_never().is_none());
        let next = put();
        last.publish(|state| state.end(Err(Ended::Yielded(content.no_room()))));
        last = next;
    }
    assert!((&mut read).now_or_never().is_none());
    content.table.lock().remove(&spec.ino);
    last.publish(|state| state.end(Err(Ended::Yielded(content.no_room()))));

    assert_eq!(read.await.unwrap(), body);
}
