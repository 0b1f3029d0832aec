//! The servers on loopback that unit tests ask.

pub(crate) mod loopback;
#[allow(dead_code, reason = "each crate of tests uses its own part")]
#[path = "../../../tests/common/server.rs"]
pub(crate) mod server;

use super::{DocumentLocation, SourceError, http};
use crate::document::Uri;

impl server::Server {
    pub(crate) fn uri(&self, path: &str) -> Uri {
        Uri::parse(&format!("http://{}{path}", self.authority())).unwrap()
    }
}

/// Discovery looks at the root of a site by itself: the page does not list what is found there.
#[test]
fn a_failing_part_is_named_by_how_it_was_found() {
    let uri = |path: &str| Uri::parse(&format!("https://h/{path}")).unwrap();
    let message = |part: &str, above: &str| {
        let cause = http::HttpError::NotSent { uri: uri(part) };
        let failed = SourceError::Http { location: DocumentLocation::Uri(uri(part)), cause };
        failed.named_by(&DocumentLocation::Uri(uri(above)), "").to_string()
    };

    assert!(message("sitemap.xml", "login.html").contains("/sitemap.xml, found at the root of the site, cannot be"));
    assert!(message("sitemap.xml", "robots.txt").contains("which https://h/robots.txt lists"));
    assert!(message("list.xml", "").contains("which https://h/ lists"));
}
