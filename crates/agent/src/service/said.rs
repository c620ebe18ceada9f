//! What an operation's programs say: the latest of it, in memory, by how much was said before. Pure.

use slipway_agent_api::proto::Output;

/// So much of one operation is kept.
const KEPT: usize = 1 << 20;

/// What was said last, and how much before it.
#[derive(Clone, Default)]
pub struct Said {
    start: u64,
    bytes: Vec<u8>,
}

impl Said {
    pub fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let over = self.bytes.len().saturating_sub(KEPT);
        self.bytes.drain(..over);
        self.start += over as u64;
    }

    /// Behind the first `seen` bytes, as far as it is kept. Who has seen more than was said saw an earlier run, which this is
    /// not.
    pub fn after(&self, seen: u64) -> Option<Output> {
        let end = self.start + self.bytes.len() as u64;
        let offset = if seen > end { 0 } else { seen }.max(self.start);
        (offset < end).then(|| Output {
            offset,
            data: self.bytes[(offset - self.start) as usize..].to_vec(),
        })
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Nothing of it is kept any more; how much it was still is.
    pub fn forget(&mut self) {
        self.start += self.bytes.len() as u64;
        self.bytes = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whoever asks again behind what it saw gets each byte once and in order, but for what the host no longer has.
        #[test]
        fn each_byte_is_told_once_whenever_somebody_asks(
            pieces in proptest::collection::vec((1..300_000_usize, any::<bool>()), 1..12),
        ) {
            let (mut said, mut all) = (Said::default(), Vec::new());
            let (mut seen, mut told, mut lost) = (0_u64, Vec::new(), 0_u64);
            for (at, (length, asks)) in pieces.iter().enumerate() {
                let piece: Vec<u8> = (0..*length).map(|byte| (byte * 7 + at) as u8).collect();
                all.extend_from_slice(&piece);
                said.append(&piece);
                prop_assert!(said.len() <= KEPT);
                let last = at + 1 == pieces.len();
                if let (true, Some(output)) = (*asks || last, said.after(seen)) {
                    prop_assert!(output.offset >= seen);
                    lost += output.offset - seen;
                    let end = output.offset + output.data.len() as u64;
                    prop_assert_eq!(&all[output.offset as usize..end as usize], &output.data[..]);
                    told.extend_from_slice(&output.data);
                    seen = end;
                }
            }
            prop_assert_eq!(told.len() as u64 + lost, all.len() as u64);
            prop_assert!(said.after(seen).is_none());
            // Only what does not fit is lost.
            prop_assert!(lost == 0 || all.len() > KEPT);
        }
    }

    #[test]
    fn an_earlier_runs_reader_begins_again_and_what_is_forgotten_is_not_told() {
        let mut said = Said::default();
        said.append(b"second run");
        assert_eq!(said.after(700).unwrap().offset, 0);
        said.forget();
        assert_eq!((said.after(0), said.len()), (None, 0));
        said.append(b"!");
        assert_eq!(said.after(0).unwrap().offset, 10);
    }
}
