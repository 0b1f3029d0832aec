//! Times, hashes and other values as Sources publish them.

use super::*;

#[test]
fn unreadable_values_are_absent_and_counted() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/a</loc><lastmod>yesterday</lastmod><changefreq>often</changefreq>
        <rs:md length="-1" hash="md5:x" change="moved" datetime="" type="" path=" "/>
        <rs:ln rel="x" href="http://example.com/b" pri="0" modified="?" length="1e3" hash=""/></url>"#,
    ));
    let mut expected = Entry::new(Uri::parse("http://example.com/a").unwrap());
    expected.links = document.entries[0].links.clone();
    assert_eq!(document.entries, [expected]);
    let link = &document.entries[0].links[0];
    assert_eq!((link.pri, link.modified, link.length), (LOWEST_PRIORITY, None, None));
    for (rule, count) in [
        (Rule::TimeUnreadable, 3),
        (Rule::ChangeFrequencyUnknown, 1),
        (Rule::LengthUnreadable, 2),
        (Rule::HashUnreadable, 2),
        (Rule::ChangeUnknown, 1),
        (Rule::PriorityUnreadable, 1),
    ] {
        assert_eq!(document.deviations.count(rule), count, "{rule:?}");
    }
}

#[test]
fn a_length_that_no_file_can_have_is_none_and_is_counted() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/a</loc><rs:md length="9223372036854775807"/></url>
        <url><loc>http://example.com/b</loc><rs:md length="9223372036854775808"/></url>
        <url><loc>http://example.com/c</loc><rs:md length="18446744073709551615"/></url>"#,
    ));
    let lengths: Vec<_> = document.entries.iter().map(|entry| entry.length).collect();
    assert_eq!(lengths, [Some(i64::MAX as u64), None, None]);
    assert_eq!(document.deviations.count(Rule::LengthUnreadable), 2);
}

#[test]
fn misspelt_values_are_understood_and_counted() {
    let document = read(urlset(
        r#"<rs:md capability="resourcesync"/><url><loc>http://example.com/a</loc>
        <lastmod>2013-01-03 09:00:00</lastmod><changefreq>Daily</changefreq>
        <rs:md hash="MD5:Yx8m6CqWBJjKT5VBggoWeQ==" length=" 5 " change="Created" capability="changelistindex"/></url>"#,
    ));
    let entry = &document.entries[0];
    assert_eq!(document.header.capability, Some(Capability::Description));
    assert_eq!(entry.capability, Some(Capability::ChangeList));
    assert_eq!(entry.lastmod, time("2013-01-03T09:00:00Z"));
    assert_eq!(entry.changefreq, Some(ChangeFrequency::Daily));
    assert_eq!((entry.hashes.len(), entry.length, entry.change), (1, Some(5), Some(Change::Created)));
    assert_eq!(document.broken(), [(Rule::CapabilitySpelling, 2), (Rule::TimeSpelling, 1), (Rule::HashSpelling, 1)]);
}

#[test]
fn length_zero_with_the_digest_of_nothing() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/a</loc><rs:md length="0" hash="md5:d41d8cd98f00b204e9800998ecf8427e"/></url>"#,
    ));
    assert_eq!(document.entries[0].length, Some(0));
    assert_eq!(document.entries[0].hashes[0].to_string(), "md5:d41d8cd98f00b204e9800998ecf8427e");
}

#[test]
fn capabilities_of_every_spelling() {
    for (raw, expected) in [
        ("resourcelist", Capability::ResourceList),
        ("capability", Capability::CapabilityList),
        (" ChangeList ", Capability::ChangeList),
        ("changelistindex", Capability::ChangeList),
        ("changelist-archive", Capability::ChangeListArchive),
        ("resourcesync", Capability::Description),
        ("changelist-notification", Capability::ChangeNotification),
        ("unknown", Capability::Other("unknown".into())),
    ] {
        assert_eq!(Capability::parse(raw), expected);
        assert_eq!(Capability::parse(expected.as_str()), expected);
    }
}
