//! `resyncfs explore`: what a Source offers, before it is mounted.

mod pace;
mod pages;
mod report;
mod survey;

use super::args::{self, Options};
use super::log::{LogTarget, start_logging};
use super::mounts;
use super::progress::{Activity, Progress};
use super::render::wrapped_here;
use super::visit::visit;
use super::{CliError, Exit, config, print_value};
use crate::catalog::Catalog;
use crate::content::store::free_space;
use crate::document::Capability;
use crate::mount::MountError;
use crate::platform::free_space::SpaceGuard;
use crate::source::crawl::{EVERYTHING, crawl};
use crate::source::discovery::discover;
use crate::source::documents::DocumentCache;
use crate::source::http::Client;
use crate::source::zip::{Listed, PackageConfig, Packages};
use crate::source::{DocumentLocation, Missing, Set, SourceError};
use crate::sync::fetch::dumps::{ReadDump, listed_packages, read_dump, request_readings};
use crate::sync::fetch::gap::Walked;
use crate::sync::{Stage, SyncConfig, SyncError, Synchronizer};
use clap_complete::engine::ArgValueCompleter;
use futures_util::StreamExt;
use pace::MeasuredPace;
use pages::Pages;
use report::Report;
use std::path::PathBuf;
use std::sync::Arc;
use survey::Survey;

/// Bytes of packages that are downloaded whole, where their server does not support ranges.
const WHOLE_PACKAGES: u64 = 256 << 20;

/// Packages next to lists that are read: they show what the others are like.
const SAMPLE_PACKAGES: usize = 100;

/// Show what a Source offers before you mount it: files, sizes, types, speed, faults
#[derive(Debug, clap::Args)]
pub struct ExploreArgs {
    /// Options of mount, to reach the Source
    #[arg(short = 'o', value_name = "OPTION[=VALUE],…", add = ArgValueCompleter::new(args::mount_options))]
    options: Vec<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// A site, a page, a DOI, a Source Description, a Capability List, a list, a sitemap, a list on disk, or the NAME of
    /// /etc/resyncfs/NAME.toml
    #[arg(value_name = "SOURCE|NAME", add = ArgValueCompleter::new(mounts::complete_source))]
    source: String,
}

/// Runs the command.
pub fn run(args: ExploreArgs, verbosity: u8) -> Result<Exit, CliError> {
    let (source, options) = config::source(&args.source, &args.options)?;
    let report = survey(&source, options, verbosity)?;
    print_value(args.json, &report.json(), || wrapped_here(&report.text(), false))?;
    report.usable().map(|()| Exit::Success)
}

/// Explores `source`, with the options of a mount.
pub fn survey(source: &str, options: Options, verbosity: u8) -> Result<Report, CliError> {
    if verbosity > 0 {
        start_logging(verbosity, LogTarget::StandardError);
    }
    let progress = Progress::start(verbosity > 0);
    visit("explore", (source, options), &progress, async |config, client, folder| {
        // Today's Source is shown.
        let sync = SyncConfig { as_of: None, ..config.sync };
        // Parsing blocks this task, and neither the signals nor the reports of hosts that do not answer.
        let exploring = tokio::spawn(explore(client, sync, folder, progress.clone()));
        exploring.await.map_err(|cause| CliError::of(Exit::Failure, &cause))?
    })
}

async fn explore(client: Client, config: SyncConfig, folder: PathBuf, progress: Progress) -> Result<Report, CliError> {
    let (limits, reserve, entry) = (config.limits, config.reserve, config.entry.to_string());
    progress.stage(Stage::Discovering);
    let source = discover(&client, &config.entry, config.set.as_ref(), limits).await?;
    if let Some(authority) = &source.moved_to {
        client.move_to(authority);
    }
    let packages = PackageConfig { reserve, free_space, ..PackageConfig::new(folder.join("packages")) };
    let packages =
        Packages::open(client.clone(), PackageConfig { whole: WHOLE_PACKAGES, documents: limits, ..packages })
            .map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    let documents = DocumentCache::open(&folder.join("documents")).map_err(spooling)?;
    let catalog = Catalog::open(&folder.join("catalog"), "an exploration").map_err(MountError::Catalog)?;
    let catalog = Arc::new(catalog.leaving(SpaceGuard::new(reserve, free_space)));
    let mut synchronizer = Synchronizer::new(config, client.clone(), catalog, documents, packages.clone());
    if let Some(page) = &source.page {
        let pages = Pages::of_page(&client, page).await?;
        return Ok(Report::new(entry, source, Survey::default(), MeasuredPace::default(), pages, None));
    }
    let (spool, mut walks) = (synchronizer.spool().clone(), Walked::new());
    let mut survey = Survey::default();
    survey.missing.extend(source.missing.iter().cloned());
    for found in &source.deviations {
        survey.add_deviations(&found.location, &found.deviations);
    }
    let mut refused = None;
    let fetching = |so_far| progress.stage(Stage::Fetching(so_far));
    let reading = |stage| progress.stage(stage);
    for (location, is_dump) in source.sets.iter().flat_map(statements) {
        if survey.walked.contains(location) {
            continue;
        }
        let walked = match crawl(&client, &spool.cache, location, limits, EVERYTHING, &fetching).await {
            Ok(walked) => walked,
            Err(cause) if cause.is_gone() || cause.is_no_list() => {
                survey.missing.push(Missing { location: location.clone(), entries: 0, why: cause.why() });
                refused.get_or_insert(cause);
                continue;
            }
            Err(cause) => return Err(spooling(cause)),
        };
        let dump = match is_dump {
            true => read_dump(&packages, &spool, &walked, true).await.map_err(MountError::FirstBaseline)?,
            false => ReadDump::default(),
        };
        survey.missing.extend(walked.lacking(location).into_iter().chain(dump.missing));
        let (documents, manifests) = (&spool.cache, &dump.manifests);
        // Parsing must not block the tasks that download.
        tokio::task::block_in_place(|| survey.add(location, &walked, manifests, documents, limits, &reading))
            .map_err(|cause| CliError::from(SourceError::Document { location: location.clone(), cause }))?;
        walks.insert(location.clone(), (walked, dump.manifests));
    }
    for location in source.sets.iter().filter(|set| statements(set).iter().any(|(_, is_dump)| !is_dump)).flat_map(dumps)
    {
        // A dump that cannot be read takes nothing from a mount.
        let Ok(walked) = crawl(&client, &spool.cache, location, limits, EVERYTHING, &fetching).await else { continue };
        let listed = listed_packages(&spool, &walked, Capability::ResourceDump).await;
        let listed = listed.map_err(MountError::FirstBaseline)?;
        let sample = listed.iter().take(SAMPLE_PACKAGES);
        let sample = sample.map(|entry| Listed::of(entry, Capability::ResourceDumpManifest)).collect();
        let readings = request_readings(&packages, sample).collect().await;
        let added = tokio::task::block_in_place(|| survey.add_packages(listed.len() as u64, readings));
        added.map_err(|cause| CliError::from(SourceError::Document { location: location.clone(), cause }))?;
    }
    if let Some(cause) = refused.filter(|_| survey.documents + survey.packages == 0) {
        return Err(spooling(cause));
    }
    let refusal = match survey.documents + survey.packages {
        0 => Some(synchronizer.nothing_to_show(&source, &survey.missing)),
        _ => survey.unusable().map(SyncError::NothingToShow),
    };
    let refusal = refusal.map(|cause| CliError::from(MountError::FirstBaseline(cause)));
    progress.report(Activity::of("reading the changes"));
    let gap = synchronizer.gap_behind(&source, walks).await.map_err(MountError::FirstBaseline)?;
    survey.gap_since = gap.map(|since| since.to_string());
    progress.report(Activity::of("measuring the speed of the host"));
    let pace = MeasuredPace::measure(&client, &survey.sample).await;
    let pages = match synchronizer.follows_items() {
        true => Pages::default(),
        false => Pages::of_sample(&client, &pace.pages_at).await,
    };
    Ok(Report::new(entry, source, survey, pace, pages, refusal))
}

/// The dumps of a set.
fn dumps(set: &Set) -> impl Iterator<Item = &DocumentLocation> {
    let documents = set.documents.iter().filter(|(capability, _)| *capability == Capability::ResourceDump);
    documents.map(|(_, location)| location)
}

/// The lists of a set; its dumps where it has no list, as for a mount.
fn statements(set: &Set) -> Vec<(&DocumentLocation, bool)> {
    let lists = set.documents.iter().filter(|(capability, _)| *capability == Capability::ResourceList);
    let lists: Vec<_> = lists.map(|(_, location)| (location, false)).collect();
    if lists.is_empty() { dumps(set).map(|location| (location, true)).collect() } else { lists }
}

/// Names the temporary folder where it is full: the lists are stored there, since there is no cache.
fn spooling(cause: SourceError) -> CliError {
    if !matches!(cause, SourceError::DocumentCache { .. } | SourceError::NoRoom { .. }) {
        return cause.into();
    }
    let failure = CliError::of(Exit::Failure, &cause);
    CliError::new(Exit::Failure, format!("{}. To use a larger disk, set TMPDIR=FOLDER", failure.message))
}
