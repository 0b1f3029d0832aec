//! User names and passwords before a host, kept out of what is printed.

use std::borrow::Cow;
use std::ops::Range;

/// What a URI's authority ends with, as published, backslashes included.
const ENDS: [char; 4] = ['/', '?', '#', '\\'];

/// `text` with `USER:PASSWORD` before every `@HOST` replaced by `…`. It may hold addresses that are no URIs: in doubt more
/// is hidden. An `@` in a path (`https://host/@name`) and a postal address stay.
pub fn without_userinfo(text: &str) -> Cow<'_, str> {
    let mut shown = String::new();
    let mut end = 0;
    // From the back, so that of several `@` in one authority the last counts.
    let mut hidden: Vec<Range<usize>> = Vec::new();
    for (at, _) in text.rmatch_indices('@') {
        let is_free = hidden.last().is_none_or(|later| at < later.start);
        hidden.extend(userinfo(&text[..at]).filter(|_| is_free).map(|start| start..at));
    }
    if hidden.is_empty() {
        return text.into();
    }
    for range in hidden.into_iter().rev() {
        shown.push_str(&text[end..range.start]);
        shown.push('…');
        end = range.end;
    }
    shown.push_str(&text[end..]);
    shown.into()
}

/// Where the userinfo begins that `before` ends with; an `@` follows.
fn userinfo(before: &str) -> Option<usize> {
    let slashes = ["//", "\\\\"].into_iter().filter_map(|slashes| before.rfind(slashes)).max();
    if let Some(start) = slashes.map(|slashes| slashes + 2) {
        let within = &before[start..];
        let is_one_word = !within.contains(char::is_whitespace);
        let is_userinfo = match within.find(ENDS) {
            None => !within.is_empty(),
            // No port: the slash belongs to a password.
            Some(end) => is_one_word && has_bad_port(&within[..end]),
        };
        if is_userinfo || is_one_word {
            return is_userinfo.then_some(start);
        }
    }
    // Without `//` a colon must say that there is a password.
    let colon = before.rfind(':')?;
    let secret = &before[colon + 1..];
    if secret.is_empty() || secret.starts_with(ENDS) || secret.starts_with(char::is_whitespace) {
        return None;
    }
    let is_port = secret.find(ENDS).is_some_and(|end| secret[..end].bytes().all(|b| b.is_ascii_digit()));
    let is_path = secret.contains(char::is_whitespace) && secret.contains(ENDS);
    let start = before[..colon]
        .rfind(|c: char| c.is_whitespace() || "\"'=(".contains(c))
        .map_or(0, |last| last + before[last..].chars().next().map_or(1, char::len_utf8));
    let is_postal = before[start..colon].eq_ignore_ascii_case("mailto");
    (!is_port && !is_path && !is_postal).then_some(start)
}

/// Whether what follows the colon of an authority is no port.
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
