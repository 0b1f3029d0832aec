//! The files of a tree with their published digests, in the form of sha256sum or md5sum, or as JSON.

use super::{End, Format};
use crate::cli::render::{count, printable_value};
use crate::cli::{CliError, Exit};
use crate::document::Algorithm;
use crate::platform::error_chain::printable_json;
use crate::sync::audit::{Event, Shown};
use serde_json::json;
use std::io::{self, BufWriter, Stdout, Write};

/// Files without a digest of the kind that are named.
const MOST_NAMED: u64 = 20;

/// Writes a manifest to standard output. Files that have no place in it are named on standard error.
pub struct Manifest {
    format: Format,
    output: BufWriter<Stdout>,
    without: u64,
}

impl Manifest {
    /// A manifest of that form.
    pub fn new(format: Format) -> Manifest {
        Manifest { format, output: BufWriter::new(io::stdout()), without: 0 }
    }

    /// Prints an event. The last event ends the program.
    pub fn print(&mut self, event: Event) -> io::Result<Option<End>> {
        match event {
            Event::File(shown) => match line(self.format, &shown) {
                Some(line) => self.output.write_all(line.as_bytes())?,
                None => self.name(&shown),
            },
            Event::Finding(_) | Event::Progress(_) => {}
            Event::Summary(_) => {
                self.output.flush()?;
                if self.without > 0 {
                    let (has, what) = (if self.without == 1 { "has" } else { "have" }, count(self.without, "file"));
                    let _ = writeln!(io::stderr(), "resyncfs: {what} {has} no published {}", self.kind());
                }
                return Ok(Some(Ok(Exit::Success)));
            }
            Event::Undecided(what) | Event::Failure(what) => {
                self.output.flush()?;
                return Ok(Some(Err(CliError::new(Exit::Failure, what))));
            }
        }
        Ok(None)
    }

    fn name(&mut self, shown: &Shown) {
        self.without += 1;
        let rest = match self.without {
            1..=MOST_NAMED => printable_value(&shown.path),
            _ if self.without == MOST_NAMED + 1 => "… (--manifest=jsonl lists all files)".to_owned(),
            _ => return,
        };
        let _ = writeln!(io::stderr(), "resyncfs: no {}: {rest}", self.kind());
    }

    fn kind(&self) -> &'static str {
        algorithm(self.format).map_or("digest", Algorithm::name)
    }
}

fn algorithm(format: Format) -> Option<Algorithm> {
    match format {
        Format::Sha256sum => Some(Algorithm::Sha256),
        Format::Md5sum => Some(Algorithm::Md5),
        Format::Jsonl => None,
    }
}

/// The line of one file; `None` where it has no digest of the kind.
fn line(format: Format, shown: &Shown) -> Option<String> {
    let Some(algorithm) = algorithm(format) else {
        return Some(format!("{}\n", printable_json(&json!(shown))));
    };
    let prefix = format!("{}:", algorithm.name());
    let digest = shown.hashes.iter().find_map(|hash| hash.strip_prefix(&prefix))?;
    let escaped = escaped(&shown.path);
    let mark = if escaped == shown.path { "" } else { "\\" };
    Some(format!("{mark}{digest}  {escaped}\n"))
}

/// A name as GNU coreutils writes it in such lists; a line that holds an escape begins with a backslash.
fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &str, hashes: &[&str]) -> Shown {
        Shown {
            path: path.to_owned(),
            uri: "http://h/a".to_owned(),
            length: Some(5),
            lastmod: None,
            media_type: None,
            hashes: hashes.iter().map(|hash| (*hash).to_owned()).collect(),
        }
    }

    #[test]
    fn names_are_escaped_as_sha256sum_does() {
        let line = |path| line(Format::Sha256sum, &shown(path, &["sha-256:ab"])).unwrap();

        assert_eq!(line("a b/c"), "ab  a b/c\n");
        assert_eq!(line("a\\b"), "\\ab  a\\\\b\n");
        assert_eq!(line("a\nb\r"), "\\ab  a\\nb\\r\n");
    }

    #[test]
    fn each_form_takes_its_own_digest() {
        let both = shown("a", &["sha-256:ab", "md5:cd"]);

        assert_eq!(line(Format::Md5sum, &both).unwrap(), "cd  a\n");
        assert_eq!(line(Format::Md5sum, &shown("a", &["sha-256:ab"])), None);
        assert_eq!(
            line(Format::Jsonl, &shown("a", &[])).unwrap(),
            "{\"path\":\"a\",\"uri\":\"http://h/a\",\"length\":5,\"hashes\":[]}\n"
        );
    }
}
