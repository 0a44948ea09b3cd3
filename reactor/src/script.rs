#![allow(unsafe_code)]
//! The scripted backend: answers entries from a list, in any order, with any result.
//!
//! It executes nothing. A test takes the requests that were submitted, and completes them
//! when and how it likes; so every order of completions, every errno and every short count
//! can be had at will, and the life cycle of operations is tested without a kernel.
//!
//! It is there with the feature `script`, for tests: an answer is believed, so a test that
//! claims bytes it did not write, or a descriptor that is another's, breaks what safe code is
//! promised.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use crate::backend::{BATCH, Backend, Completion, Crossings, MORE, Register, Wait};
use crate::entry::Entry;
use crate::request::Request;

/// The test's side of a [`ScriptBackend`].
#[derive(Clone, Default)]
pub struct Script(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    /// Entries that were submitted and have not been answered, in order.
    submitted: Vec<Entry>,
    completed: VecDeque<Completion>,
    enters: u64,
    /// How many entries one enter takes.
    room: Option<usize>,
}

impl Script {
    /// A script without an answer yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The backend that this script answers for.
    pub fn backend(&self) -> Box<dyn Backend> {
        Box::new(ScriptBackend(self.clone()))
    }

    /// Lets each enter take so many entries only, like a full submission queue.
    pub fn set_room(&self, entries: usize) {
        self.0.borrow_mut().room = Some(entries);
    }

    /// What was submitted and not answered, decoded, in order.
    pub fn requests(&self) -> Vec<Request> {
        let state = self.0.borrow();
        state.submitted.iter().map(Entry::decode).collect()
    }

    /// The numbers of what was submitted and not answered, in order.
    pub fn numbers(&self) -> Vec<u64> {
        let state = self.0.borrow();
        state.submitted.iter().map(Entry::user_data).collect()
    }

    /// Answers the entry in this place of [`requests`](Self::requests) for good.
    ///
    /// # Panics
    ///
    /// If there is no such entry.
    pub fn complete(&self, place: usize, result: i32) {
        let mut state = self.0.borrow_mut();
        let user_data = state.submitted.remove(place).user_data();
        state.completed.push_back(Completion {
            user_data,
            result,
            flags: 0,
        });
    }

    /// Answers a multishot entry, which goes on.
    ///
    /// # Panics
    ///
    /// If there is no such entry.
    pub fn complete_more(&self, place: usize, result: i32) {
        let mut state = self.0.borrow_mut();
        let user_data = state.submitted[place].user_data();
        state.completed.push_back(Completion {
            user_data,
            result,
            flags: MORE,
        });
    }
}

/// The reactor's side of a [`Script`].
pub struct ScriptBackend(Script);

// SAFETY: it touches no memory by itself; its answers are the test's to vouch for (see the
// module), and the feature keeps them out of programs.
unsafe impl Backend for ScriptBackend {
    fn enter(&mut self, staged: &mut VecDeque<Entry>, _wait: Wait) -> io::Result<()> {
        let mut state = self.0.0.borrow_mut();
        state.enters += 1;
        let room = state.room.unwrap_or(usize::MAX).min(staged.len());
        state.submitted.extend(staged.drain(..room));
        Ok(())
    }

    fn ready(&self) -> bool {
        !self.0.0.borrow().completed.is_empty()
    }

    fn reap(&mut self, batch: &mut Vec<Completion>) -> bool {
        let mut state = self.0.0.borrow_mut();
        let count = state.completed.len().min(BATCH);
        batch.extend(state.completed.drain(..count));
        !state.completed.is_empty()
    }

    fn register(&mut self, _resources: Register<'_>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn crossings(&self) -> Crossings {
        Crossings {
            enters: self.0.0.borrow().enters,
            poller_wakes: 0,
        }
    }
}
