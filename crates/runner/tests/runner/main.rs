//! The runner over a mock engine that checks every key of every query.

mod generate;
mod mock;
mod schedule;
