//! What the Source published of a resource, attribute by attribute.

use super::ListedNames;
use crate::catalog::{ADDRESS, ReadPage, Resource};
use crate::document::{Digest, Link};
use crate::fs::fetch_spec::{PATCH, PATCH_IN_SHORT};

const ORIGIN: &str = "user.xdg.origin.url";
const MEDIA_TYPE: &str = "user.mime_type";

/// Prefix of the names of all other attributes.
pub(super) const OWN: &str = "user.resyncfs.";

/// Relations of section 14 of the standard and of its metadata profiles, which have no `link.` before their name.
const RELATIONS: [&str; 12] = [
    "alternate",
    "canonical",
    "collection",
    "describedby",
    "describes",
    "duplicate",
    "memento",
    "patch",
    "profile",
    "timegate",
    "timemap",
    "via",
];

/// All that is published of `resource` and listed.
pub(super) fn published(resource: &Resource) -> ListedNames {
    let mut listed = ListedNames::from([(ORIGIN.to_owned(), resource.address().to_string())]);
    let page = resource.uri.page();
    listed.extend(page.map(|(page, _)| (format!("{OWN}page"), page.to_owned())));
    listed.extend(resource.media_type.as_deref().map(|media_type| (MEDIA_TYPE.to_owned(), media_type.to_owned())));
    listed
        .extend(resource.hashes.iter().map(|digest| (format!("{OWN}hash.{}", digest.algorithm().name()), hex(digest))));
    let own = [
        ("lastmod", resource.lastmod.map(|time| time.to_string())),
        ("changefreq", resource.changefreq.map(|frequency| frequency.as_str().to_owned())),
        // Without a coding it is the size.
        ("length", resource.encoding.as_ref().and(resource.length).map(|length| length.to_string())),
        ("encoding", resource.encoding.as_deref().map(str::to_owned)),
    ];
    listed.extend(own.into_iter().filter_map(|(key, value)| Some((format!("{OWN}{key}"), value?))));
    let is_address = |link: &&Link| page.is_some() && &*link.rel == ADDRESS;
    let mut links: Vec<&Link> = resource.links.iter().filter(|link| !is_address(link)).collect();
    links.sort_by_key(|link| link.pri);
    for link in links {
        let targets = listed.entry(name_of_links(&link.rel)).or_default();
        if !targets.is_empty() {
            targets.push('\n');
        }
        targets.push_str(link.href.as_str());
    }
    listed
}

/// Adds the links of a landing page to those of the page itself or one of its items: an item's own links of the relation come before.
pub(super) fn add_page(listed: &mut ListedNames, page: &ReadPage) {
    let mut of_page = ListedNames::new();
    for (relation, target) in &page.links {
        let targets = of_page.entry(name_of_links(relation)).or_default();
        *targets += if targets.is_empty() { "" } else { "\n" };
        *targets += target;
    }
    of_page.into_iter().for_each(|(name, targets)| {
        listed.entry(name).or_insert(targets);
    });
}

/// The numbers of the sets that `resource` is a member of, a line each.
pub(super) fn set_numbers(resource: &Resource) -> Option<String> {
    let numbers: Vec<_> = resource.sets.iter().map(|set| set.0.to_string()).collect();
    if numbers.is_empty() { None } else { Some(numbers.join("\n")) }
}

/// The attribute of all links of one relation. Of the standard's own URI the last segment is used.
fn name_of_links(relation: &str) -> String {
    let relation = if relation == PATCH { PATCH_IN_SHORT } else { relation };
    let kind = if RELATIONS.contains(&relation) { "" } else { "link." };
    format!("{OWN}{kind}{relation}")
}

fn hex(digest: &Digest) -> String {
    digest.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::SetId;
    use crate::document::{Algorithm, Href, LOWEST_PRIORITY, Timestamp, Uri};

    fn link(rel: &str, href: &str, pri: u32) -> Link {
        Link { pri, ..Link::new(rel, Href::parse(href).unwrap()) }
    }

    fn resource() -> Resource {
        Resource {
            uri: Uri::parse("https://example.org/a.pdf?v=1").unwrap(),
            lastmod: Timestamp::parse("2013-01-03T09:00:00Z"),
            changefreq: None,
            length: Some(42),
            hashes: vec![Digest::new(Algorithm::Md5, &[0xab; 16]).unwrap()],
            media_type: Some("application/pdf".into()),
            encoding: None,
            links: vec![
                link("duplicate", "https://m2.example/a.pdf", LOWEST_PRIORITY),
                link("duplicate", "https://m1.example/a.pdf", 1),
                link("describedby", "https://example.org/a.xml", LOWEST_PRIORITY),
                link("http://purl.org/dc/terms/license", "https://cc.example/by", LOWEST_PRIORITY),
            ],
            sets: Vec::new(),
            member: None,
        }
    }

    fn text(resource: &Resource, name: &str) -> Option<String> {
        published(resource).remove(name)
    }

    #[test]
    fn what_is_published_is_listed() {
        assert_eq!(
            published(&resource()).into_keys().collect::<Vec<_>>(),
            [
                "user.mime_type",
                "user.resyncfs.describedby",
                "user.resyncfs.duplicate",
                "user.resyncfs.hash.md5",
                "user.resyncfs.lastmod",
                "user.resyncfs.link.http://purl.org/dc/terms/license",
                "user.xdg.origin.url",
            ]
        );
    }

    #[test]
    fn values_are_as_published_and_links_are_lines_by_priority() {
        let resource = resource();
        assert_eq!(text(&resource, ORIGIN).unwrap(), "https://example.org/a.pdf?v=1");
        assert_eq!(text(&resource, "user.resyncfs.hash.md5").unwrap(), "ab".repeat(16));
        assert_eq!(
            text(&resource, "user.resyncfs.duplicate").unwrap(),
            "https://m1.example/a.pdf\nhttps://m2.example/a.pdf"
        );
        assert_eq!(text(&resource, "user.resyncfs.lastmod").unwrap(), "2013-01-03T09:00:00Z");
    }

    /// Section 14: all links of a Source are shown, with schemes that cannot be fetched too.
    #[test]
    fn each_relation_of_the_standard_has_an_attribute() {
        let mut resource = resource();
        resource.links = RELATIONS.iter().map(|relation| link(relation, &format!("urn:x:{relation}"), 1)).collect();
        resource.links.push(link(PATCH, "https://e.example/patch", 2));

        for relation in RELATIONS {
            let value = text(&resource, &format!("user.resyncfs.{relation}")).unwrap();
            assert!(value.starts_with(&format!("urn:x:{relation}")), "{value}");
        }
        assert_eq!(text(&resource, "user.resyncfs.patch").unwrap(), "urn:x:patch\nhttps://e.example/patch");
        assert_eq!(text(&resource, &format!("user.resyncfs.link.{PATCH}")), None);
    }

    #[test]
    fn the_length_is_shown_only_where_it_is_not_the_size() {
        let mut resource = resource();
        assert_eq!(text(&resource, "user.resyncfs.length"), None);
        resource.encoding = Some("gzip".into());
        assert_eq!(text(&resource, "user.resyncfs.length").unwrap(), "42");
        assert_eq!(text(&resource, "user.resyncfs.encoding").unwrap(), "gzip");
    }

    #[test]
    fn what_is_not_published_or_not_ours_has_no_value() {
        let resource = resource();
        for name in [
            "user.resyncfs.hash.sha-256",
            "user.resyncfs.canonical",
            "user.resyncfs.link.describedby",
            "user.resyncfs.link.",
            "user.resyncfs.",
            "user.other",
            "security.capability",
            "system.posix_acl_access",
        ] {
            assert_eq!(text(&resource, name), None, "{name}");
        }
    }

    #[test]
    fn sets_are_shown_by_their_numbers() {
        assert_eq!(set_numbers(&resource()), None);
        let resource = Resource { sets: vec![SetId(1), SetId(30)], ..resource() };
        assert_eq!(set_numbers(&resource).unwrap(), "1\n30");
    }
}
