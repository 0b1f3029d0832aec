//! What a walk costs in connections, as the real nginx sees it.

mod common;

use common::mounted::Mounted;
use common::nginx::Nginx;
use std::collections::BTreeSet;
use std::process::Command;

const FILES: u64 = 400;

fn mounted(nginx: &Nginx, options: &str) -> Mounted {
    Mounted::new(&nginx.url(), &format!("ca={},{options}", nginx.ca().display()))
}

/// Reads all files below `folder`, one after the other.
fn walk(mounted: &Mounted, folder: &str) {
    let output = Command::new("grep").args(["-rc", "x", folder]).current_dir(mounted.path()).output().unwrap();
    assert!(output.status.code().is_some_and(|code| code < 2), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The numbers of the connections over which these requests came.
fn connections(log: &[String]) -> BTreeSet<&str> {
    log.iter().filter_map(|line| line.rsplit('"').next()?.split_whitespace().next()).collect()
}

#[test]
fn over_http_2_all_requests_share_one_connection() {
    let nginx = Nginx::serving_tls(FILES);
    let mounted = mounted(&nginx, "connections=64");

    walk(&mounted, ".");

    let log = nginx.access_log();
    // Nothing is asked of those that are published as empty.
    assert!(log.len() as u64 > FILES * 3 / 4 && log.iter().all(|line| line.contains("HTTP/2.0")), "{}", log.len());
    assert_eq!(connections(&log).len(), 1);
}

#[test]
fn over_http_1_1_connections_are_kept_and_tls_sessions_resumed() {
    const AT_ONCE: usize = 16;
    let nginx = Nginx::serving_tls_without_http2(FILES);
    let mounted = mounted(&nginx, &format!("connections={AT_ONCE}"));

    walk(&mounted, "plain");
    walk(&mounted, "nested");

    let before = nginx.access_log();
    let opened = connections(&before);
    assert!(before.iter().all(|line| line.contains("HTTP/1.1")));
    // One that is opened for a request which then takes another that has become free is kept too.
    assert!(opened.len() > 1 && opened.len() <= 2 * AT_ONCE, "{}", opened.len());
    assert!(before.iter().any(|line| line.ends_with(" r")), "sessions are resumed");

    walk(&mounted, "with blank");

    let log = nginx.access_log();
    assert!(log.len() > before.len() + 20);
    let new = connections(&log).difference(&opened).count();
    assert!(new <= opened.len() / 2, "{new} opened although {} were", opened.len());
}
