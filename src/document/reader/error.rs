//! What ends the reading of a document.

use quick_xml::errors::Error as XmlError;
use std::io;

/// Bytes of a document that an error quotes.
const QUOTED: usize = 80;

/// Why a document cannot be read (to its end).
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// Reading the octets failed, or they are damaged gzip.
    #[error("reading the document failed")]
    Io(#[from] io::Error),
    /// Not an octet, or nothing but blanks.
    #[error("the document is empty")]
    Empty,
    /// Not XML: text, or a package.
    #[error("this is not XML; it begins with {seen:?}")]
    NotXml {
        /// How it begins.
        seen: String,
    },
    /// XML or HTML, but neither `<urlset>` nor `<sitemapindex>`.
    #[error("this is neither a sitemap nor a ResourceSync document; its root element is <{root}>")]
    NotADocument {
        /// Local name of the root element, as written.
        root: String,
    },
    /// It ends before its root element does.
    #[error("the document is cut off at byte {position}")]
    Truncated {
        /// Octets there are, after decompression.
        position: u64,
    },
    /// Not well-formed.
    #[error("the document is not well-formed XML at byte {position}")]
    Syntax {
        /// Octets before the fault, after decompression.
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
        /// Octets before it, after decompression.
        position: u64,
        /// The limit.
        limit: u64,
    },
    /// Elements nested deeper than `Limits::depth`.
    #[error("elements at byte {position} are nested more than {limit} deep")]
    TooDeep {
        /// Octets before the innermost, after decompression.
        position: u64,
        /// The limit.
        limit: usize,
    },
}

impl DocumentError {
    /// Damaged gzip that just ends is a document that just ends, at `position`.
    pub(super) fn of_input(error: io::Error, position: u64) -> DocumentError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => DocumentError::Truncated { position },
            _ => DocumentError::Io(error),
        }
    }
}

/// The first characters of what an error is about.
pub(super) fn quoted(text: &[u8]) -> String {
    String::from_utf8_lossy(text.get(..QUOTED).unwrap_or(text)).into_owned()
}
