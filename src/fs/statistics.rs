//! STATFS: what `df` shows.

use super::Filesystem;
use super::error::FsError;
use crate::catalog::Totals;

/// Bytes in a block of STATFS.
pub const BLOCK_SIZE: u32 = 4096;

impl Filesystem {
    /// STATFS: the sum of the published lengths in blocks of [`BLOCK_SIZE`], rounded up, and the number of files and folders. The revision has
    /// the sums, so the time does not depend on the size of the tree. Nothing is free: the tree is read-only.
    pub fn statistics(&self) -> Result<(u64, u64), FsError> {
        Ok(statistics(&self.catalog.revision()?.map(|revision| revision.totals).unwrap_or_default()))
    }
}

fn statistics(totals: &Totals) -> (u64, u64) {
    (totals.bytes.div_ceil(u64::from(BLOCK_SIZE)), totals.files.saturating_add(totals.folders))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_the_sum_of_the_sizes_and_files_are_all_inodes() {
        let totals = Totals { files: 10, folders: 3, bytes: 8193, unsized_files: 4 };
        assert_eq!(statistics(&totals), (3, 13));
        assert_eq!(statistics(&Totals::default()), (0, 0));
    }
}
