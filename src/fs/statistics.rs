//! STATFS: what `df` shows.

use super::Filesystem;
use super::error::FsError;
use crate::catalog::Totals;

/// Bytes in a block of [`Statistics`].
pub const BLOCK_SIZE: u32 = 4096;

/// Answer to STATFS. Nothing is free: the tree is read-only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Sum of the published lengths, in blocks of [`BLOCK_SIZE`], rounded up.
    pub blocks: u64,
    /// Files and folders.
    pub files: u64,
}

impl Filesystem {
    /// STATFS. The revision has the sums, so the time does not depend on the size of the tree.
    pub fn statistics(&self) -> Result<Statistics, FsError> {
        let revision = self.catalog.revision()?;
        Ok(revision.map(|revision| statistics(&revision.totals)).unwrap_or_default())
    }
}

fn statistics(totals: &Totals) -> Statistics {
    Statistics {
        blocks: totals.bytes.div_ceil(u64::from(BLOCK_SIZE)),
        files: totals.files.saturating_add(totals.folders),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_the_sum_of_the_sizes_and_files_are_all_inodes() {
        let totals = Totals { files: 10, folders: 3, bytes: 8193, unsized_files: 4 };
        assert_eq!(statistics(&totals), Statistics { blocks: 3, files: 13 });
        assert_eq!(statistics(&Totals::default()), Statistics::default());
    }
}
