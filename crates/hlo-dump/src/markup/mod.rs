//! The pieces of pages and pictures: HTML, charts, schedules.

pub mod chart;
pub mod html;
pub mod schedule;
