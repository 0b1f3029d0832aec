//! Many objects at once for which the cache folder has no room: each reader gets its bytes.

use super::*;
use crate::source::tests::server::{Gate, Received, Server, honest};
use futures_util::future::join_all;

/// As the kernel reads ahead: so many bytes at a time, so many times at once.
const PIECE: usize = 128 << 10;
const AT_ONCE: usize = 8;

/// What lies at a path of one byte's length.
fn body_of(request: &Received, bodies: &[Vec<u8>]) -> usize {
    let number: usize = request.path.trim_start_matches('/').parse().unwrap();
    assert!(number < bodies.len());
    number
}

fn numbered(server: &Server, bodies: &[Vec<u8>]) -> Vec<FetchSpec> {
    let each = bodies.iter().enumerate();
    each.map(|(number, body)| FetchSpec {
        ino: Ino(2 + number as u64),
        uri: server.uri(&format!("/{number}")),
        ..vouched(server, body)
    })
    .collect()
}

/// Reads to the end, some pieces at once, the last of them asked for first.
async fn read_ahead(mounted: &Mounted, spec: &FetchSpec, length: usize) -> Result<Vec<u8>, ContentError> {
    let mut bytes = Vec::with_capacity(length);
    for first in (0..length).step_by(PIECE * AT_ONCE) {
        let starts = (first..length).step_by(PIECE).take(AT_ONCE);
        let reads = starts.rev().map(|start| mounted.read(spec, start as u64, PIECE as u32));
        for piece in join_all(reads).await.into_iter().rev() {
            bytes.extend_from_slice(&piece?);
        }
    }
    Ok(bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_past_the_cache_does_not_wait_for_others() {
    let bodies: Vec<Vec<u8>> = (0..5).map(|seed| bytes(LARGE, 100 + seed)).collect();
    let (gate, served) = (Gate::default(), bodies.clone());
    let held = gate.clone();
    let server = Server::start(move |request| match body_of(request, &served) {
        4 => honest(request, &served[4], None),
        other => honest(request, &served[other], None).gated_at(1 << 20, &held),
    });
    let mounted = Mounted::new(&server, |config| config.quota = Some(1));
    let spec = numbered(&server, &bodies);
    for spec in &spec[..4] {
        assert!(mounted.read(spec, 0, 10).await.is_ok());
    }

    let last = mounted.read_all(&spec[4]).await;

    assert!(last.is_ok_and(|last| last == bodies[4]), "its server holds back nothing");
    gate.open();
    for (spec, body) in spec[..4].iter().zip(&bodies) {
        assert!(mounted.read_all(spec).await.is_ok_and(|read| read == *body));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_exceed_memory_take_turns() {
    let bodies: Vec<Vec<u8>> = (0..9).map(|seed| bytes(LARGE, 110 + seed)).collect();
    let served = bodies.clone();
    let server = Server::start(move |request| honest(request, &served[body_of(request, &served)], None));
    let mounted = Mounted::new(&server, |config| config.quota = Some(1));
    let spec = numbered(&server, &bodies);

    let all = spec.iter().zip(&bodies).map(|(spec, body)| read_ahead(&mounted, spec, body.len()));
    let all = join_all(all).await;

    assert!(all.into_iter().zip(&bodies).all(|(read, body)| read.is_ok_and(|read| read == *body)));
    // The block cache keeps the ends of some complete objects. A reader that is too late for them, as on a busy machine, asks again.
    let requests = server.received().len();
    assert!((bodies.len()..2 * bodies.len()).contains(&requests), "{requests}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_without_room_on_disk_or_in_memory_fails_in_time() {
    let bodies = [bytes(LARGE, 130), bytes(3 * BLOCK as usize, 131)];
    let served = bodies.to_vec();
    let server = Server::start(move |request| honest(request, &served[body_of(request, &served)], None));
    let mounted = Mounted::new(&server, |config| {
        config.quota = Some(1);
        config.stall = Duration::from_secs(1);
    });
    let spec = numbered(&server, &bodies);
    let taken = mounted.content.memory.reserve(usize::MAX).await;

    for spec in &spec {
        assert!(matches!(mounted.read(spec, 0, 10).await, Err(ContentError::Stalled { .. })));
    }

    drop(taken);
    for (spec, body) in spec.iter().zip(&bodies) {
        // A block that failed a moment ago is not asked for again at once.
        let next = BLOCK as usize;
        assert!(mounted.read(spec, BLOCK, 100).await.unwrap() == body[next..next + 100]);
    }
}
