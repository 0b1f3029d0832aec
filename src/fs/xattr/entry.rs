//! A whole entry as JSON.

use crate::catalog::{Journaled, Resource};
use crate::document::{ChangeFrequency, Digest, LOWEST_PRIORITY, Link};
use serde_json::{Map, Value, json};

/// The entry as it was published, with the names of the standard (section 7); `changed`: its last change in a Change List.
pub(super) fn entry(resource: &Resource, changed: Option<&Journaled>) -> Value {
    let mut entry = Map::new();
    entry.insert("loc".into(), json!(resource.address().as_str()));
    put(&mut entry, "lastmod", resource.lastmod.map(|time| time.to_string()));
    put(&mut entry, "changefreq", resource.changefreq.map(ChangeFrequency::as_str));
    put(&mut entry, "change", changed.map(|changed| changed.change.as_str()));
    put(&mut entry, "datetime", changed.and_then(|changed| changed.datetime).map(|time| time.to_string()));
    put(&mut entry, "hash", hashes(&resource.hashes));
    put(&mut entry, "length", resource.length);
    put(&mut entry, "type", resource.media_type.as_deref());
    put(&mut entry, "encoding", resource.encoding.as_deref());
    let links: Vec<_> = resource.links.iter().map(link_entry).collect();
    put(&mut entry, "ln", (!links.is_empty()).then_some(links));
    Value::Object(entry)
}

fn link_entry(link: &Link) -> Value {
    let mut entry = Map::new();
    entry.insert("rel".into(), json!(link.rel));
    entry.insert("href".into(), json!(link.href.as_str()));
    put(&mut entry, "pri", (link.pri != LOWEST_PRIORITY).then_some(link.pri));
    put(&mut entry, "modified", link.modified.map(|time| time.to_string()));
    put(&mut entry, "hash", hashes(&link.hashes));
    put(&mut entry, "length", link.length);
    put(&mut entry, "type", link.media_type.as_deref());
    put(&mut entry, "encoding", link.encoding.as_deref());
    put(&mut entry, "path", link.path.as_deref());
    Value::Object(entry)
}

fn put(entry: &mut Map<String, Value>, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        entry.insert(key.into(), value.into());
    }
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
