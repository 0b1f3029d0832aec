//! The netrc file, as ftp(1) and curl read it.

/// What one entry of a netrc file says. Never printed.
#[derive(PartialEq, Eq)]
pub(super) struct Login<'a> {
    pub(super) user: &'a str,
    pub(super) password: Option<&'a str>,
}

/// The entry for `host` (without port, any letter case): the first `machine` of that name. `default` entries count
/// only where `with_default`, because they would hand the password to whatever host a Source names.
pub(super) fn login<'a>(text: &'a str, host: &str, with_default: bool) -> Option<Login<'a>> {
    let mut words = words(text);
    let mut word = words.next();
    while let Some(token) = word {
        let matches = match token {
            Word::Plain("machine") => words.next().is_some_and(|name| name.text().eq_ignore_ascii_case(host)),
            Word::Plain("default") => with_default,
            _ => {
                word = words.next();
                continue;
            }
        };
        let (mut user, mut password) = (None, None);
        loop {
            word = words.next();
            match word {
                Some(Word::Plain("login")) => user = words.next().map(Word::text),
                Some(Word::Plain("password")) => password = words.next().map(Word::text),
                Some(Word::Plain("account")) => {
                    words.next();
                }
                Some(Word::Plain("machine" | "default")) | None => break,
                Some(_) => {}
            }
        }
        if matches && let Some(user) = user {
            return Some(Login { user, password });
        }
    }
    None
}

/// A word of the file; a quoted one is never a keyword.
#[derive(Clone, Copy)]
enum Word<'a> {
    Plain(&'a str),
    Quoted(&'a str),
}

impl<'a> Word<'a> {
    fn text(self) -> &'a str {
        match self {
            Word::Plain(text) | Word::Quoted(text) => text,
        }
    }
}

/// The words, without comments (`#` at the start of a word where a keyword may stand, to the end of the line) and
/// without macro definitions (`macdef`, to the next empty line).
fn words(text: &str) -> impl Iterator<Item = Word<'_>> {
    let mut rest = text;
    let mut value_follows = false;
    std::iter::from_fn(move || {
        loop {
            rest = rest.trim_start();
            if rest.is_empty() {
                return None;
            }
            if !value_follows && rest.starts_with('#') {
                rest = rest.split_once('\n').map_or("", |(_, after)| after);
                continue;
            }
            if let Some(quoted) = rest.strip_prefix('"')
                && let Some((inside, after)) = quoted.split_once('"')
            {
                rest = after;
                value_follows = false;
                return Some(Word::Quoted(inside));
            }
            let (word, after) = rest.split_at(rest.find(|c: char| c.is_ascii_whitespace()).unwrap_or(rest.len()));
            rest = after;
            if !value_follows && word == "macdef" {
                rest = rest.split_once("\n\n").map_or("", |(_, after)| after);
                continue;
            }
            let is_value = value_follows;
            value_follows = !is_value && matches!(word, "machine" | "login" | "password" | "account");
            return Some(if is_value { Word::Quoted(word) } else { Word::Plain(word) });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# the repository\nmachine repo.example.org login ann password pa#ss\n\
        machine other.example.org\n\tlogin \"b o b\"\n\taccount x\n\tpassword machine\n\
        macdef init\nmachine trap.example.org login x password y\n\n\
        machine nologin.example.org password z\n\
        default login anonymous password guest\n";

    fn found<'a>(host: &str, with_default: bool) -> Option<(&'a str, Option<&'a str>)> {
        login(FILE, host, with_default).map(|login| (login.user, login.password))
    }

    #[test]
    fn each_host_has_its_own_entry() {
        assert_eq!(found("repo.example.org", false), Some(("ann", Some("pa#ss"))));
        assert_eq!(found("REPO.example.org", false), Some(("ann", Some("pa#ss"))));
        assert_eq!(found("other.example.org", false), Some(("b o b", Some("machine"))));
    }

    #[test]
    fn the_default_entry_is_for_whom_it_is_asked_only() {
        assert_eq!(found("stranger.example.org", false), None);
        assert_eq!(found("stranger.example.org", true), Some(("anonymous", Some("guest"))));
    }

    #[test]
    fn macros_and_entries_without_login_are_passed_over() {
        assert_eq!(found("trap.example.org", false), None);
        assert_eq!(found("nologin.example.org", false), None);
    }

    #[test]
    fn a_broken_file_has_no_entries() {
        for text in ["", "machine", "machine a login", "login x password y", "\"", "machine \"a"] {
            assert!(login(text, "a", false).is_none(), "{text:?}");
        }
    }
}
