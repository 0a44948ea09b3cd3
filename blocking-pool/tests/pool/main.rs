//! The pool as its users see it, with its real workers.

mod cases;
mod common;
mod jobs;
mod random;
