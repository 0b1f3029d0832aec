//! The control socket of a running mount: HTTP and JSON over a Unix socket, so that `curl --unix-socket` works too.
//!
//! [`api`] lists the requests and their answers, [`server`] is the mount's side, [`client`] that of the commands. How the mount
//! answers is written in `mount::handlers`. The socket is in the mount's own folder of the cache; it answers root and the
//! user of the mount alone. At most 32 answers of many lines run at a time; one more is refused (503).

pub mod api;
mod client;
mod metrics;
mod reply;
mod server;
mod socket;
#[cfg(test)]
mod tests;

pub use client::{ControlError, call, call_lines, served_by};
pub use metrics::{Metrics, listening, serve_metrics};
pub use reply::{Lines, lines_of};
pub use server::{Answer, serve};
pub use socket::Socket;
