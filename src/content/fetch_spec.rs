//! The specification of a resource for content: one inode, one version, and the locations of its bytes.

use crate::document::{Digest, PackageMember, Timestamp, Uri};
use crate::platform::ino::Ino;
use std::ops::RangeInclusive;

/// The specification of a resource for content: one inode, one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchSpec {
    /// The inode: names the version.
    pub ino: Ino,
    /// Its own URI at the Source.
    pub uri: Uri,
    /// Published length (coded where `encoding` is given).
    pub length: Option<u64>,
    /// Published digests, strongest first.
    pub hashes: Vec<Digest>,
    /// Published media type.
    pub media_type: Option<Box<str>>,
    /// Published content coding.
    pub encoding: Option<Box<str>>,
    /// `duplicate` links, by priority (section 14.2).
    pub mirrors: Vec<Uri>,
    /// `memento` links: this version under its own URI (section 14.6).
    pub mementos: Vec<Uri>,
    /// `timegate`: redirects to the version of a time (RFC 7089, 2.2.2).
    pub timegate: Option<Uri>,
    /// The patches from the version before its change to this one, in this order (section 14.4).
    pub patches: Vec<Patch>,
    /// The member of a package that is exactly this version.
    pub member: Option<PackageMember>,
    /// Published `lastmod`.
    pub lastmod: Option<Timestamp>,
    /// `at` of the list that published this: later the bytes may rightly be others.
    pub listed_at: Option<Timestamp>,
    /// The mount shows the Source as it was then: the bytes served today prove nothing.
    pub as_of: Option<Timestamp>,
    /// Another version has taken the name; this one lives on for processes that have it open.
    pub is_replaced: bool,
}

/// A description of the change from one version to the next (section 14.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Its own URI.
    pub uri: Uri,
    /// Its media type.
    pub media_type: Option<Box<str>>,
    /// Its bytes.
    pub length: Option<u64>,
    /// Its digests, strongest first.
    pub hashes: Vec<Digest>,
}

impl FetchSpec {
    /// A version that is published with its URI alone.
    pub fn new(ino: Ino, uri: Uri) -> FetchSpec {
        FetchSpec {
            ino,
            uri,
            length: None,
            hashes: Vec::new(),
            media_type: None,
            encoding: None,
            mirrors: Vec::new(),
            mementos: Vec::new(),
            timegate: None,
            patches: Vec::new(),
            member: None,
            lastmod: None,
            listed_at: None,
            as_of: None,
            is_replaced: false,
        }
    }

    /// The published digest that says most.
    pub(super) fn strongest_hash(&self) -> Option<Digest> {
        self.hashes.iter().max_by_key(|digest| digest.algorithm()).copied()
    }

    /// Returns whether the Source is expected to serve another version than this one under its URI.
    pub fn is_past(&self) -> bool {
        self.as_of.is_some() || self.is_replaced
    }

    /// A time at which the resource had this version, for a TimeGate; `None` where none is known.
    pub fn moment(&self) -> Option<Timestamp> {
        self.as_of.or(self.lastmod).or(self.listed_at.filter(|_| !self.is_replaced))
    }

    /// The known times at which the resource certainly had this version: a memento of any of them is this version. In whole seconds, as
    /// in HTTP.
    pub fn life(&self) -> Option<RangeInclusive<Timestamp>> {
        let begin = self.lastmod.map(|lastmod| Timestamp { nanos: 0, ..lastmod });
        let (begin, end) = match (self.as_of, begin) {
            // A list of that time does not say when its version began. A memento of no later time is enough.
            (Some(as_of), begin) => (begin.unwrap_or(Timestamp { seconds: i64::MIN, nanos: 0 }), as_of),
            (None, None) => return None,
            (None, Some(begin)) if self.is_replaced => (begin, begin),
            (None, Some(begin)) => (begin, self.listed_at.map_or(begin, |at| at.max(begin))),
        };
        Some(begin..=end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    fn spec() -> FetchSpec {
        let lastmod = Some(Timestamp { seconds: 100, nanos: 7 });
        let spec = FetchSpec::new(Ino(2), Uri::parse("http://example.org/a").unwrap());
        FetchSpec { lastmod, listed_at: Some(at(200)), ..spec }
    }

    #[test]
    fn a_listed_version_lived_from_its_lastmod_to_its_list() {
        assert_eq!(spec().life(), Some(at(100)..=at(200)));
        assert_eq!(FetchSpec { listed_at: None, ..spec() }.life(), Some(at(100)..=at(100)));
        assert_eq!(FetchSpec { lastmod: None, ..spec() }.life(), None);
    }

    #[test]
    fn the_end_of_a_replaced_version_is_unknown() {
        let replaced = FetchSpec { is_replaced: true, ..spec() };
        assert_eq!(replaced.life(), Some(at(100)..=at(100)));
        assert_eq!(FetchSpec { lastmod: None, ..replaced }.moment(), None);
    }

    #[test]
    fn a_version_of_an_earlier_time_lived_at_least_until_then() {
        let earlier = FetchSpec { as_of: Some(at(150)), ..spec() };
        assert_eq!(earlier.life(), Some(at(100)..=at(150)));
        assert!(FetchSpec { lastmod: None, ..earlier }.life().unwrap().contains(&at(-5)));
    }
}
