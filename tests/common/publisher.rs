//! A set of resources whose documents are written in a random style, of all that the standard allows and much that breaks it.
//! Everything they announce is true.

use super::random::Random;
use super::source::{Resource, SITEMAPINDEX, Source, URLSET, hex};
use resyncfs::document::Timestamp;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Milliseconds since 1970.
pub type Time = i64;

/// The documents that announce changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// None: Resource Lists alone.
    None,
    /// A Change List that grows.
    Open,
    /// A Change List with the last so many changes.
    Rolling(usize),
    /// An index of closed lists and one that grows.
    Index,
    /// The Capability List names the one that grows, each leads to an index of all.
    Chain,
    /// An archive of closed lists and no Change List.
    Archive,
}

/// Which changes bear the time at which they happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dated {
    All,
    Some,
    None,
}

/// In which order a Change List lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    OldestFirst,
    NewestFirst,
    Any,
}

/// The resources' own `lastmod`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lastmod {
    /// When they changed at the Source.
    OfChange,
    /// HTTP's meaning: it may be years old.
    Old,
    None,
}

/// The style of the documents of one set.
#[derive(Clone, Debug)]
pub struct PublishingStyle {
    pub changes: Changes,
    pub dated: Dated,
    pub order: Order,
    /// Version 1.0: `lastmod` is the time of the change, and there is no `datetime`.
    pub is_old_version: bool,
    /// `at` on Resource Lists.
    pub has_at: bool,
    /// `from` on Change Lists.
    pub has_from: bool,
    /// A Change List that grows bears the time of its making as `until`.
    pub ends_always: bool,
    /// Closed lists are marked so in their index by `lastmod` alone.
    pub marks_by_lastmod: bool,
    /// Some deletions are announced by the next Resource List alone.
    pub hides_deletions: bool,
    /// Resource Lists below an index; 1: no index.
    pub parts: u64,
    /// So many changes of the list before stand in the next one again.
    pub overlap: usize,
    /// How times are written.
    pub spelling: u64,
    pub has_etag: bool,
    pub has_last_modified: bool,
}

impl PublishingStyle {
    /// Any style that leaves no change in doubt.
    pub fn any(random: &mut Random, is_dated: bool) -> PublishingStyle {
        let mut one_in = |of| random.below(of) == 0;
        let is_old_version = is_dated && one_in(3);
        let dated = match (is_dated, is_old_version || one_in(2)) {
            (false, _) => Dated::None,
            (true, true) => Dated::All,
            (true, false) => Dated::Some,
        };
        let has_from = !one_in(4);
        let (ends_always, marks_by_lastmod) = (one_in(4), one_in(3));
        // A list in which nothing bears a time counts as of the moment when it is seen, or by its server's word was written: where
        // the time is not this machine's own only the latter is true.
        let may_be_timeless = dated == Dated::Some || is_old_version && !has_from;
        let (has_etag, has_last_modified) = (!one_in(3), is_dated && may_be_timeless || one_in(3));
        let order = match random.below(3) {
            // Without times, only the order of the entries gives that of the changes.
            _ if dated != Dated::All => Order::OldestFirst,
            0 => Order::NewestFirst,
            // A `lastmod` before the list's time is none without `from`.
            1 if has_from || !is_old_version => Order::Any,
            _ => Order::OldestFirst,
        };
        let changes = match random.below(7) {
            0 => Changes::None,
            1 => Changes::Rolling(5 + random.below(30) as usize),
            2 | 3 => Changes::Index,
            4 => Changes::Chain,
            5 => Changes::Archive,
            _ => Changes::Open,
        };
        let is_rolling = matches!(changes, Changes::Rolling(_));
        // Nothing else tells that there was another list in between.
        let has_from = has_from || changes == Changes::Chain;
        // What only a Resource List tells it must date, and the changes before it too: without `from` a `lastmod` before the
        // list may be that of a later change.
        let hides_deletions = dated == Dated::All && (has_from || !is_old_version) && random.below(4) == 0;
        let has_at = hides_deletions || is_rolling || random.below(4) > 0;
        PublishingStyle {
            changes,
            dated,
            order,
            is_old_version,
            has_at,
            has_from,
            ends_always,
            marks_by_lastmod,
            hides_deletions,
            parts: if random.below(3) == 0 { 2 + random.below(3) } else { 1 },
            overlap: if dated == Dated::All { random.below(4) as usize } else { 0 },
            spelling: random.below(6),
            has_etag,
            has_last_modified,
        }
    }
}

/// A version of a resource, as it is published.
#[derive(Clone, Debug)]
pub struct Version {
    pub bytes: Vec<u8>,
    pub has_hash: bool,
    pub has_length: bool,
    pub lastmod: Option<Time>,
}

impl Version {
    fn md(&self) -> String {
        let mut md = String::new();
        if self.has_hash {
            let _ = write!(md, " hash=\"sha-256:{}\"", hex(&Sha256::digest(&self.bytes)));
        }
        if self.has_length {
            let _ = write!(md, " length=\"{}\"", self.bytes.len());
        }
        md
    }
}

/// A change as it is announced; `None`: deleted.
#[derive(Clone, Debug)]
struct AnnouncedChange {
    time: Time,
    path: String,
    word: &'static str,
    version: Option<Version>,
    is_dated: bool,
}

/// The set.
pub struct Publisher {
    source: Source,
    /// Before the names of its documents.
    prefix: String,
    style: PublishingStyle,
    members: BTreeMap<String, Version>,
    /// The changes of the list that grows.
    announced: Vec<AnnouncedChange>,
    /// Those of the list before that it repeats.
    repeated: usize,
    /// When the list that grows begins.
    from: Time,
    /// (from, until) of each closed list.
    closed: Vec<(Time, Time)>,
    /// Names and bytes of a Resource List that is not served yet.
    draft: Option<Vec<(String, String, Time)>>,
    /// Changes of `announced` that a reader certainly has.
    read: usize,
    /// Whether only a new Resource List can show all changes.
    needs_list: bool,
    /// Members that the last Resource List leaves out although they exist.
    omitted: BTreeSet<String>,
    /// Whether the last Resource List has an entry that cannot be understood.
    is_garbled: bool,
    /// How often the Capability List was renamed.
    renamings: u64,
    /// Entries of the Capability List beside its documents.
    pub channel: String,
    documents: BTreeSet<String>,
    /// What happened, for a person who looks for the cause of a failure.
    diary: Vec<String>,
}

impl Publisher {
    /// A set with one resource in each of its Resource Lists, which never go.
    pub fn start(source: &Source, prefix: &str, style: PublishingStyle, now: Time) -> Publisher {
        let mut publisher = Publisher {
            source: source.clone(),
            prefix: prefix.to_owned(),
            members: BTreeMap::new(),
            announced: Vec::new(),
            repeated: 0,
            from: now,
            closed: Vec::new(),
            draft: None,
            read: 0,
            needs_list: false,
            omitted: BTreeSet::new(),
            is_garbled: false,
            renamings: 0,
            channel: String::new(),
            documents: BTreeSet::new(),
            diary: Vec::new(),
            style,
        };
        for anchor in publisher.anchors() {
            let bytes = anchor.clone().into_bytes();
            source.put(&anchor, Resource::bare(bytes.clone()));
            let version = Version { bytes, has_hash: true, has_length: true, lastmod: Some(now) };
            publisher.members.insert(anchor, version);
        }
        publisher
    }

    pub fn style(&self) -> &PublishingStyle {
        &self.style
    }

    /// The resources that are always there.
    pub fn anchors(&self) -> Vec<String> {
        (0..self.style.parts).map(|part| format!("{}anchor-{part}", self.prefix)).collect()
    }

    pub fn has(&self, path: &str) -> bool {
        self.members.contains_key(path)
    }

    /// Every path with its version.
    pub fn members(&self) -> &BTreeMap<String, Version> {
        &self.members
    }

    /// Names of the documents served so far.
    pub fn documents(&self) -> impl Iterator<Item = &String> {
        self.documents.iter()
    }

    /// What happened so far.
    pub fn diary(&self) -> &[String] {
        &self.diary
    }

    /// Notes something that is not announced.
    pub fn note(&mut self, what: &str) {
        self.diary.push(what.to_owned());
    }

    /// The members that the last Resource List leaves out.
    pub fn omitted(&self) -> &BTreeSet<String> {
        &self.omitted
    }

    /// What the names of its documents begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Name of its Capability List.
    pub fn capability_list(&self) -> String {
        match self.renamings {
            0 => format!("{}capabilitylist.xml", self.prefix),
            number => format!("{}capabilitylist-{number}.xml", self.prefix),
        }
    }

    /// Gives the Capability List another name, and so the set.
    pub fn rename(&mut self, now: Time) {
        self.renamings += 1;
        self.needs_list = true;
        self.diary.push(format!("{now}: the set is renamed to {}", self.capability_list()));
        self.serve_capabilities(now);
    }

    /// The set is offered again: who has forgotten it reads it from the beginning.
    pub fn come_back(&mut self) {
        self.needs_list = true;
    }

    /// [`Publisher::put`] of very many new resources or new versions.
    pub fn put_many(&mut self, versions: BTreeMap<String, Version>, time: Time) {
        self.diary.push(format!("{time}: {} resources are put", versions.len()));
        self.needs_list |= self.style.changes == Changes::None;
        for (path, version) in versions {
            let word = if self.has(&path) { "updated" } else { "created" };
            self.members.insert(path.clone(), version.clone());
            self.announced.push(AnnouncedChange {
                time,
                path,
                word,
                version: Some(version),
                is_dated: self.style.dated != Dated::None,
            });
        }
    }

    /// [`Publisher::drop_from`] of very many, all announced.
    pub fn drop_many(&mut self, paths: &[String], time: Time) {
        self.diary.push(format!("{time}: {} resources are dropped", paths.len()));
        self.needs_list |= self.style.changes == Changes::None;
        for path in paths {
            let is_dated = self.style.dated != Dated::None;
            if self.members.remove(path).is_some() {
                self.announced.push(AnnouncedChange {
                    time,
                    path: path.clone(),
                    word: "deleted",
                    version: None,
                    is_dated,
                });
            }
        }
    }

    pub fn put(&mut self, random: &mut Random, path: &str, version: Version, time: Time) {
        let honest = if self.has(path) { "updated" } else { "created" };
        // Either word is met for either.
        let word = if random.below(5) == 0 { ["updated", "created"][random.below(2) as usize] } else { honest };
        self.members.insert(path.to_owned(), version.clone());
        self.announce(
            random,
            AnnouncedChange { time, path: path.to_owned(), word, version: Some(version), is_dated: true },
        );
    }

    /// From now on the set does not list it; `is_there`: it still exists.
    pub fn drop_from(&mut self, random: &mut Random, path: &str, time: Time, is_there: bool) {
        if self.members.remove(path).is_none() {
            return;
        }
        // A reader that does not know whether a deletion is older than the list asks for the resource.
        self.needs_list |= is_there && (self.style.dated != Dated::All || !self.style.has_at);
        if self.style.hides_deletions && random.below(2) == 0 {
            self.diary.push(format!("{time}: {path} is deleted, in no Change List"));
            self.needs_list = true;
            return;
        }
        self.announce(
            random,
            AnnouncedChange { time, path: path.to_owned(), word: "deleted", version: None, is_dated: true },
        );
    }

    /// Tells that something goes that never was.
    pub fn drop_nothing(&mut self, random: &mut Random, time: Time) {
        let path = format!("never-was-{}", random.below(5));
        self.announce(random, AnnouncedChange { time, path, word: "deleted", version: None, is_dated: true });
    }

    fn announce(&mut self, random: &mut Random, mut announced: AnnouncedChange) {
        announced.is_dated = match self.style.dated {
            Dated::All => true,
            Dated::None => false,
            Dated::Some => random.below(2) == 0,
        };
        self.needs_list |= self.style.changes == Changes::None;
        let dated = if announced.is_dated { "" } else { ", announced without time" };
        self.diary.push(format!("{}: {} is {}{dated}", announced.time, announced.path, announced.word));
        self.announced.push(announced);
    }

    /// Writes a Resource List that is served later.
    pub fn draw_up(&mut self, now: Time) {
        if self.style.has_at && self.style.changes != Changes::None {
            self.diary.push(format!("{now}: a Resource List is drawn up"));
            self.draft = Some(self.resource_lists(now));
        }
    }

    /// Serves what tells of the changes up to `now`; `is_quiet`: so that all can be known.
    pub fn publish(&mut self, random: &mut Random, now: Time, is_quiet: bool) {
        if let Changes::Rolling(longest) = self.style.changes {
            let passed = self.announced.len().saturating_sub(longest);
            if let Some(last) = self.announced.drain(..passed).next_back() {
                self.from = last.time;
                self.needs_list |= passed > self.read;
                self.read = self.read.saturating_sub(passed);
            }
        }
        if self.needs_list && (is_quiet || random.below(2) == 0) {
            self.list(now);
        } else if self.draft.is_some() && !self.needs_list && random.below(2) == 0 {
            let draft = self.draft.take().unwrap_or_default();
            self.diary.push(format!("{now}: the Resource List that was drawn up is published"));
            draft.into_iter().for_each(|(name, document, written)| self.serve(&name, document, written));
        } else if random.below(6) == 0 {
            self.list(now);
        }
        let closes = matches!(self.style.changes, Changes::Index | Changes::Chain) && random.below(4) == 0
            || self.style.changes == Changes::Archive && (is_quiet || random.below(2) == 0);
        if closes && self.announced.len() > self.repeated {
            self.close(now);
        }
        self.diary.push(format!("{now}: {} changes are published", self.announced.len()));
        self.serve_changes(now);
        self.serve_capabilities(now);
    }

    /// Somebody has certainly read all that is published.
    pub fn was_read(&mut self) {
        self.read = self.announced.len();
    }

    /// Serves a new Resource List.
    pub fn list(&mut self, now: Time) {
        self.diary.push(format!("{now}: a Resource List is published"));
        self.omitted.clear();
        self.is_garbled = false;
        self.needs_list = false;
        self.serve_lists(now);
    }

    /// Serves a Resource List without these members, which exist; with `is_garbled` in place of one stands an entry that cannot be
    /// understood.
    pub fn list_without(&mut self, omitted: BTreeSet<String>, is_garbled: bool, now: Time) {
        let garbled = if is_garbled { ", one entry garbled" } else { "" };
        self.diary.push(format!("{now}: a Resource List without {omitted:?} is published{garbled}"));
        self.omitted = omitted;
        self.is_garbled = is_garbled;
        self.needs_list = true;
        self.serve_lists(now);
    }

    fn serve_lists(&mut self, now: Time) {
        self.draft = None;
        for (name, document, written) in self.resource_lists(now) {
            self.serve(&name, document, written);
        }
    }

    fn close(&mut self, now: Time) {
        let name = self.change_name(self.closed.len());
        self.serve(&name, self.change_list(Some(now)), now);
        self.closed.push((self.begin(), now));
        self.from = now;
        let passed = self.announced.len().saturating_sub(self.style.overlap);
        self.announced.drain(..passed);
        self.repeated = self.announced.len();
        self.read = 0;
    }

    fn serve_changes(&mut self, now: Time) {
        let name = self.change_name(self.closed.len());
        let ending = self.style.ends_always.then_some(now);
        match self.style.changes {
            Changes::None => {}
            Changes::Open | Changes::Rolling(_) => {
                self.serve(&format!("{}changelist.xml", self.prefix), self.change_list(ending), now);
            }
            Changes::Index | Changes::Chain => {
                self.serve(&name, self.change_list(ending), now);
                self.serve(&format!("{}changeindex.xml", self.prefix), self.change_index(Some(now)), now);
            }
            Changes::Archive => self.serve(&format!("{}archive.xml", self.prefix), self.change_index(None), now),
        }
    }

    fn serve_capabilities(&mut self, now: Time) {
        let base = self.source.url();
        let changes = match self.style.changes {
            Changes::None => None,
            Changes::Open | Changes::Rolling(_) => Some(("changelist", format!("{}changelist.xml", self.prefix))),
            Changes::Index => Some(("changelist", format!("{}changeindex.xml", self.prefix))),
            Changes::Chain => Some(("changelist", self.change_name(self.closed.len()))),
            Changes::Archive => Some(("changelist-archive", format!("{}archive.xml", self.prefix))),
        };
        let mut list = format!(
            "{URLSET}<rs:ln rel=\"up\" href=\"{base}.well-known/resourcesync\"/><rs:md capability=\"capabilitylist\"/>\
             <url><loc>{base}{}resourcelist.xml</loc><rs:md capability=\"resourcelist\"/></url>{}",
            self.prefix, self.channel
        );
        if let Some((capability, name)) = changes {
            let _ = write!(list, "<url><loc>{base}{name}</loc><rs:md capability=\"{capability}\"/></url>");
        }
        self.serve(&self.capability_list(), list + "</urlset>", now);
    }

    fn serve(&mut self, name: &str, document: String, written: Time) {
        let etag = self.style.has_etag.then(|| format!("\"{}\"", hex(&Sha256::digest(&document)[..8])));
        let headers = match self.style.has_last_modified {
            true => format!("Last-Modified: {}\r\n", httpdate::fmt_http_date(timestamp(written).into())),
            false => String::new(),
        };
        let media_type = "application/xml".into();
        self.documents.insert(name.to_owned());
        self.source.page(name, Resource { etag, headers, media_type, ..Resource::bare(document.into_bytes()) });
    }

    /// The Resource List, or its parts and their index: name, bytes and when it was written.
    fn resource_lists(&self, now: Time) -> Vec<(String, String, Time)> {
        let (base, parts) = (self.source.url(), self.style.parts);
        let at = if self.style.has_at { format!(" at=\"{}\"", self.spell(now)) } else { String::new() };
        let mut bodies = vec![String::new(); parts as usize];
        if self.is_garbled {
            bodies[0].push_str("<url><lastmod>2024-05-01T10:00:00Z</lastmod></url>\n");
        }
        for (path, version) in self.members.iter().filter(|(path, _)| !self.omitted.contains(*path)) {
            let lastmod = self.lastmod(version.lastmod);
            let anchor = self.anchors().iter().position(|anchor| anchor == path);
            let part = anchor.unwrap_or_else(|| path.bytes().map(usize::from).sum::<usize>() % parts as usize);
            let _ = writeln!(bodies[part], "<url><loc>{base}{path}</loc>{lastmod}<rs:md{}/></url>", version.md());
        }
        let up = format!("<rs:ln rel=\"up\" href=\"{base}{}\"/>", self.capability_list());
        let head = format!("{up}<rs:md capability=\"resourcelist\"{at}/>\n");
        let name = format!("{}resourcelist.xml", self.prefix);
        if parts == 1 {
            return vec![(name, format!("{URLSET}{head}{}</urlset>\n", bodies[0]), now)];
        }
        let mut documents = Vec::new();
        let mut index = format!("{SITEMAPINDEX}{head}");
        for (number, body) in bodies.iter().enumerate() {
            let part = format!("{}resourcelist-{number}.xml", self.prefix);
            let _ =
                writeln!(index, "<sitemap><loc>{base}{part}</loc><rs:md capability=\"resourcelist\"{at}/></sitemap>");
            documents.push((part, format!("{URLSET}{head}{body}</urlset>\n"), now));
        }
        documents.push((name, index + "</sitemapindex>\n", now));
        documents
    }

    fn change_list(&self, until: Option<Time>) -> String {
        let base = self.source.url();
        let mut list = format!("{URLSET}<rs:ln rel=\"up\" href=\"{base}{}\"/>", self.capability_list());
        if matches!(self.style.changes, Changes::Index | Changes::Chain) {
            let _ = write!(list, "<rs:ln rel=\"index\" href=\"{base}{}changeindex.xml\"/>", self.prefix);
        }
        let _ = writeln!(list, "<rs:md capability=\"changelist\"{}/>", self.interval(self.begin(), until));
        let mut entries: Vec<String> = self.announced.iter().map(|change| self.entry(change)).collect();
        match self.style.order {
            Order::OldestFirst => {}
            Order::NewestFirst => entries.reverse(),
            // The same at each publication.
            Order::Any => entries.sort_by_cached_key(|entry| Sha256::digest(entry).to_vec()),
        }
        list + &entries.concat() + "</urlset>\n"
    }

    fn change_index(&self, now: Option<Time>) -> String {
        let base = self.source.url();
        let capability = if now.is_some() { "changelist" } else { "changelist-archive" };
        let mut index = format!(
            "{SITEMAPINDEX}<rs:ln rel=\"up\" href=\"{base}{}\"/><rs:md capability=\"{capability}\"/>\n",
            self.capability_list()
        );
        let marks = |(from, until): (Time, Option<Time>)| match (self.style.marks_by_lastmod, until) {
            (true, Some(until)) => (format!("<lastmod>{}</lastmod>", self.spell(until)), String::new()),
            (true, None) => Default::default(),
            (false, until) => (String::new(), self.interval(from, until)),
        };
        let open = now.map(|now| (self.begin(), self.style.ends_always.then_some(now)));
        let lists = self.closed.iter().map(|(from, until)| (*from, Some(*until))).chain(open);
        for (number, interval) in lists.enumerate() {
            let (lastmod, interval) = marks(interval);
            let name = self.change_name(number);
            let _ = writeln!(
                index,
                "<sitemap><loc>{base}{name}</loc>{lastmod}<rs:md capability=\"changelist\"{interval}/></sitemap>"
            );
        }
        index + "</sitemapindex>\n"
    }

    /// The list that grows begins with what it repeats.
    fn begin(&self) -> Time {
        self.announced.first().map_or(self.from, |change| change.time.min(self.from))
    }

    fn entry(&self, announced: &AnnouncedChange) -> String {
        let time = self.spell(announced.time);
        let own = announced.version.as_ref().and_then(|version| version.lastmod);
        let (lastmod, datetime) = match (announced.is_dated, self.style.is_old_version) {
            (true, true) => (format!("<lastmod>{time}</lastmod>"), String::new()),
            (true, false) => (self.lastmod(own), format!(" datetime=\"{time}\"")),
            (false, _) => (self.lastmod(own), String::new()),
        };
        let md = announced.version.as_ref().map(Version::md).unwrap_or_default();
        let (base, path, word) = (self.source.url(), &announced.path, announced.word);
        format!("<url><loc>{base}{path}</loc>{lastmod}<rs:md change=\"{word}\"{datetime}{md}/></url>\n")
    }

    fn interval(&self, from: Time, until: Option<Time>) -> String {
        let mut interval = String::new();
        if self.style.has_from {
            let _ = write!(interval, " from=\"{}\"", self.spell(from));
        }
        if let Some(until) = until {
            let _ = write!(interval, " until=\"{}\"", self.spell(until));
        }
        interval
    }

    fn lastmod(&self, time: Option<Time>) -> String {
        time.map(|time| format!("<lastmod>{}</lastmod>", self.spell(time))).unwrap_or_default()
    }

    fn change_name(&self, number: usize) -> String {
        format!("{}changes-{number}.xml", self.prefix)
    }

    /// One of the ways in which the same moment is written.
    fn spell(&self, time: Time) -> String {
        let hour = 3_600_000;
        let zulu = |time: Time| timestamp(time).to_string();
        let bare = |time: Time| zulu(time).trim_end_matches('Z').to_owned();
        match self.style.spelling {
            0 => bare(time + hour) + "+01:00",
            1 => bare(time - 5 * hour) + "-0500",
            2 => bare(time),
            3 => zulu(time).replace('T', " "),
            4 => bare(time) + if time % 1000 == 0 { ".000000000Z" } else { "000Z" },
            _ => zulu(time),
        }
    }
}

fn timestamp(time: Time) -> Timestamp {
    Timestamp { seconds: time.div_euclid(1000), nanos: time.rem_euclid(1000) as u32 * 1_000_000 }
}
