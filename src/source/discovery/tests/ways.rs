//! The ways from an address to a document that names sets.

use super::*;
use crate::document::Rule;

#[tokio::test]
async fn the_well_known_uri_is_found_below_and_above_a_page() {
    let server = Loopback::with(&[
        ("/repo/.well-known/resourcesync", description(&["/one/cl.xml"])),
        (WELL_KNOWN, description(&["/two/cl.xml"])),
        ("/one/cl.xml", capability_list("one")),
        ("/two/cl.xml", capability_list("two")),
        ("/repo/handle/12", Answer::html("<html><p>a page</p></html>")),
        ("/moved", Answer::redirect("/repo/home")),
        ("/repo/home", Answer::html("<html><p>home</p></html>")),
    ])
    .await;
    for pasted in ["/repo", "/repo/", "/repo/handle/12", "/moved"] {
        assert_eq!(sets(&found(&server, pasted).await.unwrap()), [ONE], "{pasted}");
    }
    server.put("/other/page", Answer::html("<p>"));
    assert_eq!(sets(&found(&server, "/other/page").await.unwrap()), [TWO]);
}

#[tokio::test]
async fn what_is_not_there_does_not_name_the_site_around_it() {
    let server = two_sets().await;
    server.put("/login.xml", Answer::html("<html>Please log in</html>"));
    assert!(matches!(found(&server, "/gone/page").await, Err(SourceError::NothingFound { .. })));
    assert!(matches!(found(&server, "/gone.xml").await, Err(SourceError::Http { .. })));
    assert!(matches!(found(&server, "/login.xml").await, Err(SourceError::Document { .. })));
    server.put(WELL_KNOWN, Answer::html("<html>Please log in</html>"));
    assert!(matches!(found(&server, WELL_KNOWN).await, Err(SourceError::Document { .. })));
}

#[tokio::test]
async fn a_site_that_redirects_into_its_context_path_is_found_there() {
    let server = Loopback::with(&[
        ("/", Answer::redirect("/repo/home")),
        ("/repo/home", Answer::html("<html></html>")),
        ("/repo/.well-known/resourcesync", description(&["/one/cl.xml"])),
        ("/one/cl.xml", capability_list("one")),
    ])
    .await;
    let source = found(&server, "/").await.unwrap();
    assert_eq!(sets(&source), [ONE]);
    assert_eq!(source.entry, Some(server.uri("/repo/home")));
}

#[tokio::test]
async fn well_known_wins_then_link_then_html_then_robots() {
    let page = Answer::html("<head><link rel=resourcesync href=/html/cl.xml></head>");
    let linking = page.clone().header("Link", "</about>; rel=\"author\", </link/cl.xml>; rel=\"resourcesync\"");
    let server = Loopback::with(&[
        ("/", linking),
        (WELL_KNOWN, description(&["/known/cl.xml"])),
        ("/robots.txt", Answer::new("text/plain", "sitemap: /robots/list.xml")),
        ("/robots/list.xml", list_with_up("/robots/cl.xml")),
        ("/sitemap.xml", plain_sitemap()),
    ])
    .await;
    for way in ["known", "link", "html", "robots"] {
        server.put(&format!("/{way}/cl.xml"), capability_list(way));
    }
    let set = |source: Result<Source, SourceError>| source.unwrap().sets[0].capability_list.clone();
    assert_eq!(set(found(&server, "/").await), Some(server.uri("/known/cl.xml")));
    server.put(WELL_KNOWN, Answer::status(404));
    assert_eq!(set(found(&server, "/").await), Some(server.uri("/link/cl.xml")));
    server.put("/", page);
    assert_eq!(set(found(&server, "/").await), Some(server.uri("/html/cl.xml")));
    server.put("/", Answer::html("<p>"));
    assert_eq!(set(found(&server, "/").await), Some(server.uri("/robots/cl.xml")));
    server.put("/robots.txt", Answer::status(404));
    assert_eq!(sets(&found(&server, "/").await.unwrap()), ["-: ResourceList /sitemap.xml"]);
}

#[tokio::test]
async fn a_page_that_links_to_a_capability_list_names_that_set_alone() {
    let server = two_sets().await;
    server.put("/page", Answer::html("<LINK REL='resourcesync' HREF='/two/cl.xml'>"));
    server.put("/file.pdf", Answer::new("application/pdf", "%PDF").header("Link", "</one/cl.xml>; rel=resourcesync"));
    assert_eq!(sets(&found(&server, "/page").await.unwrap()), [TWO]);
    assert_eq!(sets(&found(&server, "/file.pdf").await.unwrap()), [ONE]);
    server.put("/page", Answer::html("<link rel=resourcesync href=/gone.xml>"));
    assert_eq!(sets(&found(&server, "/page").await.unwrap()), [ONE, TWO], "a dead link is no way");
}

#[tokio::test]
async fn robots_lines_that_are_resource_lists_win_over_plain_sitemaps() {
    let robots = "User-agent: *\nSITEMAP: /plain.xml\nSitemap: /one/list.xml\nsitemap:/two/list.xml\nSitemap: /gone.xml\n\
        Sitemap: /page.html\nSitemap: /alone.xml\nSitemap: ftp://x/";
    let server = two_sets().await;
    server.put(WELL_KNOWN, Answer::status(404));
    server.put("/robots.txt", Answer::new("text/plain", robots));
    server.put("/plain.xml", plain_sitemap());
    server.put("/page.html", Answer::html("<html>"));
    server.put("/alone.xml", xml(resource_list("/x")));
    for pasted in ["/", "/robots.txt"] {
        let source = found(&server, pasted).await.unwrap();
        assert_eq!(sets(&source), [ONE, TWO, "-: ResourceList /alone.xml"], "{pasted}");
        let missing: Vec<String> = source.missing.iter().map(|missing| missing.location.to_string()).collect();
        assert_eq!(missing, ["/robots.txt", "/gone.xml"].map(|path| server.uri(path).to_string()));
        let pages = source.deviations.iter().map(|it| it.deviations.count(Rule::SitemapIsPage));
        assert_eq!(pages.sum::<u64>(), 1, "a sitemap for people");
    }
}

#[tokio::test]
async fn robots_lines_that_are_all_plain_sitemaps_are_one_set() {
    let server = Loopback::with(&[
        ("/robots.txt", Answer::new("text/plain", "Sitemap: /1.xml\nSitemap: /2.xml")),
        ("/1.xml", plain_sitemap()),
        ("/2.xml", xml(sitemapindex("", &[], &["/3.xml"]))),
    ])
    .await;
    let source = found(&server, "/").await.unwrap();
    assert_eq!(sets(&source), ["-: ResourceList /1.xml, ResourceList /2.xml"]);
}

#[tokio::test]
async fn where_nothing_is_found_every_place_is_named() {
    let server = Loopback::with(&[("/repo/page", Answer::html("<p>")), ("/robots.txt", Answer::html("<p>"))]).await;
    let error = found(&server, "/repo/page").await.unwrap_err().to_string();
    for message in [
        "/repo/page (text/html, not a sitemap)",
        "/repo/.well-known/resourcesync answered 404",
        "/.well-known/resourcesync answered 404",
        "/robots.txt (text/html, not a sitemap)",
        "/sitemap.xml answered 404",
    ] {
        assert!(error.contains(message), "{message} in {error}");
    }
}

#[tokio::test]
async fn a_login_page_at_every_address_is_no_source() {
    let login = || Answer::html("<!DOCTYPE html><html><body><form></form></body></html>");
    let server =
        Loopback::with(&[("/", login()), (WELL_KNOWN, login()), ("/robots.txt", login()), ("/sitemap.xml", login())])
            .await;
    assert!(matches!(found(&server, "/").await, Err(SourceError::NothingFound { .. })));
}

#[tokio::test]
async fn an_entry_point_that_may_not_be_asked_is_that_error() {
    let server = Loopback::start().await;
    let entry = EntryPoint::Uri(Uri::parse("http://169.254.1.1/").unwrap());
    let error = discover(&server.client(), &entry, None, limits()).await.unwrap_err();
    assert!(matches!(error, SourceError::Http { .. }), "{error:?}");
}

#[test]
fn well_known_places_go_up_from_the_folder_to_the_host() {
    let places = |uri: &str| -> Vec<String> {
        well_known(&Uri::parse(uri).unwrap()).iter().map(|uri| uri.path().replace(WELL_KNOWN, "")).collect()
    };
    assert_eq!(places("http://a/"), [""]);
    assert_eq!(places("http://a/repo/?x#y"), ["/repo", ""]);
    assert_eq!(places("http://a/b//c/d"), ["/b//c/d", "/b//c", "/b", ""]);
    assert_eq!(places("http://a//repo/x"), ["//repo/x", "//repo", ""]);
    assert!(well_known(&Uri::parse("http://a//repo/x").unwrap()).iter().all(|uri| uri.authority() == "a"));
    let deep = places("http://a/1/2/3/4/5/6/7/8/9/10");
    assert_eq!((deep.len(), deep.last().map(String::as_str)), (FOLDERS, Some("")));
}
