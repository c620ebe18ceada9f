//! Where an image is cut into chunks: by its content, so that bytes that moved are found again wherever they are now.
//!
//! The cuts are FastCDC's (2020) with its own table: they belong to the image format, and a test holds them to bytes.

use fastcdc::v2020::{Normalization, cut, select_masks};

/// Chunks have a quarter to four times the average length; only the last of an image may be shorter.
const SPREAD: u32 = 4;

/// Cuts bytes into chunks of some average length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunker {
    average: u32,
    masks: (u64, u64),
}

impl Chunker {
    /// Averages that can be cut by; they are powers of two.
    pub const AVERAGES: std::ops::RangeInclusive<u32> = 1024..=1024 * 1024;

    /// `None` when the average is none of [`Chunker::AVERAGES`].
    pub fn new(average: u32) -> Option<Self> {
        (average.is_power_of_two() && Self::AVERAGES.contains(&average)).then(|| Self {
            average,
            masks: select_masks(average as usize, Normalization::Level1),
        })
    }

    pub fn average(&self) -> u32 {
        self.average
    }

    pub fn shortest(&self) -> u32 {
        self.average / SPREAD
    }

    pub fn longest(&self) -> u32 {
        self.average * SPREAD
    }

    /// How long the chunk is that begins where `bytes` do. They must be at least [`Chunker::longest`] bytes, or all
    /// until the end of the image.
    pub fn cut(&self, bytes: &[u8]) -> usize {
        let (small, large) = self.masks;
        let (_, length) = cut(
            bytes,
            self.shortest() as usize,
            self.average as usize,
            self.longest() as usize,
            small,
            large,
            small << 1,
            large << 1,
        );
        length
    }
}

/// Cuts bytes that arrive piece by piece.
#[derive(Clone, Debug)]
pub struct Cutting {
    chunker: Chunker,
    held: Vec<u8>,
}

impl Cutting {
    pub fn new(chunker: Chunker) -> Self {
        Self {
            chunker,
            held: Vec::new(),
        }
    }

    /// Hands over every chunk that is whole with these bytes.
    pub fn push<E>(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.held.extend_from_slice(bytes);
        let mut at = 0;
        while self.held.len() - at >= self.chunker.longest() as usize {
            let length = self.chunker.cut(&self.held[at..]);
            each(&self.held[at..at + length])?;
            at += length;
        }
        self.held.drain(..at);
        Ok(())
    }

    /// Hands over what is left: there are no more bytes.
    pub fn finish<E>(self, mut each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut rest = self.held.as_slice();
        while !rest.is_empty() {
            let length = self.chunker.cut(rest);
            each(&rest[..length])?;
            rest = &rest[length..];
        }
        Ok(())
    }
}
