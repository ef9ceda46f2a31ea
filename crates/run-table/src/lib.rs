//! A live table of one PipelineRun: its state, its placeholders, their claims, its TaskRun pods, and the node of each.
//!
//! The data flows one way: [`changes`] watches, a [`Board`] keeps what is there and what was there, [`rows`] puts that into
//! words, and a [`Screen`] shows it. Nothing here changes an object.

mod board;
mod rows;
mod screen;
mod watch;

pub use board::{Board, Kind, RunResult, TaskPod};
pub use rows::{Row, rows};
pub use screen::Screen;
pub use watch::{Change, Changes, Run, changes, pipeline_runs};
