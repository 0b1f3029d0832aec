//! The choice of the listed resources that are mounted: by path, media type, collection and format.
//!
//! | option | chooses |
//! |---|---|
//! | `include=GLOB` | resources at such a path |
//! | `exclude=GLOB` | no resource at such a path, whichever option chooses it |
//! | `type=TYPE` | resources published with this media type |
//! | `collection=URI` | members of this collection (section 14.7) |
//! | `conforms=URI` | metadata records of this format (section 14.5), and the resources they describe |
//! | `with=describes` | the resources that chosen records describe, in addition to those records |
//!
//! A resource must match a value of each given option. One that is not chosen is neither stored nor requested.
//!
//! A record's format is its `profile`, or a `describedby` link in the style of the profile for metadata harvesting. Either side
//! may state that a record describes a resource: the record `describes` it, or the resource is `describedby` the record.
//! So an entry alone ([`Selection::chooses`]) is not enough for the last two options: a [`plan::ChoicePlan`] reads lists and changes
//! once before they are chosen from. That costs no transfer where the lists have not changed.

mod globs;
pub mod plan;

pub use globs::{GlobError, Globs};

use crate::document::{Entry, Href, Link};

/// The values of the options that choose; a kind without a value chooses everything.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// `include=`
    pub included: Globs,
    /// `exclude=`
    pub excluded: Globs,
    /// `type=`: media types, `image/*` for all of a kind.
    pub types: Vec<Box<str>>,
    /// `collection=`: what a resource is a member of (section 14.7).
    pub collections: Vec<Href>,
    /// `conforms=`: the `profile` of a record, or what it is `describedby` (section 14.5).
    pub formats: Vec<Href>,
    /// `with=describes`
    pub with_described: bool,
}

impl Selection {
    /// True if `entry`, at `path` in the tree, is chosen by itself. `path` counts only with [`Selection::judges_paths`].
    pub fn chooses(&self, entry: &Entry, path: &str) -> bool {
        self.chooses_through(entry, path, Through::default)
    }

    /// True if paths count.
    pub fn judges_paths(&self) -> bool {
        !self.included.is_empty() || !self.excluded.is_empty()
    }

    /// True if the links of other entries count.
    pub fn follows_links(&self) -> bool {
        !self.formats.is_empty() || self.brings_described()
    }

    /// True if `with=describes` can add a resource: none is left where everything is chosen but what `exclude=` names.
    fn brings_described(&self) -> bool {
        self.with_described && (!self.formats.is_empty() || self.is_narrow())
    }

    /// True if other options than `conforms=` choose: a record of the format may not be in the tree.
    fn is_narrow(&self) -> bool {
        !self.included.is_empty() || !self.types.is_empty() || !self.collections.is_empty()
    }

    fn excludes(&self, path: &str) -> bool {
        !self.excluded.is_empty() && self.excluded.matches(path)
    }

    /// True if all kinds agree but `exclude=` and `conforms=`.
    fn agrees(&self, entry: &Entry, path: &str) -> bool {
        (self.types.is_empty() || entry.media_type.as_deref().is_some_and(|published| self.has_type(published)))
            && (self.collections.is_empty() || leads(entry, &["collection"], &self.collections))
            && (self.included.is_empty() || self.included.matches(path))
    }

    /// True if `entry` is a record of one of the formats.
    fn is_record(&self, entry: &Entry) -> bool {
        leads(entry, &["profile", DESCRIBED_BY], &self.formats)
    }

    /// True if a resource with these links may choose others.
    pub fn may_be_record(&self, links: &[Link]) -> bool {
        self.brings_described() || links.iter().any(|link| &*link.rel == DESCRIBES || self.formats.contains(&link.href))
    }

    fn has_type(&self, published: &str) -> bool {
        let essence = published.split(';').next().unwrap_or_default().trim();
        self.types.iter().any(|wanted| match wanted.strip_suffix("/*") {
            Some(kind) => essence.split('/').next().is_some_and(|published| published.eq_ignore_ascii_case(kind)),
            None => essence.eq_ignore_ascii_case(wanted),
        })
    }

    /// A stable text of the choice, a line each: equal texts choose the same.
    pub fn identity(&self) -> Vec<String> {
        let included = self.included.patterns().map(|it| format!("include={}", it.escape_default()));
        let excluded = self.excluded.patterns().map(|it| format!("exclude={}", it.escape_default()));
        let types = self.types.iter().map(|it| format!("type={}", it.to_ascii_lowercase()));
        let collections = self.collections.iter().map(|it| format!("collection={it}"));
        let formats = self.formats.iter().map(|it| format!("conforms={it}"));
        let with = self.with_described.then(|| "with=describes".to_owned());
        let mut lines: Vec<_> =
            included.chain(excluded).chain(types).chain(collections).chain(formats).chain(with).collect();
        lines.sort();
        lines.dedup();
        lines
    }
}

/// The relation of a resource to a record about it.
const DESCRIBED_BY: &str = "describedby";
/// The relation of a record to what it is about.
const DESCRIBES: &str = "describes";

/// True if a link of one of `relations` leads to one of `wanted`.
fn leads(entry: &Entry, relations: &[&str], wanted: &[Href]) -> bool {
    entry.links.iter().any(|link| relations.contains(&&*link.rel) && wanted.contains(&link.href))
}

/// The targets of the links of one relation that a list can list.
fn targets<'e>(links: &'e [Link], relation: &'static str) -> impl Iterator<Item = &'e crate::document::Uri> {
    links.iter().filter(move |link| &*link.rel == relation).filter_map(Link::uri)
}

/// The choice of a resource through other entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Through {
    /// A record of one of the formats describes it: as good as being such a record.
    format: bool,
    /// A record that is chosen itself describes it, and `with=describes` is given.
    chosen: bool,
}

impl Selection {
    /// [`Selection::chooses`], where the entries of other resources count too. `through` is called only where it matters.
    fn chooses_through(&self, entry: &Entry, path: &str, through: impl FnOnce() -> Through) -> bool {
        if self.excludes(path) {
            return false;
        }
        let agrees = self.agrees(entry, path);
        if agrees && (self.formats.is_empty() || self.is_record(entry)) {
            return true;
        }
        if !self.follows_links() || !agrees && !self.brings_described() {
            return false;
        }
        let through = through();
        agrees && through.format || through.chosen
    }

    /// The choice that `record` gives to the resources that it describes.
    fn gives(&self, record: &Entry, path: &str) -> Through {
        let format = !self.formats.is_empty() && self.is_record(record);
        Through { format, chosen: self.brings_described() && self.chooses(record, path) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Uri;

    fn href(text: &str) -> Href {
        Href::parse(text).unwrap()
    }

    fn globs(pattern: &str) -> Globs {
        let mut globs = Globs::default();
        globs.add(pattern).unwrap();
        globs
    }

    fn entry(media_type: Option<&str>, links: &[(&str, &str)]) -> Entry {
        Entry {
            media_type: media_type.map(Into::into),
            links: links.iter().map(|(rel, to)| Link::new(rel, href(to))).collect(),
            ..Entry::new(Uri::parse("http://h/a").unwrap())
        }
    }

    #[test]
    fn nothing_given_chooses_everything() {
        assert!(Selection::default().chooses(&entry(None, &[]), "a"));
    }

    #[test]
    fn a_type_is_chosen_without_its_parameters_and_in_any_case() {
        let selection = Selection { types: vec!["application/PDF".into(), "image/*".into()], ..Selection::default() };

        for (published, chosen) in [
            (Some("application/pdf"), true),
            (Some("Application/Pdf; version=1.7"), true),
            (Some("image/png"), true),
            (Some("imagery/png"), false),
            (Some("text/html"), false),
            (None, false),
        ] {
            assert_eq!(selection.chooses(&entry(published, &[]), "a"), chosen, "{published:?}");
        }
    }

    #[test]
    fn one_of_each_kind_must_agree() {
        let selection = Selection {
            collections: vec![href("http://h/c1"), href("http://h/c2")],
            formats: vec![href("http://h/format")],
            ..Selection::default()
        };
        let chooses = |links: &[(&str, &str)]| selection.chooses(&entry(None, links), "a");
        let member = ("collection", "http://h/c2");

        assert!(chooses(&[member, ("profile", "http://h/format")]));
        assert!(chooses(&[member, ("describedby", "http://h/format")]));
        assert!(!chooses(&[member]));
        assert!(!chooses(&[("profile", "http://h/format")]));
        assert!(!chooses(&[member, ("via", "http://h/format")]));
    }

    #[test]
    fn a_format_or_collection_may_be_named_by_a_urn() {
        let selection = Selection {
            collections: vec![href("urn:x:c")],
            formats: vec![href("info:format/mets")],
            ..Selection::default()
        };

        let links = [("collection", "urn:x:c"), ("profile", "info:format/mets")];
        assert!(selection.chooses(&entry(None, &links), "a"));
        assert!(!selection.chooses(&entry(None, &links[..1]), "a"));
    }

    #[test]
    fn what_is_excluded_is_not_chosen_by_anything_else() {
        let selection = Selection { included: globs("docs/"), excluded: globs("*.tmp"), ..Selection::default() };

        assert!(selection.chooses(&entry(None, &[]), "docs/a"));
        assert!(!selection.chooses(&entry(None, &[]), "docs/a.tmp"));
        assert!(!selection.chooses(&entry(None, &[]), "a"));
    }

    #[test]
    fn the_identity_does_not_depend_on_the_order() {
        let one = Selection { types: vec!["a/b".into(), "C/D".into()], ..Selection::default() };
        let other = Selection { types: vec!["c/d".into(), "a/b".into(), "a/b".into()], ..Selection::default() };

        assert_eq!(one.identity(), other.identity());
        assert_eq!(one.identity(), ["type=a/b", "type=c/d"]);
    }

    #[test]
    fn each_option_is_in_the_identity() {
        let all = Selection {
            included: globs("a\nb"),
            excluded: globs("*.tmp"),
            types: vec!["a/b".into()],
            collections: vec![href("urn:x:c")],
            formats: vec![href("http://h/f")],
            with_described: true,
        };

        assert_eq!(
            all.identity(),
            [
                "collection=urn:x:c",
                "conforms=http://h/f",
                "exclude=*.tmp",
                "include=a\\nb",
                "type=a/b",
                "with=describes"
            ]
        );
    }
}
