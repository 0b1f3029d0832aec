//! `resyncfs completions`: the script by which a shell completes commands and options.

use super::{CliError, Exit, command, write_stdout};
use clap_complete::Shell;

/// Print the completions of a shell, such as: resyncfs completions bash > ~/.local/share/bash-completion/completions/resyncfs
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Runs the command.
pub fn run(args: CompletionsArgs) -> Result<u8, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "resyncfs", &mut script);
    write_stdout(&String::from_utf8_lossy(&script)).map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    Ok(Exit::Success as u8)
}
