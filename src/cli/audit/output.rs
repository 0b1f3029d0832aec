//! The output of an audit, as it arrives: findings as text or as JSON, or files as a manifest.

use super::{AuditArgs, ManifestFormat};
use crate::cli::render::{Clock, count, printable, printable_value, some, thousands};
use crate::cli::{CliError, Exit};
use crate::document::Algorithm;
use crate::platform::text::printable_json;
use crate::sync::audit::{AuditEvent, AuditFinding, ShownFile, Summary};
use crate::sync::status::MissingStatus;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::io::{self, BufWriter, Stdout, Write};

/// Files without a digest of the kind that are named.
const MOST_NAMED: u64 = 20;

/// The end of the program, by the last event.
pub type End = Result<Exit, CliError>;

/// Writes events to standard output.
///
/// The JSON of findings is one object, a difference a line: `{"differences": [{…},\n{…}], "summary": {…}}`, or with `"error"` in
/// place of the summary where the audit failed.
pub struct Output<'a> {
    args: &'a AuditArgs,
    /// The files are those of a mount, and were compared with the Source's lists.
    is_mount: bool,
    clock: &'a Clock,
    output: BufWriter<Stdout>,
    /// Differences printed, or files that have no place in the manifest.
    counted: u64,
}

impl Output<'_> {
    /// A manifest, or findings as JSON, or as text with the times of `clock`.
    pub fn new<'a>(args: &'a AuditArgs, is_mount: bool, clock: &'a Clock) -> Output<'a> {
        Output { args, is_mount, clock, output: BufWriter::new(io::stdout()), counted: 0 }
    }

    /// Prints an event. The last event ends the program.
    pub fn print(&mut self, event: AuditEvent) -> io::Result<Option<End>> {
        let end = match (event, self.args.manifest) {
            (AuditEvent::File(shown), Some(format)) => match line(format, &shown) {
                Some(line) => return self.output.write_all(line.as_bytes()).map(|()| None),
                None => return Ok(self.complain(format, &shown)),
            },
            (AuditEvent::Finding(finding), _) => return self.print_finding(&finding).map(|()| None),
            (AuditEvent::File(_) | AuditEvent::Progress(_), _) => return Ok(None),
            (AuditEvent::Summary(_), Some(format)) => {
                if self.counted > 0 {
                    let has = if self.counted == 1 { "has" } else { "have" };
                    let what = count(self.counted, "file");
                    let _ = writeln!(io::stderr(), "resyncfs: {what} {has} no published {}", digest(format));
                }
                Ok(Exit::Success)
            }
            (AuditEvent::Summary(summary), None) => {
                self.print_end(
                    &json!({ "summary": summary }),
                    &text(&summary, (self.is_mount, self.args.fetch), self.clock),
                )?;
                let incomplete =
                    |why| Err(CliError::new(Exit::Unjudged, format!("the audit is incomplete, because {why}")));
                match (summary.proven(), summary.unread.first(), summary.gap_since.as_ref()) {
                    (0, Some(MissingStatus { location, why, entries }), _) => {
                        let part = if *entries == 0 { "" } else { "some of " };
                        incomplete(format!("{part}{location} cannot be read: {why}"))
                    }
                    (0, None, Some(since)) => incomplete(format!("changes since {since} may be missing")),
                    (0, None, None) => Ok(Exit::Success),
                    _ => Ok(Exit::OutOfSync),
                }
            }
            (AuditEvent::Undecided(what), _) => self.fail(Exit::Unjudged, what)?,
            (AuditEvent::Failure(what), _) => self.fail(Exit::Failure, what)?,
        };
        self.output.flush()?;
        Ok(Some(end))
    }

    fn fail(&mut self, exit: Exit, what: String) -> io::Result<End> {
        if self.args.manifest.is_none() {
            self.print_end(&json!({ "error": what }), "")?;
        }
        Ok(Err(CliError::new(exit, what)))
    }

    /// Names a file without a digest of the kind on standard error.
    fn complain(&mut self, format: ManifestFormat, shown: &ShownFile) -> Option<End> {
        self.counted += 1;
        let rest = match self.counted {
            1..=MOST_NAMED => printable_value(&shown.path),
            _ if self.counted == MOST_NAMED + 1 => "… (--manifest=jsonl lists all files)".to_owned(),
            _ => return None,
        };
        let _ = writeln!(io::stderr(), "resyncfs: no {}: {rest}", digest(format));
        None
    }

    fn print_finding(&mut self, finding: &AuditFinding) -> io::Result<()> {
        if self.args.json {
            let before = if self.counted == 0 { "{\"differences\": [\n" } else { ",\n" };
            write!(self.output, "{before}{}", printable_json(&json!(finding)))?;
        } else {
            let (path, what) = (printable_value(&finding.path), printable_value(&finding.what));
            writeln!(self.output, "{:<8} {path}: {what}", finding.difference.as_str())?;
        }
        self.counted += 1;
        // Differences are few and far between, so each is shown at once.
        self.output.flush()
    }

    /// Ends with the fields of `object`, or with `text`.
    fn print_end(&mut self, object: &Value, text: &str) -> io::Result<()> {
        if !self.args.json {
            return write!(self.output, "{}", printable(text));
        }
        let before = if self.counted == 0 { "{\"differences\": [" } else { "\n" };
        // The fields without the brace before them.
        writeln!(self.output, "{before}],\n{}", &printable_json(object)[1..])
    }
}

fn digest(format: ManifestFormat) -> &'static str {
    algorithm(format).map_or("digest", Algorithm::name)
}

fn algorithm(format: ManifestFormat) -> Option<Algorithm> {
    match format {
        ManifestFormat::Sha256sum => Some(Algorithm::Sha256),
        ManifestFormat::Md5sum => Some(Algorithm::Md5),
        ManifestFormat::Jsonl => None,
    }
}

/// The line of one file; `None` where it has no digest of the kind.
fn line(format: ManifestFormat, shown: &ShownFile) -> Option<String> {
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

fn text(summary: &Summary, (is_mount, fetch): (bool, bool), clock: &Clock) -> String {
    let files = count(summary.files, "file");
    let of = match summary.differences() {
        0 => files.clone(),
        _ => format!("{} of {files}", thousands(summary.in_sync)),
    };
    let mut text = match (is_mount, fetch) {
        (_, true) => {
            let are = if summary.files == 1 { "is" } else { "are" };
            let checked = thousands(summary.in_sync.saturating_sub(summary.unverifiable));
            format!("{checked} of {files} {are} in sync with the Source's lists")
        }
        (true, false) => format!("names, sizes and times of {of} agree with the Source's lists"),
        (false, false) => format!("the Source's lists have {of}"),
    };
    if let Some(at) = &summary.at {
        let at = at.parse().map_or_else(|_| at.clone(), |at: Timestamp| clock.when(at));
        text += &format!(" of {at}");
    }
    let counts = [
        (summary.missing, "missing"),
        (summary.extra, "extra"),
        (summary.changed, "changed"),
        (summary.corrupt, "corrupt"),
        (summary.gone, "gone"),
        (summary.failed, "failed"),
        (summary.unverifiable, "not checked"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    text.extend(counts.map(|(count, what)| format!(", {} {what}", thousands(count))));
    let was_read = summary.objects_read + summary.requested > 0;
    text += if was_read { "\n" } else { "; no file was read\n" };
    text.extend(summary.unread.iter().map(|part| format!("unread   {}: {}\n", part.location, part.why)));
    let gap = summary.gap_since.iter().map(|since| clock.localized(since));
    text.extend(gap.map(|since| format!("gap      changes since {since} may be missing\n")));
    text.extend(some(summary.objects_read, "file").map(|files| format!("Checked {files} in the cache\n")));
    let unverifiable = match summary.unverifiable {
        0 => String::new(),
        number => format!("; {} not checked: the Source publishes neither digest nor length", thousands(number)),
    };
    let requested = some(summary.requested, "file");
    text.extend(requested.map(|files| format!("Requested {files} from the Source{unverifiable}\n")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn shown(path: &str, hashes: &[&str]) -> ShownFile {
        ShownFile {
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
        let line = |path| line(ManifestFormat::Sha256sum, &shown(path, &["sha-256:ab"])).unwrap();

        assert_eq!(line("a b/c"), "ab  a b/c\n");
        assert_eq!(line("a\\b"), "\\ab  a\\\\b\n");
        assert_eq!(line("a\nb\r"), "\\ab  a\\nb\\r\n");
    }

    #[test]
    fn each_form_takes_its_own_digest() {
        let both = shown("a", &["sha-256:ab", "md5:cd"]);

        assert_eq!(line(ManifestFormat::Md5sum, &both).unwrap(), "cd  a\n");
        assert_eq!(line(ManifestFormat::Md5sum, &shown("a", &["sha-256:ab"])), None);
        assert_eq!(
            line(ManifestFormat::Jsonl, &shown("a", &[])).unwrap(),
            "{\"path\":\"a\",\"uri\":\"http://h/a\",\"length\":5,\"hashes\":[]}\n"
        );
    }

    #[test]
    fn the_text_names_only_what_there_is() {
        let in_sync = Summary { files: 3, in_sync: 3, ..Summary::default() };
        let differs = Summary {
            files: 4,
            in_sync: 1,
            missing: 2,
            corrupt: 1,
            objects_read: 2,
            at: Some("2024-01-01T00:00:00.123456Z".to_owned()),
            ..Summary::default()
        };

        let clock = Clock::at(UNIX_EPOCH + Duration::from_secs(1_704_067_501));
        let of_mount = |summary| text(&summary, (true, false), &clock);
        assert_eq!(
            of_mount(in_sync.clone()),
            "names, sizes and times of 3 files agree with the Source's lists; no file was read\n"
        );
        assert_eq!(
            of_mount(Summary { files: 1, in_sync: 1, objects_read: 1, ..Summary::default() }),
            "names, sizes and times of 1 file agree with the Source's lists\nChecked 1 file in the cache\n"
        );
        assert_eq!(
            of_mount(differs),
            "names, sizes and times of 1 of 4 files agree with the Source's lists of 2024-01-01 00:00:00 UTC (5 min ago), \
             2 missing, 1 corrupt\n\
             Checked 2 files in the cache\n"
        );
        let fetched = Summary { files: 6, in_sync: 1, changed: 5, requested: 6, unverifiable: 1, ..Summary::default() };
        assert_eq!(
            text(&fetched, (true, true), &clock),
            "0 of 6 files are in sync with the Source's lists, 5 changed, 1 not checked\n\
             Requested 6 files from the Source; 1 not checked: the Source publishes neither digest nor length\n"
        );
        assert_eq!(
            text(&Summary { requested: 3, ..in_sync.clone() }, (true, true), &clock),
            "3 of 3 files are in sync with the Source's lists\nRequested 3 files from the Source\n"
        );
        assert_eq!(
            text(&in_sync, (false, false), &clock),
            "the Source's lists have 3 files; no file was read\n",
            "nothing is compared"
        );
    }
}
