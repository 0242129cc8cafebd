//! Reading and writing files at a position.

#[cfg(not(unix))]
pub(crate) use seeking::{read_exact_at, write_all_at};
#[cfg(unix)]
pub(crate) use unix::{read_exact_at, write_all_at};

#[cfg(unix)]
mod unix {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;

    /// Fills `bytes` from a position of the file. Threads may do so at once.
    pub(crate) fn read_exact_at(file: &File, bytes: &mut [u8], position: u64) -> io::Result<()> {
        file.read_exact_at(bytes, position)
    }

    /// Writes all `bytes` at a position of the file.
    pub(crate) fn write_all_at(file: &File, bytes: &[u8], position: u64) -> io::Result<()> {
        file.write_all_at(bytes, position)
    }
}

/// For systems on which a file has one position, which all threads share.
#[cfg(any(not(unix), test))]
mod seeking {
    use std::fs::File;
    use std::io::{self, Read, Seek, SeekFrom, Write};
    use std::sync::{Mutex, PoisonError};

    /// Held while a position is in use.
    static POSITION: Mutex<()> = Mutex::new(());

    pub(crate) fn read_exact_at(mut file: &File, bytes: &mut [u8], position: u64) -> io::Result<()> {
        let _held = POSITION.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(position))?;
        file.read_exact(bytes)
    }

    pub(crate) fn write_all_at(mut file: &File, bytes: &[u8], position: u64) -> io::Result<()> {
        let _held = POSITION.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(position))?;
        file.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::{read_exact_at, seeking, write_all_at};

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
}
