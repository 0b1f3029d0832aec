//! `resyncfs unmount`

use super::{CliError, Exit};
use crate::mount::point::{self, FILESYSTEM_TYPE};
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
    let absolute = point::resolve(&args.directory)
        .map_err(|cause| CliError::new(Exit::MountPoint, format!("{shown}: {cause}")))?;
    let mounted = point::topmost(&absolute).map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    match mounted {
        Some(mounted) if mounted.filesystem == FILESYSTEM_TYPE => {}
        _ => {
            let ours = point::ours().map_err(|cause| CliError::of(Exit::Failure, &cause))?;
            let mut message = format!("{shown}: nothing of resyncfs is mounted there");
            if !ours.is_empty() {
                let list: Vec<_> = ours.iter().map(|mounted| mounted.directory.display().to_string()).collect();
                message = format!("{message}; mounted are: {}", list.join(", "));
            }
            return Err(CliError::new(Exit::MountPoint, message));
        }
    }
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
