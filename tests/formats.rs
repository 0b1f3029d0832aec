//! Every form of list that the Sitemap protocol names, and lists that say what they are in other ways than most.

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::set;
use common::source::{Fault, Resource, Source, URLSET};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Command;

const SITEMAP: &str = "xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\"";

/// The files shown, by path below the mount.
fn files(mounted: &Mounted) -> BTreeSet<String> {
    common::tree(&mounted.path()).into_keys().map(|path| path.into_os_string().into_string().unwrap()).collect()
}

/// A Source that serves these files, and says nowhere by itself where its list is.
fn source_of(paths: &[&str]) -> Source {
    let source = Source::start();
    for path in paths {
        source.put(path, Resource::bare(*path));
    }
    source.fault(".well-known/resourcesync", Fault::Status(404, String::new()), u64::MAX);
    source
}

/// A document as a server of files sends it.
fn text(text: impl Into<Vec<u8>>) -> Resource {
    Resource { media_type: "text/plain".into(), ..Resource::bare(text) }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// A URI a line.
fn lines(source: &Source, paths: &[&str]) -> String {
    paths.iter().map(|path| format!("{}{path}\n", source.url())).collect()
}

fn urls(source: &Source, paths: &[&str]) -> String {
    paths.iter().map(|path| format!("<url><loc>{}{path}</loc></url>", source.url())).collect()
}

/// What the program prints, and its exit code.
fn run(arguments: &[&str]) -> (String, Option<i32>) {
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&printed).into_owned(), output.status.code())
}

/// What is shown of the document at `path`, however it is called and packed.
#[track_caller]
fn shows(source: &Source, path: &str, expected: &[&str]) {
    let mounted = Mounted::new(&format!("{}{path}", source.url()), "");
    assert_eq!(files(&mounted), set(expected), "{path}");
}

#[test]
fn a_text_is_a_list_plain_and_packed() {
    let source = source_of(&["a", "b/c"]);
    let list = lines(&source, &["a", "b/c"]);
    source.page("sitemap.txt", text(list.clone()));
    source.page("urllist.txt.gz", text(gzip(list.as_bytes())));

    shows(&source, "sitemap.txt", &["a", "b/c"]);
    shows(&source, "urllist.txt.gz", &["a", "b/c"]);
}

#[test]
fn robots_txt_names_texts_in_either_spelling() {
    let source = source_of(&["a", "b"]);
    source.page("robots.txt", text(format!("Sitemap: {0}a.txt\nSite-map: {0}b.txt.gz\n", source.url())));
    source.page("a.txt", text(lines(&source, &["a"])));
    source.page("b.txt.gz", text(gzip(lines(&source, &["b"]).as_bytes())));

    shows(&source, "", &["a", "b"]);
}

#[test]
fn an_index_holds_texts_and_feeds() {
    let source = source_of(&["a", "b", "c", "d"]);
    let children = ["list.xml", "sitemap.txt", "rss.xml", "atom.xml"];
    let children = children.map(|child| format!("<sitemap><loc>{}{child}</loc></sitemap>", source.url())).concat();
    source.document("index.xml", format!("<sitemapindex {SITEMAP}>{children}</sitemapindex>"));
    source.document("list.xml", format!("{URLSET}{}</urlset>", urls(&source, &["a"])));
    source.page("sitemap.txt", text(lines(&source, &["b"])));
    source.document(
        "rss.xml",
        format!("<rss version=\"2.0\"><channel><item><link>{}c</link></item></channel></rss>", source.url()),
    );
    source.document("atom.xml", "<feed xmlns=\"http://www.w3.org/2005/Atom\"><entry><link href=\"d\"/></entry></feed>");

    shows(&source, "index.xml", &["a", "b", "c", "d"]);
}

#[test]
fn a_text_that_was_cut_off_changes_nothing() {
    let source = source_of(&["a", "b"]);
    let list = lines(&source, &["a", "b"]);
    source.page("sitemap.txt", text(list.clone()));
    let mounted = Mounted::new(&format!("{}sitemap.txt", source.url()), "");

    source.page("sitemap.txt", text(format!("{list}\n")));
    source.fault("sitemap.txt", Fault::Cut(list.len() / 2), u64::MAX);
    assert!(mounted.try_refresh().is_err());

    assert_eq!(files(&mounted), set(&["a", "b"]));
}

#[test]
fn a_readme_is_no_list() {
    let source = source_of(&["a"]);
    source.page("README.txt", text(format!("The files\n=========\n\nThey are at\n{}a\n", source.url())));

    let said = Mounted::prepared(&format!("{}README.txt", source.url()), "").try_start().unwrap_err();

    assert!(said.contains("README.txt (text/plain, not a sitemap)"), "{said}");
}

#[test]
fn fetch_txt_of_a_bag_is_a_list_with_lengths() {
    let source = source_of(&["a", "b"]);
    source.page("fetch.txt", text(format!("{0}a 1 data/a\n{0}b - data/b\n", source.url())));

    let mounted = Mounted::new(&format!("{}fetch.txt", source.url()), "");

    assert_eq!(files(&mounted), set(&["a", "b"]));
    source.take_log();
    assert_eq!(std::fs::metadata(mounted.join("a")).unwrap().len(), 1);
    assert!(source.log().is_empty(), "the length is published");
}

#[test]
fn images_and_videos_are_files_beside_their_page() {
    let source = source_of(&["page", "image.jpg", "video.mp4"]);
    let base = source.url();
    source.document(
        "sitemap.xml",
        format!(
            "<urlset {SITEMAP} xmlns:i=\"http://www.google.com/schemas/sitemap-image/1.1\" xmlns:v=\"http://www.google.com/schemas/sitemap-video/1.1\">\
             <url><loc>{base}page</loc><i:image><i:loc>{base}image.jpg</i:loc></i:image>\
             <v:video><v:content_loc>{base}video.mp4</v:content_loc></v:video></url></urlset>"
        ),
    );

    shows(&source, "sitemap.xml", &["image.jpg", "page", "video.mp4"]);
}

#[test]
fn each_entry_counts_for_what_it_is() {
    let source = source_of(&["a", "b", "c", "d"]);
    let sitemap = |child: &str| format!("<sitemap><loc>{}{child}</loc></sitemap>", source.url());
    source.document("child.xml", format!("{URLSET}{}</urlset>", urls(&source, &["b"])));
    source.document("nested.xml", format!("{URLSET}<urlset>{}</urlset></urlset>", urls(&source, &["a"])));
    source.document("list.xml", format!("{URLSET}{}{}</urlset>", urls(&source, &["a"]), sitemap("child.xml")));
    source.document("lists.xml", format!("{URLSET}{}</urlset>", sitemap("child.xml")));
    source.document(
        "index.xml",
        format!("<sitemapindex {SITEMAP}>{}{}</sitemapindex>", sitemap("child.xml"), urls(&source, &["a"])),
    );
    source.document(
        "two.xml",
        format!("{URLSET}{}</urlset>{URLSET}{}</urlset>", urls(&source, &["a"]), urls(&source, &["c"])),
    );
    source.document("locs.xml", format!("{URLSET}<url><loc>{0}a</loc><loc>{0}d</loc></url></urlset>", source.url()));

    shows(&source, "nested.xml", &["a"]);
    shows(&source, "list.xml", &["a", "b"]);
    shows(&source, "lists.xml", &["b"]);
    shows(&source, "index.xml", &["a", "b"]);
    shows(&source, "two.xml", &["a", "c"]);
    shows(&source, "locs.xml", &["a", "d"]);
}

#[test]
fn a_silent_list_in_place_of_a_description_leads_on() {
    let source = Source::start();
    for path in ["a", "b", "page"] {
        source.put(path, Resource::bare(path));
    }
    let place = ".well-known/resourcesync";
    let list = |paths: &[&str]| format!("{URLSET}{}</urlset>", urls(&source, paths));
    let md = "<rs:md capability=\"capabilitylist\"/>";
    let resources = "<rs:md capability=\"resourcelist\"/></url>";
    source
        .document("caps.xml", list(&["list.xml"]).replace("<url>", &format!("{md}<url>")).replace("</url>", resources));
    source.document("list.xml", list(&["a"]));
    source.document("sitemap.xml", list(&["b"]));

    source.document(place, list(&["dead.xml", "caps.xml"]));
    shows(&source, "", &["a"]);
    source.document(place, list(&["list.xml", "sitemap.xml"]));
    shows(&source, "", &["a", "b"]);
    source.document(place, list(&["page", "list.xml"]));
    shows(&source, "", &["list.xml", "page"]);
}

/// A feed in the place of changes is said to be none, and keeps the tree from nothing else.
#[test]
fn a_feed_that_is_called_a_change_list_fails_no_refresh() {
    let source = source_of(&["a"]);
    let entry = |path: &str, capability: &str| {
        format!("<url><loc>{}{path}</loc><rs:md capability=\"{capability}\"/></url>", source.url())
    };
    let entries = entry("list.xml", "resourcelist") + &entry("rss.xml", "changelist");
    source.document("caps.xml", format!("{URLSET}<rs:md capability=\"capabilitylist\"/>{entries}</urlset>"));
    source.document("list.xml", format!("{URLSET}{}</urlset>", urls(&source, &["a"])));
    let item = format!("<item><link>{}a</link></item>", source.url());
    source.document("rss.xml", format!("<rss version=\"2.0\"><channel>{item}</channel></rss>"));

    let mounted = Mounted::new(&format!("{}caps.xml", source.url()), "");
    mounted.refresh();

    assert_eq!(files(&mounted), set(&["a"]));
    let (status, _) = run(&["status", mounted.path().to_str().unwrap()]);
    assert!(status.contains("rss.xml") && status.contains("a feed, or a text"), "{status}");
}

#[test]
fn explore_counts_what_robots_txt_names_in_vain() {
    let source = source_of(&["a", "b"]);
    source.page(
        "robots.txt",
        text(format!("Sitemap: {0}list.xml\nSitemap: {0}plain.xml\nSitemap: ftp://x/\n", source.url())),
    );
    let list = format!(
        "{URLSET}<rs:md capability=\"resourcelist\" at=\"2024-01-01T00:00:00Z\"/>{}</urlset>",
        urls(&source, &["a"])
    );
    source.document("list.xml", list);
    source.document("plain.xml", format!("{URLSET}{}</urlset>", urls(&source, &["b"])));

    let (printed, code) = run(&["explore", &source.url()]);

    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("other plain sitemaps are ignored"), "{printed}");
    assert!(printed.contains("plain.xml") && printed.contains("ftp://x/"), "{printed}");
}

#[test]
fn a_format_that_is_not_read_is_named() {
    let source = source_of(&[]);
    for (path, content, name) in [
        (
            "oai.xml",
            "<OAI-PMH xmlns=\"http://www.openarchives.org/OAI/2.0/\"><Identify/></OAI-PMH>",
            "an OAI-PMH response",
        ),
        ("bucket.xml", "<ListBucketResult><Name>x</Name></ListBucketResult>", "an S3 bucket listing"),
        ("oai", "<OAI-PMH/>", "an OAI-PMH response"),
        ("manifest", "{\"@context\": \"http://iiif.io/api/presentation/3/context.json\"}", "a IIIF manifest"),
        ("page.xml", "<!doctype html><html><body>", "an HTML page"),
    ] {
        source.page(path, Resource { media_type: "application/xml".into(), ..Resource::bare(content) });
        let (printed, code) = run(&["explore", &format!("{}{path}", source.url())]);
        assert_eq!(code, Some(4), "{printed}");
        assert!(printed.contains(name) && printed.contains("which is not supported"), "{printed}");
    }
}

#[test]
fn a_list_in_any_encoding_is_read() {
    let source = source_of(&["caf%C3%A9"]);
    let list = |encoding: &str| {
        format!(
            "<?xml version=\"1.0\" encoding=\"{encoding}\"?><urlset {SITEMAP}><url><loc>{}café</loc></url></urlset>",
            source.url()
        )
    };
    let utf16: Vec<u8> = list("UTF-16").encode_utf16().flat_map(u16::to_be_bytes).collect();
    let latin: Vec<u8> = list("latin-1").chars().map(|c| u32::from(c) as u8).collect();
    source.document("utf16.xml", utf16.clone());
    source.document("utf16.xml.gz", gzip(&utf16));
    source.document("latin.xml", latin);

    for path in ["utf16.xml", "utf16.xml.gz", "latin.xml"] {
        shows(&source, path, &["café"]);
    }
}

/// A podcast: an item has an enclosure and no link.
#[test]
fn an_episode_is_its_enclosure_and_leaves_with_its_item() {
    let source = source_of(&["1.mp3", "2.mp3", "3.mp3", "news"]);
    let item = |number: u32| {
        let (url, guid) = (source.url(), format!("<guid isPermaLink=\"false\">Show-{number}</guid>"));
        format!("<item><enclosure url=\"{url}{number}.mp3\" length=\"6\" type=\"audio/mpeg\"/>{guid}</item>")
    };
    let publish = |items: &[u32]| {
        let items: String = items.iter().map(|number| item(*number)).collect();
        let page = format!("<item><link>{}news</link></item>", source.url());
        source.document("feed.rss", format!("<rss version=\"2.0\"><channel>{page}{items}</channel></rss>"));
    };
    publish(&[1, 2]);
    let address = format!("{}feed.rss", source.url());
    let mounted = Mounted::new(&address, "");
    assert_eq!(files(&mounted), set(&["1.mp3", "2.mp3", "news"]));

    publish(&[2, 3]);
    mounted.try_refresh().unwrap();

    assert_eq!(files(&mounted), set(&["2.mp3", "3.mp3", "news"]));
    let (printed, code) = run(&["audit", mounted.path().to_str().unwrap()]);
    assert_eq!((code, printed.contains("of 3 files agree")), (Some(0), true), "{printed}");
    let (printed, _) = run(&["explore", &address]);
    assert!(printed.contains("Resources    3 in 1 list") && printed.contains("Deviations   none"), "{printed}");
}

/// Atom has relative links, and `xml:base`; none of that breaks a rule.
#[test]
fn links_of_atom_are_relative_to_its_base() {
    let source = source_of(&["x/1", "x/y/2"]);
    let entries = "<entry><link href=\"1\"/></entry><entry xml:base=\"y/\"><link href=\"2\"/></entry>";
    let feed = format!("<feed xmlns=\"http://www.w3.org/2005/Atom\" xml:base=\"{}x/\">{entries}</feed>", source.url());
    source.document("feed.atom", feed);

    shows(&source, "feed.atom", &["x/1", "x/y/2"]);

    let (printed, _) = run(&["explore", &format!("{}feed.atom", source.url())]);
    assert!(printed.contains("Deviations   none"), "{printed}");
}

/// A mail address is understood, but is not a file: absent files are gone.
#[test]
fn addresses_of_other_schemes_hold_no_deletion() {
    let source = source_of(&["a", "b"]);
    let publish = |paths: &[&str]| {
        let mail = "<url><loc>mailto:a@example.org</loc></url><url><loc>javascript:void(0)</loc></url>";
        source.document("list.xml", format!("{URLSET}{mail}{}</urlset>", urls(&source, paths)));
    };
    publish(&["a", "b"]);
    let address = format!("{}list.xml", source.url());
    let mounted = Mounted::new(&address, "");

    publish(&["a"]);
    mounted.try_refresh().unwrap();

    assert_eq!(files(&mounted), set(&["a"]));
    let (printed, code) = run(&["audit", &address]);
    assert_eq!(code, Some(0), "{printed}");
    let (printed, _) = run(&["explore", &address]);
    assert!(printed.contains("which are not files: 2") && printed.contains("mailto:a@example.org"), "{printed}");
}

#[test]
fn entries_of_one_address_are_one_resource_for_explore() {
    let source = source_of(&["a", "b"]);
    source.document("list.xml", format!("{URLSET}{}</urlset>", urls(&source, &["a#1", "a#2", "b", "a"])));
    source.document("other.xml", format!("{URLSET}{}</urlset>", urls(&source, &["b"])));
    let lists = ["list.xml", "other.xml"].map(|list| format!("<sitemap><loc>{}{list}</loc></sitemap>", source.url()));
    source.document("index.xml", format!("<sitemapindex {SITEMAP}>{}</sitemapindex>", lists.concat()));

    let (printed, _) = run(&["explore", &format!("{}index.xml", source.url())]);

    assert!(printed.contains("Resources    2 in 2 lists"), "{printed}");
    let sitemap = format!("Sitemap      {}index.xml\n", source.url());
    assert!(printed.contains(&sitemap) && !printed.contains("Set  "), "{printed}");
    let repeats = "entries for a resource that an earlier entry of the list names: 2";
    assert!(printed.contains(repeats) && printed.contains("list.xml, entry 2: "), "{printed}");
}

/// Deviations are named by what is wrong, and with their place.
#[test]
fn what_is_wrong_with_a_list_is_named_with_its_place() {
    let source = source_of(&["a b", "c"]);
    let image = "<x:image xmlns:x=\"http://www.google.com/schemas/sitemap-image/1.1\"><x:title>&#55356;\u{b}</x:title></x:image>";
    let entries = urls(&source, &["a b"]) + &urls(&source, &["c"]).replace("</url>", &format!("{image}</url>"));
    source.document("list.xml", format!("{URLSET}{entries}</urlset>"));

    let (printed, _) = run(&["explore", &format!("{}list.xml", source.url())]);

    for part in [
        "  addresses with characters that must be percent-encoded: 1 [section 7]\n",
        "list.xml, entry 1: http://",
        "that XML does not define, or to no character: 1",
        "list.xml, entry 2: #55356",
        "control characters that XML does not allow: 1",
        "U+000B at byte ",
    ] {
        assert!(printed.contains(part), "{part:?} is missing: {printed}");
    }
}

/// A table of addresses is not a text sitemap; the message says what was meant.
#[test]
fn a_text_that_is_nearly_a_list_is_refused_with_its_line() {
    let source = source_of(&["a", "b"]);
    let host = source.url().replace("http://", "");
    for (text_of, cause) in [
        (format!("{0}a\t2024-01-01\n{0}b\t2024-01-02\n", source.url()), "has more than the URL"),
        (format!("{host}a\n{host}b\n"), "has no http:// or https:// before the host"),
        (format!("\"url\",\"lastmod\"\n\"{}a\",\"2024-01-01\"\n", source.url()), "does not begin with the URL"),
    ] {
        source.page("urls.txt", text(text_of));
        let (printed, code) = run(&["explore", &format!("{}urls.txt", source.url())]);
        assert_eq!((code, printed.contains(cause)), (Some(4), true), "{printed}");
        assert!(printed.contains("line ") && !printed.contains("Instead of"), "{printed}");
    }
}

#[test]
fn a_description_of_nothing_is_named_as_what_was_tried() {
    let source = source_of(&[]);
    source.document("description.xml", format!("{URLSET}<rs:md capability=\"description\"/></urlset>"));

    let (printed, code) = run(&["explore", &format!("{}description.xml", source.url())]);

    assert_eq!((code, printed.contains("description.xml (has no sets).")), (Some(4), true), "{printed}");
}

/// A Source with a Resource List of what there is, of this time, and a Change List.
fn changing_source(paths: &[&str], at: &str) -> Source {
    let source = Source::start();
    let base = source.url();
    paths.iter().for_each(|path| source.put(path, Resource::new(*path)));
    let lists = ["resourcelist", "changelist"]
        .map(|list| format!("<url><loc>{base}{list}.xml</loc><rs:md capability=\"{list}\"/></url>"));
    source.document(
        "capabilitylist.xml",
        format!(
            "{URLSET}<rs:ln rel=\"up\" href=\"{base}.well-known/resourcesync\"/><rs:md capability=\"capabilitylist\"/>{}\
             </urlset>",
            lists.concat()
        ),
    );
    source.document("resourcelist.xml", source.resource_list_at(at));
    publish_changes(&source, at, &[]);
    source
}

/// Publishes a Change List of what happened `from` then on.
fn publish_changes(source: &Source, from: &str, changes: &[String]) {
    let md = format!("<rs:md capability=\"changelist\" from=\"{from}\"/>");
    source.document("changelist.xml", format!("{URLSET}{md}{}</urlset>", changes.concat()));
}

/// An entry of a Change List, with the digest of these bytes where there are any.
fn change(source: &Source, path: &str, change: &str, times: (&str, &str), bytes: &str) -> String {
    let (lastmod, datetime) = times;
    let attribute = |name: &str, value: &str| match value {
        "" => String::new(),
        _ => format!(" {name}=\"{value}\""),
    };
    let lastmod = if lastmod.is_empty() { String::new() } else { format!("<lastmod>{lastmod}</lastmod>") };
    let md = if bytes.is_empty() { String::new() } else { Resource::new(bytes).md };
    let (change, datetime) = (attribute("change", change), attribute("datetime", datetime));
    format!("<url><loc>{}{path}</loc>{lastmod}<rs:md{change}{datetime} {md}/></url>", source.url())
}

fn content(mounted: &Mounted, path: &str) -> String {
    std::fs::read_to_string(mounted.join(path)).unwrap()
}

const EARLY: &str = "2013-01-03T09:00:00Z";

/// Newest first, two of one `datetime`, the others by `lastmod`: equal times say nothing about the order.
#[test]
fn equal_datetimes_leave_the_order_to_the_lastmods() {
    let source = changing_source(&["f", "g", "h", "i"], EARLY);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    source.put("f", Resource::new("the newest"));
    let at = |minute: u32| format!("2013-01-03T10:{minute:02}:00Z");
    let changes = [
        change(&source, "f", "updated", (&at(50), ""), "the newest"),
        change(&source, "g", "deleted", (&at(45), ""), ""),
        change(&source, "h", "updated", ("", &at(40)), "h"),
        change(&source, "i", "updated", ("", &at(40)), "i"),
        change(&source, "g", "updated", (&at(30), ""), "before"),
        change(&source, "f", "updated", (&at(20), ""), "before"),
    ];
    publish_changes(&source, EARLY, &changes);

    mounted.try_refresh().unwrap();

    assert_eq!(files(&mounted), set(&["f", "h", "i"]));
    assert_eq!(content(&mounted, "f"), "the newest");
}

/// The clock of the Source is years behind ours: a change without a time is settled, with all that followed it, by the next list.
#[test]
fn a_list_settles_what_was_told_without_a_time_before_it() {
    let source = changing_source(&["a", "b", "c", "d", "e", "f"], EARLY);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    ["a", "b"].iter().for_each(|path| source.put(path, Resource::new("second")));
    let changes = [
        change(&source, "a", "updated", ("", ""), "second"),
        change(&source, "c", "updated", ("", ""), "c"),
        change(&source, "b", "updated", ("", "2013-01-03T10:00:00Z"), "second"),
    ];
    for known in 1..=3 {
        publish_changes(&source, EARLY, &changes[..known]);
        mounted.try_refresh().unwrap();
    }
    assert_eq!((content(&mounted, "a"), content(&mounted, "b")), ("second".into(), "second".into()));

    ["a", "b"].iter().for_each(|path| source.put(path, Resource::new("third")));
    source.remove("c");
    source.document("resourcelist.xml", source.resource_list_at("2013-01-03T11:00:00Z"));
    mounted.try_refresh().unwrap();

    assert_eq!(files(&mounted), set(&["a", "b", "d", "e", "f"]));
    assert_eq!((content(&mounted, "a"), content(&mounted, "b")), ("third".into(), "third".into()));
    let (printed, code) = run(&["audit", mounted.path().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{printed}");
}

/// A Source at rest whose Change List tells the last so many seconds: nothing can have been missed, before and after a restart.
#[test]
fn a_quiet_change_list_that_rolls_on_is_no_gap() {
    let source = changing_source(&["a"], EARLY);
    publish_changes(&source, "2013-01-03T08:59:58Z", &[]);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    let begins_at = |second: u32| publish_changes(&source, &format!("2013-01-03T09:00:{second:02}Z"), &[]);
    let lists = || source.requests_of("resourcelist.xml").len();
    std::thread::sleep(std::time::Duration::from_millis(2100));
    begins_at(0);
    mounted.try_refresh().unwrap();

    for is_restarted in [false, true] {
        if is_restarted {
            mounted.remount();
            source.wait_for_quiet();
        }
        source.take_log();
        begins_at(1);
        mounted.try_refresh().unwrap();

        let status = run(&["status", mounted.path().to_str().unwrap()]).0;
        assert!(!status.contains("GAP") && lists() <= 1, "restarted: {is_restarted}: {status}");
    }
    begins_at(59);
    mounted.try_refresh().unwrap();
    assert!(run(&["status", mounted.path().to_str().unwrap()]).0.contains("GAP"), "that is more than has passed");
}
