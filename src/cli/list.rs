//! `resyncfs list`

use super::mounts::{Running, nothing_mounted, user_name};
use super::render::{printable, printable_value};
use super::{CliError, Exit, block_on, print, print_json};
use crate::mount::registry::{self, Mount, MountState};
use crate::source::http::DownloadLimit;
use serde::Deserialize;
use serde_json::{Value, json};
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

const STATES: &str = "States:\n  \
    alive     it is served\n  \
    silent    its process lives and does not answer\n  \
    starting  it reads the lists of the Source for the first time\n  \
    dead      its process has died: mount it again, or detach it with resyncfs unmount\n  \
    detached  unmounted, or in another mount namespace; its process still serves open files\n  \
    unknown   no record of its process that you may read; ask as root or the user who mounted it";

/// Runs the command.
pub fn run(args: ListArgs) -> Result<Exit, CliError> {
    let known = registry::mounts()?;
    let states = block_on(async { Ok(futures_util::future::join_all(known.iter().map(state)).await) })?;
    let mounts: Vec<_> = known.iter().zip(states).collect();
    if args.json {
        let all: Vec<Value> = mounts.iter().map(|(known, state)| object(known, state)).collect();
        print_json(&Value::Array(all))?;
    } else if mounts.is_empty() {
        // No mount is no failure, and nothing on standard output.
        let _ = writeln!(std::io::stderr(), "resyncfs: {}", nothing_mounted().message);
    } else {
        print(&printable(&table(&mounts)))?;
    }
    Ok(Exit::Success)
}

/// The state, and what `alive` alone would not tell.
#[derive(Clone, Copy)]
struct ShownState {
    state: &'static str,
    /// `max-download=` is reached.
    is_spent: bool,
}

/// The part of a status that is shown here.
#[derive(Deserialize)]
struct MountBrief {
    #[serde(default)]
    max_download: Option<DownloadLimit>,
}

async fn state(known: &Mount) -> ShownState {
    let (mut is_spent, silent) = (false, ShownState { state: "silent", is_spent: false });
    let state = match known.state {
        MountState::Starting => "starting",
        MountState::Dead => "dead",
        MountState::Detached => "detached",
        MountState::Unknown => "unknown",
        MountState::Living => {
            let Ok(running) = Running::of(known) else { return silent };
            match running.status::<MountBrief>(PATIENCE).await {
                Ok(status) => is_spent = status.max_download.is_some_and(|limit| limit.left() == 0),
                // A user who may not ask sees that the process lives, and no more.
                Err(cause) if cause.exit != Exit::Denied => return silent,
                Err(_) => {}
            }
            "alive"
        }
    };
    ShownState { state, is_spent }
}

fn object(known: &Mount, shown: &ShownState) -> Value {
    json!({
        "source": known.source,
        "directory": known.directory.to_string_lossy(),
        "user": known.user.map(user_name),
        "uid": known.user,
        "process": known.process,
        "state": shown.state,
        "max_download_reached": shown.is_spent,
    })
}

/// Columns as wide as what is in them.
fn table(mounts: &[(&Mount, ShownState)]) -> String {
    let row = |(known, shown): &(&Mount, ShownState)| {
        let optional = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        [
            cell(&known.directory.to_string_lossy()),
            cell(&known.source),
            printable_value(&optional(known.user.map(user_name))),
            optional(known.process.map(|process| process.to_string())),
            format!("{}{}", shown.state, if shown.is_spent { ", max-download= reached" } else { "" }),
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

    #[test]
    fn a_long_source_is_cut() {
        let known = Mount {
            source: "https://h/".to_owned() + &"ä".repeat(100_000),
            directory: "/mnt/a".into(),
            user: None,
            process: None,
            socket: None,
            state: MountState::Unknown,
        };

        let text = table(&[(&known, ShownState { state: "unknown", is_spent: false })]);

        assert!(text.lines().all(|line| line.chars().count() < 300), "{text}");
        assert!(text.contains("ä…  -"), "{text}");
    }

    #[test]
    fn columns_line_up_and_a_name_is_never_two_lines() {
        let known = Mount {
            source: "https://h/".into(),
            directory: "/mnt/a\nb".into(),
            user: Some(0),
            process: None,
            socket: None,
            state: MountState::Unknown,
        };

        let text = table(&[(&known, ShownState { state: "unknown", is_spent: false })]);

        assert_eq!(text, "DIR       SOURCE      USER  PID  STATE\n/mnt/a\u{fffd}b  https://h/  root  -    unknown\n");
    }
}
