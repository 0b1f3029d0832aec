//! What the current revision was made of, committed together with it.

use crate::catalog::Naming;
use crate::document::{Timestamp, Uri};
use crate::source::walk::Walked;
use crate::source::{DocumentLocation, Missing};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Version of the written form; another version reads as no position at all, which only costs one merge.
const FORMAT: u32 = 2;

/// The documents of a revision with their digests, and the naming they were read under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    format: u32,
    naming: String,
    documents: Vec<Document>,
    /// What the Source offered and was not found.
    missing: Vec<Gap>,
}

/// See [`Missing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Gap {
    location: Location,
    entries: u64,
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

impl From<&DocumentLocation> for Location {
    fn from(location: &DocumentLocation) -> Location {
        match location {
            DocumentLocation::Uri(uri) => Location::Uri(uri.as_str().to_owned()),
            DocumentLocation::File(path) => Location::File(path.clone()),
        }
    }
}

impl Position {
    /// The position after reading `walks`, all that there was but for what is `missing`, under `naming`.
    pub fn of(walks: &[Walked], missing: &[Missing], naming: &Naming) -> Position {
        let documents = walks
            .iter()
            .flat_map(|walked| walked.indexes.iter().chain(walked.leaves.iter().map(|leaf| &leaf.document)))
            .map(|document| Document { location: (&document.location).into(), digest: document.digest })
            .collect();
        let missing = missing.iter().map(|gap| Gap { location: (&gap.location).into(), entries: gap.entries });
        Position { format: FORMAT, naming: naming.identity(), documents, missing: missing.collect() }
    }

    /// Whether `gap`, or a greater one at the same place, was there already when this revision was made.
    pub fn lacked(&self, gap: &Missing) -> bool {
        let location = Location::from(&gap.location);
        self.missing.iter().any(|lacked| {
            // A document that was missing as a whole has shown nothing that its single entries could now hide.
            lacked.location == location && (lacked.entries == 0 || 0 < gap.entries && gap.entries <= lacked.entries)
        })
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
            missing: vec![Gap { location: Location::Uri("http://example.org/gone.xml".into()), entries: 0 }],
        };

        let stored = position.encode();

        assert_eq!(Position::decode(&stored), Some(position));
    }

    #[test]
    fn only_what_was_missing_before_is_known_to_have_been() {
        let gap = |path: &str, entries| Missing {
            location: DocumentLocation::Uri(Uri::parse(&format!("http://example.org/{path}")).unwrap()),
            entries,
            why: String::new(),
        };
        let naming = Naming::new("example.org", [], false).unwrap();

        let position = Position::of(&[], &[gap("dead.xml", 0), gap("index.xml", 3)], &naming);

        assert!(position.lacked(&gap("dead.xml", 0)) && position.lacked(&gap("dead.xml", 5)));
        assert!(position.lacked(&gap("index.xml", 3)) && position.lacked(&gap("index.xml", 1)));
        assert!(!position.lacked(&gap("index.xml", 4)), "an entry that was understood may be hidden now");
        assert!(!position.lacked(&gap("index.xml", 0)), "what the index listed is gone with it");
        assert!(!position.lacked(&gap("other.xml", 0)));
    }

    #[test]
    fn a_position_of_another_format_is_none() {
        let other = br#"{"format":99,"naming":"","documents":[]}"#;

        assert_eq!(Position::decode(other), None);
        assert_eq!(Position::decode(b"not a position"), None);
    }
}
