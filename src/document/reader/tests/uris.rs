//! `loc` and `href` as Sources publish them.

use super::*;

#[test]
fn relative_loc_and_href_are_resolved_against_the_document() {
    let document = read(urlset(
        r#"<url><loc>/a</loc><rs:ln rel="x" href="../b"/></url><url><loc>c/d?e</loc></url><url><loc>//h/i</loc></url>"#,
    ));
    assert_eq!(document.locs(), ["http://example.com/a", "http://example.com/dataset1/c/d?e", "http://h/i"]);
    assert_eq!(document.entries[0].links[0].href.as_str(), "http://example.com/b");
    assert_eq!(document.deviations.count(Rule::UriRelative), 4);
}

#[test]
fn relative_uris_of_a_file_on_disk_cannot_be_understood() {
    let xml = urlset(&("<url><loc>a</loc></url>".to_owned() + &url("b")));
    let mut reader = Reader::new(xml.as_bytes(), None, Limits::default()).unwrap();
    assert_eq!(reader.next_entry().unwrap().unwrap().loc.as_str(), "http://example.com/b");
    assert_eq!(reader.deviations().count(Rule::LocMalformed), 1);
    assert_eq!((reader.entries(), reader.skipped()), (2, 1));
}

#[test]
fn raw_blanks_utf8_brackets_and_quotes() {
    let document = read(urlset("<url><loc>http://example.com/a b/é[1]\"%zz</loc></url>"));
    assert_eq!(document.locs(), ["http://example.com/a%20b/%C3%A9%5B1%5D%22%25zz"]);
    assert_eq!(
        document.broken().into_iter().filter(|(rule, _)| *rule < Rule::LinkIncomplete).collect::<Vec<_>>(),
        [(Rule::UriUnescaped, 1), (Rule::UriEscape, 1)]
    );
}

#[test]
fn duplicates_and_foreign_hosts_are_left_as_they_are() {
    let document = read(urlset(&format!(
        "{}{}<url><loc>https://www.example.com/a</loc></url><url><loc>http://localhost:8080/a</loc></url>",
        url("a"),
        url("a")
    )));
    assert_eq!(
        document.locs(),
        ["http://example.com/a", "http://example.com/a", "https://www.example.com/a", "http://localhost:8080/a"]
    );
    assert!(document.deviations.is_empty());
}

#[test]
fn entries_without_a_usable_loc_are_skipped_one_by_one() {
    let document = read(urlset(&format!(
        "<url/><url></url><url><loc/></url><url><loc> </loc></url><url><loc>ftp://example.com/a</loc></url>\
         <url><loc>http://</loc></url><url><loc>http://example.com/1</loc><loc>http://example.com/2</loc></url>{}",
        url("a")
    )));
    assert_eq!(document.locs(), ["http://example.com/1", "http://example.com/2", "http://example.com/a"]);
    assert_eq!(
        document.broken(),
        [(Rule::LocMissing, 2), (Rule::LocRepeated, 1), (Rule::LocMalformed, 3), (Rule::OtherScheme, 1)]
    );
    let numbers: Vec<u64> = document.deviations.examples().iter().map(|example| example.entry).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_bad_link_is_skipped_alone() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/a</loc><rs:ln rel="x" href="http://"/><rs:ln rel="x"/><rs:ln href="b"/><rs:ln/>
        <rs:ln rel="x" href=""/><rs:ln rel="x" href="http://example.com/ok"/></url>"#,
    ));
    assert_eq!(document.entries[0].links.len(), 1);
    assert_eq!(document.deviations.count(Rule::LinkMalformed), 2);
    assert_eq!(document.deviations.count(Rule::LinkIncomplete), 3);
}
