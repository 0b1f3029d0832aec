//! Priority at one host: readers before all prefetches.

use super::server::{Gate, Server, honest};
use super::*;

/// A resource of its own inode.
fn numbered(server: &Server, number: u64) -> FetchSpec {
    FetchSpec { ino: INodeNo(number + 2), ..bare(server, &format!("/{number}")) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_waits_behind_no_prefetch_nor_for_one_that_it_joins() {
    const AHEAD: u64 = 128;
    let gate = Gate::default();
    let held = gate.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/0" | "/100" => honest(request, request.path.as_bytes(), None),
        path => honest(request, path.as_bytes(), None).gated_at(0, &held),
    });
    let mounted = Mounted::new(&server, |config| config.stall = Duration::from_secs(10));
    let ahead: Vec<_> = (1..=AHEAD)
        .map(|number| {
            let (content, wanted) = (Arc::clone(&mounted.content), numbered(&server, number));
            tokio::spawn(async move { content.fetch_ahead(&wanted, u64::MAX).await })
        })
        .collect();
    let all_begun = async {
        while mounted.content.in_flight.lock().unwrap().len() < AHEAD as usize {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(HANG, all_begun).await.expect("they begin");

    let other = mounted.read_all(&numbered(&server, 0)).await;
    let joined = mounted.read_all(&numbered(&server, 100)).await;

    gate.open();
    assert_eq!((other.unwrap(), joined.unwrap()), (b"/0".to_vec(), b"/100".to_vec()));
    for fetch in ahead {
        assert!(fetch.await.unwrap().is_ok());
    }
}
