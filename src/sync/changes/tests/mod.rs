//! The rules of incremental synchronization, each by name, of entries without a time in `undated`; Sources of random histories in `history`.

mod doubts;
mod history;
mod indexes;
mod lost;
mod state;
mod times;
mod undated;
mod windows;

use super::*;
use crate::catalog::news::Notes;
use crate::catalog::{CatalogError, SetId};
use crate::document::{Change, Entry, Header, PackageMember, Root, Uri};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

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

    /// Of its bytes.
    fn digest(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(format!("{:?}{:?}", self.header(), self.entries).as_bytes())
    }
}

/// A state with the journal that it goes with: of each resource the last change.
#[derive(Clone, Debug, Default)]
struct KnownJournal {
    state: ChangeState,
    ends: Option<Timestamp>,
    journal: BTreeMap<Uri, (Timestamp, Entry)>,
}

impl Deref for KnownJournal {
    type Target = ChangeState;

    fn deref(&self) -> &ChangeState {
        &self.state
    }
}

impl DerefMut for KnownJournal {
    fn deref_mut(&mut self) -> &mut ChangeState {
        &mut self.state
    }
}

impl KnownJournal {
    fn since(at: Option<Timestamp>) -> KnownJournal {
        KnownJournal { state: ChangeState::since(at), ..KnownJournal::default() }
    }

    fn up_to(self, ends: Timestamp) -> KnownJournal {
        KnownJournal { ends: Some(ends), ..self }
    }

    fn rebased(mut self, at: Option<Timestamp>) -> KnownJournal {
        self.journal.retain(|_, (time, _)| at.is_none_or(|at| *time >= at));
        KnownJournal { state: self.state.rebased(at), ..self }
    }

    fn compare(&self, entry: &Entry, time: Option<Timestamp>) -> Option<Ordering> {
        let (journaled, last) = self.journal.get(&entry.loc)?;
        match journaled.cmp(&time.unwrap_or(*journaled)) {
            Ordering::Equal => (*last == as_journaled(entry)).then_some(Ordering::Equal),
            order => Some(order),
        }
    }
}

/// An entry as the journal has it.
fn as_journaled(entry: &Entry) -> Entry {
    let entry = Entry { change: entry.change.or(Some(Change::Updated)), ..entry.clone() };
    match entry.change {
        Some(Change::Deleted) => {
            Entry { change: entry.change, datetime: entry.datetime, ..Entry::new(entry.loc.clone()) }
        }
        _ => entry,
    }
}

/// A new change, with its entry.
#[derive(Clone, Debug)]
struct Told {
    change: Change,
    time: Timestamp,
    is_doubtful: bool,
    entry: Entry,
}

#[derive(Debug)]
struct Looked {
    changes: Vec<Told>,
    /// What is known once these are applied, but for the doubtful.
    known: KnownJournal,
}

/// Reads a list; how many of its entries were compared with the journal.
fn read(known: &KnownJournal, list: &List, now: i64) -> (ChangeDocument, Notes, usize) {
    let compared = std::cell::Cell::new(0);
    let (document, notes, _) = read_by(known, list, now, &compared);
    (document, notes, compared.get())
}

/// The same; how many entries were visited.
fn read_and_count(known: &KnownJournal, list: &List, now: i64) -> (ChangeDocument, Notes, usize) {
    read_by(known, list, now, &std::cell::Cell::new(0))
}

fn read_by(
    known: &KnownJournal,
    list: &List,
    now: i64,
    compared: &std::cell::Cell<usize>,
) -> (ChangeDocument, Notes, usize) {
    let mut visited = 0;
    let journal = |entry: &Entry, _: Option<&PackageMember>, time| {
        compared.set(compared.get() + 1);
        Ok(known.compare(entry, time))
    };
    let head = DocumentHead {
        location: list.location(),
        digest: list.digest(),
        listed: list.listed.clone().map(Box::new),
        modified: list.modified.map(t),
    };
    let number = resource_digest(&uri(&list.name));
    let document =
        known.read_document((SetId(1), number), &head, t(now), (&journal, &Notes::few), &mut |visit: Visit<
            '_,
            CatalogError,
        >| {
            let header = list.header();
            for entry in &list.entries {
                visited += 1;
                if visit(&header, entry.clone(), None)?.is_break() {
                    break;
                }
            }
            Ok(header)
        });
    let (document, notes) = document.unwrap();
    (document, notes, visited)
}

fn documents(known: &KnownJournal, lists: &[List], now: i64) -> (Vec<ChangeDocument>, Notes) {
    let mut all = Notes::few();
    let documents = lists.iter().map(|list| {
        let (document, notes, _) = read(known, list, now);
        all.join(notes).unwrap();
        ChangeDocument { ends: known.ends, ..document }
    });
    (documents.collect(), all)
}

/// What a look at these lists brings: whether they go on where `known` ends, and the news.
fn look_with(known: &KnownJournal, lists: &[List], unread: &[String], now: i64) -> (bool, Looked) {
    look_over(known, known, lists, unread, now)
}

/// The same where the lists were read by what was known `before`.
fn look_over(
    before: &KnownJournal,
    known: &KnownJournal,
    lists: &[List],
    unread: &[String],
    now: i64,
) -> (bool, Looked) {
    let (documents, notes) = documents(before, lists, now);
    let is_joined = known.is_joined_by(&documents, unread);
    let (state, documents) = known.with_documents(documents, unread, t(now));
    let mut judge = Judge::default();
    judge.add_root(documents);
    let mut news = judge.judge(notes).unwrap();
    let mut known = KnownJournal { state: state.doubting(judge.take_doubts().remove(0)), ..known.clone() };
    let mut changes = Vec::new();
    while let Some((_, NewChange { change, time, entry, .. }, is_doubtful)) = news.next_change().unwrap() {
        changes.push(Told { change, time, is_doubtful, entry });
    }
    for it in changes.iter().filter(|it| !it.is_doubtful) {
        let last = known.journal.entry(it.entry.loc.clone()).or_insert((it.time, it.entry.clone()));
        if last.0 <= it.time {
            *last = (it.time, it.entry.clone());
        }
    }
    (is_joined, Looked { changes, known })
}

fn look(known: &KnownJournal, lists: &[List], now: i64) -> (bool, Looked) {
    look_with(known, lists, &[], now)
}

/// The changes as (resource, what, whole seconds).
fn told(news: &Looked) -> Vec<(&str, Change, i64)> {
    news.changes.iter().map(|it| (&it.entry.loc.path()[1..], it.change, it.time.seconds)).collect()
}
