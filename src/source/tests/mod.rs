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

/// Discovery looks at the root of a site by itself: the page does not list what is found there.
#[test]
fn a_failing_part_is_named_by_how_it_was_found() {
    let uri = |path: &str| Uri::parse(&format!("https://h/{path}")).unwrap();
    let told = |part: &str, above: &str| {
        let cause = http::HttpError::NotSent { uri: uri(part) };
        let failed = SourceError::Http { location: DocumentLocation::Uri(uri(part)), cause };
        failed.named_by(&DocumentLocation::Uri(uri(above)), "").to_string()
    };

    assert!(told("sitemap.xml", "login.html").contains("/sitemap.xml, found at the root of the site, cannot be"));
    assert!(told("sitemap.xml", "robots.txt").contains("which https://h/robots.txt lists"));
    assert!(told("list.xml", "").contains("which https://h/ lists"));
}
