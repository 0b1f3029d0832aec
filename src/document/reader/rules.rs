//! The rules of the standard that concern a document as a whole or the order of its entries.

use super::Notes;
use super::element::Metadata;
use crate::document::{Capability, Change, Header, Root, Rule, Timestamp};

/// Capabilities remembered of one Capability List.
const CAPABILITIES: usize = 64;

/// Whether Appendix A wants a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    #[default]
    Free,
    Mandatory,
    Forbidden,
}

/// What the standard says of a document of one capability and root.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    at: Presence,
    from: Presence,
    child_at: Presence,
    child_from: Presence,
    up: bool,
    /// Entries are changes, in order of time.
    changes: bool,
    /// Entries are members of a package.
    members: bool,
    child_capability: bool,
    /// No capability has two entries.
    once: bool,
}

impl Expected {
    /// Appendix A, and sections 8 to 13.
    fn of(capability: &Capability, root: Root) -> Expected {
        use Presence::{Forbidden, Free, Mandatory};
        let index = root == Root::SitemapIndex;
        let allowed = |allowed| if allowed { Free } else { Forbidden };
        let snapshot = |child_at| Expected {
            at: Mandatory,
            from: Forbidden,
            child_at: allowed(child_at),
            child_from: Forbidden,
            up: true,
            ..Expected::default()
        };
        let interval = |child_from| Expected {
            at: Forbidden,
            from: Mandatory,
            child_at: Forbidden,
            child_from: allowed(child_from),
            up: true,
            ..Expected::default()
        };
        match capability {
            Capability::Description => Expected { child_capability: !index, ..Expected::default() },
            Capability::CapabilityList => {
                Expected { child_capability: !index, once: !index, up: true, ..Expected::default() }
            }
            Capability::ResourceList => snapshot(index),
            Capability::ResourceDump => snapshot(true),
            Capability::ResourceDumpManifest => Expected { members: true, ..snapshot(false) },
            Capability::ChangeList => Expected { changes: !index, ..interval(index) },
            Capability::ChangeDump => interval(true),
            Capability::ChangeDumpManifest => Expected { changes: true, members: true, ..interval(false) },
            _ => Expected::default(),
        }
    }
}

/// Judges a document while it is read.
#[derive(Default)]
pub(super) struct DocumentRules {
    expected: Expected,
    from: Option<Timestamp>,
    until: Option<Timestamp>,
    newest_change: Option<Timestamp>,
    /// What the entries of a Capability List were for.
    capabilities: Vec<Capability>,
    /// There was an `rs:md`: not a plain sitemap.
    metadata_seen: bool,
}

impl DocumentRules {
    /// To be called whenever an `rs:md` has changed the header.
    pub fn header_is(&mut self, header: &Header) {
        self.metadata_seen = true;
        self.expected = header.capability.as_ref().map(|c| Expected::of(c, header.root)).unwrap_or_default();
        self.from = header.from;
        self.until = header.until;
    }

    /// Judges an entry, usable or not.
    pub fn judge_entry(&mut self, lastmod: Option<Timestamp>, metadata: Option<&Metadata>, notes: &mut Notes<'_>) {
        self.metadata_seen |= metadata.is_some();
        let expected = self.expected;
        if expected.changes {
            self.judge_change(lastmod, metadata, notes);
        }
        if expected.members {
            judge_path(metadata, notes);
        }
        if let Some(metadata) = metadata {
            if expected.child_at == Presence::Forbidden && (metadata.at.is_some() || metadata.completed.is_some()) {
                notes.add(Rule::ChildAtUnexpected, "");
            }
            if expected.child_from == Presence::Forbidden && (metadata.from.is_some() || metadata.until.is_some()) {
                notes.add(Rule::ChildFromUnexpected, "");
            }
        }
        if expected.child_capability {
            match metadata.and_then(|metadata| metadata.capability.as_ref()) {
                None => notes.add(Rule::ChildCapabilityMissing, ""),
                Some(capability) if expected.once => {
                    if self.capabilities.contains(capability) {
                        notes.add(Rule::CapabilityRepeated, capability.as_str());
                    } else if self.capabilities.len() < CAPABILITIES {
                        self.capabilities.push(capability.clone());
                    }
                }
                Some(_) => {}
            }
        }
    }

    fn judge_change(&mut self, lastmod: Option<Timestamp>, metadata: Option<&Metadata>, notes: &mut Notes<'_>) {
        if metadata.is_none_or(|metadata| metadata.change.is_none()) {
            notes.add(Rule::ChangeMissing, "");
        }
        let Some(time) = metadata.and_then(|metadata| metadata.datetime).or(lastmod) else {
            notes.add(Rule::ChangeTimeMissing, "");
            return;
        };
        if self.newest_change.is_some_and(|newest| time < newest) {
            notes.add(Rule::ChangeOrder, &time.to_string());
        }
        self.newest_change = self.newest_change.max(Some(time));
        if self.from.is_some_and(|from| time < from) || self.until.is_some_and(|until| time > until) {
            notes.add(Rule::ChangeOutsideInterval, &time.to_string());
        }
    }

    /// Judges the header, when the whole document has been read.
    pub fn judge_document(&self, header: &Header, notes: &mut Notes<'_>) {
        let speaks_resourcesync = self.metadata_seen || !header.links.is_empty() && !header.root.is_feed_or_text();
        if header.capability.is_none() && speaks_resourcesync {
            notes.add(Rule::MetadataMissing, "");
        }
        let expected = self.expected;
        if expected.up && header.link("up").is_none() {
            notes.add(Rule::UpMissing, "");
        }
        match expected.at {
            Presence::Mandatory if header.at.is_none() => notes.add(Rule::AtMissing, ""),
            Presence::Forbidden if header.at.is_some() || header.completed.is_some() => {
                notes.add(Rule::AtUnexpected, "");
            }
            _ => {}
        }
        match expected.from {
            Presence::Mandatory if header.from.is_none() => notes.add(Rule::FromMissing, ""),
            Presence::Forbidden if header.from.is_some() || header.until.is_some() => {
                notes.add(Rule::FromUnexpected, "");
            }
            _ => {}
        }
        for (start, end) in [(header.from, header.until), (header.at, header.completed)] {
            if let (Some(start), Some(end)) = (start, end) {
                if end < start {
                    notes.add(Rule::IntervalReversed, &end.to_string());
                }
            }
        }
    }
}

/// The deviation of an entry that does not say where it lies.
pub(super) fn without_address(root: Root) -> Rule {
    if root.is_feed_or_text() { Rule::ItemWithoutLink } else { Rule::LocMissing }
}

/// A member of a package has a path, unless there is nothing left of it.
fn judge_path(metadata: Option<&Metadata>, notes: &mut Notes<'_>) {
    let deleted = metadata.is_some_and(|metadata| metadata.change == Some(Change::Deleted));
    match metadata.and_then(|metadata| metadata.path.as_deref()) {
        None if !deleted => notes.add(Rule::PathMissing, ""),
        Some(path) if !path.starts_with('/') => notes.add(Rule::PathWithoutSlash, path),
        _ => {}
    }
}
