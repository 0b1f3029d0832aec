//! Appendix A and the rules of sections 8 to 13.

use super::*;

/// What `content` breaks as (rule, how often), in a document of `root`.
fn broken(root: &str, content: &str) -> Vec<(Rule, u64)> {
    read(format!(r#"<{root} xmlns="{SITEMAP}" xmlns:rs="{TERMS}">{content}</{root}>"#)).broken()
}

const UP: &str = r#"<rs:ln rel="up" href="http://example.com/up"/>"#;

#[test]
fn times_of_documents() {
    for capability in ["resourcelist", "resourcedump", "resourcedump-manifest"] {
        for root in ["urlset", "sitemapindex"] {
            let md = |times: &str| format!(r#"{UP}<rs:md capability="{capability}" {times}/>"#);
            assert_eq!(broken(root, &md(r#"at="2013-01-03T09:00:00Z""#)), []);
            assert_eq!(broken(root, &md("")), [(Rule::AtMissing, 1)]);
            assert_eq!(broken(root, &md(r#"at="2013-01-03" until="2013-01-04""#)), [(Rule::FromUnexpected, 1)]);
        }
    }
    for capability in ["changelist", "changedump", "changedump-manifest"] {
        for root in ["urlset", "sitemapindex"] {
            let md = |times: &str| format!(r#"{UP}<rs:md capability="{capability}" {times}/>"#);
            assert_eq!(broken(root, &md(r#"from="2013-01-03T09:00:00Z" until="2013-01-03T10:00:00Z""#)), []);
            assert_eq!(broken(root, &md("")), [(Rule::FromMissing, 1)]);
            assert_eq!(broken(root, &md(r#"from="2013-01-03" at="2013-01-04""#)), [(Rule::AtUnexpected, 1)]);
            assert_eq!(broken(root, &md(r#"from="2013-01-03" until="2013-01-02""#)), [(Rule::IntervalReversed, 1)]);
        }
    }
}

#[test]
fn times_of_entries() {
    let list = |capability: &str, time: &str, child: &str| {
        format!(
            r#"{UP}<rs:md capability="{capability}" {time}="2013-01-03T09:00:00Z"/>
            <sitemap><loc>http://example.com/a</loc><rs:md {child}="2013-01-03T09:00:00Z"/></sitemap>"#
        )
    };
    assert_eq!(broken("sitemapindex", &list("resourcelist", "at", "at")), []);
    assert_eq!(broken("sitemapindex", &list("resourcelist", "at", "from")), [(Rule::ChildFromUnexpected, 1)]);
    assert_eq!(broken("sitemapindex", &list("changelist", "from", "from")), []);
    assert_eq!(broken("sitemapindex", &list("changelist", "from", "completed")), [(Rule::ChildAtUnexpected, 1)]);
    assert_eq!(
        broken("urlset", &list("resourcelist", "at", "at")),
        [(Rule::EntryElement, 1), (Rule::ChildAtUnexpected, 1)]
    );
    assert_eq!(broken("urlset", &list("resourcedump", "at", "at")), [(Rule::EntryElement, 1)]);
}

#[test]
fn up_is_missing() {
    assert_eq!(
        broken("urlset", r#"<rs:md capability="resourcelist" at="2013-01-03T09:00:00Z"/>"#),
        [(Rule::UpMissing, 1)]
    );
    assert_eq!(broken("urlset", r#"<rs:md capability="description"/>"#), []);
}

#[test]
fn one_entry_a_capability() {
    let entry = |capability: &str| format!(r#"<url><loc>http://example.com/a</loc><rs:md {capability}/></url>"#);
    let content = format!(
        r#"{UP}<rs:md capability="capabilitylist"/>{}{}{}"#,
        entry(r#"capability="changelist""#),
        entry(r#"capability="changelist""#),
        entry("")
    );
    assert_eq!(broken("urlset", &content), [(Rule::ChildCapabilityMissing, 1), (Rule::CapabilityRepeated, 1)]);
}

#[test]
fn changes_out_of_order_outside_the_interval_and_incomplete() {
    let change =
        |time: &str, change: &str| format!(r#"<url><loc>http://example.com/a</loc>{time}<rs:md {change}/></url>"#);
    let content = format!(
        r#"{UP}<rs:md capability="changelist" from="2013-01-02T00:00:00Z" until="2013-01-03T00:00:00Z"/>{}{}{}{}"#,
        change("<lastmod>2013-01-02T12:00:00Z</lastmod>", r#"change="created""#),
        change("<lastmod>2013-01-02T11:00:00Z</lastmod>", r#"change="updated""#),
        change("<lastmod>2013-01-03T11:00:00Z</lastmod>", ""),
        change("", r#"change="deleted""#),
    );
    assert_eq!(
        broken("urlset", &content),
        [
            (Rule::ChangeMissing, 1),
            (Rule::ChangeOrder, 1),
            (Rule::ChangeOutsideInterval, 1),
            (Rule::ChangeTimeMissing, 1)
        ]
    );
}

#[test]
fn paths_of_manifests() {
    let content = format!(
        r#"{UP}<rs:md capability="resourcedump-manifest" at="2013-01-03T09:00:00Z"/>
        <url><loc>http://example.com/a</loc><rs:md path="/a"/></url>
        <url><loc>http://example.com/b</loc><rs:md path="b"/></url>{}"#,
        url("c")
    );
    assert_eq!(broken("urlset", &content), [(Rule::PathMissing, 1), (Rule::PathWithoutSlash, 1)]);
}
