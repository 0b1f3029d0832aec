//! The Source: its documents found, crawled and cached, its bytes fetched.

pub mod crawl;
pub mod discovery;
mod document_kind;
pub mod documents;
pub mod entry_point;
pub mod http;
pub mod websub;
pub mod zip;

#[cfg(test)]
pub(crate) mod tests;

pub use document_kind::is_resource;
pub use entry_point::{EntryPoint, EntryPointError};

use crate::document::{Capability, Deviations, DocumentError, Uri};
use crate::platform::error_chain::chain;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// `Accept` for documents: sitemaps are XML, and other formats are recognised.
const ACCEPT: &str = "application/xml, text/xml;q=0.9, */*;q=0.5";

/// Result of a discovery: the sets that this entry point names.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The entry point after redirects; `None` for a list on disk.
    pub entry: Option<Uri>,
    /// `HOST[:PORT]` whose resources lie below the root; `None` for a list on disk (its smallest URI's then).
    pub own_authority: Option<Box<str>>,
    /// New address of the entry point's host, if it has moved: `SCHEME://HOST[:PORT]` of the same name, `www.` or not,
    /// and never from https down to http. It is trusted as the entry point's own; other targets of redirects are not.
    pub moved_to: Option<Box<str>>,
    /// The Source Description, where one was found.
    pub description: Option<Uri>,
    /// The sets, in the order of the Source Description.
    pub sets: Vec<Set>,
    /// The landing page that is the entry point, where it names files and no set.
    pub page: Option<Uri>,
    /// Documents that are offered and missing: a set that is not among `sets` may still exist.
    pub missing: Vec<Missing>,
    /// Rules broken by the documents read on the way.
    pub deviations: Vec<DocumentDeviations>,
}

/// Document or entries whose lack keeps absence from proving a deletion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// A document that is gone for good or is none (a dead Capability List, a dead `Sitemap:` line), or some of whose entries
    /// cannot be understood.
    pub location: DocumentLocation,
    /// How many entries cannot be understood; 0 where the document itself is missing.
    pub entries: u64,
    /// The answer, for a person.
    pub why: String,
}

/// One set of resources: what its Capability List offers (section 9).
#[derive(Clone, Debug, Default)]
pub struct Set {
    /// The Capability List; `None` where a Resource List or plain sitemap stands alone.
    pub capability_list: Option<Uri>,
    /// Description of the set (`describedby` of the Capability List).
    pub described_by: Option<Uri>,
    /// Every capability document offered, as (capability, location), in document order, the unused ones included; channels are
    /// no documents. One capability may occur several times. The parent gives it; where the parent gives none that is known, the
    /// document does, and it is `Other` where neither does.
    pub documents: Vec<(Capability, DocumentLocation)>,
    /// Channels that announce changes, in document order, each topic once.
    pub channels: Vec<Channel>,
}

impl Set {
    /// Documents of the set: `location` is its Capability List, or this offers it.
    fn contains(&self, location: &DocumentLocation) -> bool {
        let own = self.capability_list.as_ref();
        own.is_some() && own == location.uri() || self.documents.iter().any(|(_, offered)| offered == location)
    }
}

/// A notification channel of a set: an entry of its Capability List with a hub (Framework Notification, section 5).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel {
    /// WebSub's topic: what is subscribed to, not what is read.
    pub topic: Uri,
    /// Hub for subscriptions; of several the first that speaks https, else the first.
    pub hub: Uri,
    /// Capability that the entry announces, `Other("")` where it does not say: a hint.
    pub capability: Capability,
}

/// Location of a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DocumentLocation {
    /// At the Source.
    Uri(Uri),
    /// On this machine.
    File(PathBuf),
}

impl DocumentLocation {
    /// The URI of a document at the Source.
    pub fn uri(&self) -> Option<&Uri> {
        match self {
            DocumentLocation::Uri(uri) => Some(uri),
            DocumentLocation::File(_) => None,
        }
    }
}

impl std::fmt::Display for DocumentLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DocumentLocation::Uri(uri) => uri.fmt(f),
            DocumentLocation::File(path) => path.display().fmt(f),
        }
    }
}

/// Why a Source cannot be discovered or crawled: names what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A request failed for good.
    #[error("{location}")]
    Http {
        /// The document asked for.
        location: DocumentLocation,
        /// Cause.
        #[source]
        cause: http::HttpError,
    },
    /// The answer is not a document.
    #[error("{location} cannot be read as a ResourceSync document or sitemap")]
    Document {
        /// The document.
        location: DocumentLocation,
        /// Fault.
        #[source]
        cause: DocumentError,
    },
    /// A document that another names fails for now, or may not be read.
    #[error(
        "{location}, {}, cannot be read now, and a mount shows the whole Source or nothing; try again later{instead}",
        origin(.location, .named_by)
    )]
    Part {
        /// The document.
        location: DocumentLocation,
        /// Document that names it.
        named_by: DocumentLocation,
        /// Advice to a person: empty, or behind a comma.
        instead: String,
        /// Cause.
        #[source]
        cause: Box<SourceError>,
    },
    /// Nothing that can be mounted was found.
    #[error(
        "{entry}: no Source Description, Capability List, Resource List or sitemap found; tried: {tried}. {}",
        next_step(.entry, .tried)
    )]
    NothingFound {
        /// The address that was pasted.
        entry: String,
        /// Every place that was asked, with its outcome.
        tried: String,
    },
    /// An index is nested too deeply, has too many children or contains itself and nothing else.
    #[error("{location}: {what}")]
    Structure {
        /// The index.
        location: DocumentLocation,
        /// Fault.
        what: String,
    },
    /// `set` names none of the sets there are.
    #[error("the Source has no set {wanted}; it has: {offered}")]
    NoSuchSet {
        /// Set that was asked for.
        wanted: Uri,
        /// Capability List and description of each set.
        offered: String,
    },
    /// A document on disk cannot be read.
    #[error("{path} cannot be read", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// A document leaves too little free on the disk.
    #[error(
        "{location}: no space for it in {folder} after {size} bytes: {free} bytes are free, and {floor} are reserved. Free some space there, or set a smaller -o cache-reserve=SIZE or -o max-document=SIZE",
        folder = .folder.display()
    )]
    NoRoom {
        /// The document.
        location: DocumentLocation,
        /// Folder that it was written to.
        folder: PathBuf,
        /// Bytes of it that were written.
        size: u64,
        /// Bytes that are free on the file system.
        free: u64,
        /// Bytes that stay free.
        floor: u64,
    },
    /// The document cache cannot be read or written.
    #[error("the document cache failed at {path}", path = .path.display())]
    DocumentCache {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
}

/// How a document was found, for a person. Nothing needs to list the sitemap at the root of a site: discovery looks there by itself.
fn origin(location: &DocumentLocation, named_by: &DocumentLocation) -> String {
    let is_list = |uri: &Uri| [".xml", ".txt", ".gz"].iter().any(|ending| uri.path().ends_with(ending));
    match (location.uri(), named_by.uri()) {
        (Some(uri), Some(named_by)) if uri.path() == "/sitemap.xml" && !is_list(named_by) => {
            "found at the root of the site".to_owned()
        }
        _ => format!("which {named_by} lists"),
    }
}

/// Advice where nothing was found: a wrong address, or a missing password.
fn next_step(entry: &str, tried: &str) -> String {
    if tried.contains(" answered 401") {
        return format!("If {entry} is right, give the password or token with one of these options");
    }
    if tried.contains("OAI-PMH") {
        return format!(
            "{entry} offers OAI-PMH, which lists metadata records and no files. Ask its operators for a sitemap or a ResourceSync Resource List of the files, and give the address of that"
        );
    }
    format!(
        "Instead of {entry}, give the address of the sitemap or Resource List itself, as in https://HOST/sitemap.xml, or of a \
         landing page whose links name its items (rel=\"item\")"
    )
}

impl SourceError {
    /// Returns whether its server answers that a document is gone: 404 or 410.
    pub fn is_gone(&self) -> bool {
        matches!(self, SourceError::Http { cause, .. } if cause.is_gone())
    }

    /// Returns whether the document is something else than a list: a page, a text, another kind of XML, empty. A list that breaks off
    /// is one.
    pub fn is_no_list(&self) -> bool {
        use DocumentError::*;
        let SourceError::Document { cause, .. } = self else { return false };
        !matches!(
            cause,
            Io(_) | Truncated { .. } | Syntax { .. } | TooLong { .. } | MarkupTooLong { .. } | TooDeep { .. }
        )
    }

    /// Why a document is missing, for a person who knows which.
    pub fn why(&self) -> String {
        match self {
            SourceError::Document { cause, .. } => chain(cause),
            SourceError::Http { location, cause } => {
                let why = chain(cause);
                why.strip_prefix(&format!("{location} ")).map(str::to_owned).unwrap_or(why)
            }
            _ => chain(self),
        }
    }

    /// Error with the document that names the one that fails, where it has none yet, and with what a person can do
    /// `instead`. A failure of this machine has neither.
    pub fn named_by(self, named_by: &DocumentLocation, instead: &str) -> SourceError {
        let instead = instead.to_owned();
        match self {
            SourceError::Part { location, named_by, cause, .. } => {
                SourceError::Part { location, named_by, instead, cause }
            }
            SourceError::Http { ref location, .. } | SourceError::Document { ref location, .. } => {
                let (location, named_by) = (location.clone(), named_by.clone());
                SourceError::Part { location, named_by, instead, cause: Box::new(self) }
            }
            other => other,
        }
    }
}

/// The pauses before a document whose body broke is asked for again: 200 ms, doubled each time.
fn body_retries() -> impl Iterator<Item = Duration> + Send {
    (0..4).map(|retry| Duration::from_millis(200) * 2_u32.pow(retry))
}

/// Other sets that a message names at most.
const SETS_NAMED: usize = 3;

/// Advice while one of several sets fails: the `others` by their names.
pub(crate) fn another_set(others: &[&str]) -> String {
    let mut named = others.iter().take(SETS_NAMED).map(|set| format!("-o set={set}")).collect::<Vec<_>>().join(" or ");
    if others.len() > SETS_NAMED {
        named += " or another";
    }
    format!(", or mount only another set: {named}")
}

/// A deviation together with its document.
#[derive(Clone, Debug)]
pub struct DocumentDeviations {
    /// The document.
    pub location: DocumentLocation,
    /// Rules that it breaks.
    pub deviations: Deviations,
}
