//! How many bytes does what a test makes take?
//!
//! For tests of their own: everything that the process allocates counts, whichever thread does it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what is allocated, as the C library rounds it up. To be a test's `#[global_allocator]`.
pub struct Heap {
    held: AtomicUsize,
}

impl Heap {
    #[expect(
        clippy::new_without_default,
        reason = "a static is made by a constant function"
    )]
    pub const fn new() -> Self {
        Self {
            held: AtomicUsize::new(0),
        }
    }

    /// The bytes that are allocated now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

fn block(size: usize) -> usize {
    (size + 8).next_multiple_of(16).max(32)
}

#[expect(unsafe_code, reason = "allocators are an unsafe trait")]
// SAFETY: everything is left to the system's allocator; only sizes are added up beside it.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.held.fetch_add(block(layout.size()), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.held.fetch_sub(block(layout.size()), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}
