//! `resyncfs doctor`: a line for each thing that a mount needs. `machine` asks the kernel and the disk, `network` the way to a Source.

mod machine;
mod network;

use super::args::{self, Options};
use super::mounts;
use super::render::printable_value;
use super::{CliError, Exit, block_on, config, print_value};
use crate::platform::userinfo::without_userinfo;
use clap_complete::engine::ArgValueCompleter;
use serde::Serialize;
use serde_json::json;
use std::fmt;

/// Check this machine, and the way to a Source: a line for each thing that a mount needs
#[derive(Debug, clap::Args)]
#[command(after_help = "A line begins with ok, warn or FAIL. Exit code 12: a line begins with FAIL.")]
pub struct DoctorArgs {
    /// Options of mount that are to be checked, such as cache=DIR or ca=FILE
    #[arg(short = 'o', value_name = "OPTION[=VALUE],…", add = ArgValueCompleter::new(args::mount_options))]
    options: Vec<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// A Source to ask for an answer, or the NAME of /etc/resyncfs/NAME.toml
    #[arg(value_name = "SOURCE|NAME", add = ArgValueCompleter::new(mounts::complete_source))]
    source: Option<String>,
}

/// Runs the command.
pub fn run(args: DoctorArgs) -> Result<Exit, CliError> {
    let (source, options) = match &args.source {
        Some(word) => config::source(word, &args.options).map(|(source, options)| (Some(source), options))?,
        None => (None, Options::parse(&args.options)?),
    };
    let findings = examine(&options, source.as_deref())?;
    let severity = findings.iter().map(|finding| finding.severity).max();
    print_value(args.json, &json!({ "result": severity, "checks": findings }), || text(&findings))?;
    Ok(if severity == Some(Severity::Fail) { Exit::Unfit } else { Exit::Success })
}

/// Makes all checks that these options, and the address of a Source, allow.
pub fn examine(options: &Options, source: Option<&str>) -> Result<Vec<Diagnosis>, CliError> {
    let mut findings = machine::findings(options);
    findings.extend(block_on(async { Ok(network::findings(options, source).await) })?);
    Ok(findings)
}

/// A line for each finding.
pub fn text(findings: &[Diagnosis]) -> String {
    findings.iter().map(|finding| format!("{finding}\n")).collect()
}

/// The severity of a finding, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing is to be done.
    Ok,
    /// A mount works, but slower or with less than it could have.
    Warn,
    /// A mount fails.
    Fail,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    check: &'static str,
    #[serde(rename = "result")]
    severity: Severity,
    found: String,
    /// A command or a change that helps; none where nothing is to be done, or where `found` says it.
    advice: Option<String>,
}

impl Diagnosis {
    fn ok(check: &'static str, found: impl Into<String>) -> Diagnosis {
        let found = without_userinfo(&found.into()).into_owned();
        Diagnosis { check, severity: Severity::Ok, found, advice: None }
    }

    fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Diagnosis {
        let advice = Some(advice.into()).filter(|advice| !advice.is_empty());
        Diagnosis { severity: Severity::Warn, advice, ..Diagnosis::ok(check, found) }
    }

    fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Diagnosis {
        Diagnosis { severity: Severity::Fail, ..Diagnosis::warn(check, found, advice) }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnosis { check, severity, found, advice } = self;
        let severity = ["ok", "warn", "FAIL"][*severity as usize];
        write!(f, "{severity:<5} {check}: {}", printable_value(found))?;
        advice.iter().try_for_each(|advice| write!(f, "; {advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_severity_finding_and_advice() {
        let found = [
            Diagnosis::ok("clock", "2026-01-02"),
            Diagnosis::warn("open files", "256 at most", "raise the limit"),
            Diagnosis::fail("proxies", "http://ann:secret@h:81 is not\none", ""),
        ];

        let expected = "ok    clock: 2026-01-02\nwarn  open files: 256 at most; raise the limit\nFAIL  proxies: http://…@h:81 is not\u{fffd}one\n";
        assert_eq!(text(&found), expected);
        assert!(!json!(found[2]).to_string().contains("secret"));
        assert_eq!(found.iter().map(|it| it.severity).max(), Some(Severity::Fail));
    }
}
