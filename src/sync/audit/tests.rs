//! An audit without a mount, and the pace of its events.

use super::*;
use crate::catalog::Naming;
use crate::document::{Algorithm, Digest, Entry, Timestamp, Uri};
use crate::source::tests::loopback::Loopback;
use std::time::Duration;

/// Makes `names` the tree, each with the same content and that time.
fn list(catalog: &Catalog, names: &[String], second: u32) {
    let mut baseline = catalog.commit_of_lists(Naming::new("h", [], false).unwrap()).unwrap();
    for name in names {
        let uri = Uri::parse(&format!("http://h/{name}")).unwrap();
        let lastmod = Timestamp::parse(&format!("2024-01-01T00:00:{second:02}Z"));
        let hashes = vec![Digest::new(Algorithm::Md5, &[7; 16]).unwrap()];
        baseline.add(&Entry { lastmod, hashes, ..Entry::new(uri) }).unwrap();
    }
    baseline.commit(None, b"").unwrap();
}

fn catalog(folder: &Path, names: &[String]) -> Arc<Catalog> {
    let catalog = Arc::new(Catalog::open(folder, "a test").unwrap());
    list(&catalog, names, 0);
    catalog
}

fn audit(server: &Loopback, catalog: Arc<Catalog>, scratch: PathBuf) -> Audit {
    let versions: Versions =
        Arc::new(|snapshot, ino| Ok(snapshot.resource(ino)?.map(|resource| FetchSpec::new(ino, resource.uri))));
    Audit { config: None, client: server.client(), catalog, content: None, packages: None, versions, scratch }
}

/// Bytes of all files below a folder.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries.map(|it| if it.path().is_dir() { size(&it.path()) } else { it.metadata().unwrap().len() }).sum()
}

/// A pager that is not scrolled keeps the audit waiting. A revision that is held so long would keep all its pages from reuse.
#[tokio::test]
async fn a_slow_reader_of_events_holds_no_revision_and_misses_none() {
    let server = Loopback::start();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let names: Vec<_> = (0..3000).map(|number| format!("f/{number}")).collect();
    let shown = catalog(&at("shown"), &names);
    std::fs::create_dir(at("packages")).unwrap();
    let packages = Packages::open(server.client(), PackageConfig::new(at("packages"))).unwrap();
    let catalog = catalog(&at("listed"), &names[..1000]);
    let listed = ListedSource { catalog, packages, position: None, failed: Vec::new() };
    let (events, mut received) = mpsc::channel(1);
    let audit = audit(&server, shown.clone(), at("scratch"));
    let comparing = tokio::spawn(async move { audit.compare(Depth::default(), Some(listed), &events).await });

    let first = tokio::time::timeout(Duration::from_secs(20), received.recv()).await.unwrap();
    assert!(matches!(first, Some(AuditEvent::Finding(_))), "{first:?}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let sizes: Vec<_> = (1..12)
        .map(|second| {
            list(&shown, &names, second);
            size(&at("shown"))
        })
        .collect();
    assert_eq!(sizes[10], sizes[2], "pages are used again: {sizes:?}");

    let mut findings = 1;
    while let Some(event) = received.recv().await {
        findings += u64::from(matches!(event, AuditEvent::Finding(_)));
    }
    let summary = comparing.await.unwrap().unwrap();
    assert_eq!((summary.files, summary.extra), (3000, findings));
}
