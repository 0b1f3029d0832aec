//! `resyncfs list`

use super::mounts::{Running, nothing_mounted, user_name};
use super::render::{printable, printable_value};
use super::{CliError, Exit, block_on, print_value};
use crate::mount::registry::{self, Mount, MountState};
use crate::source::http::DownloadLimit;
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::time::Duration;

/// A process that does not answer within this is shown as silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// Characters of a directory or a Source that are shown.
const WIDEST: usize = 200;

/// Show every mount of resyncfs on this machine, also those that do not answer
#[derive(Debug, clap::Args)]
#[command(after_help = STATES)]
pub struct ListArgs {
    /// A JSON array instead of text
    #[arg(long)]
    json: bool,
}

const STATES: &str = include_str!("list_states.txt").trim_ascii_end();

/// Runs the command.
pub fn run(args: ListArgs) -> Result<Exit, CliError> {
    let known = registry::mounts()?;
    let mounts = block_on(async { Ok(futures_util::future::join_all(known.iter().map(listed)).await) })?;
    if mounts.is_empty() && !args.json {
        // The absence of mounts is not a failure: standard output stays empty.
        let _ = writeln!(std::io::stderr(), "resyncfs: {}", nothing_mounted().message);
        return Ok(Exit::Success);
    }
    print_value(args.json, &mounts, || printable(&table(&mounts)))?;
    Ok(Exit::Success)
}

/// One mount as it is listed.
#[derive(Clone, Serialize)]
struct ListedMount {
    source: String,
    directory: String,
    user: Option<String>,
    uid: Option<u32>,
    process: Option<u32>,
    state: &'static str,
    /// The limit is reached, which `alive` alone would hide.
    max_download_reached: bool,
}

/// The part of a status that is shown here.
#[derive(Deserialize)]
struct MountBrief {
    #[serde(default)]
    max_download: Option<DownloadLimit>,
}

async fn listed(known: &Mount) -> ListedMount {
    let (state, max_download_reached) = match known.state {
        MountState::Starting => ("starting", false),
        MountState::Dead => ("dead", false),
        MountState::Detached => ("detached", false),
        MountState::Unknown => ("unknown", false),
        MountState::Living => match async { Running::of(known)?.status::<MountBrief>(PATIENCE).await }.await {
            Ok(status) => ("alive", status.max_download.is_some_and(|limit| limit.left() == 0)),
            // A user who may not ask sees that the process lives, and no more.
            Err(cause) if cause.exit == Exit::Denied => ("alive", false),
            Err(_) => ("silent", false),
        },
    };
    ListedMount {
        source: known.source.clone(),
        directory: known.directory.to_string_lossy().into_owned(),
        user: known.user.map(user_name),
        uid: known.user,
        process: known.process,
        state,
        max_download_reached,
    }
}

/// Columns as wide as what is in them.
fn table(mounts: &[ListedMount]) -> String {
    let row = |mount: &ListedMount| {
        [
            cell(&mount.directory),
            cell(&mount.source),
            printable_value(mount.user.as_deref().unwrap_or("-")),
            mount.process.map_or_else(|| "-".to_owned(), |process| process.to_string()),
            format!("{}{}", mount.state, if mount.max_download_reached { ", max-download= reached" } else { "" }),
        ]
    };
    let head = ["DIR", "SOURCE", "USER", "PID", "STATE"].map(str::to_owned);
    let rows: Vec<[String; 5]> = std::iter::once(head).chain(mounts.iter().map(row)).collect();
    let [a, b, c, d, _]: [usize; 5] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let line = |[dir, source, user, pid, state]: &[String; 5]| {
        format!("{dir:<a$}  {source:<b$}  {user:<c$}  {pid:<d$}  {state}\n")
    };
    rows.iter().map(line).collect()
}

/// Text of a record, short enough for a terminal; --json has all of it.
fn cell(value: &str) -> String {
    let shown = printable_value(value);
    match shown.char_indices().nth(WIDEST) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(source: &str, directory: &str, user: Option<&str>) -> String {
        table(&[ListedMount {
            source: source.to_owned(),
            directory: directory.to_owned(),
            user: user.map(str::to_owned),
            uid: None,
            process: None,
            state: "unknown",
            max_download_reached: false,
        }])
    }

    #[test]
    fn a_long_source_is_cut() {
        let text = shown(&("https://h/".to_owned() + &"ä".repeat(100_000)), "/mnt/a", None);

        assert!(text.lines().all(|line| line.chars().count() < 300), "{text}");
        assert!(text.contains("ä…  -"), "{text}");
    }

    #[test]
    fn columns_line_up_and_a_name_is_never_two_lines() {
        let text = shown("https://h/", "/mnt/a\nb", Some("root"));

        assert_eq!(text, "DIR       SOURCE      USER  PID  STATE\n/mnt/a\u{fffd}b  https://h/  root  -    unknown\n");
    }
}
