//! Links between resources of the web, as HTTP and HTML write them.

pub mod header;
pub mod html;
