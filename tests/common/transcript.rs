//! What README shows in blocks of code: commands, sessions at a terminal, files; and how a session is held to what is printed.

/// A block of code.
pub struct Block {
    /// Its first line in the file, from 1: the fence, if it has one.
    pub line: usize,
    /// The word after the fence: `sh`, `console`, `toml` …; `indented` where there is none.
    pub kind: String,
    /// What stands between the fences; of an indented one its first line.
    pub text: String,
}

/// A command of a session, and what stands below it.
#[derive(Debug, PartialEq, Eq)]
pub struct Exchange<'b> {
    /// Without its `$ `.
    pub command: &'b str,
    /// Lines, the empty ones as well.
    pub shown: Vec<&'b str>,
}

/// Every block of code of a Markdown text, in order: fenced, also within lists, or indented after an empty line.
pub fn blocks(markdown: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut fence = None;
    let mut before = "";
    for (number, line) in markdown.lines().enumerate() {
        let marks = line.trim_start().strip_prefix("```");
        match (fence, marks) {
            (None, Some(kind)) => {
                fence = Some(line.len() - line.trim_start().len());
                found.push(Block { line: number + 1, kind: kind.trim().to_owned(), text: String::new() });
            }
            (Some(_), Some(_)) => fence = None,
            (Some(indent), None) => {
                if let Some(block) = found.last_mut() {
                    block.text.push_str(line.get(indent..).unwrap_or_default());
                    block.text.push('\n');
                }
            }
            (None, None) if before.is_empty() && line.starts_with("    ") => {
                found.push(Block { line: number + 1, kind: "indented".to_owned(), text: format!("{}\n", line.trim()) });
            }
            (None, None) => {}
        }
        before = line;
    }
    assert!(fence.is_none(), "a block of code is not closed");
    found
}

impl Block {
    /// A session's commands, each with what it prints.
    pub fn exchanges(&self) -> Vec<Exchange<'_>> {
        let mut exchanges: Vec<Exchange<'_>> = Vec::new();
        for line in self.text.lines() {
            match (line.strip_prefix("$ "), exchanges.last_mut()) {
                (Some(command), _) => exchanges.push(Exchange { command, shown: Vec::new() }),
                (None, Some(exchange)) => exchange.shown.push(line),
                (None, None) => panic!("line {}: a session begins with a command", self.line),
            }
        }
        exchanges
    }

    /// The path that a block names in its first line, `# /etc/fstab` or `# ~/FILE`, and the text of that file.
    pub fn file(&self) -> Option<(&str, &str)> {
        let path = self.text.lines().next()?.strip_prefix("# ")?;
        path.starts_with(['/', '~']).then_some((path, self.text.as_str()))
    }

    /// Whether an ordinary user follows it.
    pub fn is_of_a_user(&self) -> bool {
        ["# ~/", "systemctl --user", "unshare --user"].iter().any(|word| self.text.contains(word))
    }
}

/// Whether what was printed is what is shown.
///
/// Words are compared, not the blanks between them, and empty lines do not count. What varies from run to run is compared by its
/// kind: a time (RFC 3339, or local to the second), a number before `s`, `ms` or `min`, a number after `process` or `PID:`.
/// `…` stands for whatever is printed there: alone on a line for any number of lines, else for the part of a line.
pub fn agrees(shown: &[&str], printed: &str) -> bool {
    let shown: Vec<String> = shown.iter().map(|line| settled(line)).filter(|line| !line.is_empty()).collect();
    let printed: Vec<String> = printed.lines().map(settled).filter(|line| !line.is_empty()).collect();
    lines_agree(&shown, &printed)
}

fn lines_agree(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "…" => (0..=printed.len()).any(|from| lines_agree(rest, &printed[from..])),
        Some((first, rest)) => {
            printed.split_first().is_some_and(|(line, others)| parts_agree(first, line) && lines_agree(rest, others))
        }
    }
}

fn parts_agree(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(place) = rest.find(part) else { return false };
        rest = &rest[place + part.len()..];
    }
    rest.ends_with(last)
}

/// A line with its blanks made one and what varies named by its kind.
fn settled(line: &str) -> String {
    // A distance below a second is a word.
    let line = line.replace("a second or less", "1 s").replace("(now)", "(1 s ago)");
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut settled = Vec::new();
    for (place, word) in words.iter().enumerate() {
        let before = place.checked_sub(1).map(|place| words[place]).unwrap_or_default();
        let after = words.get(place + 1).copied().unwrap_or_default();
        let core = word.trim_matches(|c: char| !c.is_alphanumeric());
        let is_number = !core.is_empty() && core.chars().all(|c| c.is_ascii_digit() || c == '.' || c == ',');
        let unit = after.trim_matches(|c: char| !c.is_alphanumeric());
        if is_date(core) && is_time_of_day(unit) || core == "UTC" && is_time_of_day(before) {
            continue;
        }
        let kind = if is_time(core) || is_time_of_day(core) && is_date(before) {
            Some("TIME")
        } else if is_number && (matches!(unit, "s" | "ms" | "min") || matches!(before, "process" | "PID:")) {
            Some("NUMBER")
        } else {
            None
        };
        settled.push(kind.map_or((*word).to_owned(), |kind| word.replace(core, kind)));
    }
    settled.join(" ").replace("NUMBER ms", "NUMBER s").replace("NUMBER min", "NUMBER s")
}

/// `2026-01-31`
fn is_date(word: &str) -> bool {
    word.len() == 10 && word.starts_with("20") && word.as_bytes()[4] == b'-' && word.as_bytes()[7] == b'-'
}

/// `12:34:56`
fn is_time_of_day(word: &str) -> bool {
    word.len() == 8 && word.as_bytes()[2] == b':' && word.as_bytes()[5] == b':'
}

/// `2026-01-31T12:34:56.789Z`
fn is_time(word: &str) -> bool {
    word.len() >= 20 && word.as_bytes()[10] == b'T' && word.ends_with('Z') && word.starts_with("20")
}
