//! Reads text from files of zstd (RFC 8878): frames one after another, each of them checked.
//!
//! The decoder of blocks leaves the rest to its caller: several frames, frames to skip, and the check that a frame has
//! the length and the checksum that it states.

use std::error::Error;
use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The largest window of a frame that is read, in bytes: that of `zstd --long=31`. Decoding may take twice as much
/// memory.
const LARGEST_WINDOW: u64 = 1 << 31;

/// Frames that hold no text begin with one of these numbers.
const TO_SKIP: std::ops::RangeInclusive<u32> = 0x184D_2A50..=0x184D_2A5F;

/// Reads the text of all frames.
pub(super) struct Decoder<R> {
    source: R,
    frame: Option<Frame>,
}

/// A frame that is being read.
struct Frame {
    decoder: FrameDecoder,
    /// The length that it states.
    stated: Option<u64>,
    /// The bytes that have been read of it.
    read: u64,
}

impl<R: BufRead> Decoder<R> {
    pub(super) fn new(source: R) -> Decoder<R> {
        Decoder { source, frame: None }
    }

    /// Begins the next frame that holds text, if there is one.
    fn begin(&mut self) -> io::Result<Option<Frame>> {
        while !self.source.fill_buf()?.is_empty() {
            let mut magic = [0; 4];
            self.source.read_exact(&mut magic).map_err(cut_off)?;
            if !TO_SKIP.contains(&u32::from_le_bytes(magic)) {
                return Frame::begin(magic, &mut self.source).map(Some);
            }
            let mut length = [0; 4];
            self.source.read_exact(&mut length).map_err(cut_off)?;
            let length = u64::from(u32::from_le_bytes(length));
            if io::copy(&mut self.source.by_ref().take(length), &mut io::sink())? < length {
                return Err(ends_early());
            }
        }
        Ok(None)
    }
}

impl<R: BufRead> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let frame = match &mut self.frame {
                Some(frame) => frame,
                None => match self.begin()? {
                    Some(frame) => self.frame.insert(frame),
                    None => return Ok(0),
                },
            };
            match frame.read(&mut self.source, buffer)? {
                0 => self.frame = None,
                count => return Ok(count),
            }
        }
    }
}

impl Frame {
    /// Reads the header that follows the first four bytes.
    fn begin(magic: [u8; 4], source: &mut impl BufRead) -> io::Result<Frame> {
        let mut descriptor = [0];
        source.read_exact(&mut descriptor).map_err(cut_off)?;
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(LARGEST_WINDOW);
        decoder.reset(magic.chain(&descriptor[..]).chain(source)).map_err(refused)?;
        if descriptor[0] & 0b1000 != 0 {
            return Err(invalid("a bit is set in the header of a frame that no version of zstd has".to_owned()));
        }
        // The frame states its length if the field has several bytes, or if the frame is a single segment.
        let states_length = descriptor[0] & 0b1110_0000 != 0;
        let stated = states_length.then(|| decoder.content_size());
        Ok(Frame { decoder, stated, read: 0 })
    }

    /// Reads text of the frame; 0 bytes mean its end.
    fn read(&mut self, source: &mut impl BufRead, buffer: &mut [u8]) -> io::Result<usize> {
        let decoder = &mut self.decoder;
        while decoder.can_collect() == 0 && !decoder.is_finished() {
            decoder.decode_blocks(&mut *source, BlockDecodingStrategy::UptoBlocks(1)).map_err(refused)?;
        }
        let count = decoder.read(buffer)?;
        self.read += count as u64;
        if count == 0 {
            self.check()?;
        }
        Ok(count)
    }

    /// Checks the length and the checksum of a frame that has been read.
    fn check(&self) -> io::Result<()> {
        if let Some(stated) = self.stated.filter(|stated| *stated != self.read) {
            return Err(invalid(format!("a frame of {stated} bytes has {}", self.read)));
        }
        if self.decoder.get_checksum_from_data().is_some_and(|sum| self.decoder.get_calculated_checksum() != Some(sum))
        {
            return Err(invalid("a frame does not have the checksum that it states".to_owned()));
        }
        Ok(())
    }
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

fn ends_early() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it ends within a frame")
}

/// Says, for `map_err`, that the file ends within a frame.
fn cut_off(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { ends_early() } else { error }
}

/// Says, for `map_err`, why a frame cannot be read.
fn refused(error: FrameDecoderError) -> io::Error {
    match &error {
        FrameDecoderError::WindowSizeTooBig { requested, max } => {
            return invalid(format!("a frame has a window of {requested} bytes, and {max} are the most that is read"));
        }
        FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::BadMagicNumber(_)) => {
            return invalid("what should be a frame of zstd does not begin as one".to_owned());
        }
        FrameDecoderError::DictNotProvided { .. } => {
            return invalid("a frame needs a dictionary, and none is known".to_owned());
        }
        _ => {}
    }
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return cut_off(io::Error::new(error.kind(), error.to_string()));
        }
        cause = error.source();
    }
    invalid(format!("a frame cannot be read: {error}"))
}
