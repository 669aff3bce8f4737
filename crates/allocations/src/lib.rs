//! A counting allocator, for tests that assert that code allocates nothing. It is active in every
//! program that links this crate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: the system's allocator does all the work; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, base: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(base, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of allocations of this thread so far.
#[must_use]
pub fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::allocations;

    #[test]
    fn what_a_thread_allocates_is_counted_and_what_another_does_is_not() {
        let before = allocations();
        drop(black_box(Box::new(1)));
        assert_eq!(allocations(), before + 1);
        let there = std::thread::spawn(|| {
            let before = allocations();
            drop(black_box(vec![1, 2]));
            allocations() - before
        });
        let between = allocations();
        assert_eq!(there.join().ok(), Some(1));
        assert_eq!(allocations(), between);
    }
}
