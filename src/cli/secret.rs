//! Files of credentials: which are read, and that nobody else can read them.

use super::options::Options;
use super::{CliError, Exit, given};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Reads a file of credentials as text; one that others can read is refused.
pub fn read_secret(file: &Path) -> Result<String, CliError> {
    String::from_utf8(read_key(file)?)
        .map_err(|_| CliError::new(Exit::Usage, format!("{}: is not UTF-8 text", file.display())))
}

/// Reads a file with a private key; one that others can read is refused.
pub fn read_key(file: &Path) -> Result<Vec<u8>, CliError> {
    let refuse = |what: String| CliError::new(Exit::Usage, format!("{}: {what}", file.display()));
    let opened = given::open(file).map_err(|cause| refuse(cause.to_string()))?;
    let mode = opened.metadata().map_err(|cause| refuse(cause.to_string()))?.permissions().mode();
    // Who may see a service's credentials is written in access control lists, which the mode does not show.
    if mode & 0o077 != 0 && file.parent().is_none_or(|folder| Some(folder) != service_folder().as_deref()) {
        return Err(refuse(format!("others can read these credentials; mend with: chmod 600 {}", file.display())));
    }
    given::read(opened).map_err(refuse)
}

/// What a service was given by LoadCredential= (systemd.exec(5)) under the names `netrc`, `bearer`, `header` and `cert` is used where
/// nothing else is named.
pub fn take_credentials_of_service(options: &mut Options) {
    let Some(folder) = service_folder() else { return };
    for (name, option) in [
        ("netrc", &mut options.netrc),
        ("bearer", &mut options.bearer_file),
        ("header", &mut options.header_file),
        ("cert", &mut options.client_certificate),
    ] {
        let file = folder.join(name);
        if option.is_none() && file.exists() {
            *option = Some(file);
        }
    }
}

/// The folder of this service's credentials.
fn service_folder() -> Option<PathBuf> {
    std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from).filter(|folder| folder.is_absolute())
}
