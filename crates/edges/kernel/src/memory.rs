//! How does memory that a large sync needed go back to the system?
//!
//! A first sync in a large cluster touches far more memory than the state it leaves behind, and the C
//! library's allocator would keep it: it makes an arena for every thread, returns only the main one's, and
//! raises its thresholds when large blocks come and go.

/// The largest free end of the heap that is kept for later.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: i32 = 1 << 20;

/// Makes the allocator return memory rather than keep it. For the start of a program, before it has
/// threads; the programs here allocate little while they work, so one arena is enough for all threads.
pub fn prefer_small() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "mallopt(3) is a foreign function")]
    // SAFETY: it takes two integers and only changes settings of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_BYTES);
    }
}

/// Gives unused heap memory back to the system. Worth a call after a full sync, not after every change: it
/// walks the heap.
pub fn return_unused() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "malloc_trim(3) is a foreign function")]
    // SAFETY: it takes no pointers and may be called at any time by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
