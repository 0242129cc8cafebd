//! The logs that workers write before they end.

use meshloom::pjrt::ahead_of_time::WorkerLog;

/// The longest part of a line that is repeated, in characters.
const LINE_LENGTH: usize = 400;

#[test]
fn the_fatal_line_is_found() {
    let text = "I0000 00:00:1.0 7 a.cc:1] note\n\
                F0000 00:00:1.1 7 b.cc:2] Check failed: x == y (1 vs. 2)\n\n\
                *** Check failure stack trace: ***\n    @ 0x1 (unknown)\n";
    let log = WorkerLog::read(text);
    assert_eq!(log.fatal.as_deref(), Some("F0000 00:00:1.1 7 b.cc:2] Check failed: x == y (1 vs. 2)"));
    assert_eq!(log.last_lines.len(), 4);
    assert_eq!(WorkerLog::read("First words\n").fatal, None);
    assert_eq!(WorkerLog::read("").to_string(), "\n  it wrote nothing");
    let long = "ü".repeat(1000);
    assert_eq!(WorkerLog::read(&long).last_lines[0].chars().count(), LINE_LENGTH + 4);
}
