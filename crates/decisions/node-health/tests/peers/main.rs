//! What holds for nodes that others do not reach, whatever happens in which order?

mod interleavings;
mod laws;
mod silence;
mod world;
