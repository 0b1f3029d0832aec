//! A repository of landing pages: its sitemap lists the pages, whose files hang on them by typed links.

use super::source::{Fault, Resource, Source, URLSET};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// The repository. Its sitemap is written again when a page is listed or no longer listed.
pub struct Repository {
    /// The server of it all.
    pub source: Source,
    /// The day of the `lastmod` of each listed page.
    listed: Mutex<BTreeMap<String, u32>>,
    /// Counts the pages served: no two are the same.
    editions: AtomicU32,
}

impl Repository {
    /// A repository without pages and without a Source Description.
    pub fn start() -> Repository {
        let source = Source::start();
        let repository = Repository { source, listed: Mutex::default(), editions: AtomicU32::default() };
        repository.mend();
        repository
    }

    /// All answers are right again; there is still no Source Description.
    pub fn mend(&self) {
        self.source.mend();
        self.source.fault(".well-known/resourcesync", Fault::Status(404, String::new()), u64::MAX);
    }

    /// The address of `path`; an address stays as it is.
    pub fn address(&self, path: &str) -> String {
        if path.contains(':') { path.to_owned() } else { format!("{}{path}", self.source.url()) }
    }

    /// Publishes a file without length or digest.
    pub fn file(&self, path: &str, media_type: &str, bytes: impl Into<Vec<u8>>) {
        self.source.page(path, Resource { media_type: media_type.into(), ..Resource::bare(bytes) });
    }

    /// [`Repository::file`] with this `Content-Disposition`.
    pub fn named(&self, path: &str, disposition: &str, bytes: impl Into<Vec<u8>>) {
        let headers = format!("Content-Disposition: {disposition}\r\n");
        self.source.page(path, Resource { headers, ..Resource::bare(bytes) });
    }

    /// A typed link, as it is written in a header.
    pub fn link(&self, rel: &str, to: &str, media_type: &str) -> String {
        let media_type = if media_type.is_empty() { String::new() } else { format!(";type=\"{media_type}\"") };
        format!("<{}>;rel=\"{rel}\"{media_type}", self.address(to))
    }

    /// Serves a landing page with these links in its header.
    pub fn page(&self, path: &str, links: &[String]) {
        self.page_with_head(path, links, "");
    }

    /// Serves a landing page with these links in its header and `head` in its HTML.
    pub fn page_with_head(&self, path: &str, links: &[String], head: &str) {
        let headers = if links.is_empty() { String::new() } else { format!("Link: {}\r\n", links.join(", ")) };
        let edition = self.editions.fetch_add(1, Ordering::Relaxed);
        let html =
            format!("<!doctype html><html><head><title>{path}</title>{head}</head><body>{edition}</body></html>");
        let media_type = "text/html; charset=utf-8".to_owned();
        self.source.page(path, Resource { headers, media_type, ..Resource::bare(html) });
    }

    /// Serves a landing page whose links all stand in a link set of this body.
    pub fn page_with_link_set(&self, path: &str, media_type: &str, body: impl Into<Vec<u8>>) {
        let link_set = format!("{path}/linkset");
        self.file(&link_set, media_type, body);
        self.page(path, &[self.link("linkset", &link_set, media_type)]);
    }

    /// Lists the page at `path` as changed on this day; also again.
    pub fn list(&self, path: &str, day: u32) {
        self.listed.lock().unwrap().insert(path.to_owned(), day);
        self.publish();
    }

    /// Takes the page off the list.
    pub fn unlist(&self, path: &str) {
        self.listed.lock().unwrap().remove(path);
        self.publish();
    }

    /// Serves the page `records/NUMBER` with these links, and lists it as changed on the first day.
    pub fn record(&self, number: usize, links: &[String]) {
        let path = format!("records/{number}");
        self.page(&path, links);
        self.list(&path, 1);
    }

    /// The address of the sitemap.
    pub fn sitemap(&self) -> String {
        self.address("sitemap.xml")
    }

    /// How often `path` was asked by this method since the log was last taken.
    pub fn asked(&self, method: &str, path: &str) -> usize {
        self.source.requests_of(path).iter().filter(|logged| logged.method == method).count()
    }

    fn publish(&self) {
        let listed = self.listed.lock().unwrap();
        let entries: String = listed
            .iter()
            .map(|(path, day)| {
                format!("<url><loc>{}</loc><lastmod>2024-05-{day:02}</lastmod></url>", self.address(path))
            })
            .collect();
        self.source.document("sitemap.xml", format!("{URLSET}{entries}</urlset>"));
    }
}
