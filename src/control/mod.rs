//! The control socket of a running mount: HTTP + JSON over a Unix socket.
