//! Reading and writing at positions, with and without system calls for it.

use std::io::ErrorKind;

use meshloom_models::internals::{read_exact_at, seeking, write_all_at};

#[test]
fn both_ways_do_the_same() {
    let file = tempfile::tempfile().unwrap();
    write_all_at(&file, b"abcdef", 0).unwrap();
    seeking::write_all_at(&file, b"XY", 3).unwrap();
    for read in [read_exact_at, seeking::read_exact_at] {
        let mut bytes = [0; 4];
        read(&file, &mut bytes, 2).unwrap();
        assert_eq!(&bytes, b"cXYf");
        assert_eq!(read(&file, &mut bytes, 3).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
