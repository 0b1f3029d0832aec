//! The rules of the standard that concern a document as a whole or the order of its entries.

use super::Deviations;
use super::element::Metadata;
use crate::document::{Capability, Change, Header, Root, Rule, Timestamp};

/// Capabilities remembered of one Capability List.
const CAPABILITIES: usize = 64;

/// A document has `at`, and neither `from` nor `until`.
const AT: u8 = 1;
/// A document has `from`, and neither `at` nor `completed`.
const FROM: u8 = 1 << 1;
/// Entries may have these times too.
const CHILD_TIMES: u8 = 1 << 2;
/// A document has a link to the one above it.
const UP: u8 = 1 << 3;
/// Entries are changes, in order of time.
const CHANGES: u8 = 1 << 4;
/// Entries are members of a package.
const MEMBERS: u8 = 1 << 5;
/// Entries have a capability.
const CHILD_CAPABILITY: u8 = 1 << 6;
/// No capability has two entries.
const ONCE: u8 = 1 << 7;

/// Appendix A, and sections 8 to 13: of each capability what is expected of a document, and of an index of such documents.
static APPENDIX_A: [(Capability, u8, u8); 8] = [
    (Capability::Description, CHILD_CAPABILITY, 0),
    (Capability::CapabilityList, UP | CHILD_CAPABILITY | ONCE, UP),
    (Capability::ResourceList, AT | UP, AT | UP | CHILD_TIMES),
    (Capability::ResourceDump, AT | UP | CHILD_TIMES, AT | UP | CHILD_TIMES),
    (Capability::ResourceDumpManifest, AT | UP | MEMBERS, AT | UP | MEMBERS),
    (Capability::ChangeList, FROM | UP | CHANGES, FROM | UP | CHILD_TIMES),
    (Capability::ChangeDump, FROM | UP | CHILD_TIMES, FROM | UP | CHILD_TIMES),
    (Capability::ChangeDumpManifest, FROM | UP | CHANGES | MEMBERS, FROM | UP | CHANGES | MEMBERS),
];

/// Judges a document while it is read.
#[derive(Default)]
pub(super) struct DocumentRules {
    expected: u8,
    newest_change: Option<Timestamp>,
    /// The capabilities of the entries of a Capability List.
    capabilities: Vec<Capability>,
    /// There was an `rs:md`: not a plain sitemap.
    metadata_seen: bool,
}

impl DocumentRules {
    /// To be called whenever an `rs:md` has changed the header.
    pub fn header_is(&mut self, header: &Header) {
        self.metadata_seen = true;
        let row = APPENDIX_A.iter().find(|(capability, ..)| Some(capability) == header.capability.as_ref());
        let is_index = header.root == Root::SitemapIndex;
        self.expected = row.map_or(0, |(_, document, index)| if is_index { *index } else { *document });
    }

    fn expects(&self, what: u8) -> bool {
        self.expected & what != 0
    }

    /// Judges an entry, usable or not.
    pub fn judge_entry(
        &mut self,
        header: &Header,
        lastmod: Option<Timestamp>,
        metadata: Option<&Metadata>,
        notes: &mut Deviations,
    ) {
        self.metadata_seen |= metadata.is_some();
        if self.expected == 0 {
            return;
        }
        if self.expects(CHANGES) {
            self.judge_change(header, lastmod, metadata, notes);
        }
        if self.expects(MEMBERS) {
            judge_path(metadata, notes);
        }
        if let Some(metadata) = metadata.filter(|_| self.expects(AT | FROM)) {
            let may_have = |times| self.expects(times) && self.expects(CHILD_TIMES);
            if (metadata.at.is_some() || metadata.completed.is_some()) && !may_have(AT) {
                notes.add(Rule::ChildAtUnexpected, "");
            }
            if (metadata.from.is_some() || metadata.until.is_some()) && !may_have(FROM) {
                notes.add(Rule::ChildFromUnexpected, "");
            }
        }
        if self.expects(CHILD_CAPABILITY) {
            match metadata.and_then(|metadata| metadata.capability.as_ref()) {
                None => notes.add(Rule::ChildCapabilityMissing, ""),
                Some(known) if self.expects(ONCE) && self.capabilities.contains(known) => {
                    notes.add(Rule::CapabilityRepeated, known.as_str());
                }
                Some(new) if self.capabilities.len() < CAPABILITIES => self.capabilities.push(new.clone()),
                Some(_) => {}
            }
        }
    }

    fn judge_change(
        &mut self,
        header: &Header,
        lastmod: Option<Timestamp>,
        metadata: Option<&Metadata>,
        notes: &mut Deviations,
    ) {
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
        if header.from.is_some_and(|from| time < from) || header.until.is_some_and(|until| time > until) {
            notes.add(Rule::ChangeOutsideInterval, &time.to_string());
        }
    }

    /// Judges the header, when the whole document has been read.
    pub fn judge_document(&self, header: &Header, notes: &mut Deviations) {
        let speaks_resourcesync = self.metadata_seen || !header.links.is_empty() && !header.root.is_feed_or_text();
        let (has_at, has_from) = (header.at.is_some(), header.from.is_some());
        for (is_broken, rule) in [
            (header.capability.is_none() && speaks_resourcesync, Rule::MetadataMissing),
            (self.expects(UP) && header.link("up").is_none(), Rule::UpMissing),
            (self.expects(AT) && !has_at, Rule::AtMissing),
            (self.expects(FROM) && (has_at || header.completed.is_some()), Rule::AtUnexpected),
            (self.expects(FROM) && !has_from, Rule::FromMissing),
            (self.expects(AT) && (has_from || header.until.is_some()), Rule::FromUnexpected),
        ] {
            if is_broken {
                notes.add(rule, "");
            }
        }
        for (start, end) in [(header.from, header.until), (header.at, header.completed)] {
            if let Some(end) = end.filter(|end| start.is_some_and(|start| *end < start)) {
                notes.add(Rule::IntervalReversed, &end.to_string());
            }
        }
    }
}

/// The deviation of an entry without an address.
pub(super) fn without_address(root: Root) -> Rule {
    if root.is_feed_or_text() { Rule::ItemWithoutLink } else { Rule::LocMissing }
}

/// A member of a package has a path, unless there is nothing left of it.
fn judge_path(metadata: Option<&Metadata>, notes: &mut Deviations) {
    let deleted = metadata.is_some_and(|metadata| metadata.change == Some(Change::Deleted));
    match metadata.and_then(|metadata| metadata.path.as_deref()) {
        None if !deleted => notes.add(Rule::PathMissing, ""),
        Some(path) if !path.starts_with('/') => notes.add(Rule::PathWithoutSlash, path),
        _ => {}
    }
}
