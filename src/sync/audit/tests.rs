//! The parts of an audit alone.

use super::*;
use crate::catalog::Naming;
use crate::document::{Entry, Uri};
use crate::source::tests::loopback::Loopback;
use std::time::Duration;

fn catalog(folder: &Path, names: &[&str]) -> Arc<Catalog> {
    let catalog = Arc::new(Catalog::open(folder, "a test").unwrap());
    let mut baseline = catalog.baseline(Naming::new("h", [], false).unwrap()).unwrap();
    for name in names {
        baseline.add(&Entry::new(Uri::parse(&format!("http://h/{name}")).unwrap())).unwrap();
    }
    baseline.commit(None, b"").unwrap();
    catalog
}

/// A pager that is not scrolled keeps whatever writes to it waiting; the pages of a revision that is held so long would all be
/// kept meanwhile.
#[tokio::test]
async fn the_trees_are_compared_and_left_though_nobody_reads_what_was_found() {
    let server = Loopback::start().await;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("scratch")).unwrap();
    let (shown, listed) = (catalog(&at("shown"), &["a", "b", "c", "d"]), catalog(&at("listed"), &["d", "e"]));
    let listed = Listed { catalog: listed, packages: None, unheard: Vec::new() };
    let audit = Audit {
        config: None,
        client: server.client(),
        catalog: shown,
        content: None,
        packages: None,
        versions: Arc::new(|_, _| Ok(None)),
        scratch: at("scratch"),
    };
    let (events, mut told) = mpsc::channel(1);
    let comparing = audit.clone();
    let telling = events.clone();
    let compared = tokio::task::spawn_blocking(move || comparing.compare(Depth::default(), Some(&listed), &telling));

    let compared = tokio::time::timeout(Duration::from_secs(20), compared).await.expect("it ends").unwrap();

    let Found { mut summary, findings, .. } = compared.unwrap();
    assert_eq!((summary.files, summary.extra, summary.missing), (5, 3, 1));
    let telling = tokio::task::spawn_blocking(move || findings.tell(&events));
    let mut found = Vec::new();
    while let Some(Event::Finding(finding)) = told.recv().await {
        summary.in_sync += 1;
        found.push((finding.difference, finding.path));
    }
    telling.await.unwrap().unwrap();
    found.sort_by(|one, other| one.1.cmp(&other.1));
    let (extra, missing) = (Difference::Extra, Difference::Missing);
    let expected = [(extra, "a"), (extra, "b"), (extra, "c"), (missing, "e")];
    assert_eq!(found, expected.map(|(difference, path)| (difference, path.to_owned())));
    assert_eq!(summary.in_sync, 4);
}
