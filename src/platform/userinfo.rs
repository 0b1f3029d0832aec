//! User names and passwords before a host, kept out of what is printed.

use std::borrow::Cow;
use std::ops::Range;

/// Characters that end a URI's authority, as published, backslashes included.
const ENDS: [char; 4] = ['/', '?', '#', '\\'];

/// `text` with `USER:PASSWORD` before every `@HOST` replaced by `…`. It may hold addresses that are not URIs: in doubt more is
/// hidden. An `@` in a path (`https://host/@name`) and a postal address stay. It is read once: a Source chooses its length.
pub fn without_userinfo(text: &str) -> Cow<'_, str> {
    let mut hidden: Vec<Range<usize>> = Vec::new();
    if text.contains('@') {
        let mut before = Before::default();
        for (at, c) in text.char_indices() {
            if c == '@' {
                if let Some(mut start) = before.userinfo(text, at) {
                    while let Some(earlier) = hidden.last().filter(|earlier| earlier.end >= start) {
                        start = start.min(earlier.start);
                        hidden.pop();
                    }
                    hidden.push(start..at);
                }
            }
            before.pass(text, at, c);
        }
    }
    if hidden.is_empty() {
        return text.into();
    }
    let mut shown = String::new();
    let mut end = 0;
    for range in hidden {
        shown.push_str(&text[end..range.start]);
        shown.push('…');
        end = range.end;
    }
    shown.push_str(&text[end..]);
    shown.into()
}

/// The text before an `@`.
#[derive(Default)]
struct Before {
    last: Option<char>,
    /// The beginning of the last word.
    word: usize,
    /// The text behind the last `//`.
    authority: Option<Span>,
    /// The text behind the last colon, and the beginning of the word with the colon.
    secret: Option<(Span, usize)>,
}

/// A part of the text that begins at `start` and goes on.
struct Span {
    start: usize,
    /// `true` where a port, or none, stands before the first of [`ENDS`] in it; `None` without one of these.
    has_port: Option<bool>,
    has_blank: bool,
}

impl Span {
    fn new(start: usize) -> Span {
        Span { start, has_port: None, has_blank: false }
    }

    /// Goes on behind the character at `at`; `is_port` judges the text before the first of [`ENDS`].
    fn pass(&mut self, text: &str, at: usize, c: char, is_port: impl Fn(&str) -> bool) {
        if self.has_port.is_none() && ENDS.contains(&c) {
            self.has_port = Some(is_port(&text[self.start..at]));
        }
        self.has_blank |= c.is_whitespace();
    }
}

impl Before {
    /// Goes on behind the character at `at`.
    fn pass(&mut self, text: &str, at: usize, c: char) {
        let behind = at + c.len_utf8();
        if matches!(c, '/' | '\\') && self.last == Some(c) {
            self.authority = Some(Span::new(behind));
        } else if let Some(authority) = &mut self.authority {
            authority.pass(text, at, c, |authority| !has_bad_port(authority));
        }
        if c == ':' {
            self.secret = Some((Span::new(behind), self.word));
        } else if let Some((secret, _)) = &mut self.secret {
            secret.pass(text, at, c, |secret| secret.bytes().all(|b| b.is_ascii_digit()));
        }
        if c.is_whitespace() || "\"'=(".contains(c) {
            self.word = behind;
        }
        self.last = Some(c);
    }

    /// The beginning of the userinfo that the text before the `@` at `at` ends with.
    fn userinfo(&self, text: &str, at: usize) -> Option<usize> {
        if let Some(Span { start, has_port, has_blank }) = self.authority {
            let is_userinfo = match has_port {
                None => start < at,
                // No port: the slash belongs to a password.
                Some(has_port) => !has_blank && !has_port,
            };
            if is_userinfo || !has_blank {
                return is_userinfo.then_some(start);
            }
        }
        // Without `//` a colon must say that there is a password.
        let (Span { start, has_port, has_blank }, word) = self.secret.as_ref()?;
        if *start == at || text[*start..].starts_with(char::is_whitespace) {
            return None;
        }
        let is_path = *has_blank && has_port.is_some();
        let is_postal = text[*word..*start].eq_ignore_ascii_case("mailto:");
        (*has_port != Some(true) && !is_path && !is_postal).then_some(*word)
    }
}

/// True if the text behind the colon of an authority is not a port.
fn has_bad_port(authority: &str) -> bool {
    let port = authority.split_once(':').map_or("", |(_, port)| port);
    !authority.starts_with('[') && !port.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_or_password_is_left_also_of_what_is_no_uri() {
        for (text, shown) in [
            ("http://user:secret@h/x", "http://…@h/x"),
            ("http://user:se@cret@h/x", "http://…@h/x"),
            ("http://user:se/cret@h/x", "http://…@h/x"),
            ("http://user:se cret@h/x", "http://…@h/x"),
            ("http://user:secret@h:99999/", "http://…@h:99999/"),
            ("http://user:secret@[::1", "http://…@[::1"),
            ("http://secret@h/", "http://…@h/"),
            ("//user:secret@h/", "//…@h/"),
            ("ftp://user:secret@h/", "ftp://…@h/"),
            ("http:\\\\user:secret@h\\x", "http:\\\\…@h\\x"),
            ("http:/user:secret@h/", "…@h/"),
            ("http:user:secret@h/", "…@h/"),
            ("user:secret@h/x", "…@h/x"),
            ("user:se cret@h/x", "…@h/x"),
            ("user:se/cret@h/x", "…@h/x"),
            ("-o set=user:secret@h: \"user:secret@h\" is bad", "-o set=…@h: \"…@h\" is bad"),
            ("http://h/a?b: http://user:secret@h/, user:secret@i", "http://h/a?b: http://…@h/, …@i"),
            ("http://ü:ß@h/ é:ß@h", "http://…@h/ …@h"),
        ] {
            assert_eq!(without_userinfo(text), shown);
        }
    }

    #[test]
    fn a_long_text_is_read_once() {
        let begun = std::time::Instant::now();
        for front in ["", "http://h/", "//", "a:", "a: /"] {
            let text = front.to_owned() + &"@".repeat(1 << 18);
            assert_eq!(without_userinfo(&text).len() < text.len(), ["//", "a:"].contains(&front));
        }
        without_userinfo(&"//a:1/@".repeat(1 << 15));
        without_userinfo(&"a:b@ ".repeat(1 << 16));
        without_userinfo(&format!("//{}/{}", "1".repeat(1 << 17), "@".repeat(1 << 17)));
        // Half a second on an idle machine; minutes if the text were read again for each sign.
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{:?}", begun.elapsed());
    }

    #[test]
    fn what_is_no_userinfo_stays() {
        for text in [
            "https://h/@name",
            "https://h:8080/a:b/@name?x=a@b",
            "http://[::1]:80/@a",
            "h:8080/@name",
            "mailto:ann@example.org",
            "ann@example.org",
            "/mnt/a b@c: No such file",
            "resyncfs: /mnt/me@home: nothing is mounted there",
            "12:30 and no more",
            "@",
            "http://@h/",
        ] {
            assert_eq!(without_userinfo(text), text);
        }
    }
}
