//! The servers on loopback that unit tests ask, and tests of work over many bytes.

pub(crate) mod loopback;
#[allow(dead_code, reason = "each crate of tests uses its own part")]
#[path = "../../../tests/common/server.rs"]
pub(crate) mod server;

use super::*;
use crate::document::Uri;
use std::time::Duration;

impl server::Server {
    pub(crate) fn uri(&self, path: &str) -> Uri {
        Uri::parse(&format!("http://{}{path}", self.authority())).unwrap()
    }
}

#[test]
fn long_work_leaves_the_only_worker_free() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let computing = runtime.spawn(async move {
        tokio::spawn(async move { sender.send(5) });
        off_the_workers(|| receiver.recv_timeout(Duration::from_secs(60)))
    });

    assert_eq!(runtime.block_on(computing).unwrap(), Ok(5));
}

#[test]
fn work_over_many_bytes_leaves_the_only_worker_free() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let others_go_on = |bytes| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let computing = runtime.spawn(async move {
            tokio::spawn(async move { sender.send(5) });
            over_bytes(bytes, || receiver.recv_timeout(Duration::from_secs(1)))
        });
        runtime.block_on(computing).unwrap().is_ok()
    };

    assert_eq!((others_go_on(FEW), others_go_on(FEW + 1)), (false, true));
}
