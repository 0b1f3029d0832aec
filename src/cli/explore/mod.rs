//! `resyncfs explore`: what a Source offers, before it is mounted.

pub mod report;
mod survey;

use super::args::Options;
use super::log::{LogTarget, start_logging};
use super::mount::http;
use super::render::printable;
use super::scratch::Scratch;
use super::{CliError, Exit, tell};
use crate::content::store::free_space;
use crate::document::{Capability, Uri};
use crate::mount::MountError;
use crate::platform::error_chain::printable_json;
use crate::platform::free_space::Room;
use crate::source::crawl::{EVERYTHING, crawl};
use crate::source::discovery::discover;
use crate::source::documents::DocumentCache;
use crate::source::http::{Client, Method, Request};
use crate::source::zip::{PackageConfig, Packages};
use crate::source::{DocumentLocation, EntryPoint, Missing, Set, SourceError};
use crate::sync::fetch::dumps::{ReadDump, read_dump};
use report::Report;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use survey::Survey;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time for an answer to each request of the survey.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time for an answer to a HEAD that only measures the host's pace.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of packages that are fetched whole, where their server cannot give their directory alone.
const WHOLE_PACKAGES: u64 = 256 << 20;

/// How long what is under way at the end is waited for.
const ENDING: Duration = Duration::from_secs(2);

/// Tell what a Source offers: sets, capabilities, counts, sizes, types, pace, deviations
#[derive(Debug, clap::Args)]
pub struct ExploreArgs {
    /// The options of mount that say how the Source is asked
    #[arg(short = 'o', value_name = "OPTION[=VALUE],…")]
    options: Vec<String>,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    /// A site, a page, a Source Description, a Capability List, a list, a sitemap, or a list on disk
    source: String,
}

/// Runs the command.
pub fn run(args: ExploreArgs, verbosity: u8) -> Result<u8, CliError> {
    let failed = |cause: std::io::Error| CliError::of(Exit::Failure, &cause);
    if verbosity > 0 {
        start_logging(verbosity, LogTarget::StandardError);
    }
    let options = Options::parse(&args.options)?;
    let entry = EntryPoint::parse(&args.source).map_err(|cause| CliError::of(Exit::Usage, &cause))?;
    let client = Client::new(http(&options, &entry)?).map_err(|cause| CliError::of(Exit::Usage, &cause))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(failed)?;
    // Before there is anything that a signal could leave behind.
    let mut signals = runtime.block_on(async { Signals::new() }).map_err(failed)?;
    let scratch = Scratch::of("explore").map_err(failed)?;
    let spooled_in = scratch.path().to_owned();
    let report = runtime.block_on(async {
        let exploring = tokio::spawn(explore(client, entry, options, spooled_in));
        tokio::select! {
            explored = exploring => explored.map_err(|cause| CliError::of(Exit::Failure, &cause))?,
            () = signals.any() => Err(CliError::new(Exit::Interrupted, "interrupted")),
        }
    });
    // What is still under way when a signal came ends where it waits next; else it might write where the folder was.
    runtime.shutdown_timeout(ENDING);
    drop(scratch);
    let report = report.map_err(|cause| cause.assuming(&args.source))?;
    let text = if args.json { format!("{}\n", printable_json(&report.json())) } else { printable(&report.text()) };
    tell(&text).map_err(failed)?;
    Ok(Exit::Success as u8)
}

/// The signals that ask for the end.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

async fn explore(client: Client, entry: EntryPoint, options: Options, spooled_in: PathBuf) -> Result<Report, CliError> {
    let limits = options.limits.limits();
    let source = discover(&client, &entry, options.tree.set.as_ref(), limits).await?;
    if let Some(authority) = &source.moved_to {
        client.move_to(authority);
    }
    let reserve = options.cache.reserve;
    let room = Arc::new(Room::new(reserve, free_space));
    let packages = PackageConfig { reserve, free_space, ..PackageConfig::new(spooled_in.join("packages")) };
    let packages =
        Packages::open(client.clone(), PackageConfig { whole: WHOLE_PACKAGES, documents: limits, ..packages })
            .map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    let spool = Arc::new(DocumentCache::open(&spooled_in).map_err(spooling)?.leaving(room));
    let mut survey = Survey::default();
    survey.missing.extend(source.missing.iter().cloned());
    for found in &source.deviations {
        survey.add_deviations(&found.location, &found.deviations);
    }
    let mut refused = None;
    for (location, is_dump) in source.sets.iter().flat_map(what_exists) {
        if survey.has_walked(location) {
            continue;
        }
        let walked = match crawl(&client, &spool, location, limits, EVERYTHING, &|_| ()).await {
            Ok(walked) => walked,
            Err(cause) if cause.is_gone() || cause.is_no_list() => {
                survey.missing.push(Missing { location: location.clone(), entries: 0, why: cause.why() });
                refused.get_or_insert(cause);
                continue;
            }
            Err(cause) => return Err(spooling(cause)),
        };
        let dump = match is_dump {
            true => read_dump(&packages, &spool, limits, &walked, true).await.map_err(MountError::FirstBaseline)?,
            false => ReadDump::default(),
        };
        survey.missing.extend(walked.lacking(location).into_iter().chain(dump.missing));
        let (spool, manifests) = (&spool, &dump.manifests);
        // Parsing computes; it is let off the workers that fetch.
        tokio::task::block_in_place(|| survey.add(location, &walked, manifests, spool, limits))
            .map_err(|cause| CliError::from(SourceError::Document { location: location.clone(), cause }))?;
    }
    if let Some(cause) = refused.filter(|_| survey.documents + survey.packages == 0) {
        return Err(spooling(cause));
    }
    let pace = pace(&client, survey.sample()).await;
    Ok(Report { entry: entry.to_string(), source, survey, pace })
}

/// The documents of a set that say what exists, as a mount reads them: its lists, and only where there are none its dumps.
fn what_exists(set: &Set) -> Vec<(&DocumentLocation, bool)> {
    let of = |wanted: Capability, is_dump| {
        let documents = set.documents.iter().filter(move |(capability, _)| *capability == wanted);
        documents.map(|(_, location)| (location, is_dump)).collect::<Vec<_>>()
    };
    let lists = of(Capability::ResourceList, false);
    if lists.is_empty() { of(Capability::ResourceDump, true) } else { lists }
}

/// There is no cache here: the lists are spooled in the system's temporary folder.
fn spooling(cause: SourceError) -> CliError {
    if !matches!(cause, SourceError::DocumentCache { .. } | SourceError::NoRoom { .. }) {
        return cause.into();
    }
    let told = CliError::of(Exit::Failure, &cause);
    CliError::new(Exit::Failure, format!("{}. TMPDIR=FOLDER leads to a larger disk", told.message))
}

/// What HEAD of a few resources tells of the host.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Requests made.
    pub asked: usize,
    /// How many were answered.
    pub answered: usize,
    /// How many answers were text/html.
    pub pages: usize,
    /// How many answers say the size.
    pub sized: usize,
    /// How many had a strong ETag, another validator, and none.
    pub validators: [usize; 3],
    /// Median time to an answer.
    pub median: Duration,
    /// The last failure.
    pub failure: Option<String>,
}

/// Asks for each of `sample`, one after the other.
async fn pace(client: &Client, sample: &[Uri]) -> Pace {
    let mut times = Vec::new();
    let (mut pages, mut sized, mut validators, mut failure) = (0, 0, [0; 3], None);
    for uri in sample {
        let began = Instant::now();
        let request = Request { method: Method::Head, ..Request::get(uri.clone(), SAMPLE_TIMEOUT) };
        match client.send(request).await {
            Ok(response) => {
                times.push(began.elapsed());
                pages += usize::from(response.media_type.as_deref() == Some("text/html"));
                let is_told = response.encoding.is_none() && response.content_length.is_some_and(|length| length > 0);
                sized += usize::from(is_told);
                let kind = match (response.etag.as_deref(), &response.last_modified) {
                    (Some(etag), _) if etag.starts_with('"') => 0,
                    (None, None) => 2,
                    _ => 1,
                };
                validators[kind] += 1;
            }
            Err(cause) => failure = Some(crate::platform::error_chain::chain(&cause)),
        }
    }
    times.sort_unstable();
    Pace {
        asked: sample.len(),
        answered: times.len(),
        pages,
        sized,
        validators,
        median: times.get(times.len() / 2).copied().unwrap_or_default(),
        failure,
    }
}
