//! Errors that end the reading of a document.

use quick_xml::errors::Error as XmlError;
use std::io;

/// Bytes of a document that an error quotes.
const QUOTED: usize = 80;

/// Why a document cannot be read (to its end).
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// Reading the bytes failed, or they are damaged gzip.
    #[error("reading the document failed")]
    Io(#[from] io::Error),
    /// Not a byte, or nothing but blanks.
    #[error("the document is empty")]
    Empty,
    /// Neither XML nor a text of URLs: another text, or a package.
    #[error("this is neither XML nor a text with one URL per line; it begins with {seen:?}")]
    NotXml {
        /// How it begins.
        seen: String,
    },
    /// A text of addresses that are not written as in a text sitemap.
    #[error(
        "line {line} of this text is not an entry of a list: {seen:?} {why}; a text sitemap has one URL per line and nothing else"
    )]
    NotLines {
        /// The line, from 1.
        line: usize,
        /// Its beginning.
        seen: String,
        /// The cause, for a person.
        why: &'static str,
    },
    /// A format of another kind that is not XML.
    #[error("this is {name}, which is not supported: neither a sitemap nor a ResourceSync document")]
    OtherFormat {
        /// The format, for a person.
        name: &'static str,
    },
    /// XML or HTML with the root element of no list.
    #[error("this is {}neither a sitemap nor a ResourceSync document; its root element is <{root}>",
        format_of_root(root).map(|name| format!("{name}, which is not supported: ")).unwrap_or_default())]
    NotADocument {
        /// Local name of the root element, as written.
        root: String,
    },
    /// All its entries break rules.
    #[error("none of its {entries} entries can be understood")]
    NothingUnderstood {
        /// How many there are.
        entries: u64,
    },
    /// An end before that of the root element.
    #[error("the document is cut off at byte {position}")]
    Truncated {
        /// Bytes there are, after decompression.
        position: u64,
    },
    /// Not well-formed.
    #[error("the document is not well-formed XML at byte {position}")]
    Syntax {
        /// Bytes before the fault, after decompression.
        position: u64,
        /// The rule of XML.
        #[source]
        source: XmlError,
    },
    /// Longer than `Limits::document`.
    #[error("the document is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: u64,
    },
    /// One tag, text or comment is longer than the reader may hold.
    #[error("a tag or text at byte {position} is longer than {limit} bytes")]
    MarkupTooLong {
        /// Bytes before it, after decompression.
        position: u64,
        /// The limit.
        limit: u64,
    },
    /// Elements nested deeper than `Limits::depth`.
    #[error("elements at byte {position} are nested more than {limit} deep")]
    TooDeep {
        /// Bytes before the innermost, after decompression.
        position: u64,
        /// The limit.
        limit: usize,
    },
}

impl DocumentError {
    /// A list of pages where a document of ResourceSync is expected.
    pub const FEED_OR_TEXT: DocumentError =
        DocumentError::OtherFormat { name: "a feed, or a text with one URL per line" };

    /// The format of what was found in place of a document, where it has a name and is not a web page.
    pub fn format(&self) -> Option<&'static str> {
        match self {
            DocumentError::OtherFormat { name } => Some(name),
            DocumentError::NotADocument { root } => format_of_root(root).filter(|name| *name != HTML),
            _ => None,
        }
    }

    /// Damaged gzip that just ends is a document that just ends, at `position`.
    pub(super) fn of_input(error: io::Error, position: u64) -> DocumentError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => DocumentError::Truncated { position },
            _ => DocumentError::Io(error),
        }
    }
}

const HTML: &str = "an HTML page";

/// The format that a root element is known for.
fn format_of_root(root: &str) -> Option<&'static str> {
    Some(match root.to_ascii_lowercase().as_str() {
        "html" | "head" | "body" | "title" | "h1" | "p" | "div" | "center" | "script" | "br" | "b" | "table" => HTML,
        "oai-pmh" => "an OAI-PMH response",
        "listbucketresult" | "listallmybucketsresult" => "an S3 bucket listing",
        "enumerationresults" => "an Azure container listing",
        "rdf" => "RDF (or a feed of RSS 1.0)",
        "multistatus" => "a WebDAV response",
        "opml" => "an outline (OPML)",
        "mets" => "a METS document",
        _ => return None,
    })
}

/// The format that the first bytes of a text are known for.
pub(super) fn format_of_text(front: &[u8]) -> Option<&'static str> {
    let holds = |text: &[u8]| front.windows(text.len()).any(|window| window == text);
    match front.first() {
        Some(b'{' | b'[') if holds(b"iiif.io/api/") => Some("a IIIF manifest"),
        Some(b'{') if holds(b"jsonfeed.org/version/") => Some("a JSON feed"),
        _ => None,
    }
}

/// The first characters of what an error is about.
pub(super) fn quoted(text: &[u8]) -> String {
    String::from_utf8_lossy(text.get(..QUOTED).unwrap_or(text)).into_owned()
}
