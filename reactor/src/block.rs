#![allow(unsafe_code)]
//! Recycled memory for small things: arguments of operations, orphans, shared state (M6).
//!
//! A [`Block`] owns one value in memory of a few fixed sizes. A dropped block's memory
//! goes to the cache of this thread's reactor, and the next block takes it from there, so
//! that operations cost no allocator call in the steady state. The cache holds at most
//! [`KEPT_MAX`] blocks of a size; what a burst needed beyond that goes back to the
//! allocator. Without a reactor on this thread the allocator serves directly; since all
//! memory of a size has the same layout, a block may die on another thread than it was
//! made on.
//!
//! A block is a raw pointer and never a `Box`, whose moves assert that nobody else looks
//! at the memory: the kernel does, until the operation's last completion.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::current;

/// Sizes in bytes: a `timespec` and an orphaned send take the smallest, a `statx` 256, a
/// `msghdr` with its address 512, a path of up to 1,023 bytes the largest.
const SIZES: [usize; 5] = [64, 128, 256, 512, 1024];
const ALIGN: usize = 16;
/// Blocks of one size that a cache keeps: what a shard with 1,000 connections turns over.
const KEPT_MAX: usize = 1024;

/// One value in recycled memory.
pub(crate) struct Block<T: ?Sized> {
    ptr: NonNull<T>,
    owns: PhantomData<T>,
}

impl<T> Block<T> {
    pub(crate) fn new(value: T) -> Self {
        let ptr = take(Layout::new::<T>()).cast::<T>();
        // SAFETY: `take` returned memory of at least this size and alignment, ours alone.
        unsafe { ptr.write(value) };
        Block {
            ptr,
            owns: PhantomData,
        }
    }

    /// The value; the memory is recycled.
    pub(crate) fn into_inner(self) -> T {
        let this = ManuallyDrop::new(self);
        // SAFETY: the block owns an initialised value, and `this` is not used after it.
        let value = unsafe { this.ptr.read() };
        give(this.ptr.cast(), Layout::new::<T>());
        value
    }
}

impl<T: ?Sized> Block<T> {
    /// The address, which stays the same until the block is dropped.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.ptr.as_ptr()
    }

    pub(crate) fn into_raw(self) -> *mut T {
        ManuallyDrop::new(self).ptr.as_ptr()
    }

    /// # Safety
    ///
    /// `raw` came from [`into_raw`](Self::into_raw) (perhaps made a trait object since),
    /// and each such pointer comes back at most once.
    pub(crate) unsafe fn from_raw(raw: *mut T) -> Self {
        Block {
            // SAFETY: `into_raw` gives the pointer of a block, which is never null.
            ptr: unsafe { NonNull::new_unchecked(raw) },
            owns: PhantomData,
        }
    }
}

impl<T: ?Sized> Deref for Block<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the block owns an initialised value; nobody has it mutably, since that
        // takes the block mutably. (Memory in the kernel's hands is `MaybeUninit`, and is
        // not looked at before the last completion.)
        unsafe { self.ptr.as_ref() }
    }
}

impl<T: ?Sized> DerefMut for Block<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the block is held exclusively.
        unsafe { self.ptr.as_mut() }
    }
}

impl<T: ?Sized> Drop for Block<T> {
    fn drop(&mut self) {
        /// Recycles the memory, also when the value's own drop panics.
        struct Give(NonNull<u8>, Layout);
        impl Drop for Give {
            fn drop(&mut self) {
                give(self.0, self.1);
            }
        }
        // SAFETY: the value is alive until the next statement.
        let layout = Layout::for_value(unsafe { self.ptr.as_ref() });
        let _give = Give(self.ptr.cast(), layout);
        // SAFETY: the block owns the value and is not used after its drop.
        unsafe { self.ptr.drop_in_place() };
    }
}

/// One value with several owners on this thread, as `Rc`, in recycled memory: making one
/// costs no allocation in the steady state.
pub struct Shared<T> {
    ptr: NonNull<Counted<T>>,
    owns: PhantomData<Counted<T>>,
}

struct Counted<T> {
    owners: Cell<usize>,
    value: T,
}

impl<T> Shared<T> {
    /// The first owner of a value.
    pub fn new(value: T) -> Self {
        let block = Block::new(Counted {
            owners: Cell::new(1),
            value,
        });
        Shared {
            ptr: NonNull::new(block.into_raw()).expect("a block's address is not null"),
            owns: PhantomData,
        }
    }

    fn counted(&self) -> &Counted<T> {
        // SAFETY: the memory lives while an owner does, and it is only borrowed shared.
        unsafe { self.ptr.as_ref() }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.counted().value
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        let owners = &self.counted().owners;
        owners.set(owners.get() + 1);
        Shared {
            ptr: self.ptr,
            owns: PhantomData,
        }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let owners = &self.counted().owners;
        owners.set(owners.get() - 1);
        if owners.get() == 0 {
            // SAFETY: the pointer came from `into_raw` in `new`, and the last owner
            // alone gives it back.
            drop(unsafe { Block::from_raw(self.ptr.as_ptr()) });
        }
    }
}

/// The memory a reactor keeps for the blocks to come.
#[derive(Default)]
pub(crate) struct Cache {
    kept: [RefCell<Vec<NonNull<u8>>>; SIZES.len()],
}

impl Drop for Cache {
    fn drop(&mut self) {
        for (size, kept) in SIZES.into_iter().zip(&mut self.kept) {
            for ptr in kept.get_mut().drain(..) {
                // SAFETY: the cache holds only memory that `take` allocated with the
                // layout of its size.
                unsafe { dealloc(ptr.as_ptr(), size_layout(size)) };
            }
        }
    }
}

fn size_layout(size: usize) -> Layout {
    Layout::from_size_align(size, ALIGN).expect("the sizes are small multiples of the alignment")
}

/// The place in `SIZES` that serves `layout`, if one does.
fn size_class(layout: Layout) -> Option<usize> {
    if layout.align() > ALIGN {
        return None;
    }
    SIZES.iter().position(|&size| layout.size() <= size)
}

fn take(layout: Layout) -> NonNull<u8> {
    let class = size_class(layout);
    if let Some(class) = class {
        let kept = current::with_cache(|cache| cache.kept[class].borrow_mut().pop());
        if let Some(Some(ptr)) = kept {
            return ptr;
        }
    }
    let layout = class.map_or(layout, |class| size_layout(SIZES[class]));
    assert!(layout.size() > 0, "a block holds a value of some size");
    // SAFETY: the size is not zero, as just asserted.
    let ptr = unsafe { alloc(layout) };
    NonNull::new(ptr).unwrap_or_else(|| handle_alloc_error(layout))
}

fn give(ptr: NonNull<u8>, layout: Layout) {
    let Some(class) = size_class(layout) else {
        // SAFETY: memory of no class was allocated by `take` with its own layout.
        return unsafe { dealloc(ptr.as_ptr(), layout) };
    };
    let kept = current::with_cache(|cache| {
        let mut kept = cache.kept[class].borrow_mut();
        let room = kept.len() < KEPT_MAX;
        if room {
            kept.push(ptr);
        }
        room
    });
    if kept != Some(true) {
        // SAFETY: memory of a class was allocated by `take` with the layout of its size.
        unsafe { dealloc(ptr.as_ptr(), size_layout(SIZES[class])) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    /// A value of every size class, and beyond, is dropped once, also as a trait object.
    #[test]
    fn a_block_drops_its_value_once() {
        trait Any {}
        struct Tracked<const N: usize>(
            #[allow(dead_code, reason = "held for its drop")] Rc<()>,
            [u8; N],
        );
        impl<const N: usize> Any for Tracked<N> {}

        fn check<const N: usize>() {
            let count = Rc::new(());
            let block = Block::new(Tracked(count.clone(), [7; N]));
            assert_eq!(block.1, [7; N]);
            let raw: *mut dyn Any = block.into_raw();
            // SAFETY: `raw` came from `into_raw` just above.
            drop(unsafe { Block::from_raw(raw) });
            assert_eq!(Rc::strong_count(&count), 1);
            let Tracked(inner, _) = Block::new(Tracked(count.clone(), [0; N])).into_inner();
            assert_eq!(Rc::strong_count(&inner), 2);
        }
        check::<1>();
        check::<60>();
        check::<1000>();
        check::<5000>();
    }

    #[test]
    fn shared_lives_until_its_last_owner() {
        let count = Rc::new(());
        let first = Shared::new(count.clone());
        let second = first.clone();
        drop(first);
        assert_eq!(Rc::strong_count(&second), 2);
        drop(second);
        assert_eq!(Rc::strong_count(&count), 1);
    }
}
