//! Versions by time: the listed one when the resource has changed again, those of replaced inodes, and those of a mount
//! that shows the Source as it was.

use super::*;
use crate::content::Mirrors;
use crate::source::tests::server::{Received, Reply, Server, honest};

const LISTED: &[u8] = b"the version that is listed";
const NOW: &[u8] = b"what the resource is now";
const OTHER: &[u8] = b"a version of before";

/// 2013-01-03T18:00:00Z, 2013-01-03T19:00:00Z and a day earlier.
const LASTMOD: &str = "Thu, 03 Jan 2013 18:00:00 GMT";
const LATER: &str = "Thu, 03 Jan 2013 19:00:00 GMT";
const EARLIER: &str = "Wed, 02 Jan 2013 18:00:00 GMT";

fn time(text: &str) -> Option<Timestamp> {
    Some(Timestamp::from(httpdate::parse_http_date(text).unwrap()))
}

/// A resource that has changed, its versions by time, and its TimeGate.
fn archive(request: &Received) -> Reply {
    let memento = |body: &[u8], time: &str| honest(request, body, None).with("Memento-Datetime", time);
    match request.path.as_str() {
        "/a" => honest(request, NOW, Some("\"now\"")),
        "/m/listed" => memento(LISTED, LASTMOD),
        "/m/later" => memento(LISTED, LATER),
        "/m/earlier" => memento(OTHER, EARLIER),
        "/m/timeless" => honest(request, LISTED, None),
        "/gate" => {
            let target = if request.field("accept-datetime") == Some(EARLIER) { "/m/earlier" } else { "/m/listed" };
            Reply::status(302).with("Location", target).with("Vary", "accept-datetime")
        }
        _ => Reply::status(404),
    }
}

/// The listed version, of which no digest is published.
fn listed(server: &Server) -> FetchSpec {
    FetchSpec { lastmod: time(LASTMOD), listed_at: time(LATER), ..bare(server, "/a") }
}

fn paths(server: &Server) -> Vec<String> {
    server.received().into_iter().map(|request| request.path).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_listed_version_comes_from_its_memento_after_a_change() {
    let server = Server::start(archive);
    let mut mounted = Mounted::plain(&server);
    let vouched = FetchSpec { hashes: vec![digest(Algorithm::Sha256, LISTED)], ..listed(&server) };
    for (ino, links) in [
        (3, FetchSpec { mementos: vec![server.uri("/m/timeless")], ..vouched.clone() }),
        (4, FetchSpec { timegate: Some(server.uri("/gate")), ..vouched.clone() }),
    ] {
        let spec = FetchSpec { ino: Ino(ino), ..links };
        // So that none is found under the digest of the one before.
        mounted = Mounted::plain(&server);

        assert_eq!(mounted.read_all(&spec).await.unwrap(), LISTED, "{spec:?}");
        assert_eq!(mounted.content.state(spec.ino).1, Verified::Digest(Algorithm::Sha256));
    }
    assert_eq!(mounted.events(), [Event::Sized(Ino(4), LISTED.len() as u64)], "no change is reported");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_length_that_loc_contradicts_leads_to_a_memento() {
    let server = Server::start(archive);
    let mounted = Mounted::plain(&server);
    let spec = FetchSpec {
        length: Some(LISTED.len() as u64),
        mementos: vec![server.uri("/m/earlier"), server.uri("/m/timeless"), server.uri("/m/listed")],
        ..listed(&server)
    };

    assert_eq!(mounted.read_all(&spec).await.unwrap(), LISTED);
    assert!(paths(&server).ends_with(&["/m/earlier", "/m/timeless", "/m/listed"].map(str::to_owned)));
    assert_eq!(mounted.content.state(spec.ino).1, Verified::Length);
}

/// Promise: an open file keeps its bytes or gets ESTALE, never others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_version_is_served_by_its_memento_or_not_at_all() {
    let server = Server::start(archive);
    let mut mounted = Mounted::plain(&server);
    let replaced = FetchSpec { is_replaced: true, ..listed(&server) };
    let with_memento = FetchSpec { mementos: vec![server.uri("/m/listed")], ..replaced.clone() };
    assert_eq!(mounted.read_all(&with_memento).await.unwrap(), LISTED);
    assert_eq!(paths(&server), ["/m/listed"], "what the resource is now is not even asked");

    let of_no_known_time = FetchSpec { mementos: vec![server.uri("/m/later")], ..replaced.clone() };
    let gone = FetchSpec { mementos: vec![server.uri("/none")], ..replaced.clone() };
    let vouched = FetchSpec { hashes: vec![digest(Algorithm::Sha256, b"none has these")], ..gone.clone() };
    for (ino, spec) in [(3, replaced), (4, of_no_known_time), (5, gone), (6, vouched)] {
        let spec = FetchSpec { ino: Ino(ino), ..spec };
        let read = mounted.read_all(&spec).await;
        assert!(matches!(read, Err(ContentError::Changed { .. })), "{spec:?}: {read:?}");
    }
    assert!(mounted.events().iter().all(|event| matches!(event, Event::Sized(..))), "sync has nothing to do");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_version_comes_from_loc_where_proved_the_same() {
    let server = Server::start(archive);
    let mut mounted = Mounted::plain(&server);
    let shown = bare(&server, "/a");
    assert_eq!(mounted.size(&shown).await.unwrap(), NOW.len() as u64);
    let replaced = FetchSpec { is_replaced: true, ..shown };

    assert_eq!(mounted.read_all(&replaced).await.unwrap(), NOW, "the same strong ETag");
    let vouched =
        FetchSpec { ino: Ino(3), is_replaced: true, hashes: vec![digest(Algorithm::Md5, NOW)], ..bare(&server, "/a") };
    assert_eq!(mounted.read_all(&vouched).await.unwrap(), NOW, "the published digest");
    mounted.events();
}

/// Issue: what neither has is EIO, never today's bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_of_an_earlier_time_never_shows_current_bytes() {
    let server = Server::start(archive);
    let mounted = Mounted::plain(&server);
    let then = FetchSpec { as_of: time(EARLIER), lastmod: None, ..listed(&server) };
    let read = |ino, spec: FetchSpec| {
        let spec = FetchSpec { ino: Ino(ino), ..spec };
        let mounted = &mounted;
        async move { mounted.read_all(&spec).await }
    };

    assert_eq!(read(3, FetchSpec { timegate: Some(server.uri("/gate")), ..then.clone() }).await.unwrap(), OTHER);
    assert_eq!(read(5, FetchSpec { mementos: vec![server.uri("/m/earlier")], ..then.clone() }).await.unwrap(), OTHER);
    assert_eq!(paths(&server).iter().filter(|path| *path == "/a").count(), 0);

    let later = FetchSpec { mementos: vec![server.uri("/m/listed")], ..then.clone() };
    let unproved = FetchSpec { mirrors: vec![server.uri("/m/earlier")], ..then.clone() };
    for (ino, spec) in [(6, then.clone()), (7, later), (8, unproved)] {
        assert!(matches!(read(ino, spec).await, Err(ContentError::Unarchived { .. })));
    }
    let changed =
        FetchSpec { hashes: vec![digest(Algorithm::Sha256, OTHER)], uri: server.uri("/changed"), ..then.clone() };
    assert_eq!(status_of(read(9, changed.clone()).await), None);
    assert!(matches!(read(9, changed).await, Err(ContentError::Unarchived { .. })), "404 is no version of then");

    let same = FetchSpec { hashes: vec![digest(Algorithm::Sha256, NOW)], ..then };
    assert_eq!(read(10, same).await.unwrap(), NOW, "the published digest proves today's bytes to be those of then");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_size_of_an_earlier_time_is_that_of_the_version_then() {
    let server = Server::start(archive);
    let mounted = Mounted::plain(&server);
    let then =
        FetchSpec { as_of: time(EARLIER), lastmod: None, timegate: Some(server.uri("/gate")), ..listed(&server) };

    assert_eq!(mounted.size(&then).await.unwrap(), OTHER.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_current_version_is_shown_on_request() {
    let server = Server::start(|request| match request.path.as_str() {
        "/a" => honest(request, NOW, None).with("Last-Modified", LATER),
        _ => archive(request),
    });
    let mut mounted = Mounted::new(&server, |config| config.unannounced = Unannounced::Show);
    let spec = FetchSpec {
        hashes: vec![digest(Algorithm::Sha256, LISTED)],
        mementos: vec![server.uri("/m/listed")],
        listed_at: time(LASTMOD),
        ..listed(&server)
    };

    assert!(matches!(mounted.read_all(&spec).await, Err(ContentError::Unannounced { shown: true, .. })));
    assert_eq!(mounted.events(), [Event::Unannounced(spec.ino)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mirrors_that_failed_or_sent_wrong_bytes_are_asked_last() {
    let body = bytes(3_000, 41);
    let dead = Server::start(|_| Reply::status(403));
    let lying = Server::of(b"other bytes", None);
    let whole = body.clone();
    let server = Server::start(move |request| honest(request, &whole, None));
    let mounted = Mounted::new(&server, |config| {
        config.mirrors = Mirrors::First;
    });
    let client = Client::new(HttpConfig {
        own_authority: Some(server.authority().into()),
        allowed_hosts: vec![dead.authority().into(), lying.authority().into()],
        ..HttpConfig::default()
    });
    let (sender, _events) = unbounded_channel();
    let folder = mounted.folder.path().join("second");
    std::fs::create_dir_all(&folder).unwrap();
    let config = ContentConfig { metadata_folder: folder, ..mounted.config.clone() };
    let content = Content::open(config, client.unwrap(), Handle::current(), sender).unwrap();
    let resource = |ino: u64, path: &str| FetchSpec {
        ino: Ino(ino),
        mirrors: vec![dead.uri(path), lying.uri(path)],
        hashes: vec![digest(Algorithm::Sha256, &body)],
        ..bare(&server, path)
    };

    assert_eq!(content.read(&resource(3, "/first"), Requester::default(), 0, 4096).await.unwrap(), body);
    let asked = (dead.received().len(), lying.received().len());
    assert!(asked.0 > 0 && asked.1 == 2, "{asked:?}");

    // Another object with the same bytes would be found under its digest.
    let mut second = resource(4, "/second");
    second.hashes = vec![digest(Algorithm::Md5, &body)];
    assert_eq!(content.read(&second, Requester::default(), 0, 4096).await.unwrap(), body);
    assert_eq!((dead.received().len(), lying.received().len()), asked, "the Source itself comes before them now");
}
