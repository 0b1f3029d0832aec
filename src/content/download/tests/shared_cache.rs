//! One cache for several machines, here a folder: what one downloaded and verified the others get from it, or else from the Source.

use super::*;
use crate::content::{SharedCacheConfig, SharedCacheStatus};
use std::path::{Path, PathBuf};
use url::Url;

/// Two machines at least, and what they share.
struct Institute {
    server: Server,
    folder: TempDir,
}

impl Institute {
    fn of(body: &[u8]) -> Institute {
        Institute { server: Server::of(body, Some("\"v1\"")), folder: TempDir::new().unwrap() }
    }

    /// One more machine.
    fn machine(&self) -> Mounted {
        let url = Url::from_directory_path(self.folder.path()).unwrap();
        Mounted::new(&self.server, |config| {
            config.shared_cache = Some(SharedCacheConfig { url, write: true, settings: Vec::new() });
        })
    }

    /// One that has read all of `spec`, which is uploaded.
    async fn first_machine(&self, spec: &FetchSpec, body: &[u8]) -> Mounted {
        let first = self.machine();
        assert_eq!(first.read_all(spec).await.unwrap(), body);
        until(|| status(&first).uploads == 1).await;
        first
    }

    /// The files of the shared cache.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        below(self.folder.path(), &mut files);
        files.sort();
        files
    }

    fn object(&self) -> PathBuf {
        self.files().into_iter().find(|file| file.extension().is_none()).unwrap()
    }
}

fn below(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { below(&path, files) } else { files.push(path) }
    }
}

fn status(mounted: &Mounted) -> SharedCacheStatus {
    mounted.content.shared_cache().unwrap()
}

/// Three kinds of versions: with a strong digest, with a weak one, with time and length alone.
fn kinds(server: &Server, body: &[u8]) -> [FetchSpec; 3] {
    let lastmod = Some(Timestamp { seconds: 1_600_000_000, nanos: 0 });
    let weak = FetchSpec { hashes: vec![digest(Algorithm::Md5, body)], ..measured(server, body) };
    [vouched(server, body), weak, FetchSpec { lastmod, ..measured(server, body) }]
}

/// Promise: what one machine has read another one gets without a request to the Source, verified as if it came from there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_machine_asks_the_source_for_nothing() {
    for length in [0, 5, 300_000, LARGE] {
        let body = bytes(length, 1);
        for spec in kinds(&Institute::of(&body).server, &body) {
            let institute = Institute::of(&body);
            let spec = FetchSpec { uri: institute.server.uri("/a"), ..spec };
            let first = institute.first_machine(&spec, &body).await;
            let (asked, second) = (institute.server.received().len(), institute.machine());

            assert_eq!(second.read_all(&spec).await.unwrap(), body);

            assert_eq!(institute.server.received().len(), asked, "{spec:?}");
            let (first_did, second_did) = (status(&first), status(&second));
            assert_eq!((first_did.misses, first_did.hits, first_did.bytes_written), (1, 0, length as u64));
            assert_eq!((second_did.misses, second_did.hits, second_did.failures), (0, 1, 0), "{second_did:?}");
            assert_eq!(second.content.state(spec.ino), first.content.state(spec.ino));
        }
    }
}

/// A digest names an object whose length nobody has published or asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_digest_without_a_length_is_enough() {
    let body = bytes(5_000, 9);
    let institute = Institute::of(&body);
    let spec = FetchSpec { length: None, ..vouched(&institute.server, &body) };
    institute.first_machine(&spec, &body).await;
    let (asked, second) = (institute.server.received().len(), institute.machine());

    assert_eq!(second.read_all(&spec).await.unwrap(), body);

    assert_eq!((institute.server.received().len(), status(&second).hits), (asked, 1));
}

/// Promise: a shared cache with other bytes costs time, and never a byte. Right bytes take their place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_of_the_shared_cache_are_never_read() {
    let wrongs: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes[0] ^= 1,
        |bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0xff),
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| bytes.push(0),
    ];
    for length in [5, 300_000, LARGE] {
        let body = bytes(length, 2);
        for (kind, number) in kinds(&Institute::of(&body).server, &body).into_iter().zip(0..) {
            let institute = Institute::of(&body);
            let spec = FetchSpec { uri: institute.server.uri("/a"), ..kind };
            institute.first_machine(&spec, &body).await;
            let mut stored = std::fs::read(institute.object()).unwrap();
            wrongs[(number + length) % 4](&mut stored);
            std::fs::write(institute.object(), stored).unwrap();
            let (asked, second) = (institute.server.received().len(), institute.machine());

            assert_eq!(second.read_all(&spec).await.unwrap(), body);

            assert!(institute.server.received().len() > asked);
            assert_eq!((status(&second).hits, status(&second).failures), (0, 1), "{spec:?}");
            until(|| status(&second).uploads == 1).await;
            assert_eq!(std::fs::read(institute.object()).unwrap(), body);
        }
    }
}

/// What nothing identifies, or is kept otherwise than it is published, is not shared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_cannot_be_identified_is_not_shared() {
    let body = bytes(1_000, 3);
    let institute = Institute::of(&body);
    let machine = institute.machine();

    assert_eq!(machine.read_all(&measured(&institute.server, &body)).await.unwrap(), body);

    let did = status(&machine);
    // Its strong ETag identifies it, though no machine knows that before it asks.
    assert_eq!((did.hits, did.misses), (0, 0));
}

/// Promise: a look at the end of a large file costs a range of the shared cache, checked by its CRCs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_the_end_gets_a_checked_range() {
    let body = bytes(48 << 20, 4);
    let institute = Institute::of(&body);
    let spec = vouched(&institute.server, &body);
    institute.first_machine(&spec, &body).await;
    let (asked, second) = (institute.server.received().len(), institute.machine());

    let end = body.len() - 100_000;
    assert_eq!(second.read(&spec, end as u64, 100_000).await.unwrap(), body[end..]);

    assert_eq!(institute.server.received().len(), asked);
    assert!(status(&second).bytes_read < 2 << 20, "{:?}", status(&second));
    assert_eq!(second.read_all(&spec).await.unwrap(), body, "and the rest follows");
    assert_eq!((institute.server.received().len(), status(&second).hits), (asked, 1));

    let mut stored = std::fs::read(institute.object()).unwrap();
    stored[end + 50_000] ^= 1;
    std::fs::write(institute.object(), stored).unwrap();
    let third = institute.machine();
    assert_eq!(third.read(&spec, end as u64, 100_000).await.unwrap(), body[end..]);
    assert!(institute.server.received().len() > asked && status(&third).failures > 0);
}

/// A shared cache on a web server that answers as `script` says, and a machine that uses it.
fn web(
    source: &Server,
    script: impl Fn(&server::Received) -> server::Reply + Send + Sync + 'static,
) -> (Server, Mounted) {
    let store = Server::start(script);
    let url = Url::parse(store.uri("/shared").as_str()).unwrap();
    let mounted = Mounted::new(source, |config| {
        config.shared_cache = Some(SharedCacheConfig { url, write: true, settings: Vec::new() });
    });
    (store, mounted)
}

/// Promise: a shared cache that is down, slow, forbidden, broken or silent is as none, within 2 s and once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_fails_is_left_alone() {
    use server::{Gate, Reply};
    let body = bytes(300_000, 7);
    let gate = Gate::default();
    let faults = [
        Reply::status(403),
        Reply::status(500),
        Reply::status(503).with("Retry-After", "3600"),
        Reply::status(302).with("Location", "http://169.254.169.254/"),
        Reply::full(&body).cut_at(1000),
        Reply::full(&body[..1000]),
        Reply::full(&bytes(300_000, 8)),
        Reply::full(&body).gated_at(1000, &gate),
        Reply::full(b"").gated_at(0, &gate),
    ];
    let source = Server::of(&body, None);
    for (fault, number) in faults.into_iter().zip(0..) {
        let (store, machine) = web(&source, move |_| fault.clone());
        let (spec, begun) = (vouched(&source, &body), Instant::now());

        assert_eq!(machine.read_all(&spec).await.unwrap(), body, "{number}");

        assert!(begun.elapsed() < Duration::from_secs(8), "{number}: {:?}", begun.elapsed());
        let did = status(&machine);
        assert_eq!((did.hits, did.failures), (0, 1), "{number}: {did:?}");
        assert!(did.state.starts_with("paused: "), "{number}: {did:?}");
        let asked = store.received().len();
        let next = FetchSpec { ino: Ino(3), uri: source.uri("/b"), hashes: Vec::new(), ..spec };
        let lastmod = Some(Timestamp { seconds: 1, nanos: 0 });
        machine.read_all(&FetchSpec { lastmod, ..next }).await.unwrap();
        assert_eq!(store.received().len(), asked, "{number}: it is not asked again at once");
    }
    gate.open();
}

/// Promise: a store is never in the way. One that keeps a rate, however low, is left where the Source is done sooner, and not where it is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_store_is_left_where_the_source_is_faster() {
    let body = bytes(700_000, 11);
    type Answer = fn(&server::Received, &[u8]) -> server::Reply;
    let sources: [(Answer, bool); 4] = [
        (|asked, body| server::honest(asked, body, None), true),
        (|asked, body| server::honest(asked, body, Some("\"v1\"")), true),
        (|asked, body| server::honest(asked, body, None).paced(100_000), false),
        (|_, _| server::Reply::status(404), false),
    ];
    let runs = sources.map(|(answer, is_left)| {
        let (sent, had) = (body.clone(), body.clone());
        let source = Server::start(move |asked| answer(asked, &sent));
        let body = body.clone();
        async move {
            let (_store, machine) = web(&source, move |_| server::Reply::full(&had).paced(120_000));
            let (spec, begun) = (vouched(&source, &body), Instant::now());

            assert!(machine.read_all(&spec).await.unwrap() == body);

            let (took, did) = (begun.elapsed(), status(&machine));
            assert_eq!((did.hits, did.failures), if is_left { (0, 1) } else { (1, 0) }, "{took:?} {did:?}");
            assert!(!is_left || took < Duration::from_secs(4), "{took:?}");
        }
    });
    futures_util::future::join_all(runs).await;
}
