//! The code that tests of the whole program share: a Source that can misbehave, and a real mount of it.
//!
//! # Which file holds what
//!
//! The promises one by one, with each test by its name: `HELD` in `tests/readme.rs`. By file:
//!
//! | promise | files |
//! |---|---|
//! | never a wrong byte | verdict, faults, model, histories, large_files, links, packages |
//! | never an accidental emptiness | partial_trees, guard, kill, faults, mount |
//! | never a stuck process | silence, hosts, sizes, hostile, crowds |
//! | never stale longer than announced | kernel_sees, invalidation, motion, real_changes, simulator, websub, archives |
//! | never a surprise on the disk | disk, damage, memory, small_machines, allocations, cache |
//! | speed: reading ahead, connections | reading_ahead, connections, programs |
//! | one cache for many machines | shared_cache |
//! | any Source is understood | entry_points, formats, items, real_source, selection |
//! | commands and messages | cli, config, control, status, names, audit, edges, first_hour, readme |
//! | the system around it | access, security_modules, mount_helper, mount_units, units, user_units, package, desktop |
//! | without root | access, user_units, unprivileged, descriptors |
//! | the code's own order | layers |
//!
//! # How to run one
//!
//! `scripts/test` installs what the tests need and runs all. They mount, so they run as root.
//!
//! - `cargo test --test mount` runs one file, `cargo test --test mount a_restart` the tests whose names contain this.
//! - `cargo test --lib catalog::` runs the unit tests of a module.
//! - `ROUNDS=100 cargo test --test kill` repeats what is random more often.
//! - `scripts/test-kernels` runs a selection under older kernels in QEMU, and what is ignored here, under AppArmor and SELinux.
//! - `scripts/bench first-mount` measures one row of figures.
//! - `scripts/fuzz 10` feeds the readers with broken cases for ten minutes; `tests/fuzz` has its oracles.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod changing;
pub mod deadline;
pub mod far;
pub mod flask_hub;
pub mod generated;
pub mod hub;
pub mod memory;
pub mod mounted;
pub mod nginx;
pub mod proxy;
pub mod pty;
pub mod publisher;
pub mod random;
pub mod repository;
pub mod requests;
pub mod screen;
pub mod server;
pub mod slices;
pub mod small_disk;
pub mod small_machine;
pub mod source;
pub mod systemd;
pub mod transcript;
pub mod user;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often each repeated test repeats: 5 in the suite, more on demand.
pub fn rounds() -> u64 {
    std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(5)
}

/// A program of the virtual environment that `variable` names, by default `folder` among those that scripts/prepare makes.
pub fn venv_program(variable: &str, folder: &str, name: &str) -> PathBuf {
    let venv = std::env::var_os(variable).map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home)?;
        Some(cache.join("resyncfs-tests").join(folder))
    });
    let program = venv.expect("there is a home folder").join("bin").join(name);
    assert!(
        program.exists(),
        "{} is not there: scripts/prepare installs it, which scripts/test runs",
        program.display()
    );
    program
}

/// Names, to compare with those of a folder.
pub fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Every file below `folder` with its bytes, by relative path.
pub fn tree(folder: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut files = std::collections::BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for entry in std::fs::read_dir(&current).unwrap_or_else(|cause| panic!("{}: {cause}", current.display())) {
            let entry = entry.unwrap();
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()));
                files.insert(path.strip_prefix(folder).unwrap().to_owned(), bytes);
            }
        }
    }
    files
}

/// Tries until `condition` holds; fails with `what` after 20 s.
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(Duration::from_secs(20), what, condition);
}

/// [`eventually`] with a patience of its own, `PATIENCE` times as long where the machine is emulated. What takes long is looked for less
/// often: a look may take time from what it waits for.
pub fn eventually_within(patience: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let slowness = std::env::var("PATIENCE").map_or(1, |times| times.parse().expect("PATIENCE is a whole number"));
    let patience = patience * slowness;
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < patience, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(5).max(began.elapsed() / 500));
    }
}
