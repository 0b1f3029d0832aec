//! Which of the listed resources are mounted: by media type, collection and format.

use crate::document::{Entry, Uri};

/// What was chosen; a kind with nothing in it chooses everything. What is not chosen is neither stored nor asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// `type=`: media types, `image/*` for all of a kind.
    pub types: Vec<Box<str>>,
    /// `collection=`: what a resource is a member of (section 14.7).
    pub collections: Vec<Uri>,
    /// `conforms=`: the `profile` of a record, or what it is `describedby` (section 14.5).
    pub formats: Vec<Uri>,
}

impl Selection {
    /// Whether `entry` is chosen: by one of each kind that was given.
    pub fn chooses(&self, entry: &Entry) -> bool {
        let linked = |relations: &[&str], wanted: &[Uri]| {
            entry
                .links
                .iter()
                .any(|link| relations.contains(&&*link.rel) && link.uri().is_some_and(|uri| wanted.contains(uri)))
        };
        (self.types.is_empty() || entry.media_type.as_deref().is_some_and(|published| self.has_type(published)))
            && (self.collections.is_empty() || linked(&["collection"], &self.collections))
            && (self.formats.is_empty() || linked(&["profile", "describedby"], &self.formats))
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
        let types = self.types.iter().map(|it| format!("type={}", it.to_ascii_lowercase()));
        let collections = self.collections.iter().map(|it| format!("collection={it}"));
        let formats = self.formats.iter().map(|it| format!("conforms={it}"));
        let mut lines: Vec<_> = types.chain(collections).chain(formats).collect();
        lines.sort();
        lines.dedup();
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Link;

    fn uri(text: &str) -> Uri {
        Uri::parse(text).unwrap()
    }

    fn entry(media_type: Option<&str>, links: &[(&str, &str)]) -> Entry {
        let link = |(rel, href): &(&str, &str)| Link::new(rel, uri(href));
        Entry {
            media_type: media_type.map(Into::into),
            links: links.iter().map(link).collect(),
            ..Entry::new(uri("http://h/a"))
        }
    }

    #[test]
    fn nothing_given_chooses_everything() {
        assert!(Selection::default().chooses(&entry(None, &[])));
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
            assert_eq!(selection.chooses(&entry(published, &[])), chosen, "{published:?}");
        }
    }

    #[test]
    fn one_of_each_kind_must_agree() {
        let selection = Selection {
            types: Vec::new(),
            collections: vec![uri("http://h/c1"), uri("http://h/c2")],
            formats: vec![uri("http://h/format")],
        };
        let member = ("collection", "http://h/c2");

        assert!(selection.chooses(&entry(None, &[member, ("profile", "http://h/format")])));
        assert!(selection.chooses(&entry(None, &[member, ("describedby", "http://h/format")])));
        assert!(!selection.chooses(&entry(None, &[member])));
        assert!(!selection.chooses(&entry(None, &[("profile", "http://h/format")])));
        assert!(!selection.chooses(&entry(None, &[member, ("via", "http://h/format")])));
    }

    #[test]
    fn the_identity_does_not_depend_on_the_order() {
        let one = Selection { types: vec!["a/b".into(), "C/D".into()], ..Selection::default() };
        let other = Selection { types: vec!["c/d".into(), "a/b".into(), "a/b".into()], ..Selection::default() };

        assert_eq!(one.identity(), other.identity());
        assert_eq!(one.identity(), ["type=a/b", "type=c/d"]);
    }
}
