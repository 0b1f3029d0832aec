//! What the machine gives, and what the standard library lacks of it.

pub(crate) mod address_space;
pub(crate) mod allocator;
pub(crate) mod buffers;
pub(crate) mod descriptors;
pub mod error_chain;
pub mod free_space;
pub mod inode_set;
pub mod lmdb;
pub(crate) mod memory_budget;
pub(crate) mod scheduling;
pub mod text;
pub mod units;
pub mod userinfo;
