//! How does memory that a large sync needed go back to the system?

/// Gives unused heap memory back to the system.
///
/// A first sync in a large cluster touches far more memory than the state it leaves behind; the allocator
/// would keep it for ever. Worth a call after a full sync, not after every change: it walks the heap.
pub fn return_unused() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "malloc_trim(3) is a foreign function")]
    // SAFETY: it takes no pointers and may be called at any time by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
