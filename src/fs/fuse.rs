//! The adapter to fuser: decode, delegate, reply; nothing else.
//!
//! A FUSE thread answers what this machine knows. What must wait for the Source takes its reply along into a task, so
//! that no FUSE thread ever waits on the network. A handler that panics costs one EIO.
//!
//! The kernel refuses by itself (EROFS) what would change the tree, because the mount is read-only. It asks READDIR only where
//! READDIRPLUS is not offered. These and all other handlers that are not here have fuser's defaults.

use super::Filesystem;
use super::attributes::{Attributes, ShownInode};
use super::directory::Cookie;
use super::error::FsError;
use super::heartbeat::Heartbeat;
use super::invalidator::Notices;
use super::prefetch::Consumer;
use super::read::{ReadAnswer, ReadRequest};
use super::read_limit::MAX_BACKGROUND;
use super::statistics::BLOCK_SIZE;
use super::xattr::XattrReply;
use crate::platform::error_chain::chain;
use crate::platform::ino::Ino;
use fuser::{
    Errno, FileHandle, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyXattr, Request,
};
use futures_util::FutureExt;
use std::any::Any;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tracing::{Instrument, Level, trace_span};

/// Bytes of a READ at most. Kernels take up to 256 pages otherwise: 1 MiB where pages have 4 KiB, but 16 MiB where they have 64.
const MOST_READ: u32 = 1 << 20;

/// An inode number is never used twice, so it needs no generation.
const GENERATION: Generation = Generation(0);

/// A [`Filesystem`] as fuser calls it.
pub struct Adapter {
    fs: Arc<Filesystem>,
    notices: Notices,
    heartbeat: Arc<Heartbeat>,
    /// The kernel opens files and folders without asking once it knows that it may.
    opens_alone: bool,
}

impl Adapter {
    /// An adapter; FORGETs of orphans go to `notices`, and `heartbeat` shows whether the FUSE threads answer.
    pub fn new(fs: Arc<Filesystem>, notices: Notices, heartbeat: Arc<Heartbeat>) -> Adapter {
        Adapter { fs, notices, heartbeat, opens_alone: false }
    }

    /// Runs all of a handler. Where it panics its reply is dropped, which answers EIO, and the thread continues: fuser would end the
    /// mount. The heartbeat shows how long it takes.
    fn handle(&self, operation: &'static str, handler: impl FnOnce()) {
        let _busy = self.heartbeat.busy();
        contain(operation, handler);
    }

    /// Runs `operation` in the background and hands its result to `reply`, also where it panics.
    fn answer_later<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, FsError>> + Send + 'static,
        reply: impl FnOnce(Result<T, FsError>) + Send + 'static,
    ) {
        let task = async move {
            let result = AssertUnwindSafe(operation).catch_unwind().await;
            reply(result.unwrap_or_else(|panic| Err(FsError::Panic(panic_text(&*panic)))));
        };
        self.fs.runtime.spawn(task.in_current_span());
    }

    /// READ: at once what is in memory, all else in the background.
    fn begin_to_read(&self, read: ReadRequest, reply: ReplyData) {
        let ReadRequest { ino, offset, thread, .. } = read;
        let program = self.fs.programs.of(thread);
        let later = match self.fs.read(read) {
            Ok(ReadAnswer::Later(later)) => later,
            Ok(ReadAnswer::Bytes(bytes)) => {
                self.fs.programs.read(&program, bytes.len());
                reply.data(&bytes);
                if offset == 0 {
                    self.fs.note_local_hit(Consumer::Bytes, ino, thread);
                }
                return;
            }
            Err(error) => return reply.error(error.errno()),
        };
        let counting = Arc::clone(&self.fs);
        self.answer_later(later, move |result| match result {
            Ok(bytes) => {
                counting.programs.read(&program, bytes.len());
                reply.data(&bytes);
            }
            Err(error) => {
                if matches!(error, FsError::Denied(_)) {
                    counting.programs.refused(&program);
                }
                reply.error(failed("read", INodeNo(ino.0), &error));
            }
        });
    }

    /// The kernel remembers ENOSYS: it then opens without asking and keeps its pages, because an inode's bytes never change. A
    /// kernel that cannot do so keeps its pages by the flags of each open.
    fn open_alone(&self, reply: ReplyOpen, keep: FopenFlags) {
        if self.opens_alone {
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), keep);
        }
    }
}

/// Runs `handler`; a panic is an error in the log.
fn contain(operation: &'static str, handler: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(handler)) {
        tracing::error!("{operation}: the handler panicked: {}", panic_text(&*panic));
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "no message".to_owned(),
    }
}

/// Logs a failed operation and answers its errno.
fn failed(operation: &'static str, ino: INodeNo, error: &FsError) -> Errno {
    let uri = error.uri().map(tracing::field::display);
    match error.level() {
        Level::ERROR => tracing::error!(ino = ino.0, uri, "{operation}: {}", chain(error)),
        Level::WARN => tracing::warn!(ino = ino.0, uri, "{operation}: {}", chain(error)),
        _ => tracing::debug!(ino = ino.0, uri, "{operation}: {}", chain(error)),
    }
    error.errno()
}

fn reply_attributes(reply: ReplyAttr, ino: INodeNo, result: Result<ShownInode, FsError>) {
    match result {
        Ok(shown) => reply.attr(&shown.attributes_ttl, &shown.attributes),
        Err(error) => reply.error(failed("getattr", ino, &error)),
    }
}

fn reply_xattr(operation: &'static str, reply: ReplyXattr, ino: INodeNo, result: Result<XattrReply, FsError>) {
    match result {
        Ok(XattrReply::Size(size)) => reply.size(size),
        Ok(XattrReply::Value(value)) => reply.data(&value),
        Err(error) => reply.error(failed(operation, ino, &error)),
    }
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        // Not READDIRPLUS_AUTO: it ends after the first buffer for programs that read all names before they stat one.
        for wanted in
            [InitFlags::FUSE_DO_READDIRPLUS, InitFlags::FUSE_PARALLEL_DIROPS, InitFlags::FUSE_NO_EXPORT_SUPPORT]
        {
            if config.add_capabilities(wanted).is_err() {
                tracing::debug!("this kernel has no {wanted:?}");
            }
        }
        self.opens_alone = offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT | InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        // Refused only for 0. fuser derives the pages of a READ from that of a WRITE.
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_max_write(MOST_READ);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _span = trace_span!("lookup", parent = parent.0, ?name).entered();
        self.handle("lookup", || match self.fs.lookup(Ino(parent.0), name.as_bytes()) {
            Ok(Some(shown)) => {
                reply.entry_with_ttls(&shown.attributes_ttl, &shown.entry_ttl, &shown.attributes, GENERATION);
                if !shown.attributes_ttl.is_zero() {
                    self.fs.note_local_hit(Consumer::Sizes, shown.ino(), req.pid());
                }
            }
            Ok(None) => {
                tracing::debug!(parent = parent.0, ?name, "no such name");
                reply.entry(&self.fs.options.negative_ttl, &self.fs.no_attributes(), GENERATION);
            }
            Err(error) => reply.error(failed("lookup", parent, &error)),
        });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, _nlookup: u64) {
        self.handle("forget", || self.notices.forgotten(Ino(ino.0)));
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let _span = trace_span!("getattr", ino = ino.0).entered();
        self.handle("getattr", || match self.fs.attributes(Ino(ino.0), req.pid()) {
            Ok(Attributes::Known(shown)) => reply_attributes(reply, ino, Ok(shown)),
            Ok(Attributes::Unsized(file)) => {
                let (fs, counting, thread) = (Arc::clone(&self.fs), Arc::clone(&self.fs), req.pid());
                self.answer_later(async move { fs.sized(&file).await }, move |result| {
                    if matches!(result, Err(FsError::Denied(_))) {
                        counting.programs.refused(&counting.programs.of(thread));
                    }
                    reply_attributes(reply, ino, result);
                });
            }
            Err(error) => reply_attributes(reply, ino, Err(error)),
        });
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.open_alone(reply, FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.open_alone(reply, FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _span = trace_span!("read", ino = ino.0, offset, size).entered();
        self.handle("read", || {
            let is_direct = flags.0 & libc::O_DIRECT != 0;
            let ino = Ino(ino.0);
            self.begin_to_read(ReadRequest { ino, offset, length: size, thread: req.pid(), is_direct }, reply);
        });
    }

    fn readdirplus(&self, req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let _span = trace_span!("readdirplus", ino = ino.0, offset).entered();
        self.handle("readdirplus", || {
            if offset == 0 {
                self.fs.begins_to_list(Ino(ino.0), req.pid());
            }
            let read = self.fs.read_folder(Ino(ino.0), Cookie(offset), &mut |entry| {
                let shown = self.fs.shown(&entry.node);
                let name = OsStr::from_bytes(entry.name);
                let ttl = shown.common_ttl();
                !reply.add(INodeNo(entry.node.ino.0), entry.cookie.0, name, &ttl, &shown.attributes, GENERATION)
            });
            match read {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(failed("readdirplus", ino, &error)),
            }
        });
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let _span = trace_span!("statfs").entered();
        self.handle("statfs", || match self.fs.statistics() {
            Ok((blocks, files)) => reply.statfs(blocks, 0, 0, files, 0, BLOCK_SIZE, super::NAME_MAX as u32, BLOCK_SIZE),
            Err(error) => reply.error(failed("statfs", ino, &error)),
        });
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _span = trace_span!("getxattr", ino = ino.0, ?name, size).entered();
        self.handle("getxattr", || {
            if !self.fs.is_xattr_on_disk(name.as_bytes()) {
                return reply_xattr("getxattr", reply, ino, self.fs.xattr(Ino(ino.0), name.as_bytes(), size));
            }
            let (fs, name) = (Arc::clone(&self.fs), name.to_owned());
            let value = self.fs.runtime.spawn_blocking(move || fs.xattr(Ino(ino.0), name.as_bytes(), size));
            let value = async move { value.await.unwrap_or_else(|broken| Err(FsError::Panic(broken.to_string()))) };
            self.answer_later(value, move |result| reply_xattr("getxattr", reply, ino, result));
        });
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _span = trace_span!("listxattr", ino = ino.0, size).entered();
        self.handle("listxattr", || reply_xattr("listxattr", reply, ino, self.fs.xattr_names(Ino(ino.0), size)));
    }

    // The kernel remembers this answer to FLUSH and LSEEK, and not to IOCTL, which Python sends at each open.

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _offset: i64, _whence: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _input: &[u8],
        _output_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply that is dropped answers EIO.
    struct Reply<'r>(&'r std::cell::Cell<u32>);

    impl Drop for Reply<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    /// Promise: a handler that panics costs one EIO, wherever in it that is, and not the mount.
    #[test]
    fn a_panic_costs_one_reply_and_not_the_thread() {
        let dropped = std::cell::Cell::new(0);
        for message in [Some("formatted"), None] {
            let reply = Reply(&dropped);
            contain("read", move || {
                let _reply = reply;
                match message {
                    Some(message) => std::panic::panic_any(message.to_owned()),
                    None => panic!("plain"),
                }
            });
        }
        assert_eq!(dropped.get(), 2);
        contain("read", || drop(Reply(&dropped)));
        assert_eq!(dropped.get(), 3);
    }

    /// All that a handler does is in `handle`: what was outside of it would end the mount where it panics.
    #[test]
    fn every_handler_is_contained_as_a_whole() {
        let source = include_str!("fuse.rs");
        let handlers = source.split("impl fuser::Filesystem for Adapter").nth(1).unwrap();
        let handlers = handlers.split("#[cfg(test)]").next().unwrap();
        for handler in handlers.split("\n    fn ").skip(1) {
            let (name, body) = handler.split_once('(').unwrap();
            let (_, body) = body.split_once(") {").or_else(|| body.split_once("{")).unwrap();
            let lines: Vec<_> = body.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            let contained = lines.iter().position(|line| line.starts_with("self.handle(")).unwrap_or(lines.len());
            let is_simple = |line: &&str| {
                ["let _span =", "reply.error(Errno::", "self.open_alone(", "}", "//"]
                    .iter()
                    .any(|it| line.starts_with(it))
            };
            assert!(name == "init" || lines[..contained].iter().all(is_simple), "{name}: {lines:?}");
        }
    }
}
