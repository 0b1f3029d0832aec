//! Where a document breaks a rule of the standard and is read all the same.

use crate::platform::userinfo::without_userinfo;
use std::collections::BTreeMap;

/// How many deviations of one rule are kept as examples.
const EXAMPLES_OF_A_RULE: usize = 3;

/// Bytes of what was seen that an example keeps.
const SEEN: usize = 200;

/// Defines [`Rule`], in whose order deviations are listed: a name in the code, the section and the text for a person.
macro_rules! rules {
    ($($rule:ident $section:literal $name:literal;)*) => {
        /// A rule of the standard (or of XML and URIs) that documents are seen to break.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)] // `name` says of each what is wrong.
        pub enum Rule {
            $($rule,)*
        }

        impl Rule {
            /// The section of the standard (numbered as in 1.0) that the rule stands in, or that names what the rule is about;
            /// `A` is Appendix A. Empty where the standard has none.
            pub fn section(self) -> &'static str {
                match self {
                    $(Rule::$rule => $section,)*
                }
            }

            /// The deviation for a person: it stands before a count.
            pub fn name(self) -> &'static str {
                match self {
                    $(Rule::$rule => $name,)*
                }
            }
        }
    };
}

rules! {
    RootNamespace "7" "root elements outside the namespace http://www.sitemaps.org/schemas/sitemap/0.9";
    NamespaceSpelling "7" "misspelt namespaces";
    UndeclaredPrefix "7" "namespace prefixes that are not declared";
    PrefixedAttribute "7" "attributes of ResourceSync with a namespace prefix";
    DuplicateAttribute "7" "attributes that an element has twice";
    MalformedAttribute "7" "malformed attributes";
    RawAmpersand "7" "ampersands that are not written &amp;";
    UndefinedEntity "7" "references to entities that XML does not define, or to no character";
    HtmlEntity "7" "references to entities of HTML";
    ControlCharacter "7" "control characters that XML does not allow";
    EncodingUnknown "7" "unknown encodings";
    IllFormedEncoding "7" "texts that are not in the encoding of their document";
    TextTooLong "7" "texts or attributes over the limit of this program";
    TooManyLinks "7" "links of an entry over the limits of this program";
    EntryElement "7" "entries or lists in the wrong place: <url> belongs in <urlset>, <sitemap> in <sitemapindex>";
    ElementSpelling "7" "elements in the wrong letter case";
    ElementUnknown "7" "elements that the Sitemap protocol does not define";
    LineUnreadable "7" "lines of a text that are neither a URL alone nor URL, length and path";
    HeaderAfterEntries "7" "rs:md or rs:ln of the document after its entries";
    ContentAfterRoot "7" "content after the root element";
    MetadataMissing "7" "ResourceSync documents that do not state their capability";
    SitemapLine "6.3.4" "Sitemap lines of robots.txt without an address";
    SitemapIsPage "6.3.4" "web pages that robots.txt names as sitemaps";
    PlainSitemapLeftOut "6.3.4" "because robots.txt names Resource Lists, other plain sitemaps are ignored";
    CapabilitySpelling "7" "misspelt capabilities";
    RepeatedMetadata "7" "entries with more than one rs:md";
    LocMissing "7" "entries without an address (<loc>)";
    ItemWithoutLink "" "items of a feed without a link or an enclosure";
    LocRepeated "7" "second addresses of an entry";
    LocMalformed "7" "addresses that are not URIs";
    OtherScheme "7" "addresses of other schemes than http and https, which are not files";
    AddressRepeated "7" "entries for a resource that an earlier entry of the list names";
    UriRelative "7" "relative addresses";
    UriUnescaped "7" "addresses with characters that must be percent-encoded";
    UriEscape "7" "addresses with a percent sign that two hex digits do not follow";
    LinkIncomplete "7" "links without href or rel";
    LinkMalformed "7" "links to addresses that are not URIs";
    TimeUnreadable "7" "unreadable times";
    TimeSpelling "7" "times that are not valid W3C Datetimes, with T and a zone";
    HashUnreadable "7" "unreadable hashes";
    HashSpelling "7" "digests that are not in hex after a name such as md5 or sha-256";
    LengthUnreadable "7" "lengths that are not a number of bytes";
    ChangeUnknown "7" "values of change other than created, updated and deleted";
    ChangeFrequencyUnknown "7" "unknown values of <changefreq>";
    PriorityUnreadable "7" "values of pri that are not integers from 1 to 999,999";
    ChildCapabilityMissing "7" "entries of a Source Description or Capability List that do not state their capability";
    UpMissing "7" r#"documents without a link to the one above them, rel="up""#;
    CapabilityRepeated "9" "repeated capabilities of a Capability List";
    PathMissing "11.2" "entries of a manifest without a path";
    PathWithoutSlash "11.2" "paths in a package that do not begin with a slash";
    ChangeMissing "12.1" "entries of a Change List or Change Dump Manifest without a change";
    ChangeOrder "12.1" "changes that are not in forward chronological order";
    ChangeOutsideInterval "12.1" "changes outside the from and until of their document";
    IntervalReversed "12.1" "intervals that end before they begin";
    AtMissing "A" "Resource Lists and Resource Dumps, their indexes and manifests, without at";
    AtUnexpected "A" "Change Lists and Change Dumps, their indexes and manifests, with at or completed";
    FromMissing "A" "Change Lists and Change Dumps, their indexes and manifests, without from";
    FromUnexpected "A" "Resource Lists and Resource Dumps, their indexes and manifests, with from or until";
    ChildAtUnexpected "A" "entries with at outside Resource Dumps and indexes of Resource Lists and Resource Dumps";
    ChildFromUnexpected "A" "entries with from outside Change Dumps and indexes of Change Lists and Change Dumps";
    ChangeTimeMissing "A" "changes without a time (lastmod; datetime in 1.1)";
}

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deviation {
    /// The rule.
    pub rule: Rule,
    /// Number of the entry in its document from 1; 0 for the document itself.
    pub entry: u64,
    /// The published text, without user and password of addresses, cut to a few hundred bytes.
    pub seen: Box<str>,
}

/// All deviations of a document: every one counted, the first few of each rule kept.
#[derive(Clone, Debug, Default)]
pub struct Deviations {
    counts: BTreeMap<Rule, u64>,
    examples: Vec<Deviation>,
    /// Number of the entry to which the next belong, from 1; 0 for the document itself.
    pub entry: u64,
}

impl Deviations {
    /// Counts a deviation; `seen` is what was published.
    #[cold]
    pub fn add(&mut self, rule: Rule, seen: &str) {
        let count = self.counts.entry(rule).or_insert(0);
        if *count < EXAMPLES_OF_A_RULE as u64 {
            // Before it is cut: half an address does not show where its password ends.
            let seen = without_userinfo(seen);
            let end = (0..=seen.len().min(SEEN)).rev().find(|end| seen.is_char_boundary(*end)).unwrap_or(0);
            let seen = seen.split_at(end).0;
            self.examples.push(Deviation { rule, entry: self.entry, seen: seen.into() });
        }
        *count += 1;
    }

    /// Answers whether no rule was broken.
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
            deviations.entry = entry;
            deviations.add(Rule::LocMalformed, "x");
        }
        deviations.entry = 0;
        deviations.add(Rule::AtMissing, "");

        assert!(!deviations.is_empty());
        assert_eq!(deviations.count(Rule::LocMalformed), 10);
        assert_eq!(deviations.counts().collect::<Vec<_>>(), [(Rule::LocMalformed, 10), (Rule::AtMissing, 1)]);
        let entries: Vec<u64> = deviations.examples().iter().map(|example| example.entry).collect();
        assert_eq!(entries, [1, 2, 3, 0]);
    }

    #[test]
    fn what_was_seen_is_cut_between_characters() {
        let mut deviations = Deviations::default();
        deviations.add(Rule::LocMalformed, &"€".repeat(1_000_000));
        assert_eq!(&*deviations.examples()[0].seen, "€".repeat(SEEN / 3));
    }

    #[test]
    fn deviations_are_named_by_what_is_wrong() {
        assert_eq!((Rule::AtMissing.section(), Rule::ChangeOrder.section()), ("A", "12.1"));
        assert_eq!(Rule::UriUnescaped.name(), "addresses with characters that must be percent-encoded");
    }
}
