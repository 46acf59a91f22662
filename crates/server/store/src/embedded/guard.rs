//! How does a panic of the database become an error?
//!
//! redb reports most of the damage to a file as such, and stumbles over some of it. An operator should read which file
//! is damaged, and not a backtrace.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Runs work whose panics are errors, and says what the panic said. What the work touched must not be used afterwards.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !EXPECTED.get() {
                before(panic);
            }
        }));
    });
    let nested = EXPECTED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    EXPECTED.set(nested);
    outcome.map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "it does not say why".into())
}
