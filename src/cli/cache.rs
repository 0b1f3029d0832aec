//! `resyncfs cache`: the cache folder and its trees, mounted or not. A tree is a Source with its options.

use super::args::Options;
use super::progress::{Activity, Progress};
use super::render::{Clock, Screen, count, size, some, thousands};
use super::{CliError, Exit, complain, print, print_value};
use crate::content::verify::Checked;
use crate::mount::cache_inventory::{CacheFolder, CacheListing, Verification};
use crate::mount::identity::default_cache;
use serde_json::json;
use std::path::Path;

/// Show, check or remove what mounts keep on the disk, also those that have ended
#[derive(Debug, clap::Args)]
pub struct CacheArgs {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CacheCommand {
    /// Show the trees in the cache folder, each a Source with its options: size, last use, where it is mounted
    List {
        #[command(flatten)]
        folder: Folder,
        /// Print one JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Read every cached file and check it; a damaged one is removed, and downloaded again when it is read
    ///
    /// Needs no network, and may run while the folder is in use. Exit code 9: a file was damaged. Exit code 7: none was, but one cannot be
    /// read now, or not be removed; it stays.
    Verify {
        #[command(flatten)]
        folder: Folder,
        /// Print one JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Remove trees that are not mounted, with the cached files that no other tree needs
    #[command(group = clap::ArgGroup::new("which").required(true))]
    Clear {
        #[command(flatten)]
        folder: Folder,
        /// Remove all trees; exit code 6 if some stay because they are mounted
        #[arg(long, group = "which")]
        all: bool,
        /// Remove all trees that are not mounted; mounted trees are skipped
        #[arg(long, group = "which")]
        unused: bool,
        /// A name that `list` shows, or its beginning, or the address of a Source: all its trees
        #[arg(group = "which")]
        name: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
struct Folder {
    /// Another cache folder than the default
    #[arg(short = 'o', value_name = "cache=DIR")]
    options: Vec<String>,
}

/// Runs the command.
pub fn run(args: CacheArgs) -> Result<Exit, CliError> {
    match args.command {
        CacheCommand::List { folder, json } => list(&folder.open()?, json),
        CacheCommand::Verify { folder, json } => verify(&folder.open()?, json),
        CacheCommand::Clear { folder, all: _, unused, name } => clear(&folder.open()?, name.as_deref(), unused),
    }
}

impl Folder {
    fn open(&self) -> Result<CacheFolder, CliError> {
        let cache = Options::parse(&self.options)?.cache.folder.or_else(default_cache).ok_or_else(|| {
            CliError::new(Exit::Cache, "this user has no default cache folder; name one with -o cache=DIR")
        })?;
        Ok(CacheFolder(cache))
    }
}

fn list(cache: &CacheFolder, json: bool) -> Result<Exit, CliError> {
    let listing = cache.list()?;
    print_value(json, &listing, || text(&listing, &cache.0, &Clock::now()))?;
    Ok(Exit::Success)
}

fn text(listing: &CacheListing, folder: &Path, clock: &Clock) -> String {
    let mut screen = Screen::new(clock);
    for tree in &listing.trees {
        screen.row(if tree.source.is_empty() { "(unknown)" } else { &tree.source });
        screen.line("  name", &tree.name);
        screen.list("  options", (!tree.options.is_empty()).then(|| tree.options.join(",")));
        let (catalog, objects) = (size(tree.catalog_bytes), size(tree.object_bytes));
        let files = count(tree.objects, "cached file");
        screen.line("  size", format!("{catalog} for lists and catalog, {objects} in {files}"));
        screen.line("  last used", tree.last_used.map_or_else(|| "unknown".to_owned(), |time| clock.when(time)));
        screen.line("  in use", tree.holder.as_deref().unwrap_or("no"));
        screen.text.push('\n');
    }
    let (trees, objects) = (count(listing.trees.len() as u64, "tree"), count(listing.objects, "cached file"));
    let (bytes, shown) = (size(listing.object_bytes), folder.display());
    let is_missing = if folder.is_dir() { "" } else { ", which does not exist" };
    screen.row(format!("{trees}; {objects} ({bytes}) in {shown}{is_missing}"));
    screen.text
}

fn verify(cache: &CacheFolder, json: bool) -> Result<Exit, CliError> {
    let progress = Progress::start(false);
    let mut found = Vec::new();
    let mut work = Activity { activity: "checking", unit: "cached file", ..Activity::default() };
    let verification = cache.verify(&mut |key, checked| {
        work.done += 1;
        let (became, what) = match checked {
            Checked::Corrupt(what) => ("removed", what),
            Checked::Failed(what) => ("kept", what),
            Checked::Intact(bytes) => {
                work.bytes += bytes;
                return progress.report(work.clone());
            }
            Checked::Absent => return,
        };
        found.push(json!({ "object": key.to_string(), "became": became, "what": what }));
        if !json {
            let damage = if became == "removed" { "damaged, removed: " } else { "" };
            progress.print(|| complain(&key.to_string(), &format!("{damage}{what}")));
        }
    })?;
    progress.finish();
    let Verification { intact, bytes, damaged: removed, failed } = verification;
    print_value(json, &json!({ "summary": verification, "objects": found }), || {
        let (intact, bytes) = (count(intact, "cached file"), size(bytes));
        let (removed, failed) = (thousands(removed), thousands(failed));
        format!("{intact} intact ({bytes}), {removed} damaged and removed, {failed} could not be read\n")
    })?;
    Ok(match (removed, failed) {
        (0, 0) => Exit::Success,
        (0, _) => Exit::Cache,
        _ => Exit::OutOfSync,
    })
}

fn clear(cache: &CacheFolder, name: Option<&str>, unused: bool) -> Result<Exit, CliError> {
    let Some(cleared) = cache.clear(name)? else {
        let name = name.unwrap_or_default();
        return Err(CliError::new(Exit::Failure, format!("{name}: there is no such tree; see: resyncfs cache list")));
    };
    let kept = some(cleared.kept, "cached file").map(|kept| format!("; {kept} in use stay")).unwrap_or_default();
    let (trees, objects) = (count(cleared.trees as u64, "tree"), count(cleared.objects, "cached file"));
    print(&format!("{trees} and {objects} removed ({}){kept}\n", size(cleared.bytes)))?;
    if unused || cleared.in_use.is_empty() {
        return Ok(Exit::Success);
    }
    let in_use = cleared.in_use.iter().map(|tree| {
        let holder = tree.holder.as_deref().unwrap_or("another process");
        let end = tree.mounted.iter().map(|directory| format!("; unmount it first: resyncfs unmount {directory}"));
        format!("{} stays: it is in use by {holder}{}", tree.source, end.collect::<String>())
    });
    Err(CliError::new(Exit::Busy, in_use.collect::<Vec<_>>().join("\n")))
}
