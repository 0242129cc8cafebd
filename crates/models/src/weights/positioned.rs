//! Reading and writing files at a position.

#[cfg(not(unix))]
pub use seeking::{read_exact_at, write_all_at};
#[cfg(unix)]
pub use unix::{read_exact_at, write_all_at};

#[cfg(unix)]
mod unix {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;

    /// Fills `bytes` from a position of the file. Threads may do so at once.
    pub fn read_exact_at(file: &File, bytes: &mut [u8], position: u64) -> io::Result<()> {
        file.read_exact_at(bytes, position)
    }

    /// Writes all `bytes` at a position of the file.
    pub fn write_all_at(file: &File, bytes: &[u8], position: u64) -> io::Result<()> {
        file.write_all_at(bytes, position)
    }
}

/// For systems on which a file has one position, which all threads share.
pub mod seeking {
    use std::fs::File;
    use std::io::{self, Read, Seek, SeekFrom, Write};
    use std::sync::{Mutex, PoisonError};

    /// Held while a position is in use.
    static POSITION: Mutex<()> = Mutex::new(());

    /// Fills `bytes` from a position of the file.
    pub fn read_exact_at(mut file: &File, bytes: &mut [u8], position: u64) -> io::Result<()> {
        let _held = POSITION.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(position))?;
        file.read_exact(bytes)
    }

    /// Writes all `bytes` at a position of the file.
    pub fn write_all_at(mut file: &File, bytes: &[u8], position: u64) -> io::Result<()> {
        let _held = POSITION.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(position))?;
        file.write_all(bytes)
    }
}
