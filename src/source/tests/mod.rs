//! The servers on loopback that unit tests ask.

pub(crate) mod loopback;
#[allow(dead_code, reason = "each crate of tests uses its own part")]
#[path = "../../../tests/common/server.rs"]
pub(crate) mod server;

use crate::document::Uri;

impl server::Server {
    pub(crate) fn uri(&self, path: &str) -> Uri {
        Uri::parse(&format!("http://{}{path}", self.authority())).unwrap()
    }
}
