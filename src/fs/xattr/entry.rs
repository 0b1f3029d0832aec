//! A whole entry as JSON.

use crate::catalog::{Journaled, Resource};
use crate::document::{ChangeFrequency, Digest, LOWEST_PRIORITY, Link};
use serde_json::{Value, json};

/// The entry as it was published, with the names of the standard (section 7); `changed`: its last change in a Change List.
pub(super) fn entry(resource: &Resource, changed: Option<&Journaled>) -> Value {
    let links: Vec<_> = resource.links.iter().map(link_entry).collect();
    published(json!({
        "loc": resource.address().as_str(),
        "lastmod": resource.lastmod.map(|time| time.to_string()),
        "changefreq": resource.changefreq.map(ChangeFrequency::as_str),
        "change": changed.map(|changed| changed.change.as_str()),
        "datetime": changed.and_then(|changed| changed.datetime).map(|time| time.to_string()),
        "hash": hashes(&resource.hashes),
        "length": resource.length,
        "type": resource.media_type,
        "encoding": resource.encoding,
        "ln": Some(links).filter(|links| !links.is_empty()),
    }))
}

fn link_entry(link: &Link) -> Value {
    published(json!({
        "rel": link.rel,
        "href": link.href.as_str(),
        "pri": Some(link.pri).filter(|pri| *pri != LOWEST_PRIORITY),
        "modified": link.modified.map(|time| time.to_string()),
        "hash": hashes(&link.hashes),
        "length": link.length,
        "type": link.media_type,
        "encoding": link.encoding,
        "path": link.path,
    }))
}

/// The fields that have a value.
fn published(mut entry: Value) -> Value {
    entry.as_object_mut().into_iter().for_each(|fields| fields.retain(|_, value| !value.is_null()));
    entry
}

/// Digests as the `hash` attribute writes them: separated by blanks.
fn hashes(digests: &[Digest]) -> Option<String> {
    let all: Vec<_> = digests.iter().map(Digest::to_string).collect();
    if all.is_empty() { None } else { Some(all.join(" ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Algorithm, Change, Href, Timestamp, Uri};

    fn resource() -> Resource {
        let duplicate = Link { pri: 1, ..Link::new("duplicate", Href::parse("https://m1.example/a.pdf").unwrap()) };
        Resource {
            uri: Uri::parse("https://example.org/a.pdf?v=1").unwrap(),
            lastmod: Timestamp::parse("2013-01-03T09:00:00Z"),
            changefreq: None,
            length: Some(42),
            hashes: vec![Digest::new(Algorithm::Md5, &[0xab; 16]).unwrap()],
            media_type: Some("application/pdf".into()),
            encoding: None,
            links: vec![duplicate],
            sets: Vec::new(),
            member: None,
        }
    }

    #[test]
    fn the_entry_is_json_in_the_standard_s_names() {
        let time = |text| Timestamp::parse(text).unwrap();
        let datetime = Some(time("2013-01-03T10:00:00Z"));
        let changed = Journaled { change: Change::Updated, time: time("2013-01-03T09:00:00Z"), datetime };
        let entry = entry(&resource(), Some(&changed));
        assert_eq!((&entry["change"], &entry["datetime"]), (&json!("updated"), &json!("2013-01-03T10:00:00Z")));
        assert_eq!(entry["loc"], "https://example.org/a.pdf?v=1");
        assert_eq!(entry["length"], 42);
        assert_eq!(entry["hash"], format!("md5:{}", "ab".repeat(16)));
        assert_eq!(entry["ln"][0], json!({"rel": "duplicate", "href": "https://m1.example/a.pdf", "pri": 1}));
        assert_eq!(entry.get("encoding"), None);
    }
}
