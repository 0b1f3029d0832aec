//! Bodies, heads and statuses that are wrong, once and always.

use super::*;
use crate::source::tests::server::{Gate, Received, Reply, Server, honest};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::FutureExt;
use std::io::Write;

const ETAG: &str = "\"v1\"";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A server that lies to its first `lies` requests.
fn liar(
    lies: usize,
    body: &[u8],
    etag: Option<&'static str>,
    lie: impl Fn(&Received) -> Reply + Send + Sync + 'static,
) -> Server {
    let body = body.to_vec();
    Server::start(move |request| match request.number < lies {
        true => lie(request),
        false => honest(request, &body, etag),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_body_is_requested_again_and_fails_if_it_stays_wrong() {
    let body = bytes(300_000, 10);
    let mut one_bit = body.clone();
    one_bit[299_999] ^= 1;
    let wrong = [
        ("short", body[..299_999].to_vec()),
        ("long", [&body[..], b"x"].concat()),
        ("empty", Vec::new()),
        ("one bit", one_bit),
        ("another", bytes(300_000, 11)),
    ];
    for (name, wrong) in wrong {
        for lies in [1, usize::MAX] {
            let lie = wrong.clone();
            let server = liar(lies, &body, None, move |_| Reply::full(&lie));
            let mounted = Mounted::plain(&server);

            let result = mounted.read_all(&vouched(&server, &body)).await;

            match lies {
                1 => assert_eq!(result.unwrap(), body, "{name}"),
                _ => assert!(is_mismatch(&result), "{name}: {result:?}"),
            }
            assert_eq!(server.received()[1].field("cache-control"), Some("no-cache"), "{name}: past caches");
            assert_eq!(server.received().len(), 2, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unannounced_wrong_length_is_found_without_a_digest() {
    let body = bytes(300_000, 12);
    for wrong in [body[..200_000].to_vec(), [&body[..], b"x"].concat(), Vec::new()] {
        let server = Server::start(move |_| Reply::full(&wrong).announcing(None));
        let mounted = Mounted::plain(&server);

        assert!(is_mismatch(&mounted.read_all(&measured(&server, &body)).await));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_published_digest_or_length_is_an_error_named_so() {
    let body = bytes(1_000, 13);
    let server = Server::of(&body, None);
    let wrong_digest = vouched(&server, &bytes(1_000, 14));
    let wrong_length = FetchSpec { ino: Ino(3), length: Some(999), ..vouched(&server, &body) };
    let mounted = Mounted::plain(&server);

    let message = mounted.read_all(&wrong_digest).await.unwrap_err().to_string();
    assert!(message.contains("digest") && message.contains(&wrong_digest.hashes[0].to_string()), "{message}");
    let message = mounted.read_all(&wrong_length).await.unwrap_err().to_string();
    assert!(message.contains("1000 bytes") && message.contains("999"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_strongest_published_digest_decides() {
    let body = bytes(1_000, 15);
    let server = Server::of(&body, None);
    let right = digest(Algorithm::Sha512, &body);
    let wrong = digest(Algorithm::Md5, b"another");
    let mounted = Mounted::plain(&server);

    let spec = FetchSpec { hashes: vec![wrong, right], ..measured(&server, &body) };
    assert_eq!(mounted.read_all(&spec).await.unwrap(), body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_body_resumes_under_a_strong_etag_or_a_digest() {
    let body = bytes(700_000, 16);
    for tenth in 0..10 {
        for (etag, is_vouched) in
            [Some(ETAG), Some("W/\"v1\""), None].into_iter().flat_map(|etag| [(etag, true), (etag, false)])
        {
            let cut = body.len() * tenth / 10;
            let whole = body.clone();
            let server = liar(1, &body, etag, move |request| honest(request, &whole, etag).cut_at(cut));
            let mounted = Mounted::plain(&server);

            let spec = if is_vouched { vouched(&server, &body) } else { measured(&server, &body) };

            assert_eq!(mounted.read_all(&spec).await.unwrap(), body, "{tenth} {etag:?}");

            let second = &server.received()[1];
            let resumed = ((etag == Some(ETAG) || is_vouched) && cut > 0).then(|| format!("bytes={cut}-"));
            assert_eq!(second.field("range"), resumed.as_deref(), "{tenth} {etag:?}");
            let if_range = resumed.as_ref().and(etag).filter(|etag| *etag == ETAG);
            assert_eq!(second.field("if-range"), if_range, "{tenth} {etag:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_cut_every_time_comes_whole_under_a_strong_etag() {
    let body = bytes(700_000, 17);
    let whole = body.clone();
    let server = Server::start(move |request| honest(request, &whole, Some(ETAG)).cut_at(70_000));
    let mounted = Mounted::plain(&server);

    assert_eq!(mounted.read_all(&vouched(&server, &body)).await.unwrap(), body);
    assert_eq!(server.received().len(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_always_cut_is_an_error() {
    let body = bytes(700_000, 18);
    for etag in [Some(ETAG), None] {
        let whole = body.clone();
        // No ranges, although there is an ETag.
        let server = Server::start(move |_| match etag {
            Some(etag) => Reply::full(&whole).with("ETag", etag).cut_at(300_000),
            None => Reply::full(&whole).cut_at(300_000),
        });
        let mounted = Mounted::plain(&server);

        assert!(matches!(mounted.read_all(&vouched(&server, &body)).await, Err(ContentError::Fetch { .. })));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_other_than_the_requested_rest_never_mix() {
    let body = bytes(700_000, 19);
    let newer = bytes(700_000, 20);
    type Rest = fn(&[u8], &[u8]) -> Reply;
    let rests: [(&str, Rest); 7] = [
        ("no total", |body, _| {
            partial(&body[300_000..]).with("ETag", ETAG).with("Content-Range", "bytes 300000-699999/*")
        }),
        ("another total", |body, _| {
            partial(&body[300_000..600_000]).with("ETag", ETAG).with("Content-Range", "bytes 300000-599999/600000")
        }),
        ("200 for a range", |body, _| Reply::full(body).with("ETag", ETAG)),
        ("wrong Content-Range", |body, _| {
            partial(&body[300_000..]).with("ETag", ETAG).with("Content-Range", "bytes 0-399999/700000")
        }),
        ("no Content-Range", |body, _| partial(&body[300_000..]).with("ETag", ETAG)),
        ("another ETag", |_, newer| {
            partial(&newer[300_000..]).with("ETag", "\"v2\"").with("Content-Range", "bytes 300000-699999/700000")
        }),
        ("416", |_, _| Reply::status(416)),
    ];
    for (name, rest) in rests {
        let (whole, other) = (body.clone(), newer.clone());
        let server = Server::start(move |request| match request.number {
            0 => honest(request, &whole, Some(ETAG)).cut_at(300_000),
            1 => rest(&whole, &other),
            _ => Reply::full(&whole),
        });
        let mounted = Mounted::plain(&server);

        let result = mounted.read_all(&measured(&server, &body)).await;

        assert_eq!(server.received()[1].field("range"), Some("bytes=300000-"), "{name}");
        assert!(result.unwrap() == body, "{name}");
    }
}

fn partial(body: &[u8]) -> Reply {
    Reply::full(body).with_status(206)
}

/// What was handed out of a plain body cannot be compared with the blocks of a coded one: that proves no byte wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coded_retry_after_plain_blocks_poisons_nothing() {
    let body = bytes(LARGE, 67);
    for coded_answers in [1, usize::MAX] {
        let (gate, whole) = (Gate::default(), body.clone());
        let held = gate.clone();
        let server = Server::start(move |request| match request.number {
            0 => honest(request, &whole, None).gated_at(LARGE - 700_000, &held).cut_at(LARGE - 700_000),
            number if number <= coded_answers => Reply::full(&gzip(&whole)).with("Content-Encoding", "gzip"),
            _ => honest(request, &whole, None),
        });
        let mut mounted = Mounted::plain(&server);
        let spec = vouched(&server, &body);
        assert_eq!(mounted.read(&spec, 0, 10).await.unwrap(), body[..10]);
        gate.open();

        let end = mounted.read(&spec, LARGE as u64 - 10, 10).await;

        match coded_answers {
            1 => assert_eq!(end.unwrap(), body[LARGE - 10..]),
            _ => assert!(matches!(end, Err(ContentError::Changed { .. })), "{end:?}"),
        }
        assert!(!mounted.events().contains(&Event::Poisoned(spec.ino)));
        let next = FetchSpec { ino: Ino(3), ..spec };
        assert!(mounted.read_all(&next).await.unwrap() == body, "another inode finds the object");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_206_for_the_whole_is_refused() {
    let body = bytes(1_000, 21);
    let server = Server::start(move |_| partial(&body).with("Content-Range", "bytes 0-999/2000"));
    let mounted = Mounted::plain(&server);

    assert!(mounted.read_all(&bare(&server, "/a")).await.is_err());
}

/// What is kept is written, which is no work for the thread that others' answers wait for: while those for that are busy, nothing goes
/// out.
#[test]
fn received_bytes_wait_for_the_threads_that_write() {
    let body = bytes(300_000, 23);
    for coding in [None, Some("gzip")] {
        let answer = coding.map_or_else(|| body.clone(), |_| gzip(&body));
        let with_coding =
            |reply: Reply| if let Some(coding) = coding { reply.with("Content-Encoding", coding) } else { reply };
        let reply = with_coding(Reply::full(&answer));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        runtime.unwrap().block_on(async {
            let server = Server::start(move |_| reply.clone());
            let mounted = Mounted::plain(&server);
            let spec = vouched(&server, &body);
            let (release, held) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || held.recv());
            let reading = mounted.read(&spec, 0, 4096);
            tokio::pin!(reading);
            let begun = std::time::Instant::now();
            while server.received().is_empty() || server.busy() > 0 {
                assert!(begun.elapsed() < HANG, "nothing was asked for");
                assert!(tokio::time::timeout(Duration::from_millis(5), &mut reading).await.is_err());
            }
            // All of it runs on this one thread: what can be done has been after some rounds.
            for _ in 0..1000 {
                tokio::task::yield_now().await;
                assert!((&mut reading).now_or_never().is_none(), "{coding:?}");
            }

            drop(release);

            assert_eq!(reading.await.unwrap(), body[..4096]);
            assert!(busy.await.unwrap().is_err());
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unrequested_coding_is_decoded() {
    let body = bytes(100_000, 22);
    let coded = gzip(&body);
    let (answer, length) = (coded.clone(), coded.len() as u64);
    let server = Server::start(move |_| Reply::full(&answer).with("Content-Encoding", "gzip"));
    let mounted = Mounted::plain(&server);
    let decoded = vouched(&server, &body);
    let as_it_lies = FetchSpec { ino: Ino(3), ..vouched(&server, &coded) };
    let only_length = FetchSpec { ino: Ino(4), ..measured(&server, &body) };
    let nothing = FetchSpec { ino: Ino(5), ..bare(&server, "/a") };

    assert_eq!(server_asks(&mounted, &decoded, &server).await, Some("identity".into()));
    assert_eq!(mounted.read_all(&decoded).await.unwrap(), body);
    assert_eq!(mounted.read_all(&as_it_lies).await.unwrap(), coded);
    assert_eq!(as_it_lies.length, Some(length));
    for (spec, verified) in [(only_length, Verified::Length), (nothing, Verified::Transfer)] {
        assert_eq!(mounted.size(&spec).await.unwrap(), body.len() as u64);
        assert!(mounted.read_all(&spec).await.unwrap() == body, "{verified:?}");
        assert_eq!(mounted.content.state(spec.ino).1, verified);
    }
    let packed = FetchSpec { ino: Ino(6), ..bare(&server, "/a.tar.gz") };
    assert!(mounted.read_all(&packed).await.unwrap() == coded, "its name says that it is compressed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unrequested_unknown_coding_fails() {
    let server = Server::start(move |_| Reply::full(b"coded").with("Content-Encoding", "br"));
    let mounted = Mounted::plain(&server);

    let message = mounted.read_all(&bare(&server, "/a")).await.unwrap_err().to_string();

    assert!(message.contains("content coding br"), "{message}");
}

/// Reads, and returns the coding that was requested.
async fn server_asks(mounted: &Mounted, spec: &FetchSpec, server: &Server) -> Option<String> {
    mounted.read(spec, 0, 1).await.unwrap();
    server.received()[0].field("accept-encoding").map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_coding_is_requested_verified_and_decoded() {
    let body = bytes(1_000_000, 23);
    let coded = gzip(&body);
    for field in [Some("gzip"), None] {
        let answer = coded.clone();
        let server = Server::start(move |_| match field {
            Some(coding) => Reply::full(&answer).with("Content-Encoding", coding),
            None => Reply::full(&answer),
        });
        let mounted = Mounted::plain(&server);
        let spec = FetchSpec { encoding: Some("gzip".into()), ..vouched(&server, &coded) };

        assert_eq!(mounted.size(&spec).await.unwrap(), body.len() as u64);
        assert_eq!(mounted.read_all(&spec).await.unwrap(), body);
        assert_eq!(server.received().len(), 1);
        assert_eq!(server.received()[0].field("accept-encoding"), Some("gzip"));
        let plain = FetchSpec { ino: Ino(3), encoding: None, ..spec };
        assert_eq!(mounted.read_all(&plain).await.unwrap(), coded, "the decoded object does not lie under the digest");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coded_bytes_that_cannot_be_decoded_are_an_error() {
    let cut = gzip(&bytes(10_000, 24))[..5_000].to_vec();
    let server = Server::of(&cut, None);
    let mounted = Mounted::plain(&server);
    let spec = FetchSpec { encoding: Some("gzip".into()), ..vouched(&server, &cut) };

    let message = mounted.read_all(&spec).await.unwrap_err().to_string();
    assert!(message.contains("decoded"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_published_coding_is_shown_coded() {
    let coded = bytes(10_000, 25);
    let answer = coded.clone();
    let server = Server::start(move |_| Reply::full(&answer).with("Content-Encoding", "br"));
    let mounted = Mounted::plain(&server);
    let spec = FetchSpec { encoding: Some("br".into()), ..vouched(&server, &coded) };

    assert_eq!(mounted.size(&spec).await.unwrap(), 10_000);
    assert_eq!(mounted.read_all(&spec).await.unwrap(), coded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_status_is_an_error_that_names_it() {
    for status in [400, 401, 403, 404, 410] {
        let server = Server::start(move |_| Reply::status(status));
        let mounted = Mounted::plain(&server);
        assert_eq!(status_of(mounted.read(&bare(&server, "/a"), 0, 1).await), Some(status));
    }
    for status in [429, 500, 503] {
        let server = Server::start(move |_| Reply::status(status));
        // Retried as long as that can help.
        let mounted = Mounted::new(&server, |config| config.stall = Duration::from_millis(500));
        assert!(mounted.read(&bare(&server, "/a"), 0, 1).await.is_err(), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_temporary_status_is_retried() {
    let body = bytes(1_000, 26);
    for status in [429, 500, 503] {
        let server = liar(1, &body, None, move |_| Reply::status(status).with("Retry-After", "0"));
        let mounted = Mounted::plain(&server);
        assert_eq!(mounted.read_all(&vouched(&server, &body)).await.unwrap(), body, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_before_or_in_the_body_ends_in_time() {
    let body = bytes(700_000, 27);
    for stalled_at in [0, 1, 400_000] {
        let (gate, whole) = (Gate::default(), body.clone());
        let held = gate.clone();
        let server = Server::start(move |_| Reply::full(&whole).gated_at(stalled_at, &held));
        let mounted = Mounted::new(&server, |config| config.stall = Duration::from_millis(200));

        assert!(matches!(
            mounted.read(&vouched(&server, &body), 0, 4096).await,
            Err(ContentError::Stalled { .. } | ContentError::Fetch { .. })
        ));
        gate.open();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_where_a_file_is_published_is_a_soft_404() {
    let page = b"<html>Please log in</html>";
    let server = Server::start(move |_| Reply::full(page).with("Content-Type", "text/html; charset=utf-8"));
    let mounted = Mounted::plain(&server);
    let pdf = FetchSpec { media_type: Some("application/pdf".into()), ..bare(&server, "/a") };
    let html = FetchSpec { ino: Ino(3), media_type: Some("text/html".into()), ..bare(&server, "/a") };
    let proven = FetchSpec { ino: Ino(4), media_type: Some("application/pdf".into()), ..vouched(&server, page) };

    let message = mounted.read_all(&pdf).await.unwrap_err().to_string();
    assert!(message.contains("login page"), "{message}");
    assert!(mounted.size(&FetchSpec { ino: Ino(5), ..pdf }).await.is_err());
    assert_eq!(mounted.read_all(&html).await.unwrap(), page);
    assert_eq!(mounted.read_all(&proven).await.unwrap(), page);
    assert_eq!(server.received()[0].field("accept"), Some("application/pdf"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mirrors_are_asked_in_their_order_and_when_others_fail() {
    let body = bytes(10_000, 28);
    let (right, wrong) = (body.clone(), bytes(10_000, 29));
    let server = Server::start(move |request| match request.path.as_str() {
        "/right" => honest(request, &right, None),
        "/wrong" => honest(request, &wrong, None),
        _ => Reply::status(404),
    });
    let mounted = Mounted::plain(&server);
    let mirrors = |names: &[&str]| names.iter().map(|name| server.uri(name)).collect::<Vec<_>>();
    let asked = |from: usize| -> Vec<String> { server.received()[from..].iter().map(|r| r.path.clone()).collect() };

    let first = FetchSpec { mirrors: mirrors(&["/wrong", "/none", "/right"]), ..vouched(&server, &body) };
    assert_eq!(mounted.read_all(&first).await.unwrap(), body);
    assert_eq!(asked(0), ["/wrong", "/wrong", "/none", "/right"]);

    let unvouched = FetchSpec { ino: Ino(3), hashes: Vec::new(), uri: server.uri("/none"), ..first.clone() };
    let unvouched = FetchSpec { mirrors: mirrors(&["/right"]), ..unvouched };
    assert_eq!(mounted.read_all(&unvouched).await.unwrap(), body);
    assert_eq!(asked(4), ["/none", "/right"]);

    let nowhere = FetchSpec { ino: Ino(4), mirrors: mirrors(&["/no", "/none"]), ..vouched(&server, b"other") };
    assert_eq!(status_of(mounted.read_all(&nowhere).await), Some(404));
    let wrong = FetchSpec { ino: Ino(5), mirrors: mirrors(&["/wrong", "/none"]), ..nowhere };
    assert!(is_mismatch(&mounted.read_all(&wrong).await), "wrong bytes show more than a refusal");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_fixity_hashes_do_not_count_but_lengths_do() {
    let body = bytes(10_000, 30);
    let server = Server::of(&body, None);
    let mounted = Mounted::new(&server, |config| config.fixity = Fixity::Off);
    let wrong_hash = vouched(&server, &bytes(10_000, 31));
    let wrong_length = FetchSpec { ino: Ino(3), length: Some(9_999), ..wrong_hash.clone() };

    assert_eq!(mounted.read_all(&wrong_hash).await.unwrap(), body);
    assert_eq!(mounted.content.state(wrong_hash.ino).1, Verified::Length);
    assert!(is_mismatch(&mounted.read_all(&wrong_length).await));
    let key = mounted.content.local.metadata.get(wrong_hash.ino).unwrap().object.unwrap();
    assert!(key.as_str().starts_with("ino-"), "{key}: no object without verdict lies under a digest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_other_than_those_of_an_earlier_download_are_a_version() {
    let body = bytes(10_000, 32);
    let newer = bytes(10_000, 33);
    let server = liar(1, &newer, None, move |request| honest(request, &body, None));
    let mut mounted = Mounted::plain(&server);
    let spec = bare(&server, "/a");
    mounted.read_all(&spec).await.unwrap();
    let key = mounted.content.local.metadata.get(spec.ino).unwrap().object.unwrap();
    mounted.content.local.store.evict(&key);

    assert!(matches!(mounted.read_all(&spec).await, Err(ContentError::Changed { .. })));
    assert_eq!(mounted.events().last(), Some(&Event::Changed(spec.ino)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_gives_right_bytes_or_an_error_under_random_faults() {
    let body = bytes(400_000, 34);
    for seed in 1..=60_u64 {
        let whole = body.clone();
        let server = Server::start(move |request| {
            let chance = bytes(16, seed << 8 | request.number as u64);
            let at = usize::from(chance[1]) * whole.len() / 256;
            let etag = [Some(ETAG), Some("\"v2\""), None][usize::from(chance[2] % 3)];
            let mut wrong = whole.clone();
            wrong[at] ^= 1;
            match chance[0] % 8 {
                0 | 1 => honest(request, &whole, etag).cut_at(at),
                2 => honest(request, &wrong, etag),
                3 => honest(request, &wrong, etag).cut_at(at),
                4 => honest(request, &whole, etag).announcing(None),
                5 => Reply::status(404),
                6 => Reply::full(&whole[..at]).announcing(None),
                _ => honest(request, &whole, etag),
            }
        });
        let mounted = Mounted::plain(&server);
        let spec = FetchSpec { mirrors: vec![server.uri("/mirror")], ..vouched(&server, &body) };

        for round in 0..3 {
            let offset = u64::from(bytes(1, seed << 16 | round)[0]) * 1600;
            let end = (offset as usize + 65_536).min(body.len());
            if let Ok(bytes) = mounted.read(&spec, offset, 65_536).await {
                assert!(bytes == body[offset as usize..end], "seed {seed}");
            }
            mounted.content.forget_failures();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_newer_than_the_list_are_counted_and_shown_on_request() {
    let stamp = "Thu, 02 Jan 2020 00:00:00 GMT";
    let at = |text: &str| Timestamp::parse(text);
    for (newer, same_length) in [(true, true), (true, false), (false, true)] {
        for unannounced in [Unannounced::Error, Unannounced::Show] {
            let now = if same_length { &b"new bytes"[..] } else { b"more new bytes" };
            let server = Server::start(move |request| match request.path.as_str() {
                "/a" => Reply::full(now).with("Last-Modified", stamp),
                // A mirror's own time says nothing.
                _ => Reply::full(b"bad bytes").with("Last-Modified", stamp),
            });
            let mut mounted = Mounted::new(&server, |config| config.unannounced = unannounced);
            let listed_at = if newer { at("2020-01-01T00:00:00Z") } else { at("2020-01-03T00:00:00Z") };
            let spec = FetchSpec { listed_at, mirrors: vec![server.uri("/mirror")], ..vouched(&server, b"old bytes") };

            let read = mounted.read_all(&spec).await;

            let show = unannounced == Unannounced::Show;
            match read {
                Err(ContentError::Unannounced { shown, .. }) => assert!(newer && shown == show),
                read => assert!(is_mismatch(&read) && !newer, "{read:?}"),
            }
            let expected = if newer && show { vec![Event::Unannounced(spec.ino)] } else { Vec::new() };
            assert_eq!(mounted.events(), expected);
            assert_eq!(mounted.content.unannounced(), u64::from(newer));
        }
    }
}
