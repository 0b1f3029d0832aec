//! Sizes that are not published.

use super::*;
use crate::source::tests::server::{Act, Gate, Reply, Server, honest};
use futures_util::FutureExt;
use std::future::Ready;

const ETAG: &str = "\"v1\"";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_length_is_the_size_without_a_request() {
    let body = bytes(1_000, 40);
    let server = Server::of(&body, None);
    let mounted = Mounted::plain(&server);

    assert_eq!(mounted.size(&measured(&server, &body)).await.unwrap(), 1_000);
    assert_eq!(server.received().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_is_believed_whatever_its_validator() {
    let body = bytes(1_000, 41);
    let vouched = vec![digest(Algorithm::Md5, &body)];
    for (etag, hashes) in
        [(Some(ETAG), Vec::new()), (Some("W/\"v1\""), Vec::new()), (None, Vec::new()), (None, vouched)]
    {
        let server = Server::of(&body, etag);
        let mut mounted = Mounted::plain(&server);
        let spec = FetchSpec { hashes, ..bare(&server, "/a") };

        let (one, two) = tokio::join!(mounted.size(&spec), mounted.size(&spec));

        assert_eq!((one.unwrap(), two.unwrap()), (1_000, 1_000));
        assert_eq!((server.count("HEAD"), server.received().len()), (1, 1));
        assert_eq!(mounted.events(), [Event::Sized(spec.ino, 1_000)]);
        assert_eq!(mounted.content.known_size(spec.ino), Some(1_000));
        assert_eq!(mounted.read_all(&spec).await.unwrap(), body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_size_in_head_the_first_byte_is_requested() {
    let body = bytes(1_000, 42);
    let heads: [fn() -> Reply; 3] = [
        || Reply::status(405),
        || Reply::status(200).with("ETag", ETAG),
        || Reply::status(200).with("ETag", ETAG).announcing(None),
    ];
    for head in heads {
        let whole = body.clone();
        let server = Server::start(move |request| match request.method.as_str() {
            "HEAD" => head(),
            _ => honest(request, &whole, Some(ETAG)),
        });
        let mounted = Mounted::plain(&server);

        assert_eq!(mounted.size(&bare(&server, "/a")).await.unwrap(), 1_000);
        assert_eq!(server.received()[1].field("range"), Some("bytes=0-0"));
        assert_eq!(server.received().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_size_in_any_head_the_whole_is_fetched() {
    let body = bytes(300_000, 43);
    for etag in [None, Some("W/\"v1\""), Some(ETAG)] {
        let whole = body.clone();
        let server = Server::start(move |_| {
            let reply = Reply::full(&whole).announcing(None);
            if let Some(etag) = etag { reply.with("ETag", etag) } else { reply }
        });
        let mounted = Mounted::plain(&server);
        let spec = bare(&server, "/a");

        assert_eq!(mounted.size(&spec).await.unwrap(), 300_000);
        assert_eq!(mounted.content.read_local(spec.ino, 299_000, 4096).unwrap(), body[299_000..]);
        assert_eq!(mounted.content.state(spec.ino).1, Verified::Transfer);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_one_contradiction_the_whole_body_is_the_version() {
    let body = bytes(1_000, 54);
    let whole = body.clone();
    let server = Server::start(move |request| match request.method.as_str() {
        "HEAD" => Reply::full(&whole[..999]).with("ETag", ETAG),
        _ => Reply::full(&whole).with("ETag", ETAG),
    });
    let mut mounted = Mounted::plain(&server);
    let first = bare(&server, "/a");
    let next = FetchSpec { ino: Ino(3), ..first.clone() };

    assert_eq!(mounted.size(&first).await.unwrap(), 999);
    assert!(mounted.read_all(&first).await.is_err());
    assert_eq!(mounted.events().last(), Some(&Event::Changed(first.ino)));

    assert_eq!(mounted.size(&next).await.unwrap(), 1_000);
    assert_eq!(mounted.read_all(&next).await.unwrap(), body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_body_after_a_nonzero_head_is_no_empty_file() {
    let server = Server::start(move |request| match request.method.as_str() {
        "HEAD" => Reply::full(&[1; 999]),
        _ => Reply::full(b""),
    });
    let mounted = Mounted::plain(&server);
    let first = bare(&server, "/a");
    let next = FetchSpec { ino: Ino(3), ..first.clone() };

    assert_eq!(mounted.size(&first).await.unwrap(), 999);
    assert!(mounted.read_all(&first).await.is_err());

    assert!(matches!(mounted.size(&next).await, Err(ContentError::Mismatch { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_digest_that_is_not_of_nothing_is_never_an_empty_file() {
    let body = bytes(1_000, 55);
    let server = Server::start(move |_| Reply::full(b"").with("ETag", ETAG));
    let mounted = Mounted::plain(&server);
    let spec = FetchSpec { hashes: vec![digest(Algorithm::Sha256, &body)], ..bare(&server, "/a") };
    let empty = FetchSpec { ino: Ino(3), hashes: vec![digest(Algorithm::Sha256, b"")], ..spec.clone() };

    assert!(matches!(mounted.size(&spec).await, Err(ContentError::Mismatch { .. })));
    assert_eq!(mounted.size(&empty).await.unwrap(), 0);
    assert!(!mounted.content.is_doubtful(empty.ino));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_body_has_size_0() {
    let server = Server::of(b"", Some(ETAG));
    let mounted = Mounted::plain(&server);
    let spec = bare(&server, "/a");

    assert_eq!(mounted.size(&spec).await.unwrap(), 0);
    assert_eq!(mounted.read_all(&spec).await.unwrap(), b"");
    assert!(mounted.content.is_doubtful(spec.ino));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_the_answer_and_is_remembered_until_a_refresh() {
    for status in [404, 410, 401, 403] {
        let server = Server::start(move |_| Reply::status(status));
        let mounted = Mounted::plain(&server);
        let spec = bare(&server, "/a");

        assert_eq!(status_of(mounted.size(&spec).await), Some(status));
        let asked = server.received().len();
        assert_eq!(status_of(mounted.size(&spec).await), Some(status));
        assert_eq!(server.received().len(), asked);
        mounted.content.forget_failures();
        assert_eq!(status_of(mounted.size(&spec).await), Some(status));
        assert!(server.received().len() > asked);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mirror_has_the_size_where_loc_fails() {
    let body = bytes(1_000, 44);
    let whole = body.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/mirror" => honest(request, &whole, Some(ETAG)),
        _ => Reply::status(404),
    });
    let mounted = Mounted::plain(&server);
    let spec = FetchSpec { mirrors: vec![server.uri("/mirror")], ..bare(&server, "/a") };

    assert_eq!(mounted.size(&spec).await.unwrap(), 1_000);
    assert_eq!(mounted.read_all(&spec).await.unwrap(), body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_for_a_size_outlives_its_deadline() {
    let body = bytes(300_000, 45);
    let (gate, whole) = (Gate::default(), body.clone());
    let held = gate.clone();
    let server = Server::start(move |request| honest(request, &whole, None).announcing(None).gated_at(100_000, &held));
    let mut mounted = Mounted::new(&server, |config| config.size_deadline = Duration::from_millis(300));
    let spec = bare(&server, "/a");

    assert!(matches!(mounted.size(&spec).await, Err(ContentError::Stalled { .. })));
    gate.open();
    let event = tokio::time::timeout(HANG, mounted.events.recv()).await.unwrap();

    assert_eq!(event, Some(Event::Sized(spec.ino, 300_000)));
    assert_eq!(mounted.size(&spec).await.unwrap(), 300_000);
    assert_eq!(server.count("GET"), 2, "the first byte, then the body");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_another_length_than_shown_is_another_version() {
    let body = bytes(1_000, 46);
    let newer = bytes(1_001, 46);
    for announced in [Some(1_001), None] {
        let (whole, other) = (body.clone(), newer.clone());
        let server = Server::start(move |request| match request.method.as_str() {
            "HEAD" => honest(request, &whole, Some(ETAG)),
            _ => Reply::full(&other).announcing(announced),
        });
        let mut mounted = Mounted::plain(&server);
        let spec = bare(&server, "/a");

        assert_eq!(mounted.size(&spec).await.unwrap(), 1_000);
        assert!(matches!(mounted.read_all(&spec).await, Err(ContentError::Changed { .. })));
        assert_eq!(mounted.events().last(), Some(&Event::Changed(spec.ino)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_head_costs_the_inode_but_not_the_verified_object() {
    let body = bytes(1_000, 47);
    let whole = body.clone();
    let server = Server::start(move |request| match request.method.as_str() {
        "HEAD" => Reply::full(&whole[..999]),
        _ => Reply::full(&whole),
    });
    let mut mounted = Mounted::plain(&server);
    let first = FetchSpec { hashes: vec![digest(Algorithm::Sha256, &body)], ..bare(&server, "/a") };
    let next = FetchSpec { ino: Ino(3), ..first.clone() };

    assert_eq!(mounted.size(&first).await.unwrap(), 999);
    assert!(matches!(mounted.read_all(&first).await, Err(ContentError::Changed { .. })), "never 1000 bytes of 999");
    assert_eq!(server.count("GET"), 1, "no other body can have the published digest");
    assert_eq!(mounted.events().last(), Some(&Event::Changed(first.ino)));
    assert_eq!(mounted.size(&next).await.unwrap(), 1_000);
    assert_eq!(mounted.read_all(&next).await.unwrap(), body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_head_does_not_change_the_size_of_a_body() {
    let body = bytes(300_000, 50);
    let (gate, whole) = (Gate::default(), body.clone());
    let held = gate.clone();
    let server = Server::start(move |request| match request.is_head() {
        true => {
            let mut acts = Reply::full(&whole[..100]).with("ETag", ETAG).acts(true);
            acts.insert(0, Act::Pass(held.clone()));
            acts
        }
        false => honest(request, &whole, Some(ETAG)).acts(false),
    });
    let mounted = Mounted::plain(&server);
    let spec = bare(&server, "/a");
    let sizing = mounted.size(&spec);
    tokio::pin!(sizing);
    assert!((&mut sizing).now_or_never().is_none());
    mounted.content.prefetch(&spec, crate::content::store::Moment::now()).await.unwrap();

    gate.open();

    assert_eq!(sizing.await.unwrap(), 300_000);
    assert_eq!(mounted.content.known_size(spec.ino), Some(300_000));
    assert_eq!(mounted.read_all(&spec).await.unwrap(), body);
}

/// Whether a reader waits for the download of `spec`.
fn is_demanded(mounted: &Mounted, spec: &FetchSpec) -> Option<bool> {
    let download = mounted.content.table.get(spec.ino);
    download.map(|download| download.demanded().is_some())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_size_asked_ahead_leaves_a_prefetch_a_prefetch() {
    let body = bytes(300_000, 48);
    let (gate, whole) = (Gate::default(), body.clone());
    let held = gate.clone();
    let server = Server::start(move |request| honest(request, &whole, None).announcing(None).gated_at(100_000, &held));
    let mounted = Mounted::plain(&server);
    let spec = bare(&server, "/a");
    let fetching = mounted.content.fetch_ahead(&spec, Requester::default(), WHOLE_LIMIT);
    tokio::pin!(fetching);
    assert!((&mut fetching).now_or_never().is_none());

    let sizing = mounted.content.size_ahead(&spec, Requester::default());
    tokio::pin!(sizing);
    assert!((&mut sizing).now_or_never().is_none());

    assert_eq!(is_demanded(&mounted, &spec), Some(false));
    gate.open();
    tokio::time::timeout(HANG, sizing).await.unwrap().unwrap();
    assert_eq!(mounted.content.known_size(spec.ino), Some(300_000));
    assert_eq!(fetching.await.unwrap(), Some(300_000));
    assert_eq!(server.received().len(), 1, "neither HEAD nor another body");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_for_a_size_ahead_is_a_prefetch_until_a_reader_waits() {
    let body = bytes(300_000, 49);
    let (gate, whole) = (Gate::default(), body.clone());
    let held = gate.clone();
    let server = Server::start(move |request| honest(request, &whole, None).announcing(None).gated_at(100_000, &held));
    let mounted = Mounted::plain(&server);
    let spec = bare(&server, "/a");
    let (content, ahead) = (Arc::clone(&mounted.content), spec.clone());
    let sizing = tokio::spawn(async move { content.size_ahead(&ahead, Requester::default()).await });
    tokio::time::timeout(HANG, async {
        while is_demanded(&mounted, &spec).is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(is_demanded(&mounted, &spec), Some(false), "no reader waits yet");

    let size = mounted.size(&spec);
    tokio::pin!(size);
    tokio::time::timeout(HANG, async {
        while is_demanded(&mounted, &spec) != Some(true) {
            assert!((&mut size).now_or_never().is_none());
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    gate.open();

    assert_eq!(size.await.unwrap(), 300_000);
    sizing.await.unwrap().unwrap();
    assert_eq!((server.count("HEAD"), server.count("GET")), (1, 2), "the first byte, then the body");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_body_for_a_size_ahead_is_given_up() {
    let body = bytes(300_000, 50);
    let (gate, whole) = (Gate::default(), body.clone());
    let held = gate.clone();
    let server = Server::start(move |request| honest(request, &whole, None).announcing(None).gated_at(100_000, &held));
    let mounted = Mounted::new(&server, |config| {
        config.size_deadline = Duration::from_millis(300);
        config.stall = 2 * HANG;
    });
    let spec = bare(&server, "/a");

    let sized = tokio::time::timeout(HANG, mounted.content.size_ahead(&spec, Requester::default())).await.unwrap();

    assert!(matches!(sized, Err(ContentError::Stalled { .. })));
    assert_eq!(is_demanded(&mounted, &spec), None, "it is left");
    gate.open();
    let first =
        tokio::time::timeout(HANG, mounted.content.read(&spec, Requester::default(), 299_000, 4096)).await.unwrap();
    assert_eq!(first.unwrap(), body[299_000..], "no reader loses by it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_raises_the_question_that_was_asked_ahead() {
    let body = bytes(1_000, 51);
    let (gate, whole) = (Gate::default(), body.clone());
    let held = gate.clone();
    let server = Server::start(move |request| {
        held.pass();
        honest(request, &whole, Some(ETAG))
    });
    let mounted = Mounted::plain(&server);
    let spec = bare(&server, "/a");
    let asking_ahead = mounted.content.size_ahead(&spec, Requester::default());
    tokio::pin!(asking_ahead);
    assert!((&mut asking_ahead).now_or_never().is_none());
    let joined = mounted
        .content
        .size_questions
        .join(&mounted.content.runtime, spec.ino, || -> (_, Ready<_>) { unreachable!("one is in flight") });
    let raised = joined.0.0.subscribe();
    assert_eq!(*raised.borrow(), None);

    let size = mounted.content.size(&spec, Requester(7), false);
    tokio::pin!(size);
    assert!((&mut size).now_or_never().is_none());

    assert_eq!(*raised.borrow(), Some(Requester(7)));
    gate.open();
    let (sized, size) = tokio::join!(asking_ahead, size);
    assert_eq!((sized.is_ok(), size.unwrap()), (true, 1_000));
    assert_eq!(server.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_size_refused_ahead_is_asked_again_after_a_refresh() {
    let body = bytes(1_000, 53);
    let is_refused = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let refused = Arc::clone(&is_refused);
    let server = Server::start(move |request| match refused.load(std::sync::atomic::Ordering::Relaxed) {
        true => Reply::status(403),
        false => honest(request, &body, Some(ETAG)),
    });
    let mounted = Mounted::plain(&server);
    let spec = bare(&server, "/a");
    assert!(mounted.content.size_ahead(&spec, Requester::default()).await.is_err());
    assert!(mounted.content.size_ahead(&spec, Requester::default()).await.is_err());
    assert!(mounted.size(&spec).await.is_err());
    assert_eq!((server.count("HEAD"), server.count("GET")), (1, 1), "asked by each method");

    is_refused.store(false, std::sync::atomic::Ordering::Relaxed);
    mounted.content.failures().forget();

    assert_eq!(mounted.size(&spec).await.unwrap(), 1_000);
}
