//! `resyncfs cache`: what lies in a cache folder, mounted or not.

use super::args::Options;
use super::render::printable_value;
use super::render::{count, size, thousands};
use super::{CliError, Exit, tell};
use crate::content::verify::Checked;
use crate::mount::identity::default_cache;
use crate::mount::kept::{Cleared, Kept, Listing, Which};
use crate::platform::error_chain::printable_json;
use serde_json::json;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

/// Objects between two pictures of progress.
const STEP: u64 = 100;

/// Look at what lies in the cache folder, check it, clear it
#[derive(Debug, clap::Args)]
pub struct CacheArgs {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CacheCommand {
    /// Show the trees of the cache folder: Source, options, what each takes, when it was used last, where it is mounted
    List {
        /// `cache=DIR`: another cache folder than the usual
        #[arg(short = 'o', value_name = "cache=DIR")]
        options: Vec<String>,
        /// One JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Read every cached file and hold it to its checksums; damaged ones are removed and fetched again when they are read
    ///
    /// Asks nobody, and may run while the folder is in use. Exit code 9: something was damaged.
    Verify {
        /// `cache=DIR`: another cache folder than the usual
        #[arg(short = 'o', value_name = "cache=DIR")]
        options: Vec<String>,
        /// One JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Remove trees that are not mounted, with the cached files that no other tree has
    #[command(group = clap::ArgGroup::new("which").required(true))]
    Clear {
        /// `cache=DIR`: another cache folder than the usual
        #[arg(short = 'o', value_name = "cache=DIR")]
        options: Vec<String>,
        /// Everything; what is mounted stays, and is exit code 6
        #[arg(long, group = "which")]
        all: bool,
        /// Everything that is not mounted now
        #[arg(long, group = "which")]
        unused: bool,
        /// A name that `list` shows, or its beginning, or a Source: all its trees
        #[arg(group = "which")]
        name: Option<String>,
    },
}

/// Runs the command.
pub fn run(args: CacheArgs) -> Result<u8, CliError> {
    let exit = match args.command {
        CacheCommand::List { options, json } => list(&kept(&options)?, json),
        CacheCommand::Verify { options, json } => verify(&kept(&options)?, json),
        CacheCommand::Clear { options, all: _, unused, name } => clear(&kept(&options)?, name, unused),
    };
    exit.map(|exit| exit as u8)
}

fn kept(options: &[String]) -> Result<Kept, CliError> {
    let cache = Options::parse(options)?.cache.folder.or_else(default_cache).ok_or_else(|| {
        CliError::new(Exit::Cache, "there is no cache folder for this user; name one with -o cache=DIR")
    })?;
    Ok(Kept::new(cache))
}

fn list(kept: &Kept, json: bool) -> Result<Exit, CliError> {
    let listing = kept.list()?;
    say(&if json { format!("{}\n", printable_json(&json!(listing))) } else { text(&listing) })?;
    Ok(Exit::Success)
}

fn text(listing: &Listing) -> String {
    let mut text = String::new();
    for tree in &listing.trees {
        let _ = writeln!(text, "{}", printable_value(&tree.source));
        let _ = writeln!(text, "  name       {}", tree.name);
        if !tree.options.is_empty() {
            let _ = writeln!(text, "  options    {}", printable_value(&tree.options.join(",")));
        }
        let (catalog, objects) = (size(tree.catalog_octets), size(tree.object_octets));
        let _ = writeln!(text, "  takes      {catalog}, and {objects} in {}", count(tree.objects, "cached file"));
        let _ = writeln!(text, "  last used  {}", tree.last_used.as_deref().unwrap_or("not known"));
        let _ = writeln!(text, "  in use     {}\n", printable_value(tree.mounted.as_deref().unwrap_or("no")));
    }
    let _ = writeln!(
        text,
        "{}; {} with {} in all",
        count(listing.trees.len() as u64, "tree"),
        count(listing.objects, "cached file"),
        size(listing.object_octets)
    );
    text
}

fn verify(kept: &Kept, json: bool) -> Result<Exit, CliError> {
    let live = std::io::stderr().is_terminal();
    let mut damaged = Vec::new();
    let mut looked = 0;
    let verification = kept.verify(&mut |key, checked| {
        looked += 1;
        let mut output = std::io::stderr().lock();
        // Who has closed standard error does not want to know.
        let _ = match checked {
            Checked::Corrupt(what) | Checked::Failed(what) => {
                let became = if matches!(checked, Checked::Corrupt(_)) { "damaged, removed" } else { "failed" };
                damaged.push(json!({ "object": key.to_string(), "became": became, "what": what }));
                if json { Ok(()) } else { writeln!(output, "resyncfs: {key}: {became}: {}", printable_value(what)) }
            }
            _ if live && looked % STEP == 0 => write!(output, "\r\x1b[K{} looked at", count(looked, "cached file")),
            _ => Ok(()),
        };
    })?;
    if live {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    say(&if json {
        format!("{}\n", printable_json(&json!({ "summary": verification, "objects": damaged })))
    } else {
        format!(
            "{} intact ({}), {} damaged and removed, {} could not be read\n",
            count(verification.intact, "cached file"),
            size(verification.octets),
            thousands(verification.damaged),
            thousands(verification.failed)
        )
    })?;
    Ok(match (verification.damaged, verification.failed) {
        (0, 0) => Exit::Success,
        (0, _) => Exit::Cache,
        _ => Exit::OutOfSync,
    })
}

fn clear(kept: &Kept, name: Option<String>, unused: bool) -> Result<Exit, CliError> {
    let which = name.clone().map_or(Which::All, Which::Named);
    let Some(cleared) = kept.clear(&which)? else {
        let name = name.unwrap_or_default();
        return Err(CliError::new(Exit::Failure, format!("{name}: there is no such tree; see: resyncfs cache list")));
    };
    say(&sentence(&cleared))?;
    match cleared.in_use.as_slice() {
        [] => Ok(Exit::Success),
        _ if unused => Ok(Exit::Success),
        in_use => {
            let told: Vec<_> = in_use
                .iter()
                .map(|tree| {
                    format!("{} is in use by {}", tree.source, tree.mounted.as_deref().unwrap_or("another process"))
                })
                .collect();
            Err(CliError::new(Exit::Busy, format!("{}; end it first with: resyncfs unmount DIR", told.join("; "))))
        }
    }
}

fn sentence(cleared: &Cleared) -> String {
    let kept = match cleared.kept {
        0 => String::new(),
        kept => format!("; {} in use stay", count(kept, "cached file")),
    };
    format!(
        "{} and {} removed ({}){kept}\n",
        count(cleared.trees.len() as u64, "tree"),
        count(cleared.objects, "cached file"),
        size(cleared.octets)
    )
}

fn say(text: &str) -> Result<(), CliError> {
    tell(text).map_err(|cause| CliError::of(Exit::Failure, &cause))
}
