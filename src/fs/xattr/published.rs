//! What the Source published of a resource, attribute by attribute.

use super::entry::frequency_text;
use super::names::{HASH, Key, LINK, MEDIA_TYPE, Names, ORIGIN, OWN};
use crate::catalog::Resource;
use crate::document::{Digest, Link};
use crate::fs::links::{PATCH, PATCH_IN_SHORT};
use std::borrow::Cow;
use std::fmt::Write as _;

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

/// The names of all that is published of `resource`.
pub(super) fn list(resource: &Resource, names: &mut Names) {
    names.push(&[ORIGIN]);
    if resource.media_type.is_some() {
        names.push(&[MEDIA_TYPE]);
    }
    for digest in &resource.hashes {
        names.push(&[OWN, HASH, digest.algorithm().name()]);
    }
    for key in ["lastmod", "changefreq", "length", "encoding"] {
        if value(resource, Key::Own(key)).is_some() {
            names.push(&[OWN, key]);
        }
    }
    for (index, link) in resource.links.iter().enumerate() {
        let relation = short(&link.rel);
        if resource.links[..index].iter().any(|earlier| short(&earlier.rel) == relation) {
            continue;
        }
        if RELATIONS.contains(&relation) {
            names.push(&[OWN, relation]);
        } else {
            names.push(&[OWN, LINK, relation]);
        }
    }
}

/// The value of `key` as published; `None` where nothing is.
pub(super) fn value<'r>(resource: &'r Resource, key: Key<'_>) -> Option<Cow<'r, str>> {
    let key = match key {
        Key::Origin => return Some(resource.uri.as_str().into()),
        Key::MediaType => return resource.media_type.as_deref().map(Cow::from),
        Key::Own(key) => key,
    };
    match key {
        "lastmod" => resource.lastmod.map(|time| time.to_string().into()),
        "changefreq" => resource.changefreq.map(|frequency| frequency_text(frequency).into()),
        "length" => resource.encoding.as_ref().and(resource.length).map(|length| length.to_string().into()),
        "encoding" => resource.encoding.as_deref().map(Cow::from),
        "sets" => {
            let numbers: Vec<_> = resource.sets.iter().map(|set| set.0.to_string()).collect();
            (!numbers.is_empty()).then(|| numbers.join("\n").into())
        }
        "member" => {
            let member = resource.member.as_ref()?;
            Some(format!("{} {}", member.package, member.path).into())
        }
        _ => {
            if let Some(algorithm) = key.strip_prefix(HASH) {
                let digest = resource.hashes.iter().find(|digest| digest.algorithm().name() == algorithm)?;
                Some(hex(digest).into())
            } else if let Some(relation) = key.strip_prefix(LINK) {
                let has_own_name = RELATIONS.contains(&short(relation));
                if has_own_name { None } else { targets(&resource.links, relation).map(Cow::from) }
            } else if RELATIONS.contains(&key) {
                targets(&resource.links, key).map(Cow::from)
            } else {
                None
            }
        }
    }
}

/// A relation as attributes are named after it: the standard's own URI is its last segment.
fn short(relation: &str) -> &str {
    if relation == PATCH { PATCH_IN_SHORT } else { relation }
}

/// The targets of all links of one relation, a line each, by priority.
fn targets(links: &[Link], relation: &str) -> Option<String> {
    let mut links: Vec<_> = links.iter().filter(|link| short(&link.rel) == relation).collect();
    links.sort_by_key(|link| link.pri);
    let lines: Vec<_> = links.iter().map(|link| link.href.as_str()).collect();
    if lines.is_empty() { None } else { Some(lines.join("\n")) }
}

fn hex(digest: &Digest) -> String {
    let mut text = String::with_capacity(digest.octets().len() * 2);
    for byte in digest.octets() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::SetId;
    use crate::document::{Algorithm, Href, LOWEST_PRIORITY, PackageMember, Timestamp, Uri};
    use crate::fs::xattr::names::{ATTRIBUTE_NAME_MAX, VALUE_MAX};

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
        value(resource, Key::parse(name)?).map(Cow::into_owned)
    }

    fn names(resource: &Resource) -> Vec<String> {
        let mut names = Names::default();
        list(resource, &mut names);
        names.bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(lossy).collect()
    }

    fn lossy(name: &[u8]) -> String {
        String::from_utf8_lossy(name).into_owned()
    }

    #[test]
    fn every_listed_name_has_a_value_and_names_what_is_published() {
        let resource = resource();
        let names = names(&resource);
        assert_eq!(
            names,
            [
                "user.xdg.origin.url",
                "user.mime_type",
                "user.resyncfs.hash.md5",
                "user.resyncfs.lastmod",
                "user.resyncfs.duplicate",
                "user.resyncfs.describedby",
                "user.resyncfs.link.http://purl.org/dc/terms/license",
            ]
        );
        for name in names {
            assert!(text(&resource, &name).is_some(), "{name}");
        }
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
        let expected: Vec<_> = RELATIONS.iter().map(|relation| format!("user.resyncfs.{relation}")).collect();

        assert!(names(&resource).ends_with(&expected));
        assert_eq!(text(&resource, "user.resyncfs.profile").unwrap(), "urn:x:profile");
        assert_eq!(text(&resource, "user.resyncfs.patch").unwrap(), "urn:x:patch\nhttps://e.example/patch");
        assert_eq!(text(&resource, &format!("user.resyncfs.link.{PATCH}")), None);
    }

    #[test]
    fn sets_and_package_are_shown_and_not_listed() {
        let mut resource = resource();
        assert_eq!((text(&resource, "user.resyncfs.sets"), text(&resource, "user.resyncfs.member")), (None, None));
        resource.sets = vec![SetId(1), SetId(30)];
        let package = Uri::parse("https://e.example/part1.zip").unwrap();
        resource.member = Some(PackageMember { package, path: "/resources/a b".into() });

        assert_eq!(text(&resource, "user.resyncfs.sets").unwrap(), "1\n30");
        let member = text(&resource, "user.resyncfs.member").unwrap();
        assert_eq!(member, "https://e.example/part1.zip /resources/a b");
        assert!(names(&resource).iter().all(|name| !name.ends_with("sets") && !name.ends_with("member")));
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
    fn a_relation_that_linux_cannot_carry_is_not_listed() {
        let mut resource = resource();
        resource.links = vec![link(&format!("http://example.org/{}", "x".repeat(300)), "https://e.example/", 1)];
        assert!(names(&resource).iter().all(|name| name.len() <= ATTRIBUTE_NAME_MAX));
        resource.links = (0..1000)
            .map(|n| link(&format!("http://example.org/{n}{}", "x".repeat(200)), "https://e.example/", 1))
            .collect();
        let mut list_of_names = Names::default();
        list(&resource, &mut list_of_names);
        assert!(list_of_names.bytes.len() <= VALUE_MAX);
    }
}
