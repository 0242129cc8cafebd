//! Lines on standard error, which is all that a plugin has to speak to a person.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Writes a line. Where standard error is closed, the line is lost: the program is not to end for it.
pub(crate) fn say(line: impl fmt::Display) {
    // One write, so that the lines of several threads do not mix.
    let text = format!("meshloom: {line}\n");
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// The most different things that are said once. A process may compile thousands of programs, each with its own words.
const MOST: usize = 100;

/// Writes a line, unless one about the same thing has been written.
pub(crate) fn say_once(about: &str, line: impl fmt::Display) {
    static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let said = said.get_or_insert_default();
    if said.len() < MOST && said.insert(about.to_owned()) {
        say(line);
        if said.len() == MOST {
            say("it says nothing more of this kind; MESHLOOM_PLUGIN_LOG=1 shows every program");
        }
    }
}
