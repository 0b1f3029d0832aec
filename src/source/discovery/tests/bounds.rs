//! Documents and pages without end.

use super::*;

#[tokio::test]
async fn a_compressed_description_without_end_is_refused() {
    use std::io::Write as _;
    let whole = urlset("capability=\"description\"", &[], &[]);
    let start = whole.strip_suffix("</urlset>").unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(start.as_bytes()).unwrap();
    for _ in 0..=sets::DOCUMENTS {
        gzip.write_all(b"<url><loc>http://a/</loc></url>").unwrap();
    }
    gzip.write_all(b"</urlset>").unwrap();
    let server = Loopback::with(&[(WELL_KNOWN, Answer::new("application/gzip", gzip.finish().unwrap()))]);
    let error = found(&server, WELL_KNOWN).await.unwrap_err();
    assert!(matches!(&error, SourceError::Structure { what, .. } if what.contains("50000")), "{error:?}");
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_list_that_passes_the_limit_at_its_beginning_names_it() {
    use std::io::Write as _;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(urlset("capability=\"resourcelist\"", &[], &[]).strip_suffix("</urlset>").unwrap().as_bytes())
        .unwrap();
    gzip.write_all(b"<!--").unwrap();
    gzip.write_all(&vec![b' '; 1 << 20]).unwrap();
    let server = Loopback::with(&[("/list", Answer::new("text/xml", gzip.finish().unwrap()))]);
    let limits = Limits { document: 500_000, ..limits() };
    let error = discover(&server.client(), &EntryPoint::Uri(server.uri("/list")), None, limits).await.unwrap_err();
    let limit = |cause: &crate::document::DocumentError| {
        matches!(cause, crate::document::DocumentError::TooLong { limit: 500_000 })
    };
    assert!(matches!(&error, SourceError::Document { cause, .. } if limit(cause)), "{error:?}");
    assert_eq!(server.asked().len(), 1, "no other place is taken instead");
}

#[tokio::test]
async fn only_so_many_hints_are_checked() {
    let entries: Vec<String> = (0..1_000).map(|number| offer("changelist", &format!("/{number}.xml"))).collect();
    let server = Loopback::with(&[("/cl.xml", xml(urlset("capability=\"capabilitylist\"", &[], &entries)))]);
    server.put("/3.xml", xml(resource_list("/a")));
    let source = found(&server, "/cl.xml").await.unwrap();
    assert_eq!(source.sets[0].documents.len(), 1_000);
    assert_eq!(source.sets[0].documents[3].0, Capability::ResourceList);
    assert_eq!(server.asked().len(), 1 + sets::CHECKED);
}

#[tokio::test]
async fn a_page_of_links_without_end_is_refused() {
    for relation in ["resourcesync", "sitemap"] {
        let links = (0..=sets::LINKS).map(|number| format!("<link rel={relation} href=/{number}.xml>"));
        let server = Loopback::with(&[("/page", Answer::html(links.collect::<String>()))]);
        let error = found(&server, "/page").await.unwrap_err();
        assert!(matches!(error, SourceError::Structure { .. }), "{error:?}");
        assert!(server.asked().len() < 10);
    }
}

/// Promise: never an accidental emptiness. The lines that are read are not all the lines there are.
#[tokio::test]
async fn a_robots_txt_longer_than_is_read_is_refused() {
    let server = Loopback::with(&[("/one.xml", xml(resource_list("/a"))), ("/two.xml", xml(resource_list("/b")))]);
    for (media_type, bytes, sets) in [
        ("text/plain", 100_000, Some(2)),
        ("application/octet-stream", 100_000, Some(2)),
        ("text/plain", 2 << 20, None),
    ] {
        let comments = "# so many comments\n".repeat(bytes / 19);
        let robots = format!("Sitemap: /one.xml\n{comments}Sitemap: /two.xml\n");
        server.put("/robots.txt", Answer::new(media_type, robots));
        match found(&server, "/").await {
            Ok(source) => assert_eq!(Some(source.sets.len()), sets, "{media_type}"),
            Err(error) => assert!(matches!(error, SourceError::Structure { .. }) && sets.is_none(), "{error:?}"),
        }
    }
}

#[tokio::test]
async fn sitemap_lines_without_end_are_refused() {
    let server = Loopback::start();
    let robots: String = (0..=sets::SITEMAP_LINES).map(|number| format!("Sitemap: /{number}.xml\n")).collect();
    server.put("/robots.txt", Answer::new("text/plain", robots));
    for pasted in ["/", "/robots.txt"] {
        let error = found(&server, pasted).await.unwrap_err();
        assert!(matches!(&error, SourceError::Structure { what, .. } if what.contains("10000")), "{error:?}");
    }
    assert!(server.asked().len() < 10, "none of them is asked for");
}

/// A robots.txt is optional, and so are its Sitemap lines.
#[tokio::test]
async fn a_long_robots_txt_without_sitemap_lines_hides_no_sitemap() {
    let rules = "Disallow: /tmp\n".repeat((2 << 20) / 15);
    let robots = Answer::new("text/plain", format!("User-agent: *\n{rules}"));
    let server = Loopback::with(&[("/robots.txt", robots), ("/sitemap.xml", xml(resource_list("/a")))]);
    assert_eq!(found(&server, "/").await.unwrap().sets.len(), 1);
}

/// So many bytes that say nothing.
fn comments(bytes: usize) -> String {
    let comment = format!("<!--{}-->", " ".repeat((32 << 10) - 7));
    comment.repeat(bytes >> 15)
}

/// Source Descriptions below one another are in memory together; each is small enough for itself.
#[tokio::test]
async fn large_descriptions_that_name_each_other_are_refused() {
    let padding = comments(9 << 20);
    let large = |below: &str| {
        let document = urlset("capability=\"description\"", &[], &[offer("description", below)]);
        xml(document.replace("</urlset>", &format!("{padding}</urlset>")))
    };
    let below: Vec<String> = (0..10).map(|number| offer("description", &format!("/{number}.xml"))).collect();
    let server = Loopback::with(&[(WELL_KNOWN, xml(urlset("capability=\"description\"", &[], &below)))]);
    (0..10).for_each(|number| server.put(&format!("/{number}.xml"), large(&format!("/{}.xml", number + 10))));

    let error = found(&server, WELL_KNOWN).await.unwrap_err();

    let limit = answer::OFFERS.to_string();
    assert!(matches!(&error, SourceError::Part { .. } | SourceError::Structure { .. }), "{error:?}");
    assert!(chain(&error).contains(&limit), "{}", chain(&error));
}

#[tokio::test]
async fn a_large_description_is_read() {
    let padding = comments(9 << 20);
    let document = urlset("capability=\"description\"", &[], &[offer("capabilitylist", "/one/cl.xml")]);
    let server = two_sets().await;
    server.put(WELL_KNOWN, xml(document.replace("</urlset>", &format!("{padding}</urlset>"))));
    assert_eq!(sets(&found(&server, WELL_KNOWN).await.unwrap()), [ONE]);
}
