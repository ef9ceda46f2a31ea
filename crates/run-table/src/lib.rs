//! A live table of one PipelineRun: its state, its placeholders, their claims, its TaskRun pods, and the node of each.
//!
//! The data flows in one direction: [`changes`] watches, a [`Board`] keeps the present and past objects, [`rows`] describes
//! them in words, and a [`Screen`] shows the rows. This crate changes no object.

mod board;
mod rows;
mod screen;
mod watch;

pub use board::{Board, Kind, RunResult, TaskPod};
pub use rows::{Row, rows};
pub use screen::Screen;
pub use watch::{Change, Changes, Run, changes, pipeline_runs};
