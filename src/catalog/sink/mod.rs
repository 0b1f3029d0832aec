//! Writing a tree: names that come, go, or stand for other content, in place or whole.

mod budget;
mod effects;
mod folder_times;
pub mod in_place;
pub mod rows;
pub mod transaction;
pub mod tree;
pub mod whole;
