//! Values of ResourceSync documents and the streaming reader that makes them. No I/O, no async.
//!
//! A document is a Sitemap `<urlset>` or `<sitemapindex>` (section 7 of the standard) whose `rs:md` and `rs:ln`
//! elements say which capability it implements and what is known of each listed resource.

pub mod dataset;
pub mod deviation;
pub mod gunzip;
pub mod hash;
pub mod json;
pub mod link;
pub(crate) mod parameters;
pub mod reader;
pub mod timestamp;
pub mod uri;
pub mod web_link;

pub use deviation::{Deviation, Deviations, Rule};
pub use hash::{Algorithm, Digest, believed_length};
pub use link::{Href, LOWEST_PRIORITY, Link};
pub use reader::{DocumentError, Limits, Reader};
pub use timestamp::Timestamp;
pub use uri::{Uri, UriError};
pub use web_link::WebLink;

/// The form of a document: its root element alone says whether it is a list or an index of lists (section 6.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Root {
    /// `<urlset>`
    #[default]
    UrlSet,
    /// `<sitemapindex>`
    SitemapIndex,
    /// `<rss>`: each item names a page.
    Rss,
    /// `<feed>` (Atom): each entry names a page.
    Atom,
    /// No element at all: a URI a line, as in text sitemaps and in BagIt's `fetch.txt`.
    Text,
}

impl Root {
    /// Answers whether ResourceSync has no such document: it is a plain sitemap in another form of the Sitemap protocol.
    pub fn is_feed_or_text(self) -> bool {
        matches!(self, Root::Rss | Root::Atom | Root::Text)
    }
}

/// The `capability` attribute of `rs:md`, with the spellings seen in the wild folded together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capability {
    /// `description` (also `resourcesync`): the Source Description, section 8.
    Description,
    /// `capabilitylist` (also `capability`), section 9.
    CapabilityList,
    /// `resourcelist`, section 10.
    ResourceList,
    /// `resourcedump`, section 11.
    ResourceDump,
    /// `resourcedump-manifest`, section 11.1.1.
    ResourceDumpManifest,
    /// `changelist` (also `changelistindex`), section 12.
    ChangeList,
    /// `changedump`, section 13.
    ChangeDump,
    /// `changedump-manifest`, section 13.1.1.
    ChangeDumpManifest,
    /// `resourcelist-archive`
    ResourceListArchive,
    /// `resourcedump-archive`
    ResourceDumpArchive,
    /// `changelist-archive`
    ChangeListArchive,
    /// `changedump-archive`
    ChangeDumpArchive,
    /// `change-notification`, `changelist-notification`
    ChangeNotification,
    /// `framework-notification`
    FrameworkNotification,
    /// Anything else, as published.
    Other(Box<str>),
}

/// An event of a resource: the `change` attribute of `rs:md` (section 12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Change {
    /// `created`
    Created,
    /// `updated`
    Updated,
    /// `deleted`
    Deleted,
}

/// `<changefreq>` of the Sitemap protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ChangeFrequency {
    Always,
    Hourly,
    Daily,
    Weekly,
    Monthly,
    Yearly,
    Never,
}

/// The elements directly below the root element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The root element.
    pub root: Root,
    /// `None` for a plain sitemap.
    pub capability: Option<Capability>,
    /// When the snapshot began.
    pub at: Option<Timestamp>,
    /// When the snapshot was complete.
    pub completed: Option<Timestamp>,
    /// Start of the interval of changes.
    pub from: Option<Timestamp>,
    /// End of the interval of changes; absent on an open list.
    pub until: Option<Timestamp>,
    /// `rs:ln` of the root, hrefs resolved.
    pub links: Vec<Link>,
}

/// One `<url>` or `<sitemap>` of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `<loc>`, resolved against the document's URI and normalised.
    pub loc: Uri,
    /// `true` for a `<sitemap>`, wherever it stands: a list.
    pub is_list: bool,
    /// `<lastmod>`
    pub lastmod: Option<Timestamp>,
    /// `<changefreq>`
    pub changefreq: Option<ChangeFrequency>,
    /// `change`
    pub change: Option<Change>,
    /// `datetime` (1.1): the time of the change.
    pub datetime: Option<Timestamp>,
    /// Every digest of `hash` that could be understood, strongest first.
    pub hashes: Vec<Digest>,
    /// `length` in bytes, as transferred (coded, where `encoding` is given).
    pub length: Option<u64>,
    /// `type`: the media type.
    pub media_type: Option<Box<str>>,
    /// `encoding`: the content coding that `length` and `hash` describe.
    pub encoding: Option<Box<str>>,
    /// `path` within a package.
    pub path: Option<Box<str>>,
    /// `capability` of the document that `loc` points to: a hint.
    pub capability: Option<Capability>,
    /// `at`
    pub at: Option<Timestamp>,
    /// `completed`
    pub completed: Option<Timestamp>,
    /// `from`
    pub from: Option<Timestamp>,
    /// `until`
    pub until: Option<Timestamp>,
    /// `rs:ln`, hrefs resolved, in document order.
    pub links: Vec<Link>,
}

/// The place where a package (a ZIP of a Resource Dump or Change Dump) holds the bytes of a resource (sections 11.1.1 and 13.1.1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PackageMember {
    /// The package.
    pub package: Uri,
    /// Name of the member, as the manifest's `path` gives it.
    pub path: Box<str>,
}

/// Capabilities with their names: first as the standard writes it, then other spellings seen in the wild.
static CAPABILITIES: [(Capability, &[&str]); 14] = [
    (Capability::Description, &["description", "resourcesync"]),
    (Capability::CapabilityList, &["capabilitylist", "capability"]),
    (Capability::ResourceList, &["resourcelist", "resourcelistindex"]),
    (Capability::ResourceDump, &["resourcedump", "resourcedumpindex"]),
    (Capability::ResourceDumpManifest, &["resourcedump-manifest", "resourcedumpmanifest"]),
    (Capability::ChangeList, &["changelist", "changelistindex"]),
    (Capability::ChangeDump, &["changedump", "changedumpindex"]),
    (Capability::ChangeDumpManifest, &["changedump-manifest", "changedumpmanifest"]),
    (Capability::ResourceListArchive, &["resourcelist-archive"]),
    (Capability::ResourceDumpArchive, &["resourcedump-archive"]),
    (Capability::ChangeListArchive, &["changelist-archive"]),
    (Capability::ChangeDumpArchive, &["changedump-archive"]),
    (Capability::ChangeNotification, &["change-notification", "changelist-notification"]),
    (Capability::FrameworkNotification, &["framework-notification"]),
];

impl Capability {
    /// Reads a `capability` attribute; the spellings seen in the wild are folded into the standard's.
    pub fn parse(raw: &str) -> Capability {
        let is_named = |name: &&str| name.eq_ignore_ascii_case(raw.trim());
        let known = CAPABILITIES.iter().find(|(_, names)| names.iter().any(is_named));
        known.map_or_else(|| Capability::Other(raw.trim().into()), |(capability, _)| capability.clone())
    }

    /// The name as the standard writes it; anything else as published.
    pub fn as_str(&self) -> &str {
        match (self, CAPABILITIES.iter().find(|(known, _)| known == self)) {
            (Capability::Other(name), _) => name,
            (_, known) => known.map_or("", |(_, names)| names[0]),
        }
    }
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Change {
    /// Reads a `change` attribute, in any letter case; `None` for an unknown word.
    pub fn parse(raw: &str) -> Option<Change> {
        [Change::Created, Change::Updated, Change::Deleted]
            .into_iter()
            .find(|change| raw.trim().eq_ignore_ascii_case(change.as_str()))
    }

    /// The word as the standard writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Change::Created => "created",
            Change::Updated => "updated",
            Change::Deleted => "deleted",
        }
    }
}

impl ChangeFrequency {
    /// All of them, in the order of their numbers, which are kept on disk.
    pub const ALL: [ChangeFrequency; 7] = {
        use ChangeFrequency::*;
        [Always, Hourly, Daily, Weekly, Monthly, Yearly, Never]
    };

    /// Reads `<changefreq>`, in any letter case; `None` for an unknown word.
    pub fn parse(raw: &str) -> Option<ChangeFrequency> {
        ChangeFrequency::ALL.into_iter().find(|frequency| raw.trim().eq_ignore_ascii_case(frequency.as_str()))
    }

    /// The word as the Sitemap protocol writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            ChangeFrequency::Always => "always",
            ChangeFrequency::Hourly => "hourly",
            ChangeFrequency::Daily => "daily",
            ChangeFrequency::Weekly => "weekly",
            ChangeFrequency::Monthly => "monthly",
            ChangeFrequency::Yearly => "yearly",
            ChangeFrequency::Never => "never",
        }
    }
}

impl Header {
    /// The target of the first link of relation `rel` that can be asked.
    pub fn link(&self, rel: &str) -> Option<&Uri> {
        self.links.iter().filter(|l| &*l.rel == rel).find_map(Link::uri)
    }
}

impl Entry {
    /// An entry that says nothing but its URI.
    pub fn new(loc: Uri) -> Entry {
        Entry {
            loc,
            is_list: false,
            lastmod: None,
            changefreq: None,
            change: None,
            datetime: None,
            hashes: Vec::new(),
            length: None,
            media_type: None,
            encoding: None,
            path: None,
            capability: None,
            at: None,
            completed: None,
            from: None,
            until: None,
            links: Vec::new(),
        }
    }
}

/// Settings of the property tests: the same cases at every run.
#[cfg(test)]
fn fixed_cases(cases: u32) -> proptest::test_runner::Config {
    proptest::test_runner::Config {
        cases,
        rng_seed: proptest::test_runner::RngSeed::Fixed(0x5eed),
        failure_persistence: None,
        ..Default::default()
    }
}
