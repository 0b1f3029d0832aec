//! What is asked for while a refresh is under way.

use super::changes::{change, source};
use super::*;
use crate::catalog::{Invalidation, Renewal};
use crate::sync::command::Command;
use crate::sync::poller::Listeners;
use crate::sync::status::Refreshed;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// The poller of a destination, as a mount runs it.
struct Polling {
    commands: mpsc::Sender<Command>,
    renewals: mpsc::UnboundedSender<(crate::platform::ino::Ino, Renewal)>,
    invalidated: mpsc::UnboundedReceiver<Vec<Invalidation>>,
    refreshed: mpsc::UnboundedReceiver<()>,
    status: watch::Receiver<SyncStatus>,
    catalog: Arc<Catalog>,
    running: JoinHandle<()>,
    _folder: TempDir,
}

impl Polling {
    fn begin(destination: Destination) -> Polling {
        let Destination { synchronizer, catalog, _folder } = destination;
        let status = synchronizer.status();
        let ((commands, receiver), (renewals, renewed)) = (mpsc::channel(64), mpsc::unbounded_channel());
        let ((invalidate, invalidated), (refresh, refreshed)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let listeners = Listeners {
            invalidate: Arc::new(move |them| _ = invalidate.send(them)),
            refreshed: Box::new(move || _ = refresh.send(())),
        };
        let running = tokio::spawn(poller::run(synchronizer, receiver, renewed, mpsc::channel(1).1, listeners, false));
        Polling { commands, renewals, invalidated, refreshed, status, catalog, running, _folder }
    }

    /// Requests a refresh, and returns the receiver of its answer.
    fn request(&self) -> oneshot::Receiver<Refreshed> {
        self.request_with(false)
    }

    fn request_with(&self, accept_deletions: bool) -> oneshot::Receiver<Refreshed> {
        let (requester, answer) = oneshot::channel();
        self.commands.try_send(Command::Refresh { accept_deletions, requester }).unwrap();
        answer
    }

    /// Ends the poller, as the end of the mount does.
    async fn end(self) -> Arc<Catalog> {
        drop((self.commands, self.renewals));
        self.running.await.unwrap();
        self.catalog
    }
}

/// Waits until `done`, which must come within the deadline of a test.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let done = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), done).await.expect(what);
}

/// Who asks while a refresh is under way must see everything published before: it may have been read already. All who wait
/// share one more.
#[tokio::test]
async fn refreshes_requested_during_one_share_the_next() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    destination.refresh().await.unwrap();
    let polling = Polling::begin(destination);
    server.asked();
    let first = polling.request();
    let mut asked = Vec::new();
    while !asked.iter().any(|path| path == "/changes.xml") {
        tokio::task::yield_now().await;
        asked.extend(server.asked().into_iter().map(|asked| asked.path));
    }
    // The change document has been asked for, and nothing can end before this task waits again.
    let new = change(&server, "/e", "change=\"created\" datetime=\"2013-01-03T10:01:00Z\"");
    let head = "capability=\"changelist\" from=\"2013-01-03T09:00:00Z\"";
    server.put("/changes.xml", Answer::xml(urlset(head, &[], &[new])));
    let answers: Vec<_> = (0..5).map(|_| polling.request()).collect();

    assert_eq!(first.await.unwrap().outcome, status::RefreshOutcome::Unchanged);
    let mut told = Vec::new();
    for answer in answers {
        told.push(answer.await.unwrap());
    }

    let created = status::RefreshOutcome::Committed { created: 1, updated: 0, touched: 0, deleted: 0 };
    // A separate refresh would have found nothing more.
    assert!(told.iter().all(|it| it.outcome == created), "{told:?}");
    assert_eq!(polling.end().await.revision().unwrap().unwrap().totals.files, 5);
}

/// An inode gets its successor although the Source keeps a refresh waiting; the status tells since when.
#[tokio::test]
async fn an_inode_gets_its_successor_while_the_source_is_waited_for() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    destination.refresh().await.unwrap();
    let before = destination.files()["/a"].0;
    let mut polling = Polling::begin(destination);
    assert_eq!(polling.status.borrow().clone().refreshing_since, None);
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    server.put("/changes.xml", Answer::redirect(&format!("http://{address}/changes.xml")));
    let mut answer = polling.request();
    let (connection, _) = silent.accept().await.unwrap();

    polling.renewals.send((crate::platform::ino::Ino(before), Renewal::AsPublished)).unwrap();

    assert!(!polling.invalidated.recv().await.unwrap().is_empty());
    assert!(answer.try_recv().is_err(), "the refresh waits still");
    assert!(polling.status.borrow().clone().refreshing_since.is_some());
    drop((connection, silent));
    answer.await.unwrap();
    assert_eq!(polling.status.borrow().clone().refreshing_since, None);
    let catalog = polling.end().await;
    let root = catalog.snapshot().unwrap();
    let now = root.lookup(crate::platform::ino::Ino::ROOT, b"a").unwrap().unwrap();
    assert_ne!(now.ino.0, before);
}

/// A list that fails and is announced again and again would else put off the polls of all others for good.
#[tokio::test]
async fn announcements_of_a_document_that_fails_put_off_no_poll() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.synchronizer.config.poll = Some(Duration::from_millis(500));
    destination.synchronizer.fetch.schedule = Schedule::new(destination.synchronizer.config.poll);
    destination.commit().await;
    server.put(LIST, Answer::status(403));
    server.asked();
    let polling = Polling::begin(destination);

    let announced = async {
        loop {
            let announcement = command::Announcement::Document { document: server.uri(LIST), index: None };
            polling.commands.try_send(Command::Announced(vec![announcement])).unwrap();
            let mut asked = Vec::new();
            while !asked.iter().any(|it: &crate::source::tests::loopback::Asked| it.path == LIST) {
                tokio::time::sleep(Duration::from_millis(5)).await;
                asked.extend(server.asked());
                if asked.iter().any(|it| it.path == "/changes.xml") {
                    return;
                }
            }
        }
    };

    tokio::time::timeout(Duration::from_secs(30), announced).await.expect("the Change List is polled");
    polling.end().await;
}

/// It is put off ever longer; what else there is comes as often as ever.
#[tokio::test]
async fn a_change_list_that_fails_for_good_slows_no_other() {
    const POLLS: usize = 20;
    let server = source().await;
    let offers = [("resourcelist", LIST), ("changelist", "/changes.xml"), ("changelist", "/more.xml")];
    let offers = offers.map(|(capability, path)| offer(capability, server.uri(path).as_str()));
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    server.put("/more.xml", server.answer("/changes.xml"));
    let mut destination = Destination::of(&server, "/caps.xml");
    // The documents are due often, and the pause after a refresh that fails as a whole is the usual one.
    destination.synchronizer.fetch.schedule = Schedule::new(Some(Duration::from_millis(50)));
    destination.commit().await;
    destination.refresh().await.unwrap();
    server.put("/changes.xml", Answer::status(403));
    server.asked();
    let mut polling = Polling::begin(destination);

    let mut asked: Vec<String> = Vec::new();
    let times = |asked: &[String], path: &str| asked.iter().filter(|it| *it == path).count();
    until("the other one is polled", || {
        asked.extend(server.asked().into_iter().map(|asked| asked.path));
        times(&asked, "/more.xml") >= POLLS && times(&asked, "/changes.xml") > 0
    })
    .await;

    assert_eq!(times(&asked, "/caps.xml"), 0);
    polling.refreshed.recv().await.unwrap();
    let told = polling.request().await.unwrap().outcome;
    assert!(matches!(&told, status::RefreshOutcome::Failed(why) if why.contains("/changes.xml")), "{told:?}");
    assert!(polling.status.borrow().clone().failures > 0);
    polling.end().await;
}

/// While channels are alive polling is rarer; where that ends, the usual interval counts at once.
#[tokio::test]
async fn the_end_of_live_channels_hurries_the_next_poll() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let schedule = &mut destination.synchronizer.fetch.schedule;
    schedule.set_live(true);
    let locations: Vec<_> = schedule.documents().map(|(location, _)| location.clone()).collect();
    let asked = tokio::time::Instant::now() - scheduler::SHORTEST * 2;
    locations.iter().for_each(|location| schedule.answered(location, scheduler::Cost::default(), 0.0, asked));
    server.asked();
    let polling = Polling::begin(destination);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(server.asked().is_empty(), "not due yet");

    polling.commands.try_send(Command::Channels(false)).unwrap();

    until("the Change List is due", || !server.asked().is_empty()).await;
    polling.end().await;
}

/// Promise: a person who confirms deletions is told of them, even where the Source cannot be asked for more just then.
#[tokio::test]
async fn confirmed_deletions_are_reported_though_the_refresh_fails() {
    let server = Loopback::start();
    server.put(LIST, Answer::xml(list(&server, &["/1", "/2", "/3", "/4"])));
    let mut destination = Destination::of(&server, LIST);
    destination.commit().await;
    server.put(LIST, Answer::xml(list(&server, &["/1"])));
    destination.commit().await;
    assert_eq!(destination.paths().len(), 4, "three deletions are held back");
    server.put(LIST, Answer::status(404));
    let polling = Polling::begin(destination);

    let told = polling.request_with(true).await.unwrap();

    let applied = status::RefreshOutcome::Committed { created: 0, updated: 0, touched: 0, deleted: 3 };
    assert_eq!(told.outcome, applied);
    assert!(told.why().is_some_and(|why| why.contains("404")), "{:?}", told.failed);
    assert_eq!(polling.end().await.revision().unwrap().unwrap().totals.files, 1);
}
