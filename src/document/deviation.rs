//! Where a document breaks a rule of the standard and is read all the same.

use super::without_userinfo;
use std::collections::BTreeMap;

/// How many deviations of one rule are kept as examples.
const EXAMPLES_OF_A_RULE: usize = 3;

/// Bytes of what was seen that an example keeps.
const SEEN: usize = 200;

/// A rule of the standard (or of XML and URIs) that documents are seen to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // `sentence` says each rule.
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
    PlainSitemapLeftOut,
    CapabilitySpelling,
    RepeatedMetadata,
    LocMissing,
    LocRepeated,
    LocMalformed,
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
    /// `A` is Appendix A.
    pub fn section(self) -> &'static str {
        self.text().0
    }

    /// The rule in a sentence.
    pub fn sentence(self) -> &'static str {
        self.text().1
    }

    fn text(self) -> (&'static str, &'static str) {
        match self {
            Rule::RootNamespace => {
                ("7", "The root element is in the Sitemap namespace http://www.sitemaps.org/schemas/sitemap/0.9.")
            }
            Rule::NamespaceSpelling => ("7", "The namespaces are written exactly as the standards name them."),
            Rule::UndeclaredPrefix => {
                ("7", "A namespace prefix is declared before it is used (Namespaces in XML 1.0).")
            }
            Rule::PrefixedAttribute => ("7", "The attributes that ResourceSync defines have no namespace prefix."),
            Rule::DuplicateAttribute => ("7", "An element has no attribute twice (XML 1.0, 3.1)."),
            Rule::MalformedAttribute => {
                ("7", "An attribute is a name, an equals sign and a quoted value (XML 1.0, 3.1).")
            }
            Rule::RawAmpersand => ("7", "An ampersand is written &amp; (Sitemap protocol)."),
            Rule::UndefinedEntity => {
                ("7", "Of entities only the five of XML and characters by number are used; others are never expanded.")
            }
            Rule::HtmlEntity => ("7", "Characters that HTML has names for are written as themselves or by number."),
            Rule::EncodingUnknown => ("7", "The declared encoding is one of the Encoding Standard (WHATWG)."),
            Rule::IllFormedEncoding => ("7", "The document is in the encoding that it declares."),
            Rule::TextTooLong => ("7", "No text or attribute is longer than the reader's limit."),
            Rule::TooManyLinks => ("7", "No entry has more links, or longer ones, than the reader's limits."),
            Rule::EntryElement => ("7", "Entries are <url> in a <urlset> and <sitemap> in a <sitemapindex>."),
            Rule::ElementSpelling => ("7", "The names of elements are written in the letter case of the standards."),
            Rule::ElementUnknown => {
                ("7", "Elements that the Sitemap protocol does not define have their own namespace.")
            }
            Rule::LineUnreadable => (
                "7",
                "A line of a text sitemap is a URL (Sitemap protocol); one of a fetch.txt is URL, length and path.",
            ),
            Rule::HeaderAfterEntries => ("7", "The rs:md and rs:ln of the document stand before its entries."),
            Rule::ContentAfterRoot => ("7", "Nothing but comments follows the root element (XML 1.0, 2.1)."),
            Rule::MetadataMissing => ("7", "A ResourceSync document has an rs:md with a capability below its root."),
            Rule::SitemapLine => ("6.3.4", "A Sitemap line of robots.txt is that word, a colon and an absolute URI."),
            Rule::PlainSitemapLeftOut => (
                "6.3.4",
                "Where robots.txt names Resource Lists, other plain sitemaps are ignored: mount them by their own address.",
            ),
            Rule::CapabilitySpelling => ("7", "A capability is written as the standard names it."),
            Rule::RepeatedMetadata => ("7", "An entry has one rs:md."),
            Rule::LocMissing => ("7", "An entry has one <loc> with a URI."),
            Rule::LocRepeated => ("7", "An entry has no second <loc>."),
            Rule::LocMalformed => ("7", "<loc> is a URI of scheme http or https."),
            Rule::UriRelative => ("7", "URIs are absolute (Sitemap protocol)."),
            Rule::UriUnescaped => ("7", "Characters that RFC 3986 does not allow in a URI are percent-encoded."),
            Rule::UriEscape => ("7", "In a URI two hex digits follow a percent sign (RFC 3986, 2.1)."),
            Rule::LinkIncomplete => ("7", "An rs:ln has an href and a rel."),
            Rule::LinkMalformed => ("7", "The href of an rs:ln is a URI."),
            Rule::TimeUnreadable => ("7", "Times are W3C Datetimes."),
            Rule::TimeSpelling => ("7", "Times are W3C Datetimes to the letter, with T and a zone."),
            Rule::HashUnreadable => ("7", "A hash is a list of digests, each after the name of its algorithm."),
            Rule::HashSpelling => ("7", "A digest is hex-encoded after an algorithm's name such as md5 or sha-256."),
            Rule::LengthUnreadable => ("7", "length is a number of bytes."),
            Rule::ChangeUnknown => ("7", "change is created, updated or deleted."),
            Rule::ChangeFrequencyUnknown => ("7", "<changefreq> is one of the seven words of the Sitemap protocol."),
            Rule::PriorityUnreadable => ("7", "pri is an integer from 1 to 999,999."),
            Rule::ChildCapabilityMissing => {
                ("7", "An entry of a Source Description or Capability List has a capability.")
            }
            Rule::CapabilityRepeated => ("9", "A Capability List has one entry a capability."),
            Rule::UpMissing => ("7", r#"A document links to the one above it with rel="up"."#),
            Rule::PathMissing => ("11.2", "An entry of a manifest has the path of its bitstream in the package."),
            Rule::PathWithoutSlash => ("11.2", "path begins with a slash."),
            Rule::ChangeMissing => ("12.1", "An entry of a Change List or Change Dump Manifest has a change."),
            Rule::ChangeOrder => ("12.1", "Changes are in forward chronological order."),
            Rule::ChangeOutsideInterval => ("12.1", "Changes lie within from and until of their document."),
            Rule::IntervalReversed => ("12.1", "until is not before from, and completed not before at."),
            Rule::AtMissing => ("A", "Resource Lists, Resource Dumps, their indexes and manifests have at."),
            Rule::AtUnexpected => {
                ("A", "Change Lists, Change Dumps, their indexes and manifests have neither at nor completed.")
            }
            Rule::FromMissing => ("A", "Change Lists, Change Dumps, their indexes and manifests have from."),
            Rule::FromUnexpected => {
                ("A", "Resource Lists, Resource Dumps, their indexes and manifests have neither from nor until.")
            }
            Rule::ChildAtUnexpected => {
                ("A", "Entries have at only in Resource Dumps and in indexes of Resource Lists and Resource Dumps.")
            }
            Rule::ChildFromUnexpected => {
                ("A", "Entries have from only in Change Dumps and in indexes of Change Lists and Change Dumps.")
            }
            Rule::ChangeTimeMissing => (
                "A",
                "An entry of a Change List or Change Dump Manifest has the time of its change (lastmod; datetime in 1.1).",
            ),
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
    fn rules_name_their_section() {
        assert_eq!((Rule::AtMissing.section(), Rule::ChangeOrder.section()), ("A", "12.1"));
        assert!(Rule::AtMissing.sentence().ends_with('.'));
    }
}
