//! resyncfs mounts a ResourceSync Source (ANSI/NISO Z39.99) or any sitemap as a read-only folder.
//!
//! This page is a tour of the code: three flows, each with one real example, then the words, then the map. What users are
//! promised is in README.md and in `scripts/manual`; `tests/readme.rs` lists which test holds which promise.
//!
//! # Flow 1: what exists
//!
//! `resyncfs mount https://repo.example.org/ /mnt/repo`, and the Source's Resource List has the entry
//! `https://repo.example.org/letters/1851%20Feb.txt`. How does it become the file `letters/1851 Feb.txt`?
//!
//! 1. `cli/` turns arguments into a configuration and calls `mount/lifecycle.rs`, which opens the catalog, the content store and the
//!    HTTP client, and asks `sync/refresh.rs` for a first refresh. That file reads top to bottom: discover, fetch, order, commit.
//! 2. `source/discovery/mod.rs` finds the sets behind the address: `/.well-known/resourcesync`, links, robots.txt, a sitemap.
//! 3. `source/crawl/mod.rs` requests the lists of each set and follows their indexes. Each document stays on disk with its
//!    validators.
//! 4. `sync/fetch/list_parser.rs` has the lists read entry by entry (`document/reader/mod.rs`). Ours is an `Entry`: address, length,
//!    hash, time, links. The selection decides whether it is mounted.
//! 5. `catalog/fact.rs` makes the entry a fact: a row about its path, which follows from its address. Facts are sorted on disk by
//!    depth and path.
//! 6. `catalog/join.rs` walks the sorted facts next to the revision that is shown. `catalog/group.rs` brings the facts of one path
//!    together and gives it its name, `catalog/edit.rs` keeps what differs, and `sync/deletion_guard.rs` decides which deletions
//!    are held back.
//! 7. A first tree is written whole (`catalog/sink/whole.rs`). One commit to LMDB has the revision and the position of the
//!    synchronizer.
//! 8. Only now the folder is mounted. It appears with the whole tree.
//!
//! # Flow 2: what is read
//!
//! `cat "/mnt/repo/letters/1851 Feb.txt"`. The bytes are not here yet.
//!
//! 1. The kernel sends LOOKUP for both names. `fs/fuse.rs` decodes each request, `fs/attributes.rs` answers it from a
//!    `Snapshot` of the catalog. No network is needed.
//! 2. The kernel sends READ. `fs/read.rs` answers at once what memory has (`content/local.rs`). Here the bytes are to be fetched, so the
//!    FUSE thread hands the reply to a task of the runtime, which waits.
//! 3. That task collects what is published of this version (`fs/fetch_spec.rs`): address, mirrors, packages, mementos, length, digests.
//!    The result is a `FetchSpec`.
//! 4. `content/download/mod.rs` joins the download of this inode in the table of downloads, or starts one. Each download has a
//!    task (`content/download/attempts.rs`), which tries the places in the order of its plan.
//! 5. `source/http/exchange.rs` sends the request when the host has a permit for it. The limiter (`source/http/limiter/mod.rs`) decides
//!    who is next: readers, then prefetches.
//! 6. `content/download/stream.rs` receives the body as far as readers want it. Its blocks go to the block map of this attempt
//!    (`content/blocks/mod.rs`), and a blocking thread hashes them in order. A body of 32 MiB and more from a distant host comes in
//!    parallel ranges, and a reader far from it gets small ranges (`content/download/extent.rs`): all of them write to the same map.
//! 7. Our reader waits for the verdict (`content/download/verify.rs`), and reads the object, which was renamed to its final name. A reader
//!    of a file above 16 MiB gets its blocks as soon as they are in the map and may be handed out (`content/trust.rs`): all but the last
//!    128 to 256 KiB before the verdict.
//! 8. The reply goes out. Every error of the filesystem becomes an errno in `fs/error.rs`. Meanwhile the prefetch may notice that
//!    `cat` or `grep` walks through the folder, and downloads what comes next.
//!
//! # Flow 3: what has changed
//!
//! The Source publishes a Change List in which `letters/1851%20Feb.txt` is `updated`. A program has the old version open.
//!
//! 1. The Change List is due, or a hub has delivered a notification: the poller starts a refresh of what is due, or of what was
//!    announced (`sync/refresh.rs`).
//! 2. `sync/fetch/change_docs.rs` requests the document conditionally; one with the same bytes is not read again. Else
//!    `sync/changes/reading.rs` takes it entry by entry. Entries of the last look are passed over. Each other one that has a time is
//!    compared with the journal, and all of them go into a sort by resource.
//! 3. `sync/changes/mod.rs` decides whether a change may be missing. If so, archives are read, and where these leave a gap the
//!    lists, as in flow 1. `sync/changes/frame.rs` gives each change its time, and `sync/changes/judge.rs` keeps the last change of each
//!    resource, in order of time.
//! 4. The refresh commits the new changes in batches; the selection leaves some out. From here on a change takes the road of a list's
//!    entry. `catalog/commit.rs` drops it if the journal or the list of its set is later. Else it becomes a fact, next to facts for what
//!    the tree has at its path. `catalog/group.rs` unites the statements of each address: the latest wins. `catalog/edit.rs` finds what
//!    differs, and asks `catalog/version.rs` whether the content has changed. The guard judges what the commit would take away.
//!    `catalog/sink/in_place.rs` writes the rest: only the paths that changes name, and the folders above them. With very many changes
//!    the whole tree is written, as in flow 1.
//! 5. Where the content has changed, the path gets a new inode, and the old one becomes an orphan. Its object is pinned before the commit,
//!    until the invalidator finds that the kernel does not know it: an open file keeps the bytes that are here. The journal remembers the
//!    change in the same commit, so that an older list cannot undo it.
//! 6. After the commit the invalidator (`fs/invalidator/mod.rs`), which runs in a separate thread, makes the kernel drop the name. The
//!    next `open` sees the new version.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | Source | the site that publishes, by its lists |
//! | set | one collection of a Source: a Capability List with its documents |
//! | list | a Resource List, a sitemap, or the manifest of a dump: what exists |
//! | Change List | what was created, updated and deleted, and when |
//! | entry | one `<url>` of a list: address and metadata of a resource |
//! | landing page | a web page whose typed links say which files belong to it (`sync/items/mod.rs`) |
//! | item | a file or a metadata record that a landing page links to |
//! | refresh | one check of all documents, of those that are due, or of those that were announced, with its commits |
//! | baseline | a refresh by the complete lists; the other kind is incremental, by changes |
//! | position | up to which document and time a set was read; part of each commit |
//! | revision | one state of the whole tree, shown whole or not at all |
//! | version | one content of a resource; it never changes, and has its own inode |
//! | orphan | an inode without a name, kept while the kernel may have it open |
//! | held back | a deletion that the guard does not apply until a person confirms it |
//! | statement | what a set's list, or a change in a set, says of one resource: the latest counts |
//! | fact | one row that states something about a path: an entry of a list, a change, a held deletion |
//! | journal | the last change of each resource, kept until its set's list speaks for a later time |
//! | gap | changes that may be missing, until a newer list covers them |
//! | object | the bytes of one version, in the cache folder or in memory |
//! | partial | an object that is being written |
//! | block | 128 KiB of a version, the unit in which bytes are kept and handed out |
//! | attempt | one try of a download to bring a version; its blocks go into one map |
//! | extent | blocks far from the body that are fetched for a reader |
//! | verdict | whether a complete object is what was published |
//! | poisoned | bytes were handed out that a verdict found wrong; every reader gets an error |
//! | place | one origin of a version's bytes: address, mirror, package member, memento, shared cache, patches |
//! | priority | reader, prefetch or background: who is sent first |
//! | deviation | a breach of the standard in a document that is read all the same |
//!
//! # Map
//!
//! A module names only modules to its right, and no files name each other in a circle (`tests/layers.rs`):
//! `main > cli > mount > {control | fs | sync} > {catalog | content} > source > document > platform`.
//!
//! | folder | what is there |
//! |---|---|
//! | `cli/` | commands, options, what is printed, exit codes |
//! | `mount/` | one running mount: what starts and stops in which order, and how other processes find it |
//! | `control/` | the Unix socket by which commands speak to a running mount |
//! | `fs/` | the filesystem: requests of the kernel answered, the kernel notified, reading ahead |
//! | `sync/` | keeping in step with the Source; the only room that changes the tree |
//! | `catalog/` | which names exist: from address to path, the tree on disk, revisions |
//! | `content/` | the bytes: cache, downloads, verification |
//! | `source/` | the network: discovery, crawling, HTTP and its limiter, packages, notifications |
//! | `document/` | the values of the documents and the reader that makes them; no I/O |
//! | `platform/` | what the machine gives: LMDB, free space, memory, scheduling |

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]

pub mod catalog;
pub mod cli;
pub mod content;
pub mod control;
pub mod document;
pub mod fs;
pub mod mount;
pub mod platform;
pub mod source;
pub mod sync;
