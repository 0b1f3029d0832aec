//! Whatever a person pastes as the SOURCE, and the options that shape its tree.

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::set;
use common::source::{Fault, Resource, Source, URLSET};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

/// The files shown, by path below the mount.
fn files(mounted: &Mounted) -> BTreeSet<String> {
    common::tree(&mounted.path()).into_keys().map(|path| path.into_os_string().into_string().unwrap()).collect()
}

/// A Source that publishes the files `a` and `b/c` and says nowhere by itself where its list is.
fn shy_source() -> Source {
    let source = Source::start();
    source.put("a", Resource::new("one"));
    source.put("b/c", Resource::new("two"));
    source.fault(".well-known/resourcesync", Fault::Status(404, String::new()), u64::MAX);
    source
}

fn html(text: String) -> Resource {
    Resource { media_type: "text/html; charset=utf-8".into(), ..Resource::bare(text) }
}

fn list(source: &Source, paths: &[&str]) -> String {
    let entries: String = paths.iter().map(|path| format!("<url><loc>{}{path}</loc></url>", source.url())).collect();
    format!("{URLSET}{entries}</urlset>")
}

#[test]
fn a_page_leads_to_the_list_by_its_html_or_its_link_header() {
    let source = shy_source();
    let capability_list = format!("{}capabilitylist.xml", source.url());
    source.page(
        "in-html",
        html(format!(
            "<!doctype html><head><title>x</title><LINK href='{capability_list}' rel=\"ResourceSync\"></head>"
        )),
    );
    let headers = format!("Link: <{capability_list}>; rel=\"resourcesync\"\r\n");
    source.page("in-header", Resource { headers, ..html("<p>nothing here".into()) });

    for page in ["in-html", "in-header"] {
        let mounted = Mounted::new(&format!("{}{page}", source.url()), "");
        assert_eq!(files(&mounted), set(&["a", "b/c"]), "{page}");
    }
}

#[test]
fn a_site_leads_to_its_sitemaps_by_robots_txt() {
    let source = shy_source();
    let robots = format!("User-agent: *\nDisallow: /x\nsiteMAP: {0}s1.xml\nSitemap: {0}s2.xml.gz\n", source.url());
    source.page("robots.txt", Resource { media_type: "text/plain".into(), ..Resource::bare(robots) });
    source.document("s1.xml", list(&source, &["a"]));
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(list(&source, &["b/c"]).as_bytes()).unwrap();
    let packed = Resource { media_type: "application/gzip".into(), ..Resource::bare(packed.finish().unwrap()) };
    source.page("s2.xml.gz", packed);

    let mounted = Mounted::new(&source.url(), "");
    assert_eq!(files(&mounted), set(&["a", "b/c"]));

    let one = Mounted::new(&format!("{}s2.xml.gz", source.url()), "");
    assert_eq!(files(&one), set(&["b/c"]), "one list given is that list alone");
}

#[test]
fn a_site_leads_to_its_sitemap_by_a_link_or_its_api_catalog() {
    let source = shy_source();
    source.document("s1.xml", list(&source, &["a"]));
    source.document("s2.xml", list(&source, &["b/c"]));
    source.page("linking", html("<head><link rel=\"sitemap\" href=\"s1.xml\"></head>".into()));
    let catalog = format!(r#"{{"linkset":[{{"anchor":"{0}","sitemap":[{{"href":"{0}s2.xml"}}]}}]}}"#, source.url());
    let media_type = "application/linkset+json".into();
    source.page(".well-known/api-catalog", Resource { media_type, ..Resource::bare(catalog) });

    let linked = Mounted::new(&format!("{}linking", source.url()), "");
    assert_eq!(files(&linked), set(&["a"]));

    let listed = Mounted::new(&source.url(), "");
    assert_eq!(files(&listed), set(&["b/c"]));
}

/// Paths of a Source whose own host is the one that was typed, also after its list has named another.
#[test]
fn a_sitemap_kept_in_a_bucket_has_the_names_of_its_site() {
    let (site, bucket) = (shy_source(), Source::start());
    let to_bucket = format!("Location: {}sitemap.xml\r\n", bucket.url());
    site.fault("sitemap.xml", Fault::Status(301, to_bucket), u64::MAX);
    bucket.document("sitemap.xml", list(&site, &["a", "b/c"]));
    bucket.put("x", Resource::new("in the bucket"));
    let authority = bucket.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mounted = Mounted::new(&format!("{}sitemap.xml", site.url()), &format!("poll=1h,allow-host={authority}"));
    assert_eq!(files(&mounted), set(&["a", "b/c"]));

    let both = list(&site, &["a", "b/c"]).replace("</urlset>", &list(&bucket, &["x"])[URLSET.len()..]);
    bucket.document("sitemap.xml", both);
    mounted.refresh();
    let all = set(&["a", "b/c", &format!("%host/{authority}/x")]);
    common::eventually("the bucket's own file is listed", || files(&mounted) == all);
    mounted.unmount();
    mounted.start();
    assert_eq!(files(&mounted), all, "no name changes");

    bucket.document("sitemap.xml", list(&bucket, &["x"]));
    let moved = Mounted::new(&format!("{}sitemap.xml", site.url()), &format!("poll=1h,allow-host={authority}"));
    assert_eq!(files(&moved), set(&["x"]), "a Source that has moved");
}

#[test]
fn an_index_within_an_index_is_one_tree() {
    let source = shy_source();
    let index = |children: &[&str]| {
        let entries: String =
            children.iter().map(|child| format!("<sitemap><loc>{}{child}</loc></sitemap>", source.url())).collect();
        format!("<sitemapindex xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">{entries}</sitemapindex>")
    };
    source.document("top.xml", index(&["middle.xml", "s1.xml"]));
    source.document("middle.xml", index(&["s2.xml"]));
    source.document("s1.xml", list(&source, &["a"]));
    source.document("s2.xml", list(&source, &["b/c"]));

    let mounted = Mounted::new(&format!("{}top.xml", source.url()), "");

    assert_eq!(files(&mounted), set(&["a", "b/c"]));
}

#[test]
fn the_sets_of_a_source_are_one_tree_and_one_can_be_picked() {
    let source = Source::start();
    for path in ["one/a", "two/b", "both"] {
        source.put(path, Resource::new(path));
    }
    let base = source.url();
    let mut description = format!("{URLSET}<rs:md capability=\"description\"/>");
    for (name, paths) in [("one", ["one/a", "both"]), ("two", ["two/b", "both"])] {
        description += &format!("<url><loc>{base}{name}.xml</loc><rs:md capability=\"capabilitylist\"/></url>");
        source.document(
            &format!("{name}.xml"),
            format!(
                "{URLSET}<rs:ln rel=\"up\" href=\"{base}description.xml\"/><rs:md capability=\"capabilitylist\"/>\
                 <url><loc>{base}{name}-list.xml</loc><rs:md capability=\"resourcelist\"/></url></urlset>"
            ),
        );
        source.document(&format!("{name}-list.xml"), list(&source, &paths));
    }
    source.document(".well-known/resourcesync", description + "</urlset>");

    let all = Mounted::new(&base, "");
    let picked = Mounted::new(&base, &format!("set={base}two.xml"));
    let pasted = Mounted::new(&format!("{base}one.xml"), "");

    assert_eq!(files(&all), set(&["both", "one/a", "two/b"]));
    assert_eq!(files(&picked), set(&["both", "two/b"]));
    assert_eq!(files(&pasted), set(&["both", "one/a"]));
    let none = Mounted::prepared(&base, &format!("set={base}three.xml")).try_start().unwrap_err();
    assert!(none.contains("one.xml") && none.contains("two.xml"), "the sets there are, are named: {none}");
}

#[test]
fn hosts_prefixes_and_types_shape_the_tree_as_asked() {
    let (source, other) = (Source::start(), Source::start());
    let typed = |bytes: &str| Resource {
        md: format!("{} type=\"application/pdf\"", Resource::new(bytes).md),
        ..Resource::new(bytes)
    };
    source.put("bitstreams/1234", typed("paper"));
    source.put("rest/api/x", Resource::new("x"));
    other.put("far", Resource::new("far away"));
    let authority = |source: &Source| source.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let elsewhere = format!("<url><loc>{}far</loc></url></urlset>", other.url());
    let whole = list(&source, &["rest/api/x"]).replace(
        "</urlset>",
        &format!("<url><loc>{}bitstreams/1234</loc><rs:md type=\"application/pdf\"/></url>{elsewhere}", source.url()),
    );
    source.document("resourcelist.xml", whole);
    let allowed = format!("allow-host={}", authority(&other));
    let below = |host: &Source, path: &str| format!("%host/{}/{path}", authority(host));

    let plain = Mounted::new(&source.url(), &allowed);
    assert_eq!(files(&plain), set(&["bitstreams/1234", "rest/api/x", &below(&other, "far")]));

    let shaped = format!("{allowed},extension=type,map={}rest/api/=api", source.url());
    let shaped = Mounted::new(&source.url(), &shaped);
    assert_eq!(files(&shaped), set(&["bitstreams/1234.pdf", "api/x", &below(&other, "far")]));
    assert_eq!(std::fs::read(shaped.join("bitstreams/1234.pdf")).unwrap(), b"paper");

    let turned = Mounted::new(&source.url(), &format!("{allowed},host={}", authority(&other)));
    assert_eq!(files(&turned), set(&[&below(&source, "bitstreams/1234"), &below(&source, "rest/api/x"), "far"]));
}

/// Two lists of the same name in two folders are two Sources.
#[test]
fn a_list_on_disk_is_known_by_its_whole_path() {
    let source = Source::start();
    source.put("a", Resource::new("one"));
    source.put("b", Resource::new("two"));
    let scratch = tempfile::tempdir().unwrap();
    let host = source.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mounted = Mounted::prepared("./list.xml", &format!("allow-host={host}"));

    for name in ["a", "b"] {
        let folder = scratch.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("list.xml"), list(&source, &[name])).unwrap();
        let output = mounted.command("-v").current_dir(&folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

        assert_eq!(files(&mounted), set(&[name]));

        let ended = Command::new(PROGRAM).arg("unmount").arg(mounted.path()).status();
        assert!(ended.unwrap().success());
    }
}

/// What `explore` counts can be given to `mount` as it stands there.
#[test]
fn a_mount_can_be_one_type_or_one_collection() {
    let source = Source::start();
    let typed = |media_type: &str| Resource { md: format!("type=\"{media_type}\""), ..Resource::new("bytes") };
    let member = "<rs:ln rel=\"collection\" href=\"http://example.org/maps\"/>";
    source.put("a.pdf", typed("application/pdf"));
    source.put("b.png", Resource { links: member.into(), ..typed("image/png") });
    source.put("c.jpg", typed("image/jpeg"));
    let shown = |options: &str| files(&Mounted::new(&source.url(), options));

    assert_eq!(shown("type=application/pdf"), set(&["a.pdf"]));
    assert_eq!(shown("type=image/*"), set(&["b.png", "c.jpg"]));
    assert_eq!(shown("type=application/pdf,type=image/jpeg"), set(&["a.pdf", "c.jpg"]));
    assert_eq!(shown("type=image/*,collection=http://example.org/maps"), set(&["b.png"]));
}

/// Words of the libraries below, which do not help a person.
const LIBRARY_WORDS: [&str; 5] =
    ["os error", "error sending request", "client error", "InvalidContentType", "handshake eof"];

/// A failure within 5 s, with its own message.
#[test]
fn a_wrong_address_is_explained_within_five_seconds() {
    let source = Source::start();
    let plain = source.url().replacen("http://", "https://", 1);
    let closed = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let closed = format!("http://{closed}/");
    for (address, words) in [
        (closed.as_str(), "connection refused"),
        (plain.as_str(), "is it an http:// address?"),
        ("http://no-such-host.invalid/", "cannot be resolved"),
    ] {
        for command in ["explore", "audit"] {
            let began = Instant::now();
            let output = Command::new(PROGRAM).args([command, address]).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();

            assert_eq!(output.status.code(), Some(3), "{command} {address}: {said}");
            assert!(said.contains(words) && said.contains(address), "{command} {address}: {said}");
            assert!(!LIBRARY_WORDS.iter().any(|word| said.contains(word)), "{command} {address}: {said}");
            assert!(began.elapsed() < Duration::from_secs(5), "{command} {address}: {:?}", began.elapsed());
        }
    }
}

#[test]
fn a_401_names_the_options_for_credentials() {
    let source = Source::start();
    source.put("a", Resource::new("one"));
    source.fault("resourcelist.xml", Fault::Status(401, String::new()), u64::MAX);

    let said = Mounted::prepared(&source.list_url(), "").try_start().unwrap_err();

    assert!(said.contains("netrc=") && said.contains("bearer-file="), "{said}");
}

/// A list that does not exist will not be there later.
#[test]
fn a_404_promises_nothing_for_later() {
    let source = Source::start();
    source.fault("resourcelist.xml", Fault::Status(404, String::new()), u64::MAX);

    let said = Mounted::prepared(&source.list_url(), "").try_start().unwrap_err();

    assert!(said.contains("404") && !said.contains("yet") && !said.contains("later"), "{said}");
}

#[test]
fn a_site_without_a_list_has_a_reason_for_each_place() {
    let source = shy_source();
    source.page("page", html("<p>nothing here".into()));
    let page = format!("{}page", source.url());

    let said = Mounted::prepared(&page, "").try_start().unwrap_err();

    for reason in ["page (text/html", ".well-known/resourcesync answered 404", "sitemap.xml answered 404"] {
        assert!(said.contains(reason), "{reason}: {said}");
    }
    assert!(said.contains(&format!("Instead of {page}, give the address of the sitemap")), "{said}");
}

#[test]
fn a_site_with_oai_pmh_alone_says_what_to_ask_for() {
    let source = shy_source();
    source.page("page", html("<p>See our <a href='/oai?verb=Identify'>interface</a> for harvesters.".into()));
    let page = format!("{}page", source.url());

    let said = Mounted::prepared(&page, "").try_start().unwrap_err();

    let advice =
        format!("{page} offers OAI-PMH, which lists metadata records and no files. Ask its operators for a sitemap");
    assert!(said.contains(&advice) && said.contains(".well-known/api-catalog answered 404"), "{said}");
}
