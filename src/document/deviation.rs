//! Where a document breaks a rule of the standard and is read all the same.

use crate::platform::userinfo::without_userinfo;
use std::collections::BTreeMap;

/// How many deviations of one rule are kept as examples.
const EXAMPLES_OF_A_RULE: usize = 3;

/// Bytes of what was seen that an example keeps.
const SEEN: usize = 200;

/// A rule of the standard (or of XML and URIs) that documents are seen to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // `name` says of each what is wrong.
pub enum Rule {
    RootNamespace,
    NamespaceSpelling,
    UndeclaredPrefix,
    PrefixedAttribute,
    DuplicateAttribute,
    MalformedAttribute,
    RawAmpersand,
    UndefinedEntity,
    HtmlEntity,
    ControlCharacter,
    EncodingUnknown,
    IllFormedEncoding,
    TextTooLong,
    TooManyLinks,
    EntryElement,
    ElementSpelling,
    ElementUnknown,
    LineUnreadable,
    HeaderAfterEntries,
    ContentAfterRoot,
    MetadataMissing,
    SitemapLine,
    SitemapIsPage,
    PlainSitemapLeftOut,
    CapabilitySpelling,
    RepeatedMetadata,
    LocMissing,
    ItemWithoutLink,
    LocRepeated,
    LocMalformed,
    OtherScheme,
    AddressRepeated,
    UriRelative,
    UriUnescaped,
    UriEscape,
    LinkIncomplete,
    LinkMalformed,
    TimeUnreadable,
    TimeSpelling,
    HashUnreadable,
    HashSpelling,
    LengthUnreadable,
    ChangeUnknown,
    ChangeFrequencyUnknown,
    PriorityUnreadable,
    ChildCapabilityMissing,
    UpMissing,
    CapabilityRepeated,
    PathMissing,
    PathWithoutSlash,
    ChangeMissing,
    ChangeOrder,
    ChangeOutsideInterval,
    IntervalReversed,
    AtMissing,
    AtUnexpected,
    FromMissing,
    FromUnexpected,
    ChildAtUnexpected,
    ChildFromUnexpected,
    ChangeTimeMissing,
}

impl Rule {
    /// The section of the standard (numbered as in 1.0) that the rule stands in, or that names what the rule is about;
    /// `A` is Appendix A. Empty where the standard has none.
    pub fn section(self) -> &'static str {
        self.text().0
    }

    /// The deviation for a person: it stands before a count.
    pub fn name(self) -> &'static str {
        self.text().1
    }

    fn text(self) -> (&'static str, &'static str) {
        match self {
            Rule::RootNamespace => {
                ("7", "root elements outside the namespace http://www.sitemaps.org/schemas/sitemap/0.9")
            }
            Rule::NamespaceSpelling => ("7", "misspelt namespaces"),
            Rule::UndeclaredPrefix => ("7", "namespace prefixes that are not declared"),
            Rule::PrefixedAttribute => ("7", "attributes of ResourceSync with a namespace prefix"),
            Rule::DuplicateAttribute => ("7", "attributes that an element has twice"),
            Rule::MalformedAttribute => ("7", "malformed attributes"),
            Rule::RawAmpersand => ("7", "ampersands that are not written &amp;"),
            Rule::UndefinedEntity => ("7", "references to entities that XML does not define, or to no character"),
            Rule::HtmlEntity => ("7", "references to entities of HTML"),
            Rule::ControlCharacter => ("7", "control characters that XML does not allow"),
            Rule::EncodingUnknown => ("7", "unknown encodings"),
            Rule::IllFormedEncoding => ("7", "texts that are not in the encoding of their document"),
            Rule::TextTooLong => ("7", "texts or attributes over the limit of this program"),
            Rule::TooManyLinks => ("7", "links of an entry over the limits of this program"),
            Rule::EntryElement => {
                ("7", "entries or lists in the wrong place: <url> belongs in <urlset>, <sitemap> in <sitemapindex>")
            }
            Rule::ElementSpelling => ("7", "elements in the wrong letter case"),
            Rule::ElementUnknown => ("7", "elements that the Sitemap protocol does not define"),
            Rule::LineUnreadable => ("7", "lines of a text that are neither a URL alone nor URL, length and path"),
            Rule::HeaderAfterEntries => ("7", "rs:md or rs:ln of the document behind its entries"),
            Rule::ContentAfterRoot => ("7", "content behind the root element"),
            Rule::MetadataMissing => ("7", "documents of ResourceSync without a capability"),
            Rule::SitemapLine => ("6.3.4", "Sitemap lines of robots.txt without an address"),
            Rule::SitemapIsPage => ("6.3.4", "web pages that robots.txt names as sitemaps"),
            Rule::PlainSitemapLeftOut => {
                ("6.3.4", "since robots.txt names Resource Lists, other plain sitemaps are ignored")
            }
            Rule::CapabilitySpelling => ("7", "misspelt capabilities"),
            Rule::RepeatedMetadata => ("7", "second rs:md of an entry"),
            Rule::LocMissing => ("7", "entries without an address (<loc>)"),
            Rule::ItemWithoutLink => ("", "items of a feed without a link or an enclosure"),
            Rule::LocRepeated => ("7", "second addresses of an entry"),
            Rule::LocMalformed => ("7", "addresses that are not URIs"),
            Rule::OtherScheme => ("7", "addresses of other schemes than http and https, which are no files"),
            Rule::AddressRepeated => ("7", "entries for a resource that an earlier entry of the list names"),
            Rule::UriRelative => ("7", "relative addresses"),
            Rule::UriUnescaped => ("7", "addresses with characters that must be percent-encoded"),
            Rule::UriEscape => ("7", "addresses with a percent sign that two hex digits do not follow"),
            Rule::LinkIncomplete => ("7", "links without href or rel"),
            Rule::LinkMalformed => ("7", "links to addresses that are not URIs"),
            Rule::TimeUnreadable => ("7", "unreadable times"),
            Rule::TimeSpelling => ("7", "times that are not to the letter a W3C Datetime, with T and a zone"),
            Rule::HashUnreadable => ("7", "unreadable hashes"),
            Rule::HashSpelling => ("7", "digests that are not in hex after a name such as md5 or sha-256"),
            Rule::LengthUnreadable => ("7", "lengths that are no number of bytes"),
            Rule::ChangeUnknown => ("7", "values of change other than created, updated and deleted"),
            Rule::ChangeFrequencyUnknown => ("7", "unknown values of <changefreq>"),
            Rule::PriorityUnreadable => ("7", "values of pri that are no integer from 1 to 999,999"),
            Rule::ChildCapabilityMissing => {
                ("7", "entries of a Source Description or Capability List without a capability")
            }
            Rule::CapabilityRepeated => ("9", "repeated capabilities of a Capability List"),
            Rule::UpMissing => ("7", r#"documents without a link to the one above them, rel="up""#),
            Rule::PathMissing => ("11.2", "entries of a manifest without a path"),
            Rule::PathWithoutSlash => ("11.2", "paths in a package that do not begin with a slash"),
            Rule::ChangeMissing => ("12.1", "entries of a Change List or Change Dump Manifest without a change"),
            Rule::ChangeOrder => ("12.1", "changes that are not in forward chronological order"),
            Rule::ChangeOutsideInterval => ("12.1", "changes outside the from and until of their document"),
            Rule::IntervalReversed => ("12.1", "intervals that end before they begin"),
            Rule::AtMissing => ("A", "Resource Lists and Resource Dumps, their indexes and manifests, without at"),
            Rule::AtUnexpected => {
                ("A", "Change Lists and Change Dumps, their indexes and manifests, with at or completed")
            }
            Rule::FromMissing => ("A", "Change Lists and Change Dumps, their indexes and manifests, without from"),
            Rule::FromUnexpected => {
                ("A", "Resource Lists and Resource Dumps, their indexes and manifests, with from or until")
            }
            Rule::ChildAtUnexpected => {
                ("A", "entries with at outside Resource Dumps and indexes of Resource Lists and Resource Dumps")
            }
            Rule::ChildFromUnexpected => {
                ("A", "entries with from outside Change Dumps and indexes of Change Lists and Change Dumps")
            }
            Rule::ChangeTimeMissing => ("A", "changes without a time (lastmod; datetime in 1.1)"),
        }
    }
}

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deviation {
    /// The rule.
    pub rule: Rule,
    /// Number of the entry in its document from 1; 0 for the document itself.
    pub entry: u64,
    /// What was published, without user and password of addresses, cut to a few hundred bytes.
    pub seen: Box<str>,
}

/// All deviations of a document: every one counted, the first few of each rule kept.
#[derive(Clone, Debug, Default)]
pub struct Deviations {
    counts: BTreeMap<Rule, u64>,
    examples: Vec<Deviation>,
}

impl Deviations {
    /// Counts a deviation: `entry` numbers the entry from 1, 0 is the document itself; `seen` is what was published.
    pub fn add(&mut self, rule: Rule, entry: u64, seen: &str) {
        let count = self.counts.entry(rule).or_insert(0);
        if *count < EXAMPLES_OF_A_RULE as u64 {
            // Before it is cut: half an address does not show where its password ends.
            let seen = without_userinfo(seen);
            let end = (0..=seen.len().min(SEEN)).rev().find(|end| seen.is_char_boundary(*end)).unwrap_or(0);
            let seen = seen.split_at(end).0;
            self.examples.push(Deviation { rule, entry, seen: seen.into() });
        }
        *count += 1;
    }

    /// Whether no rule was broken.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// How often `rule` was broken.
    pub fn count(&self, rule: Rule) -> u64 {
        self.counts.get(&rule).copied().unwrap_or(0)
    }

    /// (rule, how often), in the rules' order.
    pub fn counts(&self) -> impl Iterator<Item = (Rule, u64)> + '_ {
        self.counts.iter().map(|(r, n)| (*r, *n))
    }

    /// The first few of each rule, in the order they were found.
    pub fn examples(&self) -> &[Deviation] {
        &self.examples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_one_is_counted_and_the_first_three_are_kept() {
        let mut deviations = Deviations::default();
        assert!(deviations.is_empty());

        for entry in 1..=10 {
            deviations.add(Rule::LocMalformed, entry, "x");
        }
        deviations.add(Rule::AtMissing, 0, "");

        assert!(!deviations.is_empty());
        assert_eq!(deviations.count(Rule::LocMalformed), 10);
        assert_eq!(deviations.counts().collect::<Vec<_>>(), [(Rule::LocMalformed, 10), (Rule::AtMissing, 1)]);
        let entries: Vec<u64> = deviations.examples().iter().map(|example| example.entry).collect();
        assert_eq!(entries, [1, 2, 3, 0]);
    }

    #[test]
    fn what_was_seen_is_cut_between_characters() {
        let mut deviations = Deviations::default();
        deviations.add(Rule::LocMalformed, 1, &"€".repeat(1_000_000));
        assert_eq!(&*deviations.examples()[0].seen, "€".repeat(SEEN / 3));
    }

    #[test]
    fn deviations_are_named_by_what_is_wrong() {
        assert_eq!((Rule::AtMissing.section(), Rule::ChangeOrder.section()), ("A", "12.1"));
        assert_eq!(Rule::UriUnescaped.name(), "addresses with characters that must be percent-encoded");
    }
}
