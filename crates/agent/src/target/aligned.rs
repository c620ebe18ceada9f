//! Memory that begins where direct I/O wants it to, so that nothing is copied on its way to the disk or from it.

/// What every device is happy with.
pub const ALIGNMENT: usize = 4096;

/// Whether direct I/O can use these bytes as they are.
pub fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().align_offset(ALIGNMENT) == 0 && bytes.len().is_multiple_of(ALIGNMENT)
}

/// Bytes that begin at a multiple of [`ALIGNMENT`]. It grows as it must and keeps its memory.
#[derive(Debug, Default)]
pub struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }

    /// As many bytes, whatever they are, for somebody who writes them all.
    pub fn for_writing(&mut self, length: usize) -> &mut [u8] {
        self.set_length(length);
        self.bytes_mut()
    }

    /// Behind what is there.
    pub fn append(&mut self, bytes: &[u8]) {
        self.grow(bytes.len()).copy_from_slice(bytes);
    }

    /// Room behind what is there, whatever it holds.
    pub fn grow(&mut self, more: usize) -> &mut [u8] {
        let before = self.length;
        self.set_length(before + more);
        let end = self.start + self.length;
        &mut self.memory[self.start + before..end]
    }

    /// Takes as many bytes from the beginning; what follows moves there.
    pub fn remove_front(&mut self, count: usize) {
        let range = self.start + count..self.start + self.length;
        self.memory.copy_within(range, self.start);
        self.length -= count;
    }

    fn set_length(&mut self, length: usize) {
        if length + ALIGNMENT > self.memory.len() {
            let mut memory = vec![0; length.next_multiple_of(ALIGNMENT) + ALIGNMENT];
            let start = memory.as_ptr().align_offset(ALIGNMENT);
            memory[start..start + self.length].copy_from_slice(self.bytes());
            (self.memory, self.start) = (memory, start);
        }
        self.length = length;
    }
}

#[test]
fn bytes_stay_what_they_are_when_the_buffer_grows_and_begin_where_they_should() {
    let mut buffer = AlignedBuffer::default();
    let mut expected = Vec::new();
    for round in 0..40_usize {
        let bytes: Vec<u8> = (0..round * 997).map(|at| (at * round) as u8).collect();
        buffer.append(&bytes);
        expected.extend_from_slice(&bytes);
        let removed = (round * 512).min(expected.len());
        buffer.remove_front(removed);
        expected.drain(..removed);
        assert_eq!(buffer.bytes(), expected);
        assert_eq!(buffer.bytes().as_ptr().align_offset(ALIGNMENT), 0);
    }
    assert!(expected.len() > 100_000, "{}", expected.len());
    assert!(is_aligned(&buffer.bytes()[..2 * ALIGNMENT]));
    assert!(!is_aligned(&buffer.bytes()[1..=ALIGNMENT]));
    assert!(!is_aligned(&buffer.bytes()[..=ALIGNMENT]));
}
