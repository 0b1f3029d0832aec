//! `resyncfs path` and `resyncfs uri`: the paths of resources, and the addresses of files.

use super::mounts::{self, Running, by_mount};
use super::render::printable_value;
use super::{CliError, Exit, complain, print};
use crate::control::api::{Identified, Located, Request};
use crate::document::Uri;
use crate::platform::text::printable_json;
use crate::platform::userinfo::without_userinfo;
use crate::source::EntryPoint;
use clap_complete::engine::ArgValueCompleter;
use serde_json::json;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Show the paths of resources in the mounts of this machine, one per line
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code 1: some resources are in no mount; standard error says why. A mount does not store the resources \
that its options leave out. It knows the effect of include= and exclude= from the address; --ask reads the Source's lists \
again to know that of type=, collection=, conforms=, set= and at=. alternate= leaves no resource out."
)]
pub struct PathArgs {
    /// Look in this mount only
    #[arg(long = "in", value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Read the Source's lists again to say why a resource is missing; takes as long as the first mount
    #[arg(long)]
    ask: bool,
    /// Print one JSON object per line, for each mount and resource
    #[arg(long)]
    json: bool,
    /// Addresses of resources
    #[arg(required = true, value_name = "URI")]
    uris: Vec<String>,
}

/// Runs `resyncfs path`.
pub fn path(args: PathArgs) -> Result<Exit, CliError> {
    if let Some(uri) = args.uris.iter().find(|uri| Uri::parse(uri).is_err()) {
        return Err(CliError::usage(no_address(uri)));
    }
    let answers = located(&args)?;
    let (mut output, mut exit) = (String::new(), Exit::Success);
    for (number, uri) in args.uris.iter().enumerate() {
        let of_uri = answers.iter().filter_map(|(directory, located)| Some((directory, located.get(number)?)));
        let is_found = of_uri.clone().any(|(_, located)| located.path.is_some());
        if !is_found {
            exit = Exit::Failure;
        }
        for (directory, located) in of_uri {
            let path = located.path.as_ref().map(|path| directory.join(path).display().to_string());
            if args.json {
                let mut value = json!(located);
                value["uri"] = json!(without_userinfo(&located.uri));
                value["mount"] = json!(directory.display().to_string());
                value["path"] = json!(path);
                output += &format!("{}\n", printable_json(&value));
            } else if let Some(path) = path {
                let further = located.further_paths.iter().map(|path| directory.join(path).display().to_string());
                std::iter::once(path).chain(further).for_each(|path| output += &format!("{path}\n"));
            } else if !is_found {
                let why = format!("not in {}: {}", directory.display(), why(directory, located, args.ask));
                complain(&without_userinfo(uri), &why);
            }
        }
    }
    print(&output)?;
    Ok(exit)
}

/// The answers of each mount, in the order of the URIs. Without `--in` a mount that does not answer is left out, unless
/// none answers: it may be another user's.
fn located(args: &PathArgs) -> Result<Vec<(PathBuf, Vec<Located>)>, CliError> {
    let request = Request::Paths { uris: args.uris.clone(), ask: args.ask };
    let ask = |running: Running| Ok((running.directory.clone(), running.ask_all(&request)?));
    if let Some(directory) = &args.directory {
        return Ok(vec![ask(Running::at(directory)?)?]);
    }
    let asked: Vec<_> = mounts::all()?.iter().map(|known| Running::of(known).and_then(ask)).collect();
    if asked.iter().any(Result::is_ok) {
        Ok(asked.into_iter().flatten().collect())
    } else {
        asked.into_iter().collect()
    }
}

/// The reason why `given` is not an address, and a guess at what was meant.
fn no_address(given: &str) -> String {
    let shown = printable_value(&without_userinfo(given));
    match EntryPoint::over_http(given) {
        Some(http) => {
            let below = http.as_str().trim_start_matches("http:");
            format!("{shown}: is an address without a scheme; write https:{below} or http:{below}")
        }
        None => format!(
            "{shown}: is not an address such as https://repo.example.org/a.pdf; for the address of a file, use: resyncfs uri"
        ),
    }
}

/// The reason why a resource is not in the mount at `directory`, by what the mount knows, and what to do. `asked` says that the lists
/// were read again.
fn why(directory: &Path, located: &Located, asked: bool) -> String {
    let shown = directory.display();
    if let Some(error) = &located.error {
        return error.clone();
    }
    if located.listed == Some(false) {
        return "the Source does not list it; is it published under another address, with https: in place of http:, or \
                on another host?"
            .to_owned();
    }
    if !located.hidden_by.is_empty() {
        let path = located.would_be.as_deref().map(|path| format!(" (it would be {path})")).unwrap_or_default();
        let listed = if asked { "" } else { ", whether the Source lists it or not" };
        return format!("left out by {}{path}{listed}", located.hidden_by.join(", "));
    }
    if located.listed == Some(true) {
        return format!("the Source lists it now; to have it in the mount, use: resyncfs refresh {shown}");
    }
    if located.may_be_hidden_by.is_empty() {
        return format!(
            "the Source did not list it at the last refresh (resyncfs status {shown} shows when that was); \
             --ask reads the lists again"
        );
    }
    format!(
        "the Source does not list it, or it is left out by {}; --ask reads the lists again to find out which",
        located.may_be_hidden_by.join(", ")
    )
}

/// Show the addresses of files and folders in a mount, one per line
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The address of a folder is the one below which its files are. Exit code 1: some paths have no address; \
standard error says which ones and why."
)]
pub struct UriArgs {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Files and folders in mounts, or NAMEs of /etc/resyncfs/NAME.toml
    #[arg(required = true, value_name = "PATH|NAME", add = ArgValueCompleter::new(mounts::complete_path))]
    paths: Vec<PathBuf>,
}

/// Runs `resyncfs uri`.
pub fn uri(args: UriArgs) -> Result<Exit, CliError> {
    let mut answers: HashMap<PathBuf, Identified> = HashMap::new();
    for within in by_mount(&args.paths)? {
        let identified = within.running.ask_all(&Request::Uris { paths: within.below })?;
        answers.extend(within.given.into_iter().zip(identified));
    }
    let (mut output, mut exit) = (String::new(), Exit::Success);
    for path in &args.paths {
        let Some(identified) = answers.get(path) else { continue };
        let shown = path.display().to_string();
        if identified.uri.is_none() {
            exit = Exit::Failure;
        }
        if args.json {
            let identified = Identified { path: shown, ..identified.clone() };
            output += &format!("{}\n", printable_json(&json!(identified)));
        } else if let Some(uri) = &identified.uri {
            output += &format!("{uri}\n");
        } else {
            complain(&shown, identified.error.as_deref().unwrap_or("has no address"));
        }
    }
    print(&output)?;
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_reasons_are_stated() {
        let unknown = Located { may_be_hidden_by: vec!["type=image/*".into()], ..Located::default() };
        let hidden =
            Located { hidden_by: vec!["exclude=*.tmp".into()], would_be: Some("a.tmp".into()), ..Located::default() };
        let unlisted = Located { listed: Some(false), ..Located::default() };
        let new = Located { listed: Some(true), ..Located::default() };

        let why = |located: &Located, asked| why(Path::new("/mnt/repo"), located, asked);
        assert!(why(&unknown, false).contains("does not list it, or it is left out by type=image/*; --ask"));
        assert_eq!(
            why(&hidden, false),
            "left out by exclude=*.tmp (it would be a.tmp), whether the Source lists it or not"
        );
        assert!(why(&unlisted, true).starts_with("the Source does not list it; is it published under"));
        assert!(why(&new, true).contains("resyncfs refresh /mnt/repo"));
        assert!(why(&Located::default(), false).contains("did not list it at the last refresh (resyncfs status"));
    }

    #[test]
    fn no_address_says_what_may_be_meant() {
        let message = no_address("repo.example.org/a.pdf");
        assert!(
            message.ends_with("write https://repo.example.org/a.pdf or http://repo.example.org/a.pdf"),
            "{message}"
        );
        assert!(no_address("mnt/a.pdf").ends_with("for the address of a file, use: resyncfs uri"));
    }
}
