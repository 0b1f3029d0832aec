//! The requests that a server of a test has logged.

use std::time::Duration;

/// One request as it was logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// `GET`, `HEAD`
    pub method: String,
    /// Path and query of a Source, without its address; of a store the key within the prefix.
    pub path: String,
    /// `Range` as asked.
    pub range: Option<String>,
    /// `If-Range` as asked.
    pub if_range: Option<String>,
    /// Status answered; 0 where the connection was cut before.
    pub status: u16,
    /// All header lines as they arrived.
    pub head: String,
}

impl Logged {
    /// The value of a header field; `name` in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(':'));
        fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }
}

/// Waits until `requests`, those logged and those under way, have been the same for half a second, and none is under way.
pub fn wait_for_quiet(requests: impl Fn() -> (usize, usize)) {
    let mut before = requests();
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = requests();
        if now == before && now.1 == 0 {
            return;
        }
        before = now;
    }
}
