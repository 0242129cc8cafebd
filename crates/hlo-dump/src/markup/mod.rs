//! The pieces of which pages and pictures are made: HTML, charts, schedules.

pub mod chart;
pub mod html;
pub mod schedule;
