//! An interpreter of the text.
