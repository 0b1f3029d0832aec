//! The machine: what it gives beyond the standard library.

pub(crate) mod address_space;
pub(crate) mod allocator;
pub(crate) mod buffers;
pub(crate) mod descriptors;
pub mod error_chain;
pub mod free_space;
pub mod ino;
pub mod inode_set;
pub mod lmdb;
pub(crate) mod memory_budget;
pub mod milliseconds;
pub mod penalty_box;
pub(crate) mod scheduling;
pub mod single_flight;
pub mod text;
pub mod userinfo;
