//! `resyncfs path`: where a resource lies.

use super::render::{printable, printable_value};
use super::running::{Running, nothing_mounted};
use super::{CliError, Exit, tell};
use crate::control::{UrisOrder, ask_paths};
use crate::document::{Uri, without_userinfo};
use crate::mount::names::Located;
use crate::mount::point;
use crate::platform::error_chain::printable_json;
use crate::source::EntryPoint;
use serde_json::json;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Answers on their way from the mount.
const ANSWERS: usize = 256;

/// Tell where resources lie in the mounts of this machine: a path a line
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code 0: all of them lie somewhere; 1: some do not, and standard error says why. What a mount does not \
choose it does not store: include= and exclude= are told by the address, of type=, collection=, conforms=, set= and at= only \
that they may leave it out. With --ask the Source's lists are read anew, and tell. alternate= hides nothing."
)]
pub struct PathArgs {
    /// Only in this mount
    #[arg(long = "in", value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Read the Source's lists anew for what is not in the mount, and tell why; takes as long as the first mount did
    #[arg(long)]
    ask: bool,
    /// A JSON object a line, for each mount and resource
    #[arg(long)]
    json: bool,
    /// Addresses of resources
    #[arg(required = true, value_name = "URI")]
    uris: Vec<String>,
}

/// Runs the command.
pub fn run(args: PathArgs) -> Result<u8, CliError> {
    for uri in &args.uris {
        if Uri::parse(uri).is_err() {
            return Err(CliError::new(Exit::Usage, no_address(uri)));
        }
    }
    let directories = match &args.directory {
        Some(directory) => vec![directory.clone()],
        None => all_mounts()?,
    };
    let mut answers = Vec::new();
    let mut refused = None;
    for directory in directories {
        match Running::at(&directory).and_then(|running| Ok((ask(&running, &args)?, running))) {
            Ok((located, running)) => answers.push((running.directory().to_owned(), located)),
            // One that belongs to somebody else says nothing of the others.
            Err(cause) if args.directory.is_none() => refused = Some(cause),
            Err(cause) => return Err(cause),
        }
    }
    if let (true, Some(refused)) = (answers.is_empty(), refused) {
        return Err(refused);
    }
    let mut output = String::new();
    let mut all_found = true;
    for (number, uri) in args.uris.iter().enumerate() {
        let of_each: Vec<_> =
            answers.iter().filter_map(|(directory, located)| Some((directory, located.get(number)?))).collect();
        let is_found = of_each.iter().any(|(_, located)| located.path.is_some());
        all_found &= is_found;
        for (directory, located) in of_each {
            if args.json {
                output += &format!("{}\n", printable_json(&json_of(directory, located)));
            } else if let Some(path) = &located.path {
                output += &format!("{}\n", directory.join(path).display());
            } else if !is_found {
                let (uri, why) =
                    (printable_value(&without_userinfo(uri)), printable(&why(directory, located, args.ask)));
                let _ = writeln!(std::io::stderr(), "resyncfs: {uri}: not in {}: {why}", directory.display());
            }
        }
    }
    tell(&output).map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    Ok(if all_found { Exit::Success } else { Exit::Failure } as u8)
}

fn all_mounts() -> Result<Vec<PathBuf>, CliError> {
    let ours = point::ours().map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    if ours.is_empty() {
        return Err(nothing_mounted());
    }
    Ok(ours.into_iter().map(|mounted| mounted.directory).collect())
}

fn ask(running: &Running, args: &PathArgs) -> Result<Vec<Located>, CliError> {
    let order = UrisOrder { uris: args.uris.clone(), ask: args.ask };
    running.ask(|socket| async {
        let (sender, mut lines) = mpsc::channel(ANSWERS);
        let collect = async {
            let mut located = Vec::new();
            while let Some(line) = lines.recv().await {
                located.push(line);
            }
            located
        };
        let (located, asked) = tokio::join!(collect, ask_paths(socket, &order, sender));
        asked.map(|()| located)
    })
}

fn json_of(directory: &Path, located: &Located) -> serde_json::Value {
    let mut value = json!(located);
    value["uri"] = json!(without_userinfo(&located.uri));
    value["mount"] = json!(directory.display().to_string());
    let path = located.path.as_ref().map(|path| directory.join(path).display().to_string());
    value["path"] = json!(path);
    value
}

/// What is wrong with what was given for an address, and what may have been meant.
fn no_address(given: &str) -> String {
    let shown = printable_value(&without_userinfo(given));
    match EntryPoint::over_http(given) {
        Some(http) => {
            let below = http.as_str().trim_start_matches("http:");
            format!("{shown}: is no address without a scheme; write https:{below} or http:{below}")
        }
        None => format!("{shown}: is no address such as https://repo.example.org/a.pdf; for a file's: resyncfs uri"),
    }
}

/// Why a resource is not in the tree at `directory`, as far as that is known, and what to do.
fn why(directory: &Path, located: &Located, asked: bool) -> String {
    if let Some(error) = &located.error {
        return error.clone();
    }
    let options = |options: &[String]| options.join(", ");
    match located.listed {
        Some(false) => {
            return "the Source does not list it; is it published under another address, with https: in place of http:, \
                    or another host?"
                .to_owned();
        }
        Some(true) if located.hidden_by.is_empty() => {
            return format!(
                "the Source lists it now; it comes with the next look: resyncfs refresh {}",
                directory.display()
            );
        }
        _ => {}
    }
    if !located.hidden_by.is_empty() {
        let path = located.would_be.as_deref().map(|path| format!(" (it would be {path})")).unwrap_or_default();
        let listed = if asked { "" } else { ", whether it is listed or not" };
        return format!("left out by {}{path}{listed}", options(&located.hidden_by));
    }
    if located.may_be_hidden_by.is_empty() {
        let directory = directory.display();
        return format!(
            "the Source did not list it when the mount last looked; resyncfs status {directory} tells of which Source and when, \
             resyncfs path --ask reads its lists anew"
        );
    }
    format!(
        "the Source does not list it, or it is left out by {}; --ask reads the lists anew and tells",
        options(&located.may_be_hidden_by)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_claimed() {
        let unknown = Located { may_be_hidden_by: vec!["type=image/*".into()], ..Located::default() };
        let hidden =
            Located { hidden_by: vec!["exclude=*.tmp".into()], would_be: Some("a.tmp".into()), ..Located::default() };
        let unlisted = Located { listed: Some(false), ..Located::default() };
        let new = Located { listed: Some(true), ..Located::default() };

        let why = |located: &Located, asked| why(Path::new("/mnt/repo"), located, asked);
        assert!(why(&unknown, false).contains("does not list it, or it is left out by type=image/*; --ask"));
        assert_eq!(why(&hidden, false), "left out by exclude=*.tmp (it would be a.tmp), whether it is listed or not");
        assert!(why(&unlisted, true).starts_with("the Source does not list it; is it published under"));
        assert!(why(&new, true).contains("resyncfs refresh /mnt/repo"));
        assert!(
            why(&Located::default(), false).contains("did not list it when the mount last looked; resyncfs status")
        );
    }

    #[test]
    fn what_is_no_address_is_told_with_what_may_have_been_meant() {
        let told = no_address("repo.example.org/a.pdf");
        assert!(told.ends_with("write https://repo.example.org/a.pdf or http://repo.example.org/a.pdf"), "{told}");
        assert!(no_address("mnt/a.pdf").ends_with("for a file's: resyncfs uri"));
    }
}
