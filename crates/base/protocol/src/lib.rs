//! What do roles say to each other besides the Kubernetes API?
//!
//! One module per message, with its encoder, its decoder and the laws that they agree side by side.
//! README.md says who says each of them to whom, on which listener, and why it is not an object of the
//! Kubernetes API. Nothing here opens a socket: listeners and clients are in the edges.

pub mod clock;
pub mod gate;
pub mod peers;
pub mod relay;
pub mod settings;
pub mod watermark;
