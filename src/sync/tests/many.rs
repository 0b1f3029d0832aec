//! More changes than one commit applies, and what a baseline knows of the changes before it.

use super::changes::{change, resource_list_at, source};
use super::*;
use crate::document::Href;

const CHANGES: &str = "/changes.xml";
const DC: &str = "urn:dc";

/// Three batches.
const MANY: usize = 1300;

const IN_BATCH: u64 = 500;

fn change_list(changes: &[String]) -> Answer {
    Answer::xml(urlset("capability=\"changelist\" from=\"2013-01-03T09:00:00Z\"", &[], changes))
}

fn at(minute: usize) -> String {
    format!("datetime=\"2013-01-03T{:02}:{:02}:00Z\"", 10 + minute / 60, minute % 60)
}

/// Changes of the list of `source`: `/a` updated, `/b` deleted, `/twice` created and deleted, `/new/N` created.
fn many(server: &Loopback) -> Vec<String> {
    let mut changes = vec![
        change(server, "/twice", &format!("change=\"created\" {} length=\"1\"", at(0))),
        change(server, "/a", &format!("change=\"updated\" {} length=\"6\"", at(0))),
        change(server, "/a", &format!("change=\"updated\" {} length=\"7\"", at(1))),
        change(server, "/b", &format!("change=\"deleted\" {}", at(2))),
    ];
    let created = |number| format!("change=\"created\" {} length=\"{number}\"", at(3 + number % 60));
    changes.extend((0..MANY).map(|number| change(server, &format!("/new/{number}"), &created(number))));
    changes.push(change(server, "/twice", &format!("change=\"deleted\" {}", at(90))));
    changes
}

fn of(server: &Loopback) -> Destination {
    let mut destination = Destination::of(server, "/caps.xml");
    destination.synchronizer.tuning.in_batch = IN_BATCH;
    destination
}

#[tokio::test]
async fn many_changes_are_applied_in_batches_without_the_lists() {
    let server = source().await;
    let mut destination = of(&server);
    destination.commit().await;
    let before = (destination.files(), destination.written().0.unwrap().number);
    let mut changes = many(&server);
    server.put(CHANGES, change_list(&changes).etag("many"));
    server.put(LIST, Answer::status(403));
    let (catalog, told) = (destination.catalog.clone(), Arc::new(std::sync::Mutex::new(Vec::new())));
    let notices = told.clone();
    destination.synchronizer.writer.invalidate = Some(Arc::new(move |invalidations| {
        notices
            .lock()
            .unwrap()
            .push((catalog.revision().unwrap().unwrap().number - before.1, invalidations.is_empty()));
    }));

    let committed = destination.commit().await;

    let files = destination.files();
    assert_eq!((committed.created, committed.updated, committed.deleted), (MANY as u64, 1, 1), "of all together");
    assert_eq!(*told.lock().unwrap(), [(1, false), (2, false), (3, false)], "each batch is seen before the next");
    assert!(committed.invalidations.is_empty());
    assert_eq!(destination.written().0.unwrap().number, before.1 + 3);
    assert_eq!(files.len(), 3 + MANY);
    assert_eq!(files["/a"].1, Some(7), "the last of two counts");
    assert_ne!(files["/a"].0, before.0["/a"].0);
    assert_eq!(files["/c"], before.0["/c"]);
    assert!(!files.contains_key("/b") && !files.contains_key("/twice"));
    assert_eq!(files["/new/1299"].1, Some(1299));
    server.put(LIST, Answer::xml(list(&server, &["/a", "/b", "/c", "/d"])));
    destination.refresh().await.unwrap();
    let written = destination.written();
    let mut destination = destination.restarted(&server);
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged), "nothing is applied twice");
    assert_eq!(destination.written(), written);

    changes.push(change(&server, "/c", &format!("change=\"updated\" {} length=\"8\"", at(95))));
    server.put(CHANGES, change_list(&changes).etag("one more"));
    destination.commit().await;
    assert_eq!(destination.files()["/c"].1, Some(8));
    assert_eq!(destination.files().len(), 3 + MANY);
}

#[tokio::test]
async fn changes_that_rewrite_the_tree_are_one_commit() {
    let server = source().await;
    let mut destination = of(&server);
    destination.commit().await;
    let before = destination.written().0.unwrap().number;
    server.put(CHANGES, change_list(&many(&server)));
    destination.catalog.write_in_place(MANY as u64 - 1);

    let committed = destination.commit().await;

    assert_eq!((committed.created, committed.updated, committed.deleted), (MANY as u64, 1, 1));
    assert_eq!(destination.written().0.unwrap().number, before + 1);
    assert_eq!(destination.files().len(), 3 + MANY);
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
}

/// The first batches are in the tree, and the state is that before them all.
#[tokio::test]
async fn what_died_between_two_batches_goes_on_and_repeats_nothing() {
    let server = source().await;
    let mut destination = of(&server);
    destination.commit().await;
    server.put(CHANGES, change_list(&many(&server)));
    let position = destination.synchronizer.position().unwrap().unwrap();
    let (source, _) = destination.synchronizer.source(false).await.unwrap();
    let sets = position.clone().follow(&source);
    let read = destination.synchronizer.read_changes(&sets, &position, &Scope::Everything).await.unwrap();
    let new = destination.synchronizer.news(read, &position, Timestamp::now()).await.unwrap();
    let all = new.left();
    let new = std::sync::Arc::new(std::sync::Mutex::new(new));
    destination.synchronizer.apply_next(new.clone(), position.clone()).await.unwrap();
    assert_eq!(new.lock().unwrap().left(), all - IN_BATCH);

    let mut destination = destination.restarted(&server);
    let before = destination.files();
    let committed = destination.commit().await;

    let files = destination.files();
    assert!(before.len() as u64 > IN_BATCH / 2 && before.iter().all(|(path, file)| files[path] == *file));
    assert_eq!((committed.created + before.len() as u64, committed.updated), (files.len() as u64, 0));
    assert_eq!(files.len(), 3 + MANY);
}

/// Promise: never a stuck process. The thread that answers reads is not held by a long Change List.
#[tokio::test]
async fn a_long_change_list_is_read_without_holding_the_runtime() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let created = |number| change(&server, &format!("/new/{number}"), &format!("change=\"created\" {}", at(3)));
    server.put(CHANGES, change_list(&(0..40_000).map(created).collect::<Vec<_>>()));
    let longest = Arc::new(std::sync::Mutex::new(Duration::ZERO));
    let noted = Arc::clone(&longest);
    let ticking = tokio::spawn(async move {
        loop {
            let began = Instant::now();
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut longest = noted.lock().unwrap();
            *longest = began.elapsed().max(*longest);
        }
    });
    tokio::task::yield_now().await;

    let began = Instant::now();
    destination.commit().await;

    let (took, longest) = (began.elapsed(), *longest.lock().unwrap());
    ticking.abort();
    assert!(longest * 10 < took, "{longest:?} of {took:?}");
    assert_eq!(destination.files().len(), 4 + 40_000);
}

#[tokio::test]
async fn many_changes_at_the_first_look_are_in_the_first_tree() {
    let server = source().await;
    server.put(CHANGES, change_list(&many(&server)));
    let mut destination = of(&server);

    destination.commit().await;

    assert_eq!(destination.files().len(), 3 + MANY);
    assert_eq!(destination.files()["/a"].1, Some(7));
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
}

#[tokio::test]
async fn an_undated_deletion_among_many_needs_a_gone_resource() {
    let server = source().await;
    let entries = ["/a", "/b", "/c", "/d"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(LIST, resource_list_at("", &entries));
    let mut changes = vec![change(&server, "/a", "change=\"deleted\""), change(&server, "/b", "change=\"deleted\"")];
    changes.extend((0..MANY).map(|number| change(&server, &format!("/new/{number}"), "change=\"created\"")));
    server.put(CHANGES, Answer::xml(urlset("capability=\"changelist\"", &[], &changes)));
    server.put("/b", Answer::html("still here"));
    let mut destination = of(&server);

    destination.commit().await;

    let files = destination.files();
    assert!(files.contains_key("/b") && !files.contains_key("/a"), "/a answers 404");
    assert_eq!(files.len(), 3 + MANY);
}

#[tokio::test]
async fn undated_deletions_beyond_one_look_are_asked_about_later() {
    let server = source().await;
    let entry = |number| url(server.uri(&format!("/r{number}")).as_str(), "");
    server.put(LIST, resource_list_at("", &(0..80).map(entry).collect::<Vec<_>>()));
    let deleted = |number| change(&server, &format!("/r{number}"), "change=\"deleted\"");
    let changes: Vec<_> = (0..70).map(deleted).collect();
    server.put(CHANGES, Answer::xml(urlset("capability=\"changelist\"", &[], &changes)));
    let mut destination = of(&server);
    destination.synchronizer.tuning.asked = 50;
    destination.synchronizer.config.max_delete = MaxDelete::percent(100).unwrap();

    destination.commit().await;
    assert_eq!(destination.files().len(), 80 - 50);
    destination.commit().await;

    assert_eq!(destination.files().len(), 80 - 70);
}

/// An entry with links, of a list or of changes.
fn linked(server: &Loopback, path: &str, md: &str, links: &[(&str, &str)]) -> String {
    let link = |(rel, to): &(&str, &str)| {
        let to = if to.contains(':') { (*to).to_owned() } else { server.uri(to).to_string() };
        format!("<rs:ln rel=\"{rel}\" href=\"{to}\"/>")
    };
    let links: String = links.iter().map(link).collect();
    format!("<url><loc>{}</loc><rs:md {md}/>{links}</url>", server.uri(path))
}

#[tokio::test]
async fn a_baseline_selects_despite_deletions_of_unknown_records() {
    let server = source().await;
    let record = linked(&server, "/dc", "type=\"text/xml\"", &[("describes", "/x"), ("profile", DC)]);
    let entries = [record, url(server.uri("/x").as_str(), ""), url(server.uri("/y").as_str(), "")];
    server.put(LIST, resource_list_at("at=\"2013-01-03T09:00:00Z\"", &entries));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.synchronizer.config.selection.formats = vec![Href::parse(DC).unwrap()];
    destination.synchronizer.config.max_delete = MaxDelete::percent(100).unwrap();
    destination.commit().await;
    assert_eq!(destination.paths(), ["/dc", "/x"]);
    let kept =
        linked(&server, "/dc2", &format!("change=\"created\" {}", at(1)), &[("describes", "/y"), ("profile", DC)]);
    server.put(CHANGES, change_list(&[kept, change(&server, "/dc", &format!("change=\"deleted\" {}", at(2)))]));
    destination.commit().await;
    assert_eq!(destination.paths(), ["/dc2", "/y"]);

    // Another list, older than the changes.
    server.put(LIST, resource_list_at("at=\"2013-01-03T09:30:00Z\"", &entries));
    destination.refresh().await.unwrap();

    assert_eq!(destination.paths(), ["/dc2", "/y"], "the record is gone, and with it what it brought");
}

#[tokio::test]
async fn a_baseline_selects_by_the_last_state_of_a_hidden_record() {
    let server = source().await;
    let record = |md: &str, links: &[(&str, &str)]| linked(&server, "/dc", &format!("type=\"text/xml\" {md}"), links);
    let pdf = |path: &str| url(server.uri(path).as_str(), "type=\"application/pdf\"");
    let entries = [record("", &[("describes", "/x"), ("profile", DC)]), pdf("/x"), pdf("/z")];
    server.put(LIST, resource_list_at("at=\"2013-01-03T09:00:00Z\"", &entries));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.synchronizer.config.selection.formats = vec![Href::parse(DC).unwrap()];
    destination.synchronizer.config.selection.types = vec!["application/pdf".into()];
    destination.commit().await;
    assert_eq!(destination.paths(), ["/x"]);
    let links = [("describes", "/x"), ("describes", "/z"), ("profile", DC)];
    server.put(CHANGES, change_list(&[record(&format!("change=\"updated\" {}", at(1)), &links)]));
    destination.commit().await;
    assert_eq!(destination.paths(), ["/x", "/z"]);

    server.put(LIST, resource_list_at("at=\"2013-01-03T09:30:00Z\"", &entries));
    destination.refresh().await.unwrap();

    assert_eq!(destination.paths(), ["/x", "/z"]);
}

#[tokio::test]
async fn changes_that_choose_nothing_else_need_no_list() {
    let server = source().await;
    let record =
        linked(&server, "/dc", "type=\"text/xml\"", &[("describes", "/x"), ("describes", "/y"), ("profile", DC)]);
    let entries = [record, url(server.uri("/x").as_str(), ""), url(server.uri("/y").as_str(), "")];
    server.put(LIST, resource_list_at("at=\"2013-01-03T09:00:00Z\"", &entries));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.synchronizer.config.selection.formats = vec![Href::parse(DC).unwrap()];
    destination.synchronizer.config.max_delete = MaxDelete::percent(100).unwrap();
    destination.commit().await;
    let changes = [
        change(&server, "/x", &format!("change=\"updated\" {}", at(1))),
        change(&server, "/y", &format!("change=\"deleted\" {}", at(2))),
    ];
    server.put(CHANGES, change_list(&changes));
    server.put(LIST, Answer::status(403));

    destination.commit().await;

    assert_eq!(destination.paths(), ["/dc", "/x"]);
}

#[tokio::test]
async fn changes_that_only_lists_can_judge_wait_for_them() {
    let server = source().await;
    let record = |md: &str, links: &[(&str, &str)]| linked(&server, "/dc", &format!("type=\"text/xml\" {md}"), links);
    let entries = [record("", &[("describes", "/x"), ("profile", DC)]), url(server.uri("/x").as_str(), "")];
    let entries = [&entries[..], &[url(server.uri("/y").as_str(), "")]].concat();
    server.put(LIST, resource_list_at("at=\"2013-01-03T09:00:00Z\"", &entries));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.synchronizer.config.selection.formats = vec![Href::parse(DC).unwrap()];
    destination.commit().await;
    let lists = server.answer(LIST);
    let links = [("describes", "/x"), ("describes", "/y"), ("profile", DC)];
    server.put(CHANGES, change_list(&[record(&format!("change=\"updated\" {}", at(1)), &links)]));
    server.put(LIST, Answer::status(403));

    let refreshed = destination.refresh().await;

    assert!(matches!(refreshed, Err(SyncError::Source(_))), "{refreshed:?}");
    assert_eq!(destination.paths(), ["/dc", "/x"]);
    server.put(LIST, lists);
    destination.commit().await;
    assert_eq!(destination.paths(), ["/dc", "/x", "/y"]);
}

#[tokio::test]
async fn of_uris_of_one_path_beyond_the_bound_the_first_are_shown() {
    const SHOWN: usize = 100;
    let server = source().await;
    let escaped = |number: usize| -> String {
        (0..7).rev().map(|bit| if number >> bit & 1 == 1 { "," } else { "%2C" }).collect()
    };
    let of = |number: usize| server.uri(&format!("/{}", escaped(number))).as_str().to_owned();
    let uris: Vec<String> = (0..SHOWN + 3).map(of).collect();
    let entries: Vec<String> =
        uris.iter().map(|uri| url(uri, "")).chain([url(server.uri("/a").as_str(), "")]).collect();
    server.put(LIST, resource_list_at("at=\"2013-01-03T09:00:00Z\"", &entries));
    let mut destination = Destination::of(&server, "/caps.xml");
    let is_shown = |destination: &Destination, uri: &str| {
        let uri = Uri::parse(uri).unwrap();
        destination.catalog.snapshot().unwrap().locate(&uri).unwrap().is_some()
    };

    destination.commit().await;
    assert_eq!(destination.files().len(), SHOWN + 1, "what else is listed is shown");
    assert!(is_shown(&destination, &uris[SHOWN - 1]) && !is_shown(&destination, &uris[SHOWN]));
    let deviations = destination.synchronizer.status().borrow().clone().deviations;
    assert!(deviations.iter().any(|it| it.count == 3 && it.location == ",".repeat(7)), "{deviations:?}");

    let gone = uris[7].strip_prefix(server.uri("/").as_str()).unwrap();
    let changes = [
        change(&server, &format!("/{gone}"), &format!("change=\"deleted\" {}", at(1))),
        change(&server, "/new", &format!("change=\"created\" {}", at(2))),
    ];
    server.put(CHANGES, change_list(&changes));
    destination.commit().await;

    assert_eq!(destination.files().len(), SHOWN + 1, "one comes, one goes");
    assert!(destination.files().contains_key("/new") && !is_shown(&destination, &uris[7]));
    assert!(!is_shown(&destination, &uris[SHOWN]), "the next baseline shows it");
}
