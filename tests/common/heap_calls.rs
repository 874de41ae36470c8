//! A heap whose calls are counted by thread. For suites that take it as theirs; apart from `mod.rs`, which
//! all take.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's heap, counted by thread.
struct Counted;

thread_local! {
    static HEAP_CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending counts no more.
    let _ = HEAP_CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call goes to the system's heap as it came.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count();
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static HEAP: Counted = Counted;

/// Calls of the heap that this thread has made.
pub fn heap_calls() -> u64 {
    HEAP_CALLS.with(Cell::get)
}

#[test]
fn the_heap_is_counted() {
    let before = heap_calls();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(heap_calls() - before, 2);
}
