//! READ: bytes of one version, whole or not at all.

use super::Filesystem;
use super::error::FsError;
use super::fetch_spec::wanted;
use super::prefetch::{Consumer, Reader};
use super::readers::is_gone;
use crate::catalog::{Kind, Node};
use crate::content::{FetchSpec, LocalRead};
use crate::source::http::Requester;
use bytes::Bytes;
use fuser::INodeNo;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Between two looks for a program whose READ waits.
const LOOK: Duration = Duration::from_secs(1);

impl Filesystem {
    /// READ from the memory of this machine alone: `length` bytes at `offset`, fewer only at the end of the file. For all else:
    /// [`Filesystem::read`].
    pub fn read_in_memory(&self, ino: INodeNo, offset: u64, length: u32) -> LocalRead {
        self.content.read_in_memory(ino, offset, length)
    }

    /// READ by `thread` (0: unknown) of bytes that are not in memory: from the disk of this machine where it has them, else from
    /// the Source unless that is denied.
    pub async fn read(
        &self,
        ino: INodeNo,
        offset: u64,
        length: u32,
        thread: u32,
        is_on_disk: bool,
    ) -> Result<Bytes, FsError> {
        if is_on_disk {
            if let Some(bytes) = self.read_on_disk(ino, offset, length).await {
                if offset == 0 {
                    self.was_here(Consumer::Bytes, ino, thread);
                }
                return Ok(bytes);
            }
        }
        let (node, wanted) = self.readable(ino)?;
        let bytes = match self.denial(thread) {
            None => self.fetch(&node, wanted, offset, length, thread).await?,
            Some(denial) => self.content.read_present(&wanted, offset, length).await.ok_or(denial)?,
        };
        match node.size.or_else(|| self.content.known_size(ino)) {
            Some(size) => whole(ino, size, offset, length, bytes),
            None => Ok(bytes),
        }
    }

    /// While the FUSE threads answer others. `None`: the bytes are damaged.
    pub(super) async fn read_on_disk(&self, ino: INodeNo, offset: u64, length: u32) -> Option<Bytes> {
        let content = Arc::clone(&self.content);
        let read = self.runtime.spawn_blocking(move || content.read_local(ino, offset, length));
        read.await.ok().flatten()
    }

    /// This machine had the first bytes of a file, or its learnt size, for `thread`: what follows may have to be fetched now.
    pub fn was_here(&self, consumer: Consumer, ino: INodeNo, thread: u32) {
        if self.prefetch.has_walks() && self.denial(thread).is_none() {
            self.prefetch.read((consumer, ino), self.reader(thread), None, true);
        }
    }

    /// Waits while the download makes progress. Content answers a repeated READ of a failed block at once.
    async fn fetch(
        &self,
        node: &Node,
        mut wanted: FetchSpec,
        offset: u64,
        length: u32,
        thread: u32,
    ) -> Result<Bytes, FsError> {
        let reader = self.reader(thread);
        wanted.requester = Requester(reader.process);
        let mut bytes = pin!(self.content.read(&wanted, offset, length));
        // Begun before anything is fetched ahead: an open connection is for the reader that waits.
        let begun = poll_fn(|context| Poll::Ready(bytes.as_mut().poll(context))).await;
        if offset == 0 {
            let size = node.size.or_else(|| self.content.known_size(node.ino));
            self.prefetch.read((Consumer::Bytes, node.ino), reader, size, false);
        }
        match begun {
            Poll::Ready(bytes) => Ok(bytes?),
            Poll::Pending => tokio::select! {
                bytes = &mut bytes => Ok(bytes?),
                () = gone(reader.process) => Err(FsError::Left(node.ino)),
            },
        }
    }

    pub(super) fn reader(&self, thread: u32) -> Reader {
        Reader { thread, process: self.programs.process(thread) }
    }

    /// The file behind an inode, and what content must know of it.
    fn readable(&self, ino: INodeNo) -> Result<(Node, FetchSpec), FsError> {
        let snapshot = self.catalog.snapshot()?;
        let node = snapshot.attributes(ino)?.ok_or(FsError::Gone(ino))?;
        if node.kind == Kind::Folder {
            return Err(FsError::IsAFolder(ino));
        }
        let node = self.viewed(&snapshot, node)?;
        Ok((node, wanted(&snapshot, ino, &self.options)?.ok_or(FsError::Gone(ino))?))
    }
}

/// Waits until a process has ended. The kernel leaves the READs of one that is killed with us, and each would keep its download going.
async fn gone(process: u32) {
    while !is_gone(process) {
        tokio::time::sleep(LOOK).await;
    }
}

/// `bytes` if they are all that a file of `size` bytes has there. The kernel takes a short answer for the end of the
/// file and shrinks `st_size` for all readers.
fn whole(ino: INodeNo, size: u64, offset: u64, length: u32, bytes: Bytes) -> Result<Bytes, FsError> {
    let wanted = size.saturating_sub(offset).min(u64::from(length));
    let got = bytes.len() as u64;
    if got == wanted { Ok(bytes) } else { Err(FsError::Short { ino, offset, wanted, got }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_is_gone_when_it_has_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        for running in [0, std::process::id(), child.id()] {
            assert!(tokio::time::timeout(Duration::from_millis(5), gone(running)).await.is_err(), "{running}");
        }

        child.kill().unwrap();
        child.wait().unwrap();

        tokio::time::timeout(Duration::from_secs(60), gone(child.id())).await.unwrap();
    }

    /// Promise: what a read returns is what the Source published, or the read fails; never a short read without an error.
    #[test]
    fn a_short_answer_is_an_error_but_at_the_end_of_the_file() {
        let ino = INodeNo(3);
        let bytes = |n: usize| Bytes::from(vec![0; n]);
        assert_eq!(whole(ino, 10, 0, 4, bytes(4)).unwrap().len(), 4);
        assert_eq!(whole(ino, 10, 8, 4, bytes(2)).unwrap().len(), 2);
        assert_eq!(whole(ino, 10, 12, 4, bytes(0)).unwrap().len(), 0);
        assert!(matches!(whole(ino, 10, 0, 4, bytes(3)), Err(FsError::Short { wanted: 4, got: 3, .. })));
        assert!(matches!(whole(ino, 10, 8, 4, bytes(3)), Err(FsError::Short { wanted: 2, got: 3, .. })));
    }
}
