//! The `resyncfs` command.
#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]

fn main() -> std::process::ExitCode {
    resyncfs::cli::main()
}
