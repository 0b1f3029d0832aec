//! A Source that tells what happens by Change Lists, beside a Resource List that is made now and then.

use super::source::{Resource, SITEMAPINDEX, Source, URLSET};
use resyncfs::document::Timestamp;
use std::fmt::Write as _;

/// Seconds of the moment at which every such Source begins: 2024-05-01T10:00:00Z.
const BEGIN: i64 = 1_714_557_600;

/// Which Change Lists there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One with the last so many changes.
    Rolling(usize),
    /// An index of closed ones and of one that grows, until [`ChangingSource::close`].
    Closed,
}

/// A change as it is announced.
struct Change {
    time: i64,
    entry: String,
}

/// The Source. Time passes at `pass` alone.
pub struct ChangingSource {
    source: Source,
    style: Style,
    now: i64,
    /// All of them for a rolling list, those of the one that grows for closed ones.
    changes: Vec<Change>,
    /// When the changes begin that the growing or rolling list tells.
    from: i64,
    /// (from, until) of each closed list.
    closed: Vec<(i64, i64)>,
}

impl ChangingSource {
    /// A Source of these resources by path; its Resource List speaks for its begin.
    pub fn start(style: Style, resources: impl IntoIterator<Item = (String, Resource)>) -> ChangingSource {
        let source = Source::start();
        for (path, resource) in resources {
            source.put(&path, resource);
        }
        let base = source.url();
        let changes = match style {
            Style::Rolling(_) => "changelist.xml",
            Style::Closed => "changeindex.xml",
        };
        source.document(
            "capabilitylist.xml",
            format!(
                "{URLSET}<rs:ln rel=\"up\" href=\"{base}.well-known/resourcesync\"/><rs:md capability=\"capabilitylist\"/>\
                 <url><loc>{base}resourcelist.xml</loc><rs:md capability=\"resourcelist\"/></url>\
                 <url><loc>{base}{changes}</loc><rs:md capability=\"changelist\"/></url></urlset>"
            ),
        );
        let mut changing =
            ChangingSource { source, style, now: BEGIN, changes: Vec::new(), from: BEGIN, closed: Vec::new() };
        changing.list();
        changing.publish();
        changing
    }

    /// The server.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Lets time pass.
    pub fn pass(&mut self, seconds: i64) {
        self.now += seconds;
    }

    /// From now on the resource is this one; announced at the next [`ChangingSource::publish`].
    pub fn put(&mut self, path: &str, resource: Resource) {
        let change = if self.source.has(path) { "updated" } else { "created" };
        let time = time(self.now);
        let resource = Resource { lastmod: Some(time.clone()), ..resource };
        let entry = format!(
            "<url><loc>{}{path}</loc><lastmod>{time}</lastmod><rs:md change=\"{change}\" datetime=\"{time}\" {}/></url>\n",
            self.source.url(),
            resource.md
        );
        self.source.put(path, resource);
        self.changes.push(Change { time: self.now, entry });
    }

    /// From now on the resource is not there any more.
    pub fn delete(&mut self, path: &str) {
        self.source.remove(path);
        let entry = format!(
            "<url><loc>{}{path}</loc><rs:md change=\"deleted\" datetime=\"{}\"/></url>\n",
            self.source.url(),
            time(self.now)
        );
        self.changes.push(Change { time: self.now, entry });
    }

    /// Writes a new Resource List, as of now.
    pub fn list(&self) {
        self.source.document("resourcelist.xml", self.source.resource_list_at(&time(self.now)));
    }

    /// Tells what has changed.
    pub fn publish(&mut self) {
        match self.style {
            Style::Rolling(longest) => {
                let passed = self.changes.len().saturating_sub(longest);
                if let Some(last) = self.changes.drain(..passed).next_back() {
                    self.from = last.time;
                }
                self.source.document("changelist.xml", self.change_list(None));
            }
            Style::Closed => {
                self.source.document(&open_name(self.closed.len()), self.change_list(None));
                self.source.document("changeindex.xml", self.index());
            }
        }
    }

    /// Closes the list that grows, and begins the next.
    pub fn close(&mut self) {
        let name = open_name(self.closed.len());
        self.source.document(&name, self.change_list(Some(self.now)));
        self.closed.push((self.from, self.now));
        self.changes.clear();
        self.from = self.now;
        self.publish();
    }

    fn change_list(&self, until: Option<i64>) -> String {
        let base = self.source.url();
        let mut list = format!("{URLSET}<rs:ln rel=\"up\" href=\"{base}capabilitylist.xml\"/>");
        if self.style == Style::Closed {
            let _ = write!(list, "<rs:ln rel=\"index\" href=\"{base}changeindex.xml\"/>");
        }
        let _ = writeln!(list, "<rs:md capability=\"changelist\" from=\"{}\"{}/>", time(self.from), ending(until));
        for change in &self.changes {
            list.push_str(&change.entry);
        }
        list + "</urlset>\n"
    }

    fn index(&self) -> String {
        let base = self.source.url();
        let begin = self.closed.first().map_or(self.from, |(from, _)| *from);
        let mut index = format!(
            "{SITEMAPINDEX}<rs:ln rel=\"up\" href=\"{base}capabilitylist.xml\"/><rs:md capability=\"changelist\" from=\"{}\"/>\n",
            time(begin)
        );
        let open = (self.from, None);
        let lists = self.closed.iter().map(|(from, until)| (*from, Some(*until))).chain([open]);
        for (number, (from, until)) in lists.enumerate() {
            let name = open_name(number);
            let _ = writeln!(
                index,
                "<sitemap><loc>{base}{name}</loc><rs:md capability=\"changelist\" from=\"{}\"{}/></sitemap>",
                time(from),
                ending(until)
            );
        }
        index + "</sitemapindex>\n"
    }
}

/// The name of the list that is open when so many are closed; it keeps it.
fn open_name(closed: usize) -> String {
    format!("changes-{closed}.xml")
}

fn ending(until: Option<i64>) -> String {
    until.map(|until| format!(" until=\"{}\"", time(until))).unwrap_or_default()
}

fn time(seconds: i64) -> String {
    Timestamp { seconds, nanos: 0 }.to_string()
}
