//! Where do families come from when a registry is read?

use crate::text::Encoder;

/// Something that writes families when asked: a metric, or a closure over state that is cheaper to
/// read on demand than to keep counted.
pub trait Collector: Send + Sync {
    /// Writes the current state.
    fn collect(&self, encoder: &mut Encoder);
}

impl<F: Fn(&mut Encoder) + Send + Sync> Collector for F {
    fn collect(&self, encoder: &mut Encoder) {
        self(encoder);
    }
}
