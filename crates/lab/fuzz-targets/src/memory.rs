//! How much memory does a call hold at most?

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has taken and not given back. Memory that another thread frees stays counted here.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, which also counts.
pub(crate) struct Counting;

/// The most bytes that were held at once during a call, beyond what was held before it.
pub(crate) fn peak(call: impl FnOnce()) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    call();
    usize::try_from(PEAK.get() - before).unwrap_or(0)
}

fn count(bytes: isize) {
    HELD.set(HELD.get() + bytes);
    PEAK.set(PEAK.get().max(HELD.get()));
}

#[expect(
    unsafe_code,
    reason = "an allocator is unsafe by its trait; every call goes on to the system's"
)]
// SAFETY: the system's allocator keeps the promises, and counting touches no memory that it gives out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_at_once_is_counted_and_what_was_given_back_is_not() {
        let held = peak(|| {
            for _ in 0..10 {
                drop(std::hint::black_box(vec![0u8; 1000]));
            }
            let mut grown = Vec::with_capacity(1000);
            grown.resize(3000, 0u8);
            std::hint::black_box(grown);
        });
        assert!((3000..6000).contains(&held), "{held}");
    }
}
