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
    ]);
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
    ]);
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
    ]);
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
    ]);
    let source = found(&server, "/").await.unwrap();
    assert_eq!(sets(&source), ["-: ResourceList /1.xml, ResourceList /2.xml"]);
}

fn robots() -> Answer {
    Answer::new("text/plain", "Sitemap: /robots.xml")
}

#[tokio::test]
async fn a_page_links_to_its_sitemaps_before_robots_txt() {
    let head = "<head><link rel='alternate Sitemap' href=/1.xml><link rel=sitemap href=/2.xml><link rel=sitemap href=/map.html></head>";
    let server =
        Loopback::with(&[("/page", Answer::html(head)), ("/robots.txt", robots()), ("/robots.xml", plain_sitemap())]);
    for path in ["/0.xml", "/1.xml", "/2.xml"] {
        server.put(path, plain_sitemap());
    }

    let source = found(&server, "/page").await.unwrap();
    assert_eq!(sets(&source), ["-: ResourceList /1.xml, ResourceList /2.xml"]);
    assert!(source.missing.is_empty() && source.deviations.is_empty());
    let asked = ["/page", "/page/.well-known/resourcesync", WELL_KNOWN, "/1.xml", "/2.xml"];
    let mut in_order = server.asked_in_order();
    in_order[3..].sort();
    assert_eq!(in_order, asked);

    server.put(
        "/page",
        Answer::html("<p>").header("Link", "</0.xml>; rel=sitemap, </1.xml>; rel=sitemap; anchor=\"/x\""),
    );
    assert_eq!(sets(&found(&server, "/page").await.unwrap()), ["-: ResourceList /0.xml"]);

    let both = format!("{head}<body><link rel=sitemap href=/0.xml>")
        .replace("<head>", "<head><link rel=resourcesync href=/one/cl.xml>");
    server.put("/page", Answer::html(both));
    server.put("/one/cl.xml", capability_list("one"));
    assert_eq!(sets(&found(&server, "/page").await.unwrap()), [ONE]);
}

#[tokio::test]
async fn dead_links_to_sitemaps_are_ignored() {
    let page = "<link rel=sitemap href=/gone.xml><link rel=sitemap href=/page><link rel=sitemap href=http://169.254.1.1/s.xml>";
    let server =
        Loopback::with(&[("/page", Answer::html(page)), ("/robots.txt", robots()), ("/robots.xml", plain_sitemap())]);

    let source = found(&server, "/page").await.unwrap();
    assert_eq!(sets(&source), ["-: ResourceList /robots.xml"]);
    assert!(source.missing.is_empty());

    server.put("/page", Answer::html("<link rel=sitemap href=/gone.xml><link rel=sitemap href=/robots.xml>"));
    let source = found(&server, "/page").await.unwrap();
    assert_eq!((sets(&source), source.missing.len()), (vec!["-: ResourceList /robots.xml".to_owned()], 1));
}

/// A usual discovery costs one request more for the catalog.
#[tokio::test]
async fn the_api_catalog_is_asked_once_before_robots_txt() {
    let server =
        Loopback::with(&[("/", Answer::html("<p>")), ("/robots.txt", robots()), ("/robots.xml", plain_sitemap())]);

    assert_eq!(sets(&found(&server, "/").await.unwrap()), ["-: ResourceList /robots.xml"]);

    assert_eq!(server.asked_in_order(), ["/", WELL_KNOWN, API_CATALOG, "/robots.txt", "/robots.xml"]);
}

#[tokio::test]
async fn an_api_catalog_leads_to_a_source_a_sitemap_or_a_list() {
    let server = two_sets().await;
    server.put(WELL_KNOWN, Answer::status(404));
    server.put("/", Answer::html("<p>"));
    server.put("/robots.txt", robots());
    server.put("/robots.xml", plain_sitemap());
    server.put("/s.xml", plain_sitemap());
    let items: String =
        (0..100).map(|number| format!(r#",{{"href":"/api/{number}","type":"application/xml"}}"#)).collect();
    let item = format!(r#""item":[{{"href":"/api","type":"text/html"}},{{"href":"/s.xml","type":"text/xml"}}{items}]"#);
    let (sitemap, source) = (r#""sitemap":[{"href":"/two/list.xml"}]"#, r#""resourcesync":[{"href":"/one/cl.xml"}]"#);
    for (links, set) in [
        (format!("{item},{sitemap},{source}"), ONE),
        (format!("{item},{sitemap}"), TWO),
        (format!(r#"{item},"sitemap":[{{"href":"/gone.xml"}}]"#), "-: ResourceList /s.xml"),
    ] {
        let catalog = format!(r#"{{"linkset":[{{"anchor":"https://api.example.org/",{links}}}]}}"#);
        server.put(
            API_CATALOG,
            Answer::new("application/linkset+json; profile=\"https://www.rfc-editor.org/info/rfc9727\"", catalog),
        );
        server.asked();
        let source = found(&server, "/").await.unwrap();
        assert_eq!(sets(&source), [set]);
        assert!(source.missing.is_empty());
        let asked = server.asked();
        assert!(asked.len() < 30 && asked.iter().all(|asked| asked.path != "/robots.txt" && asked.path != "/api"));
    }
}

#[tokio::test]
async fn what_is_no_api_catalog_leads_on() {
    let server =
        Loopback::with(&[("/", Answer::html("<p>")), ("/robots.txt", robots()), ("/robots.xml", plain_sitemap())]);
    let json = |text: &str| Answer::new("application/linkset+json", text);
    for catalog in [
        Answer::html("<html>Page not found</html>"),
        plain_sitemap(),
        json("<html>"),
        json("{\"linkset\":[{"),
        json("{\"apis\":[]}"),
        json("{\"linkset\":[]}"),
        json("{\"linkset\":[{\"item\":[{\"href\":\"/robots.xml\",\"type\":\"text/html\"}]}]}"),
        Answer::new("application/linkset", "no link"),
        Answer::status(403),
    ] {
        server.put(API_CATALOG, catalog);
        assert_eq!(sets(&found(&server, "/").await.unwrap()), ["-: ResourceList /robots.xml"]);
    }
    server.put("/robots.txt", Answer::status(404));
    server.put(API_CATALOG, json("{\"apis\":[]}"));
    let error = found(&server, "/").await.unwrap_err().to_string();
    assert!(error.contains("/.well-known/api-catalog (JSON without a list `linkset`"), "{error}");
}

/// Promise: the way that fails today may work tomorrow, and one address names one tree.
#[tokio::test]
async fn an_api_catalog_that_fails_for_now_ends_the_discovery() {
    let server =
        Loopback::with(&[("/", Answer::html("<p>")), ("/robots.txt", robots()), ("/robots.xml", plain_sitemap())]);
    server.put(API_CATALOG, Answer::new("application/linkset+json", "{\"linkset\":[]}").cut(100));

    assert!(matches!(found(&server, "/").await, Err(SourceError::Http { .. })));
}

#[tokio::test]
async fn a_site_that_offers_oai_pmh_alone_is_told_so() {
    let response = "<OAI-PMH xmlns=\"http://www.openarchives.org/OAI/2.0/\"><error code=\"badVerb\"/></OAI-PMH>";
    let server = Loopback::with(&[
        ("/site", Answer::html("<p>Our <a href='/oai/request?verb=Identify'>interface</a>")),
        ("/oai?verb=Identify", xml(response.to_owned())),
        ("/oai", xml(response.to_owned())),
        ("/other", Answer::html("<p>Verb")),
    ]);
    for (path, is_said) in [("/site", true), ("/oai", true), ("/oai?verb=Identify", true), ("/other", false)] {
        let error = found(&server, path).await.unwrap_err().to_string();
        assert_eq!(
            error.contains("Ask its operators for a sitemap or a ResourceSync Resource List"),
            is_said,
            "{error}"
        );
        assert_eq!(error.contains("Instead of"), !is_said, "{error}");
    }
    server.put("/sitemap.xml", plain_sitemap());
    assert_eq!(sets(&found(&server, "/site").await.unwrap()), ["-: ResourceList /sitemap.xml"]);
}

#[tokio::test]
async fn where_nothing_is_found_every_place_is_named() {
    let server = Loopback::with(&[("/repo/page", Answer::html("<p>")), ("/robots.txt", Answer::html("<p>"))]);
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
        Loopback::with(&[("/", login()), (WELL_KNOWN, login()), ("/robots.txt", login()), ("/sitemap.xml", login())]);
    assert!(matches!(found(&server, "/").await, Err(SourceError::NothingFound { .. })));
}

#[tokio::test]
async fn an_entry_point_that_may_not_be_asked_is_that_error() {
    let server = Loopback::start();
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

#[tokio::test]
async fn places_that_nothing_names_may_be_absent() {
    let server = Loopback::with(&[
        ("/", Answer::html("<p>a site</p>")),
        ("/linking", Answer::html("<head><link rel=resourcesync href=/gone.xml></head>")),
        ("/sitemap.xml", plain_sitemap()),
    ]);
    let client = server.client();

    for (path, refusals) in [("/", 0), ("/linking", 1)] {
        discover(&client, &EntryPoint::Uri(server.uri(path)), None, limits()).await.unwrap();
        assert_eq!(client.traffic()[0].refusals, refusals, "{path}");
    }
}
