//! The netrc file, as curl 8 reads it.

use std::borrow::Cow;

/// Entry of a netrc file; a field that it lacks is empty. Never printed.
#[derive(PartialEq, Eq)]
pub(super) struct Login<'a> {
    pub(super) user: Cow<'a, str>,
    pub(super) password: Cow<'a, str>,
}

/// The entry for `host` (without port, any letter case): the first with a password, else the last. `default` entries count
/// only where `with_default`, because they would hand the password to any host that a Source names. Nothing is found past a
/// quoted word that does not end.
pub(super) fn login<'a>(text: &'a str, host: &str, with_default: bool) -> Option<Login<'a>> {
    let mut words = NetrcWords(text);
    let mut of_host = false;
    let (mut user, mut password) = (None, None);
    while let Some(keyword) = words.keyword() {
        match keyword.to_ascii_lowercase().as_str() {
            begin @ ("machine" | "default") => {
                if password.is_some() {
                    break;
                }
                of_host = if begin == "default" { with_default } else { words.value()?.eq_ignore_ascii_case(host) };
                user = if of_host { None } else { user };
            }
            "macdef" => words.skip_macro(),
            "account" => drop(words.value()?),
            "login" => user = Some(words.value()?).filter(|_| of_host).or(user),
            "password" => password = Some(words.value()?).filter(|_| of_host).or(password),
            _ => {}
        }
        if user.is_some() && password.is_some() {
            break;
        }
    }
    let is_found = user.is_some() || password.is_some();
    is_found.then(|| Login { user: user.unwrap_or_default(), password: password.unwrap_or_default() })
}

/// Rest of the file.
struct NetrcWords<'a>(&'a str);

impl<'a> NetrcWords<'a> {
    /// The next word where a keyword may stand: `#` begins a comment there, to the end of the line.
    fn keyword(&mut self) -> Option<Cow<'a, str>> {
        loop {
            self.0 = self.0.trim_start();
            if !self.0.starts_with('#') {
                return self.value();
            }
            self.0 = self.0.split_once('\n').map_or("", |(_, after)| after);
        }
    }

    /// The next word, which may be quoted; `None` at the end of the file, and where the quotes do not end.
    fn value(&mut self) -> Option<Cow<'a, str>> {
        self.0 = self.0.trim_start();
        let Some(quoted) = self.0.strip_prefix('"') else {
            let (word, after) = self.0.split_at(self.0.find(|c: char| c <= ' ').unwrap_or(self.0.len()));
            self.0 = after;
            return (!word.is_empty()).then_some(Cow::Borrowed(word));
        };
        let mut word = String::new();
        let mut letters = quoted.char_indices();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => {
                    self.0 = &quoted[at + 1..];
                    return Some(Cow::Owned(word));
                }
                '\\' => word.push(match letters.next()?.1 {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    other => other,
                }),
                other => word.push(other),
            }
        }
        None
    }

    /// Past a macro definition, which goes to the next empty line.
    fn skip_macro(&mut self) {
        let end = ["\n\n", "\n\r\n"].into_iter().filter_map(|end| self.0.find(end).map(|at| at + end.len())).min();
        self.0 = &self.0[end.unwrap_or(self.0.len())..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# the repository\nmachine repo.example.org login ann password pa#ss\n\
        machine other.example.org\n\tlogin \"b o b\"\n\taccount x\n\tpassword machine\n\
        macdef init\nmachine trap.example.org login x password y\n\n\
        machine nologin.example.org password z\n\
        default login anonymous password guest\n";

    fn found_in(text: &str, host: &str, with_default: bool) -> Option<(String, String)> {
        login(text, host, with_default).map(|login| (login.user.into_owned(), login.password.into_owned()))
    }

    fn found(host: &str, with_default: bool) -> Option<(String, String)> {
        found_in(FILE, host, with_default)
    }

    fn pair(user: &str, password: &str) -> Option<(String, String)> {
        Some((user.to_owned(), password.to_owned()))
    }

    #[test]
    fn each_host_has_its_own_entry() {
        assert_eq!(found("repo.example.org", false), pair("ann", "pa#ss"));
        assert_eq!(found("REPO.example.org", false), pair("ann", "pa#ss"));
        assert_eq!(found("other.example.org", false), pair("b o b", "machine"));
        assert_eq!(found("nologin.example.org", false), pair("", "z"));
    }

    #[test]
    fn the_default_entry_is_for_whom_it_is_asked_only() {
        assert_eq!(found("stranger.example.org", false), None);
        assert_eq!(found("stranger.example.org", true), pair("anonymous", "guest"));
    }

    #[test]
    fn macros_are_passed_over() {
        assert_eq!(found("trap.example.org", false), None);
    }

    /// What curl sends for each of these (tried with 7.88, but for `#x`, which is a password since 8.0).
    #[test]
    fn entries_are_read_as_curl_reads_them() {
        let table = [
            ("machine h login a", pair("a", "")),
            ("machine h login a\nmachine h login b password c", pair("b", "c")),
            ("machine h login a password b login c password d", pair("a", "b")),
            ("machine h password p login l", pair("l", "p")),
            ("machine h login a password #x", pair("a", "#x")),
            ("MACHINE h LOGIN a PASSWORD x", pair("a", "x")),
            ("\"machine\" h login a password b", pair("a", "b")),
            (r#"machine h login "a \"b\" \n\t\\" password "x\y""#, pair("a \"b\" \n\t\\", "xy")),
            (r#"machine h login a"b password c\"d"#, pair("a\"b", "c\\\"d")),
            ("machine h login a password \"\" x", pair("a", "")),
            ("machine h # not login q\nlogin a\npassword\nx", pair("a", "x")),
            ("machine other login x password y machine h login a password b", pair("a", "b")),
            ("machine h login \"a password x", None),
        ];
        for (text, expected) in table {
            assert_eq!(found_in(text, "h", false), expected, "{text:?}");
        }
        assert_eq!(found_in("default login d password e\nmachine h login a password b", "h", true), pair("d", "e"));
    }

    #[test]
    fn a_broken_file_has_no_entries() {
        for text in ["", "machine", "login x password y", "\"", "machine \"a", "machine a \"login"] {
            assert!(login(text, "a", false).is_none(), "{text:?}");
        }
    }
}
