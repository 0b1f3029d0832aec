//! The findings of an audit as text or as JSON, printed as they arrive.

use super::End;
use crate::cli::render::{Clock, count, printable, printable_value, thousands};
use crate::cli::{CliError, Exit};
use crate::platform::error_chain::printable_json;
use crate::sync::audit::{Event, Finding, Summary};
use crate::sync::status::MissingStatus;
use jiff::Timestamp;
use serde_json::json;
use std::fmt::Write as _;
use std::io::{self, BufWriter, Stdout, Write};

/// Writes a report to standard output.
///
/// The JSON is one object, a difference a line: `{"differences": [{…},\n{…}], "summary": {…}}`, or with `"error"` in place of the summary
/// where the audit failed.
pub struct Report {
    json: bool,
    clock: Clock,
    output: BufWriter<Stdout>,
    /// Differences printed.
    printed: u64,
}

impl Report {
    /// A report as JSON, or as text with the times of `clock`.
    pub fn new(json: bool, clock: Clock) -> Report {
        Report { json, clock, output: BufWriter::new(io::stdout()), printed: 0 }
    }

    /// Prints an event. The last event ends the program.
    pub fn print(&mut self, event: Event) -> io::Result<Option<End>> {
        let end = match event {
            Event::File(_) | Event::Progress(_) => return Ok(None),
            Event::Finding(finding) => return self.print_finding(&finding).map(|()| None),
            Event::Summary(summary) => {
                self.print_end(&json!({ "summary": summary }), &text(&summary, &self.clock))?;
                match (summary.proven(), summary.unread.first()) {
                    (0, None) => Ok(Exit::Success),
                    (0, Some(MissingStatus { location, why, .. })) => {
                        let what = format!("the audit is incomplete, since {location} cannot be read: {why}");
                        Err(CliError::new(Exit::Unjudged, what))
                    }
                    _ => Ok(Exit::OutOfSync),
                }
            }
            Event::Undecided(what) => {
                self.print_end(&json!({ "error": what }), "")?;
                Err(CliError::new(Exit::Unjudged, what))
            }
            Event::Failure(what) => {
                self.print_end(&json!({ "error": what }), "")?;
                Err(CliError::new(Exit::Failure, what))
            }
        };
        Ok(Some(end))
    }

    fn print_finding(&mut self, finding: &Finding) -> io::Result<()> {
        if self.json {
            let before = if self.printed == 0 { "{\"differences\": [\n" } else { ",\n" };
            write!(self.output, "{before}{}", printable_json(&json!(finding)))?;
        } else {
            let (path, what) = (printable_value(&finding.path), printable_value(&finding.what));
            writeln!(self.output, "{:<8} {path}: {what}", finding.difference.as_str())?;
        }
        self.printed += 1;
        // Differences are few and far between, so each is shown at once.
        self.output.flush()
    }

    /// Ends with the fields of `object`, or with `text`.
    fn print_end(&mut self, object: &serde_json::Value, text: &str) -> io::Result<()> {
        if self.json {
            let before = if self.printed == 0 { "{\"differences\": [" } else { "\n" };
            // The fields without the brace before them.
            let fields = printable_json(object);
            writeln!(self.output, "{before}],\n{}", &fields[1..])?;
        } else {
            write!(self.output, "{}", printable(text))?;
        }
        self.output.flush()
    }
}

fn text(summary: &Summary, clock: &Clock) -> String {
    let mut text = format!("{} of {} are in sync", thousands(summary.in_sync), count(summary.files, "file"));
    let counts = [
        (summary.missing, "missing"),
        (summary.extra, "extra"),
        (summary.changed, "changed"),
        (summary.corrupt, "corrupt"),
        (summary.gone, "gone"),
        (summary.failed, "failed"),
    ];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        let _ = write!(text, ", {} {what}", thousands(count));
    }
    if let Some(at) = &summary.at {
        let at = at.parse().map_or_else(|_| at.clone(), |at: Timestamp| clock.when(at));
        let _ = write!(text, "; the Source's lists are of {at}");
    }
    text.push('\n');
    for part in &summary.unread {
        let _ = writeln!(text, "unread   {}: {}", part.location, part.why);
    }
    if summary.objects_read > 0 {
        let _ = writeln!(text, "Checked {} in the cache", count(summary.objects_read, "file"));
    }
    if summary.requested > 0 {
        let _ = write!(text, "Requested {} from the Source", count(summary.requested, "file"));
        if summary.unverifiable > 0 {
            let number = thousands(summary.unverifiable);
            let _ = write!(text, "; {number} could not be checked: the Source publishes neither digest nor length");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn the_text_names_only_what_there_is() {
        let in_sync = Summary { files: 3, in_sync: 3, ..Summary::default() };
        let differs = Summary {
            files: 4,
            in_sync: 1,
            missing: 2,
            corrupt: 1,
            requested: 2,
            unverifiable: 1,
            at: Some("2024-01-01T00:00:00.123456Z".to_owned()),
            ..Summary::default()
        };

        let clock = Clock::at(UNIX_EPOCH + Duration::from_secs(1_704_067_501));
        assert_eq!(text(&in_sync, &clock), "3 of 3 files are in sync\n");
        assert_eq!(
            text(&differs, &clock),
            "1 of 4 files are in sync, 2 missing, 1 corrupt; the Source's lists are of 2024-01-01 00:00:00 UTC (5 min ago)\n\
             Requested 2 files from the Source; 1 could not be checked: the Source publishes neither digest nor length\n"
        );
    }
}
