//! A live table of one PipelineRun: the run, its StatefulSets, placeholders, claims and TaskRun pods, each with its state and
//! node.
//!
//! The data flows in one direction: [`changes`] watches the objects, a [`Board`] keeps present and past objects, [`rows`]
//! converts the board to rows of text, and a [`Screen`] shows the rows. This crate changes no object.

mod board;
mod rows;
mod screen;
mod watch;

pub use board::{Board, Kind, RunResult, TaskPod};
pub use rows::{Row, rows};
pub use screen::Screen;
pub use watch::{Change, Changes, Run, changes, pipeline_runs};
