#![allow(unsafe_code)]
//! Where slots come from: chunks by size class, and the free slots of each class.
//!
//! A chunk is 256 KiB, aligned to its size, and holds slots of one size. It belongs to one
//! [`Seat`] for ever and is never given back: a waker is the address of a slot, and may be used
//! by anybody at any time. So memory stays at the high-water mark of live tasks, class by class;
//! pages of a chunk that no task has reached are not touched. A free slot is taken again last in,
//! first out, as its lines are in the cache.
//!
//! There is no list of live tasks: who looks for them walks the chunks ([`Arena::for_each`]).

use std::alloc::{Layout, alloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::remote::LinkRef;
use super::seat::Seat;
use super::slot::{Header, Slot};

const CHUNK_BYTES: usize = 256 << 10;
/// What precedes the slots of a chunk: its [`Chunk`], on a cache line that is only read.
const CHUNK_HEAD: usize = 64;
/// Alignment of slots whose size allows it, that is, divides by it.
pub(super) const ALIGN_MAX: usize = 16;
/// Classes: 48 to 128 bytes in steps of 8, to 256 in steps of 16, to 576 in steps of 32.
const CLASSES: usize = 11 + 8 + 10;

/// The class of slots that hold `bytes`, which is at most 576.
pub(super) const fn class_of(bytes: usize) -> usize {
    match bytes {
        0..=48 => 0,
        49..=128 => (bytes - 48).div_ceil(8),
        129..=256 => 10 + (bytes - 128).div_ceil(16),
        _ => 18 + (bytes - 256).div_ceil(32),
    }
}

/// The size of a class's slots.
const fn bytes_of(class: usize) -> usize {
    match class {
        0..=10 => 48 + 8 * class,
        11..=18 => 128 + 16 * (class - 10),
        _ => 256 + 32 * (class - 18),
    }
}

/// The beginning of a chunk. Written when it is made, and then only read, by any thread; `used`
/// is the owner's alone.
#[repr(C)]
pub(super) struct Chunk {
    seat: &'static Seat,
    /// The number of its first slot.
    first: u32,
    slot_bytes: u32,
    capacity: u32,
    class: u8,
    /// So many slots have been taken at least once; the rest is memory that nobody has touched.
    used: Cell<u32>,
}

/// The address of a chunk.
#[derive(Clone, Copy)]
pub(super) struct ChunkRef(NonNull<Chunk>);

impl ChunkRef {
    /// The chunk that a slot stands in. From any thread.
    pub(super) fn of(link: LinkRef) -> ChunkRef {
        let chunk = link.as_ptr().map_addr(|address| {
            let start = address.get() & !(CHUNK_BYTES - 1);
            std::num::NonZero::new(start).expect("a chunk does not begin at address zero")
        });
        ChunkRef(chunk.cast())
    }

    /// The seat it belongs to. From any thread.
    pub(super) fn seat(self) -> &'static Seat {
        // SAFETY: the field was initialised with the chunk, is never written again, and the chunk
        // is never unmapped. No reference to the whole chunk is made, since `used` is the owner's.
        unsafe { (*self.0.as_ptr()).seat }
    }

    fn class(self) -> usize {
        // SAFETY: as for `seat`.
        usize::from(unsafe { (*self.0.as_ptr()).class })
    }

    /// The number of one of its slots, unique in the process. From any thread.
    pub(super) fn number_of(self, link: LinkRef) -> u32 {
        // SAFETY: as for `seat`.
        let (first, slot_bytes) = unsafe {
            let chunk = self.0.as_ptr();
            ((*chunk).first, (*chunk).slot_bytes)
        };
        let offset = link.as_ptr().addr().get() - self.0.addr().get() - CHUNK_HEAD;
        first + offset as u32 / slot_bytes
    }

    fn make(seat: &'static Seat, class: usize) -> ChunkRef {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let layout = Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES)
            .expect("a power of two below isize::MAX");
        let slot_bytes = bytes_of(class) as u32;
        let capacity = (CHUNK_BYTES - CHUNK_HEAD) as u32 / slot_bytes;
        let first = NEXT.fetch_add(capacity, Ordering::Relaxed);
        assert!(
            first.checked_add(capacity).is_some(),
            "this process has reserved 4 billion task slots"
        );
        // SAFETY: the layout has a size, which is not zero.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start.cast::<Chunk>()) else {
            handle_alloc_error(layout)
        };
        let chunk = Chunk {
            seat,
            first,
            slot_bytes,
            capacity,
            class: class as u8,
            used: Cell::new(0),
        };
        const { assert!(size_of::<Chunk>() <= CHUNK_HEAD) };
        // SAFETY: the memory is ours, large enough and aligned for a `Chunk`.
        unsafe { start.write(chunk) };
        ChunkRef(start)
    }

    /// For the owner.
    fn used(self) -> &'static Cell<u32> {
        // SAFETY: the chunk is initialised and never unmapped; only the owner makes references to
        // this field, all of them shared.
        unsafe { &(*self.0.as_ptr()).used }
    }

    fn slot_at(self, index: u32) -> NonNull<Header> {
        // SAFETY: as for `seat`.
        let slot_bytes = unsafe { (*self.0.as_ptr()).slot_bytes };
        let offset = CHUNK_HEAD + (index * slot_bytes) as usize;
        // SAFETY: the callers' index is below `capacity`, so the slot lies within the chunk.
        unsafe { self.0.byte_add(offset).cast() }
    }

    /// Makes a slot of memory that was not used before. For the owner.
    fn next_slot(self) -> Option<Slot> {
        // SAFETY: as for `seat`.
        let capacity = unsafe { (*self.0.as_ptr()).capacity };
        let index = self.used().get();
        if index == capacity {
            return None;
        }
        let header = self.slot_at(index);
        // SAFETY: the memory is inside the chunk, aligned to 8 as every size and the chunk's head
        // divide by that, and nobody knows of it yet.
        unsafe { header.write(Header::new()) };
        self.used().set(index + 1);
        // SAFETY: the header is initialised, and stays a slot for ever: chunks are never given
        // back. This is the owner's thread.
        Some(unsafe { Slot::new(header) })
    }
}

/// The slots of one seat. For its owner.
pub(crate) struct Arena {
    /// The top of each class's stack of free slots; each holds the next one.
    free: [Cell<Option<Slot>>; CLASSES],
    /// The chunk of each class that has unused memory.
    newest: [Cell<Option<ChunkRef>>; CLASSES],
    chunks: RefCell<Vec<ChunkRef>>,
    slots: Cell<u64>,
    bytes: Cell<u64>,
}

impl Arena {
    pub(super) fn new() -> Self {
        Arena {
            free: [const { Cell::new(None) }; CLASSES],
            newest: [const { Cell::new(None) }; CLASSES],
            chunks: RefCell::new(Vec::new()),
            slots: Cell::new(0),
            bytes: Cell::new(0),
        }
    }

    /// A free slot of this class.
    pub(super) fn take(&self, seat: &'static Seat, class: usize) -> Slot {
        let free = &self.free[class];
        match free.get() {
            Some(slot) => {
                free.set(slot.next_free());
                slot
            }
            None => self.take_unused(seat, class),
        }
    }

    #[cold]
    fn take_unused(&self, seat: &'static Seat, class: usize) -> Slot {
        let newest = &self.newest[class];
        let slot = newest
            .get()
            .and_then(ChunkRef::next_slot)
            .unwrap_or_else(|| {
                let chunk = ChunkRef::make(seat, class);
                self.chunks.borrow_mut().push(chunk);
                newest.set(Some(chunk));
                chunk.next_slot().expect("a new chunk has room")
            });
        self.slots.set(self.slots.get() + 1);
        self.bytes.set(self.bytes.get() + bytes_of(class) as u64);
        slot
    }

    /// Gives a slot back. A slot whose generations are used up is not taken again.
    pub(super) fn give_back(&self, slot: Slot) {
        if slot.link().generation() == 0 {
            return;
        }
        let free = &self.free[ChunkRef::of(slot.link()).class()];
        slot.set_next_free(free.get());
        free.set(Some(slot));
    }

    /// Calls `f` with each slot that was ever taken, free ones too. `f` may take further slots;
    /// those may be missed.
    pub(super) fn for_each(&self, mut f: impl FnMut(Slot)) {
        let chunks = self.chunks.borrow().len();
        for place in 0..chunks {
            let chunk = self.chunks.borrow()[place];
            for index in 0..chunk.used().get() {
                // SAFETY: `next_slot` has initialised this one; this is the owner's thread, as
                // whoever can name the arena is the owner.
                f(unsafe { Slot::new(chunk.slot_at(index)) });
            }
        }
    }

    /// How many slots were ever taken, and their bytes.
    pub(super) fn reserved(&self) -> (u64, u64) {
        (self.slots.get(), self.bytes.get())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{ALIGN_MAX, CHUNK_BYTES, CHUNK_HEAD, CLASSES, bytes_of, class_of};

    /// Every size gets the smallest class that holds it, and sizes that divide by 16 keep that.
    #[test]
    fn classes_fit() {
        for bytes in 1..=576 {
            let class = class_of(bytes);
            assert!(class < CLASSES);
            assert!(bytes_of(class) >= bytes, "{bytes}");
            assert!(class == 0 || bytes_of(class - 1) < bytes, "{bytes}");
            if bytes % ALIGN_MAX == 0 {
                assert_eq!(bytes_of(class) % ALIGN_MAX, 0, "{bytes}");
            }
        }
        assert_eq!(bytes_of(CLASSES - 1), 576);
        assert_eq!((CHUNK_BYTES % ALIGN_MAX, CHUNK_HEAD % ALIGN_MAX), (0, 0));
    }
}
