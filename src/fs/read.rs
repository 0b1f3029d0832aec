//! READ: bytes of one version, whole or not at all.

use super::Filesystem;
use super::error::FsError;
use super::fetch_spec::fetch_spec;
use super::prefetch::{Consumer, Reader};
use super::read_limit::WaitingRead;
use super::readers::is_gone;
use crate::catalog::{Kind, Node};
use crate::content::{FetchSpec, LocalRead};
use crate::platform::ino::Ino;
use crate::source::http::Requester;
use bytes::Bytes;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Between two looks for a program whose READ waits.
const LOOK: Duration = Duration::from_secs(1);

/// One READ.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
    /// The file.
    pub ino: Ino,
    /// Its first byte.
    pub offset: u64,
    /// Bytes, fewer only at the end of the file.
    pub length: u32,
    /// The thread that reads; 0: unknown.
    pub thread: u32,
    /// True if it goes past the page cache (`O_DIRECT`): nothing of it is read ahead.
    pub is_direct: bool,
}

/// The answer to a READ.
pub enum ReadAnswer {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes of the disk, or of the Source: for a task.
    Later(Pin<Box<dyn Future<Output = Result<Bytes, FsError>> + Send>>),
}

impl Filesystem {
    /// READ: the bytes where memory has them, else a future that waits for the disk or for the Source. An error: the READ is refused at once.
    pub fn read(self: &Arc<Self>, read: ReadRequest) -> Result<ReadAnswer, FsError> {
        let ReadRequest { ino, offset, length, .. } = read;
        if offset == 0 {
            self.opened(ino);
        }
        let fs = Arc::clone(self);
        let later: Pin<Box<dyn Future<Output = _> + Send>> = match self.content.read_in_memory(ino, offset, length) {
            LocalRead::Bytes(bytes) => return Ok(ReadAnswer::Bytes(bytes)),
            LocalRead::OnDisk => Box::pin(async move { fs.read_disk(read).await }),
            LocalRead::Absent => {
                let waits = self.begin_wait(read)?;
                Box::pin(async move {
                    let _waits = waits;
                    fs.read_source(read).await
                })
            }
        };
        Ok(ReadAnswer::Later(later))
    }

    /// Reads on a blocking thread. Bytes that turn out damaged come from the Source.
    async fn read_disk(&self, read: ReadRequest) -> Result<Bytes, FsError> {
        let ReadRequest { ino, offset, length, thread, .. } = read;
        let content = Arc::clone(&self.content);
        let bytes = self.runtime.spawn_blocking(move || content.read_local(ino, offset, length)).await.ok().flatten();
        let Some(bytes) = bytes else {
            let _waits = self.begin_wait(read)?;
            return self.read_source(read).await;
        };
        if offset == 0 {
            self.note_local_hit(Consumer::Bytes, ino, thread);
        }
        Ok(bytes)
    }

    /// A READ begins to wait for the Source, within the read limit of its file.
    fn begin_wait(&self, read: ReadRequest) -> Result<Option<WaitingRead>, FsError> {
        let waits = self.read_limit.begin(read.ino, read.offset, read.length);
        if waits.is_none() && !read.is_direct { Err(FsError::TooFarAhead(read.ino)) } else { Ok(waits) }
    }

    /// Reads from the Source, unless that is denied.
    async fn read_source(&self, read: ReadRequest) -> Result<Bytes, FsError> {
        let ReadRequest { ino, offset, length, .. } = read;
        let (node, spec) = self.readable(ino)?;
        let bytes = match self.denial(read.thread) {
            None => self.fetch(&node, &spec, read).await?,
            Some(denial) => self.content.read_present(&spec, offset, length).await.ok_or(denial)?,
        };
        match node.size.or_else(|| self.content.known_size(ino)) {
            Some(size) => whole(ino, size, offset, length, bytes),
            None => Ok(bytes),
        }
    }

    /// This machine had the first bytes of a file, or its learnt size, for `thread`: what follows may have to be fetched now.
    pub fn note_local_hit(&self, consumer: Consumer, ino: Ino, thread: u32) {
        if self.prefetch.has_walks() && self.denial(thread).is_none() {
            self.prefetch.read((consumer, ino), self.reader(thread), None, true);
        }
    }

    /// Waits while the download makes progress. Content answers a repeated READ of a failed block at once.
    async fn fetch(&self, node: &Node, spec: &FetchSpec, read: ReadRequest) -> Result<Bytes, FsError> {
        let reader = self.reader(read.thread);
        let mut bytes = pin!(self.content.read(spec, Requester(reader.process), read.offset, read.length));
        // Begun before anything is fetched ahead: an open connection is for the reader that waits.
        let begun = poll_fn(|context| Poll::Ready(bytes.as_mut().poll(context))).await;
        if read.offset == 0 {
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
    fn readable(&self, ino: Ino) -> Result<(Node, FetchSpec), FsError> {
        let snapshot = self.catalog.snapshot()?;
        let node = snapshot.attributes(ino)?.ok_or(FsError::Gone(ino))?;
        if node.kind == Kind::Folder {
            return Err(FsError::IsAFolder(ino));
        }
        let node = self.viewed(&snapshot, node)?;
        Ok((node, fetch_spec(&snapshot, ino, &self.options)?.ok_or(FsError::Gone(ino))?))
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
fn whole(ino: Ino, size: u64, offset: u64, length: u32, bytes: Bytes) -> Result<Bytes, FsError> {
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
        let ino = Ino(3);
        let bytes = |n: usize| Bytes::from(vec![0; n]);
        assert_eq!(whole(ino, 10, 0, 4, bytes(4)).unwrap().len(), 4);
        assert_eq!(whole(ino, 10, 8, 4, bytes(2)).unwrap().len(), 2);
        assert_eq!(whole(ino, 10, 12, 4, bytes(0)).unwrap().len(), 0);
        assert!(matches!(whole(ino, 10, 0, 4, bytes(3)), Err(FsError::Short { wanted: 4, got: 3, .. })));
        assert!(matches!(whole(ino, 10, 8, 4, bytes(3)), Err(FsError::Short { wanted: 2, got: 3, .. })));
    }
}
