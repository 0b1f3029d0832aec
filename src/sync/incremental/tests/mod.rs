//! The rules of incremental synchronization, each by name, those of what bears no time in `undated`; Sources of random histories in `history`.

mod doubts;
mod history;
mod lost;
mod rules;
mod undated;

use super::*;
use crate::document::Root;

/// A change document as a Source publishes it.
#[derive(Clone, Debug)]
struct List {
    name: String,
    from: Option<i64>,
    until: Option<i64>,
    modified: Option<i64>,
    listed: Option<Entry>,
    entries: Vec<Entry>,
}

fn t(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

fn uri(name: &str) -> Uri {
    Uri::parse(&format!("http://example.org/{name}")).unwrap()
}

fn change(name: &str, change: Change) -> Entry {
    Entry { change: Some(change), ..Entry::new(uri(name)) }
}

fn dated(name: &str, what: Change, datetime: i64) -> Entry {
    Entry { datetime: Some(t(datetime)), ..change(name, what) }
}

fn modified(name: &str, what: Change, lastmod: i64) -> Entry {
    Entry { lastmod: Some(t(lastmod)), ..change(name, what) }
}

fn list(name: &str, from: Option<i64>, until: Option<i64>, entries: Vec<Entry>) -> List {
    List { name: name.into(), from, until, modified: None, listed: None, entries }
}

impl List {
    fn header(&self) -> Header {
        let (capability, at, completed, links) = (None, None, None, Vec::new());
        let (from, until) = (self.from.map(t), self.until.map(t));
        Header { root: Root::UrlSet, capability, at, completed, from, until, links }
    }

    fn location(&self) -> String {
        uri(&self.name).as_str().to_owned()
    }
}

/// What a look at these lists brings: whether they go on where `known` ends, and the news.
fn look_with(known: &Known, lists: &[List], unread: &[String], now: i64) -> (bool, News) {
    let seen = known.seen();
    let documents: Vec<_> = lists
        .iter()
        .map(|list| {
            let listed = list.listed.clone().map(Box::new);
            let mut reading =
                known.reading(&seen, list.location(), list.header(), listed, list.modified.map(t), t(now));
            list.entries.iter().for_each(|entry| reading.see(entry.clone(), None));
            reading.end(list.header())
        })
        .collect();
    let is_joined = known.is_joined_by(&documents, unread);
    (is_joined, known.read(documents, unread, t(now)))
}

fn look(known: &Known, lists: &[List], now: i64) -> (bool, News) {
    look_with(known, lists, &[], now)
}

/// The changes as (resource, what, whole seconds).
fn told(news: &News) -> Vec<(&str, Change, i64)> {
    let name = |entry: &NewChange| entry.entry.loc.path().to_owned();
    news.changes
        .iter()
        .map(|change| {
            assert!(name(change).starts_with('/'));
            (&change.entry.loc.path()[1..], change.change, change.time.seconds)
        })
        .collect()
}
