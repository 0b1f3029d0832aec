//! The standard's own examples, and what all tests of the reader share.

mod mutations;
mod other;
mod rules;
mod uris;
mod values;
mod xml;

use super::*;
use crate::document::{Capability, Change, ChangeFrequency, LOWEST_PRIORITY, Root, Timestamp};
use std::io::Write;

const SITEMAP: &str = "http://www.sitemaps.org/schemas/sitemap/0.9";
const TERMS: &str = "http://www.openarchives.org/rs/terms/";

/// A document read to its end.
#[derive(Debug)]
struct ReadDocument {
    header: Header,
    entries: Vec<Entry>,
    deviations: Deviations,
}

impl ReadDocument {
    fn locs(&self) -> Vec<&str> {
        self.entries.iter().map(|entry| entry.loc.as_str()).collect()
    }

    fn broken(&self) -> Vec<(Rule, u64)> {
        self.deviations.counts().collect()
    }
}

fn read_with(bytes: &[u8], limits: Limits) -> Result<ReadDocument, DocumentError> {
    let base = Uri::parse("http://example.com/dataset1/list.xml").unwrap();
    let mut reader = Reader::new(bytes, Some(base), limits)?;
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry()? {
        entries.push(entry);
    }
    assert!(matches!(reader.next_entry(), Ok(None)));
    Ok(ReadDocument { header: reader.header().clone(), entries, deviations: reader.deviations().clone() })
}

fn read(bytes: impl AsRef<[u8]>) -> ReadDocument {
    read_with(bytes.as_ref(), Limits::default()).unwrap()
}

fn failure(bytes: impl AsRef<[u8]>) -> DocumentError {
    read_with(bytes.as_ref(), Limits::default()).unwrap_err()
}

/// A `<urlset>` with the usual prefixes around `content`.
fn urlset(content: &str) -> String {
    format!(r#"<?xml version="1.0" encoding="UTF-8"?><urlset xmlns="{SITEMAP}" xmlns:rs="{TERMS}">{content}</urlset>"#)
}

/// A plain sitemap's entry of `http://example.com/NAME`.
fn url(name: &str) -> String {
    format!("<url><loc>http://example.com/{name}</loc></url>")
}

fn time(raw: &str) -> Option<Timestamp> {
    Some(Timestamp::parse(raw).unwrap())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn resource_list_of_the_standard() {
    let document = read(
        r#"<?xml version="1.0" encoding="UTF-8"?>
        <urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/">
          <rs:ln rel="up" href="http://example.com/dataset1/capabilitylist.xml"/>
          <rs:md capability="resourcelist" at="2013-01-03T09:00:00Z" completed="2013-01-03T09:01:00Z"/>
          <url>
            <loc>http://example.com/res1</loc>
            <lastmod>2013-01-02T13:00:00Z</lastmod>
            <rs:md hash="md5:1584abdf8ebdc9802ac0c6a7402c03b6" length="8876" type="text/html"/>
          </url>
          <url>
            <loc>http://example.com/res2</loc>
            <lastmod>2013-01-02T14:00:00Z</lastmod>
            <changefreq>daily</changefreq>
            <rs:md hash="md5:1e0d5cb8ef6ba40c99b14c0237be735e
                         sha-256:854f61290e2e197a11bc91063afce22e43f8ccc655237050ace766adc68dc784"
                   length="14599" type="application/pdf" encoding="gzip"/>
            <rs:ln rel="duplicate" pri="1" href="http://mirror.example.com/res2" modified="2013-01-02T14:00:00Z"/>
          </url>
        </urlset>"#,
    );

    assert_eq!(document.header.root, Root::UrlSet);
    assert_eq!(document.header.capability, Some(Capability::ResourceList));
    assert_eq!(document.header.at, time("2013-01-03T09:00:00Z"));
    assert_eq!(document.header.completed, time("2013-01-03T09:01:00Z"));
    assert_eq!(document.header.link("up").unwrap().as_str(), "http://example.com/dataset1/capabilitylist.xml");
    assert_eq!(document.locs(), ["http://example.com/res1", "http://example.com/res2"]);
    assert_eq!(document.entries[0].length, Some(8876));
    let entry = &document.entries[1];
    assert_eq!(entry.lastmod, time("2013-01-02T14:00:00Z"));
    assert_eq!(entry.changefreq, Some(ChangeFrequency::Daily));
    assert_eq!(entry.media_type.as_deref(), Some("application/pdf"));
    assert_eq!(entry.encoding.as_deref(), Some("gzip"));
    assert_eq!(
        entry.hashes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "sha-256:854f61290e2e197a11bc91063afce22e43f8ccc655237050ace766adc68dc784",
            "md5:1e0d5cb8ef6ba40c99b14c0237be735e"
        ]
    );
    assert_eq!(&*entry.links[0].rel, "duplicate");
    assert_eq!(entry.links[0].pri, 1);
    assert_eq!(entry.links[0].modified, time("2013-01-02T14:00:00Z"));
    assert!(document.deviations.is_empty(), "{:?}", document.deviations);
}

#[test]
fn change_list_of_1_0_has_its_times_in_lastmod() {
    let document = read(urlset(
        r#"<rs:ln rel="up" href="http://example.com/dataset1/capabilitylist.xml"/>
        <rs:md capability="changelist" from="2013-01-02T00:00:00Z" until="2013-01-03T00:00:00Z"/>
        <url><loc>http://example.com/res7.html</loc><lastmod>2013-01-02T12:00:00Z</lastmod>
          <rs:md change="created"/></url>
        <url><loc>http://example.com/res5.tiff</loc><lastmod>2013-01-02T19:00:00Z</lastmod>
          <rs:md change="deleted"/></url>"#,
    ));

    assert_eq!(document.header.capability, Some(Capability::ChangeList));
    assert_eq!(document.header.from, time("2013-01-02T00:00:00Z"));
    assert_eq!(document.header.until, time("2013-01-03T00:00:00Z"));
    assert_eq!(document.entries[0].change, Some(Change::Created));
    assert_eq!(document.entries[1].change, Some(Change::Deleted));
    assert!(document.deviations.is_empty(), "{:?}", document.deviations);
}

/// Example 19 of 1.1: created in 2013 of a resource last modified in 2000; another entry without any `lastmod`.
#[test]
fn change_list_of_1_1_has_its_times_in_datetime() {
    let document = read(urlset(
        r#"<rs:ln rel="up" href="http://example.com/dataset1/capabilitylist.xml"/>
        <rs:md capability="changelist" from="2013-01-03T00:00:00Z"/>
        <url><loc>http://example.com/res1.html</loc><lastmod>2000-01-01T10:00:00Z</lastmod>
          <rs:md change="created" datetime="2013-01-03T11:00:00Z"/></url>
        <url><loc>http://example.com/res2.pdf</loc>
          <rs:md change="updated" datetime="2013-01-03T13:00:00Z"/></url>"#,
    ));

    assert_eq!(document.entries[0].lastmod, time("2000-01-01T10:00:00Z"));
    assert_eq!(document.entries[0].datetime, time("2013-01-03T11:00:00Z"));
    assert_eq!(document.entries[1].lastmod, None);
    assert!(document.deviations.is_empty(), "{:?}", document.deviations);
}

#[test]
fn source_description_and_capability_list() {
    let description = read(urlset(
        r#"<rs:ln rel="describedby" href="http://example.com/info_about_source.xml"/>
        <rs:md capability="description"/>
        <url><loc>http://example.com/capabilitylist1.xml</loc><rs:md capability="capabilitylist"/>
          <rs:ln rel="describedby" href="http://example.com/info_about_set1_of_resources.xml"/></url>"#,
    ));
    assert_eq!(description.header.capability, Some(Capability::Description));
    assert_eq!(description.entries[0].capability, Some(Capability::CapabilityList));
    assert!(description.deviations.is_empty(), "{:?}", description.deviations);

    let capabilities = read(urlset(
        r#"<rs:ln rel="up" href="http://example.com/resourcesync_description.xml"/>
        <rs:md capability="capabilitylist"/>
        <url><loc>http://example.com/dataset1/resourcelist.xml</loc><rs:md capability="resourcelist"/></url>
        <url><loc>http://example.com/dataset1/changelist.xml</loc><rs:md capability="changelist"/></url>"#,
    ));
    assert_eq!(capabilities.entries[1].capability, Some(Capability::ChangeList));
    assert!(capabilities.deviations.is_empty(), "{:?}", capabilities.deviations);
}

#[test]
fn resource_list_index() {
    let document = read(format!(
        r#"<sitemapindex xmlns="{SITEMAP}" xmlns:rs="{TERMS}">
        <rs:ln rel="up" href="http://example.com/dataset1/capabilitylist.xml"/>
        <rs:md capability="resourcelist" at="2013-01-03T09:00:00Z" completed="2013-01-03T09:10:00Z"/>
        <sitemap><loc>http://example.com/resourcelist1.xml</loc>
          <rs:md at="2013-01-03T09:00:00Z" completed="2013-01-03T09:05:00Z"/></sitemap>
        </sitemapindex>"#
    ));
    assert_eq!(document.header.root, Root::SitemapIndex);
    assert_eq!(document.entries[0].at, time("2013-01-03T09:00:00Z"));
    assert_eq!(document.entries[0].completed, time("2013-01-03T09:05:00Z"));
    assert!(document.deviations.is_empty(), "{:?}", document.deviations);
}

#[test]
fn change_dump_manifest() {
    let document = read(urlset(
        r#"<rs:ln rel="up" href="http://example.com/dataset1/capabilitylist.xml"/>
        <rs:md capability="changedump-manifest" from="2013-01-02T00:00:00Z" until="2013-01-03T00:00:00Z"/>
        <url><loc>http://example.com/res7.html</loc><lastmod>2013-01-02T12:00:00Z</lastmod>
          <rs:md change="created" length="4339" path="/changes/res7.html"/></url>
        <url><loc>http://example.com/res5.tiff</loc><lastmod>2013-01-02T19:00:00Z</lastmod>
          <rs:md change="deleted"/></url>"#,
    ));
    assert_eq!(document.entries[0].path.as_deref(), Some("/changes/res7.html"));
    assert!(document.deviations.is_empty(), "{:?}", document.deviations);
}

/// Example 27: base64url without padding, and a relation that is a URI.
#[test]
fn patch_links_of_the_standard() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/res4</loc>
        <rs:md hash="sha-256:f4OxZX_x_DFGFDgghgdfb6rtSx-iosjf6735432nklj"/>
        <rs:ln rel="http://www.openarchives.org/rs/terms/patch" href="http://example.com/res4-json-patch"
          hash="sha-256:y66dER_t_HWEIKpesdkeb7rtSc-ippjf9823742opld" length="73" type="application/json-patch"/></url>"#,
    ));
    let entry = &document.entries[0];
    assert_eq!(entry.hashes.len(), 1);
    assert_eq!(&*entry.links[0].rel, "http://www.openarchives.org/rs/terms/patch");
    assert_eq!(entry.links[0].hashes.len(), 1);
    assert_eq!(entry.links[0].length, Some(73));
    assert_eq!(entry.links[0].pri, LOWEST_PRIORITY);
}

/// Example 21: a mirror that cannot be asked is no fault of the document.
#[test]
fn links_of_other_schemes_are_names() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/res1</loc>
        <rs:ln rel="duplicate" pri="1" href="http://mirror1.example.com/res1"/>
        <rs:ln rel="duplicate" pri="3" href="gsiftp://gridftp.example.com/res1"/></url>"#,
    ));
    let [mirror, grid] = &document.entries[0].links[..] else { panic!("{:?}", document.entries[0].links) };
    assert_eq!(mirror.uri().unwrap().as_str(), "http://mirror1.example.com/res1");
    assert_eq!((grid.href.as_str(), grid.uri()), ("gsiftp://gridftp.example.com/res1", None));
    assert!(document.deviations.is_empty());
}

#[test]
fn plain_sitemap_without_any_metadata() {
    let document = read(format!(r#"<urlset xmlns="{SITEMAP}">{}</urlset>"#, url("a") + &url("b")));
    assert_eq!(document.header.capability, None);
    assert_eq!(document.locs(), ["http://example.com/a", "http://example.com/b"]);
    assert!(document.deviations.is_empty());
}

#[test]
fn empty_documents() {
    for xml in
        [urlset(""), format!(r#"<urlset xmlns="{SITEMAP}"/>"#), format!(r#"<urlset xmlns="{SITEMAP}"></urlset>"#)]
    {
        assert_eq!(read(xml).entries, []);
    }
}

/// Example 16: packages with their manifests, and times of each.
#[test]
fn resource_dump() {
    let document = read(urlset(
        r#"<rs:ln rel="up" href="http://example.com/dataset1/capabilitylist.xml"/>
        <rs:md capability="resourcedump" at="2013-01-03T09:00:00Z" completed="2013-01-03T09:04:00Z"/>
        <url><loc>http://example.com/resourcedump-part1.zip</loc>
          <rs:md type="application/zip" length="4765" at="2013-01-03T09:00:00Z" completed="2013-01-03T09:02:00Z"/>
          <rs:ln rel="contents" href="http://example.com/resourcedump_manifest-part1.xml" type="application/xml"/></url>"#,
    ));
    let package = &document.entries[0];
    assert_eq!(package.media_type.as_deref(), Some("application/zip"));
    assert_eq!((package.at, package.completed), (time("2013-01-03T09:00:00Z"), time("2013-01-03T09:02:00Z")));
    assert_eq!(&*package.links[0].rel, "contents");
    assert!(document.deviations.is_empty(), "{:?}", document.deviations);
}

/// Example 20: a closed list and one that still grows.
#[test]
fn change_list_index() {
    let document = read(format!(
        r#"<sitemapindex xmlns="{SITEMAP}" xmlns:rs="{TERMS}">
        <rs:ln rel="up" href="http://example.com/dataset1/capabilitylist.xml"/>
        <rs:md capability="changelist" from="2013-01-01T00:00:00Z"/>
        <sitemap><loc>http://example.com/20130101-changelist.xml</loc>
          <rs:md from="2013-01-01T00:00:00Z" until="2013-01-02T00:00:00Z"/></sitemap>
        <sitemap><loc>http://example.com/20130103-changelist.xml</loc><rs:md from="2013-01-03T00:00:00Z"/></sitemap>
        </sitemapindex>"#
    ));
    assert_eq!(document.entries[0].until, time("2013-01-02T00:00:00Z"));
    assert_eq!((document.entries[1].from, document.entries[1].until), (time("2013-01-03T00:00:00Z"), None));
    assert!(document.deviations.is_empty(), "{:?}", document.deviations);
}

/// Examples 28 to 32: links of every relation.
#[test]
fn related_resources() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/res1</loc>
        <rs:ln rel="describedby" href="http://example.com/res1_dublin-core_metadata.xml" type="application/xml"/>
        <rs:ln rel="memento" href="http://example.com/20130103070000/res1" modified="2013-01-02T18:00:00Z" length="8876"/>
        <rs:ln rel="timegate" href="http://example.com/timegate/http://example.com/res1"/>
        <rs:ln rel="collection" href="http://example.com/aggregation/0601007"/>
        <rs:ln rel="via" href="http://original.example.com/res1.html"/></url>"#,
    ));
    let links = &document.entries[0].links;
    let rels: Vec<&str> = links.iter().map(|link| &*link.rel).collect();
    assert_eq!(rels, ["describedby", "memento", "timegate", "collection", "via"]);
    assert_eq!(links[1].length, Some(8876));
    assert_eq!(links[2].href.as_str(), "http://example.com/timegate/http://example.com/res1");
}

/// The change notification of the Framework Notification specification has no rules of its own here.
#[test]
fn notification() {
    let document = read(urlset(
        r#"<rs:md capability="framework-notification"/>
        <url><loc>http://example.com/resourcesync_description.xml</loc><lastmod>2013-01-03T18:00:00Z</lastmod>
          <rs:md capability="description" change="updated"/></url>"#,
    ));
    assert_eq!(document.header.capability, Some(Capability::FrameworkNotification));
    assert_eq!(document.entries[0].capability, Some(Capability::Description));
    assert!(document.deviations.is_empty(), "{:?}", document.deviations);
}
