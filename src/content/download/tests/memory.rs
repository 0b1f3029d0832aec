//! What fetches hold in memory: a bounded whole, however many there are and of however many hosts.

use super::super::buffers::{BUFFER, GATHERED_BY_ALL};
use super::server::Server;
use super::*;
use futures_util::FutureExt;
use futures_util::future::join_all;

/// Files read at a time of each server: as many as are fetched of one.
const READS: usize = 64;

/// Promise: what came and is not written yet is bound for all hosts together. Where the disk stands still no more is received; when
/// it goes on all goes on.
#[test]
fn fetches_of_many_hosts_gather_little_more_than_all_may_while_the_disk_stands_still() {
    let body = bytes(1_000_000, 71);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let servers: Vec<Server> = (0..3).map(|_| Server::of(&body, None)).collect();
        let folder = TempDir::new().unwrap();
        let allowed_hosts = servers.iter().map(|server| server.authority().into()).collect();
        let http = HttpConfig { allowed_hosts, connections: READS, ..HttpConfig::default() };
        let mounted = Mounted::over(http, config(&folder, &servers[0].uri("/")), folder);
        let buffers = &mounted.content.buffers;
        let wanted: Vec<FetchSpec> = servers
            .iter()
            .enumerate()
            .flat_map(|(host, server)| (0..READS).map(move |number| (host * READS + number, server)))
            .map(|(number, server)| FetchSpec {
                ino: INodeNo(1000 + number as u64),
                length: Some(body.len() as u64),
                ..bare(server, &format!("/{number}"))
            })
            .collect();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || held.recv());
        let reads = join_all(wanted.iter().map(|wanted| mounted.read_all(wanted)));
        tokio::pin!(reads);

        // Until leave is had and nothing moves any more.
        let holding = || (buffers.lent(), buffers.left());
        let (mut before, mut unmoved, begun) = (holding(), 0, std::time::Instant::now());
        while unmoved < 40 || buffers.left() >= BUFFER {
            assert!(begun.elapsed() < HANG, "lent and left: {before:?}");
            assert!(tokio::time::timeout(Duration::from_millis(5), &mut reads).await.is_err());
            unmoved = if holding() == before { unmoved + 1 } else { 0 };
            before = holding();
        }
        // Each has what is being written, which came at once, and a part of a block.
        let most = GATHERED_BY_ALL + wanted.len() * 4 * BLOCK as usize;
        assert!(buffers.lent() <= most, "{} are lent, {most} at most", buffers.lent());
        assert!((&mut reads).now_or_never().is_none());

        drop(release);

        for read in reads.await {
            assert!(read.unwrap() == body);
        }
        assert!(busy.await.unwrap().is_err());
        assert_eq!(buffers.left(), GATHERED_BY_ALL, "all of it was given back");
    });
}
