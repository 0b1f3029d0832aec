//! Change documents that cannot be had, for a while or for good: nothing that they tell is skipped, what may be missing is told,
//! and none keeps another from being followed.

use super::changes::{CHANGES, change, change_list, resource_list_at, silent, source};
use super::dumps::{destination as with_packages, manifest, package};
use super::*;
use crate::source::tests::loopback::document;
use command::AnnouncedDocuments;

fn time(hour: u32, minute: u32) -> String {
    format!("2013-01-03T{hour:02}:{minute:02}:00Z")
}

fn interval(from: u32, until: Option<u32>) -> String {
    let until = until.map(|until| format!(" until=\"{}\"", time(until, 0))).unwrap_or_default();
    format!("from=\"{}\"{until}", time(from, 0))
}

/// A change at this time.
fn told(server: &Loopback, path: &str, md: &str, (hour, minute): (u32, u32)) -> String {
    change(server, path, &format!("{md} datetime=\"{}\"", time(hour, minute)))
}

/// An index of the lists of these hours.
fn index(server: &Loopback, children: &[(&str, u32, Option<u32>)]) -> Answer {
    let child = |(path, from, until): &(&str, u32, Option<u32>)| {
        format!("<sitemap><loc>{}</loc><rs:md {}/></sitemap>", server.uri(path), interval(*from, *until))
    };
    let children: Vec<_> = children.iter().map(child).collect();
    Answer::xml(document("sitemapindex", "capability=\"changelist\"", &[], &children))
}

fn gap(destination: &Destination) -> Option<String> {
    destination.synchronizer.status().borrow().clone().sets[0].gap_since.map(|since| since.to_string())
}

/// A look at the change documents alone.
async fn follow(server: &Loopback, destination: &mut Destination) -> RefreshResult {
    let roots = vec![DocumentLocation::Uri(server.uri(CHANGES))];
    let scope = Scope::Announced(AnnouncedDocuments { roots, ..AnnouncedDocuments::default() });
    destination.synchronizer.refresh_of(scope, silent()).await.unwrap()
}

fn asked(server: &Loopback, path: &str) -> usize {
    server.asked().iter().filter(|asked| asked.path == path).count()
}

const ALL: [(&str, u32, Option<u32>); 3] = [("/1.xml", 9, Some(10)), ("/2.xml", 10, Some(11)), ("/3.xml", 11, None)];

fn second(server: &Loopback) -> Answer {
    let changes = [
        told(server, "/a", "change=\"updated\" length=\"7\"", (10, 20)),
        told(server, "/b", "change=\"deleted\"", (10, 30)),
        told(server, "/h", "change=\"deleted\"", (10, 40)),
    ];
    change_list(&interval(10, Some(11)), &changes)
}

/// A Source of an index of which the first list was followed, and then three are listed, the second of which says `second`.
async fn of_three(second: Answer) -> (Loopback, Destination) {
    let server = source().await;
    let first = [told(&server, "/e", "change=\"created\"", (9, 30))];
    server.put("/1.xml", change_list(&interval(9, Some(10)), &first));
    server.put(CHANGES, index(&server, &ALL[..1]));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    assert_eq!((destination.paths(), gap(&destination)), (["/a", "/b", "/c", "/d", "/e"].map(Into::into).into(), None));
    let third = [told(&server, "/h", "change=\"created\" length=\"3\"", (11, 30))];
    server.put("/3.xml", change_list(&interval(11, None), &third));
    server.put("/2.xml", second);
    server.put(CHANGES, index(&server, &ALL));
    (server, destination)
}

/// The lists are needed to close the gap, and break off: what the changes say is shown meanwhile, for as long as that lasts.
#[tokio::test]
async fn torn_changes_are_applied_next_to_a_broken_list() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let whole = resource_list_at(
        &format!("at=\"{}\"", time(10, 30)),
        &["/a", "/b", "/c", "/e"].map(|path| change(&server, path, "")),
    );
    let cut = urlset("capability=\"resourcelist\"", &[], &[change(&server, "/a", "")]).replace("</urlset>", "");
    server.put(LIST, Answer::xml(cut).etag("cut"));
    let mut changes = vec![told(&server, "/e", "change=\"created\"", (10, 10))];
    for (minute, path) in [(20, "/f"), (40, "/g")] {
        server.put(CHANGES, change_list(&interval(10, None), &changes));

        destination.refresh().await.unwrap();

        assert_eq!(destination.paths().len(), 4 + changes.len());
        assert_eq!(gap(&destination).as_deref(), Some("2013-01-03T09:00:00Z"));
        changes.push(told(&server, path, "change=\"created\"", (10, minute)));
    }
    server.put(CHANGES, change_list(&interval(10, None), &changes));
    server.put(LIST, whole);

    destination.commit().await;

    assert_eq!((destination.paths(), gap(&destination)), (["/a", "/b", "/c", "/e", "/g"].map(Into::into).into(), None));
}

#[tokio::test]
async fn a_child_that_fails_holds_no_other_and_is_applied_later() {
    let broken = "<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\"><url><loc>http://h/</loc></url><url>";
    let soft = Answer::html("<html><body>not here</body></html>");
    let faults = [Answer::status(404), Answer::status(410), Answer::status(403), Answer::status(503), soft];
    for fault in faults.into_iter().chain([Answer::xml(broken)]) {
        let (server, mut destination) = of_three(fault.clone()).await;
        let case = format!("{fault:?}");
        server.asked();

        assert!(matches!(follow(&server, &mut destination).await, RefreshResult::Committed(_)), "{case}");
        assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/h"], "{case}");
        assert_eq!(gap(&destination), Some(time(10, 0)), "{case}");
        assert_eq!(asked(&server, LIST), 1, "the lists may tell at once what fails, {case}");
        let mut destination = destination.restarted(&server);
        assert!(matches!(follow(&server, &mut destination).await, RefreshResult::Unchanged), "{case}");
        let looks = server.asked();
        let count = |path| looks.iter().filter(|asked| asked.path == path).count();
        assert_eq!((count(LIST), count("/2.xml"), count("/1.xml")), (0, 1, 0), "{case}: {looks:?}");
        assert_eq!(gap(&destination), Some(time(10, 0)), "{case}");

        server.put("/2.xml", second(&server));
        assert!(matches!(follow(&server, &mut destination).await, RefreshResult::Committed(_)), "{case}");

        assert_eq!(destination.paths(), ["/a", "/c", "/d", "/e", "/h"], "{case}");
        assert_eq!((destination.files()["/a"].1, destination.files()["/h"].1), (Some(7), Some(3)), "{case}");
        assert_eq!(gap(&destination), None, "{case}");
        server.asked();
        assert!(matches!(follow(&server, &mut destination).await, RefreshResult::Unchanged), "{case}");
        assert_eq!(asked(&server, "/2.xml"), 0, "{case}");
    }
}

#[tokio::test]
async fn a_child_that_fails_is_reported_by_its_name_and_kind() {
    let broken = "<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\"><url><loc>http://h/</loc></url><url>";
    let soft = Answer::html("<html><body>not here</body></html>");
    let unusable = [soft, Answer::xml(broken), Answer::status(403)].map(|fault| (fault, FailureKind::Unusable));
    for (fault, kind) in unusable.into_iter().chain([(Answer::status(503), FailureKind::Unreachable)]) {
        let case = format!("{fault:?}");
        let (server, mut destination) = of_three(fault).await;

        follow(&server, &mut destination).await;

        let failed = &destination.synchronizer.current.failed;
        assert_eq!(failed.iter().map(|failed| failed.kind).collect::<Vec<_>>(), [kind], "{case}");
        assert!(failed[0].why.contains("/2.xml"), "{failed:?}");
    }
}

#[tokio::test]
async fn what_ends_a_refresh_comes_before_a_document_that_fails() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    server.put(CHANGES, Answer::status(503));
    server.put(LIST, Answer::xml(list(&server, &["/a", "/b", "/c", "/d", "/e"])));
    destination.synchronizer.config.maps = vec![("no address".into(), "x".into())];

    let ended = destination.refresh().await;

    assert!(matches!(ended, Err(SyncError::Naming(_))), "{ended:?}");
    let status = destination.synchronizer.status().borrow().clone();
    let kinds: Vec<_> = status.last_refresh.unwrap().failed.iter().map(|failed| failed.kind).collect();
    assert_eq!(kinds, [FailureKind::Options, FailureKind::Unreachable]);
}

#[tokio::test]
async fn a_child_that_fails_and_a_broken_list_hold_no_other() {
    let torn = "<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\"><url><loc>http://h/</loc></url><url>";
    for list in [Answer::xml(torn), Answer::html("<html><body>not here</body></html>"), Answer::status(403)] {
        let (server, mut destination) = of_three(Answer::status(503)).await;
        server.put(LIST, list);

        assert!(matches!(follow(&server, &mut destination).await, RefreshResult::Committed(_)));

        assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/h"]);
    }
}

#[tokio::test]
async fn what_fails_is_reported_and_what_is_gone_is_a_gap() {
    let failure = |destination: &Destination| {
        let status = destination.synchronizer.status().borrow().clone();
        let document = status.documents.into_iter().find(|it| it.location.ends_with(CHANGES)).unwrap();
        matches!(document.answer, status::PollAnswer::Failed(_))
    };
    let (server, mut broken) = of_three(Answer::status(403)).await;
    let (other, mut gone) = of_three(Answer::status(404)).await;

    follow(&server, &mut broken).await;
    follow(&other, &mut gone).await;

    assert!(failure(&broken) && !failure(&gone));
}

#[tokio::test]
async fn a_baseline_that_covers_a_lost_list_ends_the_wait_for_it() {
    let (server, mut destination) = of_three(Answer::status(404)).await;
    follow(&server, &mut destination).await;
    let list_of = |at: String| {
        let entries = ["/a", "/c", "/d", "/e"].map(|path| url(server.uri(path).as_str(), ""));
        resource_list_at(&format!("at=\"{at}\""), &entries)
    };

    server.put(LIST, list_of(time(10, 30)));
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/c", "/d", "/e", "/h"]);
    assert_eq!(gap(&destination), Some(time(10, 30)), "half of it");
    server.put(LIST, list_of(time(11, 10)));
    destination.commit().await;
    assert_eq!(gap(&destination), None);

    server.asked();
    follow(&server, &mut destination).await;
    assert_eq!(asked(&server, "/2.xml"), 0);
}

#[tokio::test]
async fn an_unlisted_lost_list_is_a_gap_until_the_next_baseline() {
    let (server, mut destination) = of_three(Answer::status(404)).await;
    follow(&server, &mut destination).await;

    server.put(CHANGES, index(&server, &ALL[2..]));
    follow(&server, &mut destination).await;
    assert_eq!(gap(&destination), Some(time(10, 0)));
    let entries = ["/a", "/c", "/d", "/e"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(LIST, resource_list_at(&format!("at=\"{}\"", time(11, 10)), &entries));
    destination.commit().await;

    assert_eq!(gap(&destination), None);
}

#[tokio::test]
async fn a_package_of_changes_that_is_broken_is_asked_for_again() {
    let server = super::dumps::source(&[("resourcelist", LIST), ("changedump", CHANGES)]).await;
    server.put(LIST, Answer::xml(list(&server, &["/a", "/b", "/c", "/d"])).etag("list"));
    let dump = |packages: &[(&str, u32, u32)]| {
        let listed = packages.iter().map(|(path, from, until)| change(&server, path, &interval(*from, Some(*until))));
        let listed: Vec<_> = listed.collect();
        Answer::xml(urlset("capability=\"changedump\" from=\"2013-01-03T09:00:00Z\"", &[], &listed))
    };
    let packed = |path: &str, md: &str, hour: u32| {
        let md = format!("{md} datetime=\"{}\"", time(hour, 30));
        package(&manifest(&server, "changedump-manifest", &[(path, &md)]), &[])
    };
    server.put("/1.zip", packed("/e", "change=\"created\"", 9));
    server.put(CHANGES, dump(&[("/1.zip", 9, 10)]));
    let mut destination = with_packages(&server);
    destination.commit().await;
    server.put("/3.zip", packed("/h", "change=\"created\"", 11));
    server.put(CHANGES, dump(&[("/1.zip", 9, 10), ("/2.zip", 10, 11), ("/3.zip", 11, 12)]));

    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/h"]);
    assert_eq!(gap(&destination), Some(time(10, 0)));
    server.put("/2.zip", packed("/b", "change=\"deleted\"", 10));
    // Another process does not remember that it was not there.
    let Destination { synchronizer, catalog, _folder: folder } = destination;
    let packages = folder.path().join("other");
    std::fs::create_dir(&packages).unwrap();
    drop((synchronizer, catalog));
    let mut destination = Destination::over(&server, folder);
    let packages = crate::source::zip::PackageConfig::new(packages);
    let packages = crate::source::zip::Packages::open(server.client(), packages).unwrap();
    destination.synchronizer.fetch.packages = packages;
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/c", "/d", "/e", "/h"]);
    assert_eq!(gap(&destination), None);
}

/// A Source of a Change Dump whose first package was followed; then there are three, each of which holds one change.
async fn of_three_packages(listed: impl Fn(u32) -> String) -> (Loopback, Destination, Vec<Answer>) {
    let server = super::dumps::source(&[("resourcelist", LIST), ("changedump", CHANGES)]).await;
    server.put(LIST, Answer::xml(list(&server, &["/a", "/b", "/c", "/d"])).etag("list"));
    let told = [("/e", "change=\"created\""), ("/b", "change=\"deleted\""), ("/b", "change=\"created\" length=\"3\"")];
    let packed = (9..).zip(told).map(|(hour, (path, md))| {
        let md = format!("{md} datetime=\"{}\"", time(hour, 30));
        package(&manifest(&server, "changedump-manifest", &[(path, &md)]), &[])
    });
    let packed: Vec<Answer> = packed.collect();
    (1..).zip(&packed).for_each(|(number, answer)| server.put(&format!("/{number}.zip"), answer.clone()));
    let dump = |packages: u32| {
        let entries: Vec<_> =
            (1..=packages).map(|it| change(&server, &format!("/{it}.zip"), &listed(8 + it))).collect();
        Answer::xml(urlset("capability=\"changedump\" from=\"2013-01-03T09:00:00Z\"", &[], &entries))
    };
    server.put(CHANGES, dump(1));
    let mut destination = with_packages(&server);
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"]);
    server.put(CHANGES, dump(3));
    (server, destination, packed)
}

#[tokio::test]
async fn a_package_that_fails_for_now_holds_no_other_back() {
    let (server, mut destination, packed) = of_three_packages(|hour| interval(hour, Some(hour + 1))).await;
    server.put("/2.zip", packed[1].clone().cut(usize::MAX));

    destination.commit().await;
    assert_eq!(destination.files()["/b"].1, Some(3), "the third is applied");
    assert_eq!(gap(&destination), Some(time(10, 0)), "changes may be missing meanwhile");
    let status = destination.synchronizer.status().borrow().clone();
    let answer = status.documents.into_iter().find(|it| it.location.ends_with(CHANGES)).unwrap().answer;
    assert!(matches!(&answer, status::PollAnswer::Failed(why) if why.contains("/2.zip")), "{answer:?}");
    server.put("/2.zip", packed[1].clone());
    let mut destination = destination.restarted(&server);
    destination.refresh().await.unwrap();

    assert_eq!(destination.files()["/b"].1, Some(3), "it was created again after the second told of its end");
    assert_eq!(gap(&destination), None);
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
}

#[tokio::test]
async fn packages_behind_one_without_an_interval_wait_for_it() {
    let (server, mut destination, packed) = of_three_packages(|_| String::new()).await;
    server.put("/2.zip", packed[1].clone().cut(usize::MAX));

    destination.refresh().await.unwrap();
    assert_ne!(destination.files()["/b"].1, Some(3), "the third may be older");
    server.put("/2.zip", packed[1].clone());
    let mut destination = destination.restarted(&server);
    destination.refresh().await.unwrap();

    assert_eq!(destination.files()["/b"].1, Some(3));
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
}

/// The open package of a dump, which grows until it is closed.
#[tokio::test]
async fn a_package_that_was_read_and_fails_is_asked_for_again() {
    let server = super::dumps::source(&[("resourcelist", LIST), ("changedump", CHANGES)]).await;
    server.put(LIST, Answer::xml(list(&server, &["/a", "/b", "/c", "/d"])).etag("list"));
    let dump = |md: &str| {
        let listed = [change(&server, "/1.zip", md)];
        Answer::xml(urlset("capability=\"changedump\" from=\"2013-01-03T09:00:00Z\"", &[], &listed))
    };
    let first = ("/e", format!("change=\"created\" datetime=\"{}\"", time(9, 30)));
    let then = ("/h", format!("change=\"created\" datetime=\"{}\"", time(10, 30)));
    let packed = |changes: &[&(&str, String)]| {
        let changes: Vec<_> = changes.iter().map(|(path, md)| (*path, md.as_str())).collect();
        package(&manifest(&server, "changedump-manifest", &changes), &[])
    };
    server.put("/1.zip", packed(&[&first]));
    server.put(CHANGES, dump(&interval(9, None)));
    let mut destination = with_packages(&server);
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"]);
    let grown = packed(&[&first, &then]).etag("grown");
    server.put("/1.zip", grown.clone().cut(usize::MAX));
    server.put(CHANGES, dump(&interval(9, Some(11))));
    assert!(destination.refresh().await.is_ok());

    server.put("/1.zip", grown);
    // Nothing is remembered of how it failed.
    let folder = destination._folder.path().join("later");
    std::fs::create_dir(&folder).unwrap();
    let packages = crate::source::zip::PackageConfig::new(folder);
    let packages = crate::source::zip::Packages::open(server.client(), packages).unwrap();
    destination.synchronizer.fetch.packages = packages;
    let _ = destination.refresh().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/h"]);
    assert_eq!(gap(&destination), None);
}

#[tokio::test]
async fn a_change_list_that_is_gone_is_a_gap_until_it_is_back() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let first = told(&server, "/e", "change=\"created\"", (10, 10));
    server.put(CHANGES, change_list(&interval(9, None), std::slice::from_ref(&first)));
    destination.commit().await;
    server.put(CHANGES, Answer::status(404));
    server.asked();

    assert!(matches!(follow(&server, &mut destination).await, RefreshResult::Committed(_)));
    assert_eq!(gap(&destination), Some(time(10, 10)));
    assert_eq!(asked(&server, LIST), 1);
    let mut destination = destination.restarted(&server);
    for _ in 0..3 {
        assert!(matches!(follow(&server, &mut destination).await, RefreshResult::Unchanged));
    }
    assert_eq!(asked(&server, LIST), 0, "what the lists' own time brings is enough");
    let entries = ["/a", "/b", "/c", "/e"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(LIST, resource_list_at(&format!("at=\"{}\"", time(10, 20)), &entries));
    destination.commit().await;
    assert_eq!(gap(&destination), Some(time(10, 20)), "no baseline says what comes after it");

    let second = told(&server, "/f", "change=\"created\"", (10, 30));
    server.put(CHANGES, change_list(&interval(9, None), &[first, second]));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/e", "/f"]);
    assert_eq!(gap(&destination), None);
}
