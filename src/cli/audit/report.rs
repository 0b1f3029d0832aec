//! What an audit found, as text or as JSON, told as it is found.

use super::End;
use crate::cli::render::{printable, printable_value};
use crate::cli::{CliError, Exit};
use crate::platform::error_chain::printable_json;
use crate::sync::audit::{Event, Finding, Summary};
use crate::sync::status::MissingStatus;
use serde_json::json;
use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

/// A report on its way to standard output; progress goes to a terminal on standard error.
///
/// The JSON is one object, a difference a line: `{"differences": [{…},\n{…}], "summary": {…}}`, or with `"error"` in place of the summary
/// where the audit broke off.
pub struct Report {
    json: bool,
    live: bool,
    output: BufWriter<Stdout>,
    /// Differences told.
    told: u64,
}

impl Report {
    /// A report as JSON or as text.
    pub fn new(json: bool) -> Report {
        Report { json, live: io::stderr().is_terminal(), output: BufWriter::new(io::stdout()), told: 0 }
    }

    /// Takes the next event; the last one's meaning.
    pub fn tell(&mut self, event: Event) -> io::Result<Option<End>> {
        match event {
            Event::Finding(finding) => self.find(&finding)?,
            Event::File(_) => {}
            Event::Progress(line) => self.show(&line),
            Event::Summary(summary) => {
                self.end(&json!({ "summary": summary }), &text(&summary))?;
                return Ok(Some(match (summary.proven(), summary.lacking.first()) {
                    (0, None) => Ok(Exit::Success),
                    (0, Some(MissingStatus { location, why, .. })) => {
                        Err(CliError::new(Exit::Unjudged, format!("what {location} lists cannot be told: {why}")))
                    }
                    _ => Ok(Exit::OutOfSync),
                }));
            }
            Event::Unjudged(what) => {
                self.end(&json!({ "error": what }), "")?;
                return Ok(Some(Err(CliError::new(Exit::Unjudged, what))));
            }
            Event::Failure(what) => {
                self.end(&json!({ "error": what }), "")?;
                return Ok(Some(Err(CliError::new(Exit::Failure, what))));
            }
        }
        Ok(None)
    }

    fn find(&mut self, finding: &Finding) -> io::Result<()> {
        if self.json {
            let before = if self.told == 0 { "{\"differences\": [\n" } else { ",\n" };
            write!(self.output, "{before}{}", printable_json(&json!(finding)))?;
        } else {
            self.show("");
            let (path, what) = (printable_value(&finding.path), printable_value(&finding.what));
            writeln!(self.output, "{:<8} {path}: {what}", finding.difference.as_str())?;
        }
        self.told += 1;
        // Differences are few in a tree in step, and who waits for them wants each.
        self.output.flush()
    }

    /// Ends with the fields of `object`, or `text`.
    fn end(&mut self, object: &serde_json::Value, text: &str) -> io::Result<()> {
        self.show("");
        if self.json {
            let before = if self.told == 0 { "{\"differences\": [" } else { "\n" };
            // The fields without the brace before them.
            let fields = printable_json(object);
            writeln!(self.output, "{before}],\n{}", &fields[1..])?;
        } else {
            write!(self.output, "{}", printable(text))?;
        }
        self.output.flush()
    }

    /// Replaces the live line; an empty one clears it.
    fn show(&self, line: &str) {
        if self.live {
            let _ = write!(io::stderr(), "\r\x1b[K{}", printable_value(line));
        }
    }
}

fn text(summary: &Summary) -> String {
    let mut text = format!("{} of {} files are in sync", summary.in_sync, summary.files);
    let counts = [
        (summary.missing, "missing"),
        (summary.extra, "extra"),
        (summary.changed, "changed"),
        (summary.corrupt, "corrupt"),
        (summary.gone, "gone"),
        (summary.failed, "failed"),
    ];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        let _ = write!(text, ", {count} {what}");
    }
    if let Some(at) = &summary.at {
        let _ = write!(text, "; the Source's lists speak for {at}");
    }
    text.push('\n');
    for part in &summary.lacking {
        let _ = writeln!(text, "lacking  {}: {}", part.location, part.why);
    }
    if summary.objects_read > 0 {
        let _ = writeln!(text, "{} cached objects were read", summary.objects_read);
    }
    if summary.asked > 0 {
        let _ = write!(text, "{} resources were asked for", summary.asked);
        if summary.unvouched > 0 {
            let _ = write!(text, "; of {} nothing is published that the bytes could be held to", summary.unvouched);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_only_what_there_is() {
        let in_sync = Summary { files: 3, in_sync: 3, ..Summary::default() };
        let differs = Summary {
            files: 4,
            in_sync: 1,
            missing: 2,
            corrupt: 1,
            asked: 2,
            unvouched: 1,
            at: Some("2024-01-01T00:00:00Z".to_owned()),
            ..Summary::default()
        };

        assert_eq!(text(&in_sync), "3 of 3 files are in sync\n");
        assert_eq!(
            text(&differs),
            "1 of 4 files are in sync, 2 missing, 1 corrupt; the Source's lists speak for 2024-01-01T00:00:00Z\n\
             2 resources were asked for; of 1 nothing is published that the bytes could be held to\n"
        );
    }
}
