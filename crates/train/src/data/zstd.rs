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

pub(super) struct Decoder<R> {
    source: R,
    frame: Option<Frame>,
}

struct Frame {
    decoder: FrameDecoder,
    /// The length that it states.
    stated: Option<u64>,
    read: u64,
}

impl<R: BufRead> Decoder<R> {
    pub(super) fn new(source: R) -> Decoder<R> {
        Decoder { source, frame: None }
    }

    /// Begins the next frame that holds text, if there is one.
    fn begin(&mut self) -> io::Result<Option<Frame>> {
        while !self.source.fill_buf()?.is_empty() {
            // The magic number, and the descriptor of a frame of text.
            let mut start = [0; 5];
            self.source.read_exact(&mut start).map_err(cut_off)?;
            let mut decoder = FrameDecoder::new();
            decoder.set_max_window_size(LARGEST_WINDOW);
            let length = match decoder.reset((&start[..]).chain(&mut self.source)) {
                Ok(()) => return Frame::new(decoder, start[4]).map(Some),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => length,
                Err(error) => return Err(refused(error)),
            };
            if io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink())? < length.into() {
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
    fn new(decoder: FrameDecoder, descriptor: u8) -> io::Result<Frame> {
        if descriptor & 0b1000 != 0 {
            return Err(invalid("a bit is set in the header of a frame that no version of zstd has".to_owned()));
        }
        // The frame states its length if the field has several bytes, or if the frame is a single segment.
        let states_length = descriptor & 0b1110_0000 != 0;
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
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return cut_off(io::Error::new(error.kind(), error.to_string()));
        }
        cause = error.source();
    }
    invalid(match &error {
        FrameDecoderError::WindowSizeTooBig { requested, max } => {
            format!("a frame has a window of {requested} bytes, and {max} are the most that is read")
        }
        FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::BadMagicNumber(_)) => {
            "what should be a frame of zstd does not begin as one".to_owned()
        }
        FrameDecoderError::DictNotProvided { .. } => "a frame needs a dictionary, and none is known".to_owned(),
        _ => format!("a frame cannot be read: {error}"),
    })
}
