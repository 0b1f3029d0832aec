//! What the current revision was made of, committed together with it.

use crate::catalog::Naming;
use crate::document::{Timestamp, Uri};
use crate::source::DocumentLocation;
use crate::source::walk::Walked;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Version of the written form; another version reads as no position at all, which only costs one merge.
const FORMAT: u32 = 1;

/// The documents of a revision with their digests, and the naming they were read under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    format: u32,
    naming: String,
    documents: Vec<Document>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Document {
    location: Location,
    /// XXH3 of the document's octets.
    digest: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Location {
    Uri(String),
    File(PathBuf),
}

impl Position {
    /// The position after reading `walks` under `naming`.
    pub fn of(walks: &[Walked], naming: &Naming) -> Position {
        let documents = walks
            .iter()
            .flat_map(|walked| walked.indexes.iter().chain(walked.leaves.iter().map(|leaf| &leaf.document)))
            .map(|document| Document {
                location: match &document.location {
                    DocumentLocation::Uri(uri) => Location::Uri(uri.as_str().to_owned()),
                    DocumentLocation::File(path) => Location::File(path.clone()),
                },
                digest: document.digest,
            })
            .collect();
        Position { format: FORMAT, naming: naming.identity(), documents }
    }

    /// The form that is stored with the revision: JSON.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads what [`Position::encode`] wrote; `None` for anything else.
    pub fn decode(stored: &[u8]) -> Option<Position> {
        serde_json::from_slice(stored).ok().filter(|position: &Position| position.format == FORMAT)
    }

    /// Where the documents lie.
    pub fn locations(&self) -> Vec<DocumentLocation> {
        self.documents
            .iter()
            .filter_map(|document| match &document.location {
                Location::Uri(uri) => Uri::parse(uri).ok().map(DocumentLocation::Uri),
                Location::File(path) => Some(DocumentLocation::File(path.clone())),
            })
            .collect()
    }
}

/// The time a baseline speaks for: the earliest `at` among its lists, else the newest Last-Modified.
pub fn at(walks: &[Walked]) -> Option<Timestamp> {
    let leaves = || walks.iter().flat_map(|walked| &walked.leaves);
    leaves()
        .filter_map(|leaf| leaf.header.at)
        .min()
        .or_else(|| leaves().filter_map(|leaf| leaf.document.modified).max())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_being_stored() {
        let position = Position {
            format: FORMAT,
            naming: "own=example.org".into(),
            documents: vec![
                Document { location: Location::Uri("http://example.org/list.xml".into()), digest: u64::MAX },
                Document { location: Location::File("/lists/a.xml".into()), digest: 1 },
            ],
        };

        let stored = position.encode();

        assert_eq!(Position::decode(&stored), Some(position));
    }

    #[test]
    fn a_position_of_another_format_is_none() {
        let other = br#"{"format":99,"naming":"","documents":[]}"#;

        assert_eq!(Position::decode(other), None);
        assert_eq!(Position::decode(b"not a position"), None);
    }
}
