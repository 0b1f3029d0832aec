//! Whether the Source still has the bytes: equal ones keep their inode, others are reported, and no failure is a change.

use super::*;
use crate::source::tests::server::{Received, Reply};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a server has: the first body until [`Publication::advance`], then the second.
#[derive(Clone)]
struct Publication {
    bodies: [Vec<u8>; 2],
    current: Arc<AtomicUsize>,
}

impl Publication {
    fn new(first: &[u8], second: &[u8]) -> Publication {
        Publication { bodies: [first.to_vec(), second.to_vec()], current: Arc::default() }
    }

    fn advance(&self) {
        self.current.store(1, Ordering::SeqCst);
    }

    /// A server that gives each of the two its ETag and answers 304 where it is asked to.
    fn with_etags(&self, etags: [&'static str; 2]) -> Server {
        let publication = self.clone();
        Server::start(move |request| {
            let current = publication.current.load(Ordering::SeqCst);
            match request.field("if-none-match") == Some(etags[current]) {
                true => Reply::status(304),
                false => Reply::full(&publication.bodies[current]).with("ETag", etags[current]),
            }
        })
    }

    /// A server without any validator.
    fn bare(&self) -> Server {
        let publication = self.clone();
        Server::start(move |_| Reply::full(&publication.bodies[publication.current.load(Ordering::SeqCst)]))
    }
}

fn validated_at(mounted: &Mounted, ino: Ino) -> Option<Timestamp> {
    mounted.content.local.metadata.get(ino).unwrap().validated_at
}

/// Reads the whole, makes it look validated long ago, and drops the events so far.
async fn read_long_ago(mounted: &mut Mounted, spec: &FetchSpec) -> Vec<u8> {
    let bytes = mounted.read_all(spec).await.unwrap();
    let long_ago = Timestamp { seconds: 0, nanos: 0 };
    mounted.content.local.metadata.update(spec.ino, |observation| observation.validated_at = Some(long_ago));
    mounted.events();
    bytes
}

fn conditional(server: &Server) -> Received {
    server.received().pop().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_304_keeps_the_inode_and_its_bytes_for_another_interval() {
    let server = Publication::new(b"one", b"two").with_etags(["\"v1\"", "\"v2\""]);
    let mut mounted = Mounted::plain(&server);
    let spec = bare(&server, "/a");
    read_long_ago(&mut mounted, &spec).await;
    assert_eq!(mounted.content.current_for(spec.ino, None), Some(Duration::ZERO));

    mounted.content.ask_whether_current(&spec).await;

    assert_eq!(conditional(&server).field("if-none-match"), Some("\"v1\""));
    assert_eq!(mounted.events(), []);
    assert!(mounted.content.current_for(spec.ino, None).unwrap() > Duration::from_secs(3000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_bytes_are_reported_with_and_without_validators() {
    for etags in [Some(["\"v1\"", "\"v2\""]), None] {
        for second in [&b"two"[..], b"longer"] {
            let publication = Publication::new(b"one", second);
            let server = etags.map_or_else(|| publication.bare(), |etags| publication.with_etags(etags));
            let mut mounted = Mounted::plain(&server);
            let spec = bare(&server, "/a");
            read_long_ago(&mut mounted, &spec).await;
            publication.advance();

            mounted.content.ask_whether_current(&spec).await;

            assert_eq!(mounted.events(), [Event::Changed(spec.ino)], "{etags:?} {second:?}");
            assert_eq!(mounted.read_all(&spec).await.unwrap(), b"one", "an open file keeps its bytes");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_bytes_keep_the_inode_under_another_etag_and_under_none() {
    let publication = Publication::new(b"same", b"same");
    for server in [publication.bare(), publication.with_etags(["\"v1\"", "\"v2\""])] {
        publication.current.store(0, Ordering::SeqCst);
        let mut mounted = Mounted::plain(&server);
        let spec = bare(&server, "/a");
        read_long_ago(&mut mounted, &spec).await;
        publication.advance();

        mounted.content.ask_whether_current(&spec).await;

        assert_eq!(mounted.events(), []);
        assert!(validated_at(&mounted, spec.ino).unwrap().seconds > 0);
        mounted.content.ask_whether_current(&spec).await;
        let asked = conditional(&server).field("if-none-match").map(str::to_owned);
        assert!(asked.is_none_or(|etag| etag == "\"v2\""), "the validator of the equal bytes is asked with");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_failure_is_a_change() {
    let failures: [fn() -> Reply; 4] = [
        || Reply::status(404),
        || Reply::status(403),
        || Reply::full(b"<html>log in").with("Content-Type", "text/html"),
        || Reply::full(b"two").announcing(Some(3)).cut_at(1),
    ];
    for failure in failures {
        let server = Server::start(move |request| match request.number {
            0 => Reply::full(b"one"),
            _ => failure(),
        });
        let mut mounted = Mounted::plain(&server);
        let spec = FetchSpec { media_type: Some("text/plain".into()), ..bare(&server, "/a") };
        read_long_ago(&mut mounted, &spec).await;

        mounted.content.ask_whether_current(&spec).await;

        assert_eq!(mounted.events(), []);
        assert_eq!(validated_at(&mounted, spec.ino).unwrap().seconds, 0, "it is asked again");
        assert_eq!(mounted.read_all(&spec).await.unwrap(), b"one");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_looks_are_one_revalidation() {
    let publication = Publication::new(b"one", b"two");
    let server = publication.bare();
    let mut mounted = Mounted::plain(&server);
    let spec = bare(&server, "/a");
    read_long_ago(&mut mounted, &spec).await;
    publication.advance();

    for _ in 0..20 {
        mounted.content.revalidate(spec.clone(), None);
    }

    let event = tokio::time::timeout(HANG, mounted.events.recv()).await.unwrap();
    assert_eq!(event, Some(Event::Changed(spec.ino)));
    assert_eq!(server.count("GET"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_is_never_and_the_first_interval_is_whole() {
    let server = Server::of(b"one", None);
    let mounted = Mounted::plain(&server);
    let never = Some(crate::document::ChangeFrequency::Never);

    assert_eq!(mounted.content.current_for(Ino(2), never), None);
    assert_eq!(mounted.content.current_for(Ino(2), None), Some(Duration::from_secs(3600)));
}
