//! `resyncfs unmount`

use super::running::mounted_at;
use super::{CliError, Exit};
use crate::mount::point;
use std::io;
use std::path::PathBuf;

/// End a mount
#[derive(Debug, clap::Args)]
pub struct UnmountArgs {
    /// Take it out of the tree at once although it is in use; who has files open keeps them
    #[arg(short, long)]
    lazy: bool,
    /// Where it is mounted
    directory: PathBuf,
}

/// Runs the command.
pub fn run(args: UnmountArgs) -> Result<u8, CliError> {
    let shown = args.directory.display();
    let absolute = mounted_at(&args.directory)?;
    point::unmount(&absolute, args.lazy).map_err(|cause| match cause.kind() {
        io::ErrorKind::ResourceBusy => CliError::new(
            Exit::MountPoint,
            format!("{shown}: is in use (fuser -vm {shown} tells by whom); --lazy detaches it all the same"),
        ),
        io::ErrorKind::PermissionDenied => {
            CliError::new(Exit::MountPoint, format!("{shown}: only root and who mounted it may unmount it ({cause})"))
        }
        _ => CliError::new(Exit::MountPoint, format!("{shown}: {cause}")),
    })?;
    Ok(Exit::Success as u8)
}
