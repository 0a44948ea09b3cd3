#![allow(unsafe_code)]
//! Counts allocations, thread by thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static TRACED: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, which counts. A test installs it with `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

/// How many allocations this thread has made, if the program has the
/// [`CountingAllocator`]; growing one counts, too.
pub fn allocations() -> u64 {
    COUNT.get()
}

/// Runs something, and prints where it allocates for the first time, if it does. The
/// printing is not counted.
pub fn traced<T>(body: impl FnOnce() -> T) -> T {
    TRACED.set(true);
    let output = body();
    TRACED.set(false);
    output
}

fn count() {
    let counted = COUNT.get() + 1;
    COUNT.set(counted);
    // Taken back before the trace is made, which allocates.
    if TRACED.replace(false) {
        eprintln!("{}", std::backtrace::Backtrace::force_capture());
        COUNT.set(counted);
    }
}

// SAFETY: everything is the system allocator's; counting does not allocate, and the
// tracing that does is off by then.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: our caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }
}
