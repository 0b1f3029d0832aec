//! Writing without a copy: the disk has the bytes from where they are (open(2), O_DIRECT), which takes a fifth of the processor's time
//! that copying them into pages of the page cache does. Who writes waits for the disk, so it is for a fast one.

use super::lag::Lag;
use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;

/// What is written so begins with a page in memory and in the file, and ends with one. Few devices ask for more of it.
pub const PAGE: usize = 4 << 10;

/// Bytes of a write that tells how fast a disk is.
const TELLING: usize = 1 << 20;

/// Pieces of one write, at most.
const MOST_PIECES: usize = 256;

/// A second opening of a file, for such writes. The kernel drops what the page cache has of their part of the file, before and after.
#[derive(Debug, Default)]
pub(super) enum Direct {
    /// Not needed so far.
    #[default]
    Untried,
    Opened(Opened),
    /// Filesystem or disk cannot, or are slow.
    Refused,
}

#[derive(Debug)]
pub(super) struct Opened {
    file: File,
    /// Of writes of at least [`TELLING`] bytes: by them a disk proves fast.
    lag: Lag,
    /// Of shorter ones, which tell more of how soon it answers.
    short: Lag,
}

impl Direct {
    /// Whether it is not known yet that the disk does not take bytes so.
    pub(super) fn is_usable(&self) -> bool {
        !matches!(self, Direct::Refused)
    }

    /// Writes as many of the first bytes of `pieces`, one behind the other, as can be written so to the file whose first opening is
    /// `file`; answers how many. All are the disk's at once: it is asked for one after the other else, and waited for each time. An error
    /// tells that there is no room.
    pub(super) fn write(&mut self, file: &File, pieces: &[&[u8]], offset: u64) -> io::Result<usize> {
        if !self.is_usable() {
            return Ok(0);
        }
        let paged = paged(pieces, offset);
        if paged.is_empty() {
            return Ok(0);
        }
        if matches!(self, Direct::Untried) {
            *self = Direct::opened(file);
        }
        let Direct::Opened(opened) = self else { return Ok(0) };
        let bytes = paged.iter().map(|piece| piece.len()).sum();
        let begun = Instant::now();
        match write_pages(&opened.file, paged, offset) {
            Ok(()) => {
                let lag = if bytes >= TELLING { &mut opened.lag } else { &mut opened.short };
                if lag.is_slow_with(bytes, begun.elapsed()) {
                    *self = Direct::Refused;
                }
                Ok(bytes)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                Err(error)
            }
            // Whatever else is wrong, the write tells that follows, or the checksums of what is read.
            Err(error) => {
                tracing::debug!(%error, "the disk does not take bytes from where they are");
                *self = Direct::Refused;
                Ok(0)
            }
        }
    }

    /// By its descriptor, as it may have another name by now (proc_pid_fd(5)).
    fn opened(file: &File) -> Direct {
        if !is_without_copy(file) {
            return Direct::Refused;
        }
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        match File::options().write(true).custom_flags(libc::O_DIRECT).open(link) {
            Ok(file) => Direct::Opened(Opened::new(file)),
            Err(_) => Direct::Refused,
        }
    }
}

impl Opened {
    fn new(file: File) -> Opened {
        Opened { file, lag: Lag::unproved(), short: Lag::default() }
    }
}

/// The first of `pieces`, as far as each begins and ends with a page.
fn paged<'a>(pieces: &[&'a [u8]], offset: u64) -> Vec<IoSlice<'a>> {
    let mut paged = Vec::new();
    if !offset.is_multiple_of(PAGE as u64) {
        return paged;
    }
    for piece in pieces.iter().take(MOST_PIECES) {
        let pages = piece.len() - piece.len() % PAGE;
        if pages == 0 || !piece.as_ptr().addr().is_multiple_of(PAGE) {
            break;
        }
        paged.push(IoSlice::new(&piece[..pages]));
        if pages < piece.len() {
            break;
        }
    }
    paged
}

fn write_pages(file: &File, mut pieces: Vec<IoSlice<'_>>, mut offset: u64) -> io::Result<()> {
    let mut left = &mut pieces[..];
    while !left.is_empty() {
        // A file's length is an off_t.
        let at = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        // SAFETY: an IoSlice is an iovec (std promises it), [`MOST_PIECES`] are fewer than IOV_MAX, and they live through the call,
        // which only reads what they name.
        let written = unsafe { libc::pwritev(file.as_raw_fd(), left.as_ptr().cast(), left.len() as i32, at) };
        match usize::try_from(written) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                IoSlice::advance_slices(&mut left, written);
                offset += written as u64;
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Whether the filesystem is known to do as it says. Others open a file so, and copy the bytes nevertheless, and some wait for the
/// disk then (btrfs with checksums), or are at the other end of a network.
fn is_without_copy(file: &File) -> bool {
    is_local(file).unwrap_or(false) && alignment(file).is_ok_and(|bytes| (1..=PAGE).contains(&bytes))
}

fn is_local(file: &File) -> io::Result<bool> {
    let mut found = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open and there is room for one answer (fstatfs(2)).
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was answered.
    let found = unsafe { found.assume_init() };
    Ok([libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC].contains(&found.f_type))
}

/// What addresses, in memory and in the file, must be a multiple of; 0 where such a write is a copy, or where Linux is older than 6.1
/// (statx(2), STATX_DIOALIGN).
fn alignment(file: &File) -> io::Result<usize> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is empty and ends with a zero, the descriptor is open, and there is room for one answer.
    let result = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, found.as_mut_ptr())
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all of its fields are numbers, which were zero before it was answered.
    let found = unsafe { found.assume_init() };
    Ok(found.stx_dio_mem_align.max(found.stx_dio_offset_align) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::store::uncached::{Uncached, tests::pages_in_memory};
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    /// So many bytes, the first of which begins a page.
    fn in_pages(length: usize, memory: &mut Vec<u8>) -> &[u8] {
        memory.resize(PAGE + length, 0);
        let first = memory.as_ptr().align_offset(PAGE);
        (0..length).for_each(|at| memory[first + at] = (at / 251 + at) as u8);
        &memory[first..first + length]
    }

    fn is_opened(direct: &Direct) -> bool {
        matches!(direct, Direct::Opened(_))
    }

    #[test]
    fn the_disk_has_whole_pages_from_where_they_are_and_nothing_else() {
        let mut memory = Vec::new();
        let bytes = in_pages(64 * PAGE + 5, &mut memory);
        let file = tempfile::tempfile().unwrap();
        let can = is_without_copy(&file);
        let written = if can { 64 * PAGE } else { 0 };
        let mut direct = Direct::default();

        assert_eq!(direct.write(&file, &[&bytes[1..]], 0).unwrap(), 0, "memory");
        assert_eq!(direct.write(&file, &[bytes], 5).unwrap(), 0, "file");
        assert_eq!(direct.write(&file, &[&bytes[..5]], 0).unwrap(), 0, "less than a page");
        assert!(matches!(direct, Direct::Untried));
        assert_eq!(direct.write(&file, &[bytes], 4 * PAGE as u64).unwrap(), written);

        assert_eq!((is_opened(&direct), pages_in_memory(&file, 68)), (can, 0));
        let mut found = vec![0; written];
        file.read_exact_at(&mut found, 4 * PAGE as u64).unwrap();
        assert!(found == bytes[..written]);
    }

    #[test]
    fn pieces_that_begin_and_end_with_pages_are_written_in_one_and_the_rest_is_left() {
        let mut memory = Vec::new();
        let bytes = in_pages(9 * PAGE, &mut memory);
        let (two, one) = (&bytes[4 * PAGE..6 * PAGE], &bytes[..PAGE]);
        let (short, skewed) = (&bytes[PAGE..2 * PAGE + 9], &bytes[1..=PAGE]);
        let written =
            |pieces: &[&[u8]]| paged(pieces, PAGE as u64).iter().map(|piece| piece.len()).sum::<usize>() / PAGE;

        assert_eq!(written(&[two, one, two]), 5);
        assert_eq!(written(&[two, short, two]), 3, "its end does not lie well for what follows");
        assert_eq!(written(&[two, skewed, two]), 2);
        assert_eq!(written(&[skewed, two]), 0);
        assert_eq!(written(&[]), 0);
        assert_eq!(written(&vec![one; 2 * MOST_PIECES]), MOST_PIECES);
        assert!(paged(&[two], 1).is_empty());

        let file = tempfile::tempfile().unwrap();
        write_pages(&file, paged(&[two, one, short], PAGE as u64), PAGE as u64).unwrap();
        let mut found = vec![0; 4 * PAGE];
        file.read_exact_at(&mut found, PAGE as u64).unwrap();
        assert!(found == [two, one, &short[..PAGE]].concat());
    }

    /// The kernel writes what lies within a memory file that may not grow, and refuses the rest when it is asked again.
    #[test]
    fn what_is_written_in_part_goes_on_behind_that_part() {
        let mut memory = Vec::new();
        let bytes = in_pages(8 * PAGE, &mut memory);
        // SAFETY: the name ends with a zero, and nobody else has the descriptor.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING)) };
        file.set_len(6 * PAGE as u64).unwrap();
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_GROW) }, 0);
        let pieces = [&bytes[..PAGE], &bytes[PAGE..5 * PAGE], &bytes[5 * PAGE..]];

        let error = write_pages(&file, paged(&pieces, 0), 0).unwrap_err();

        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        let mut found = vec![0; 6 * PAGE];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == bytes[..6 * PAGE]);
    }

    #[test]
    fn what_a_reader_has_had_of_the_file_before_is_not_what_it_has_afterwards() {
        let mut memory = Vec::new();
        let bytes = in_pages(64 * PAGE, &mut memory);
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        let mut found = vec![1; bytes.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == vec![0; bytes.len()]);

        Uncached::default().write_all_at(&file, &[bytes], 0).unwrap();

        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == bytes);
    }

    #[test]
    fn memory_is_not_asked_to_be_a_disk() {
        let (mut memory, mut direct) = (Vec::new(), Direct::default());
        let file = tempfile::tempfile_in(Path::new("/dev/shm")).unwrap();
        assert_eq!(direct.write(&file, &[in_pages(4 * PAGE, &mut memory)], 0).unwrap(), 0);
        assert!(matches!(direct, Direct::Refused));
    }

    #[test]
    fn who_cannot_be_handed_bytes_is_not_asked_again() {
        let mut memory = Vec::new();
        // Any error but that there is no room.
        let mut direct = Direct::Opened(Opened::new(File::open("/proc/self/exe").unwrap()));
        let file = tempfile::tempfile().unwrap();
        assert_eq!(direct.write(&file, &[in_pages(4 * PAGE, &mut memory)], 0).unwrap(), 0);
        assert!(matches!(direct, Direct::Refused));
    }

    #[test]
    fn that_there_is_no_room_is_told_and_asked_again() {
        let mut memory = Vec::new();
        let mut direct = Direct::Opened(Opened::new(File::options().write(true).open("/dev/full").unwrap()));
        let file = tempfile::tempfile().unwrap();
        let error = direct.write(&file, &[in_pages(4 * PAGE, &mut memory)], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(is_opened(&direct));
    }
}
