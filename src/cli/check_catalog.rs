//! `resyncfs check-catalog`: what a mount starts after the machine went down; not for people.

use super::{CliError, Exit};
use crate::catalog::{Catalog, CatalogError};
use crate::mount::check::DAMAGED;
use std::path::PathBuf;

/// Read a catalog whole
#[derive(Debug, clap::Args)]
pub struct CheckCatalogArgs {
    /// The catalog's folder
    folder: PathBuf,
}

/// Runs the command.
pub fn run(args: CheckCatalogArgs) -> Result<u8, CliError> {
    match Catalog::check(&args.folder) {
        Ok(_) => Ok(Exit::Success as u8),
        Err(CatalogError::Damaged(_)) => Ok(DAMAGED),
        Err(cause) => Err(CliError::of(Exit::Cache, &cause)),
    }
}
