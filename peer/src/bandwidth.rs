//! How fast the machine reads memory: threads sum disjoint parts of one large buffer.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result};
use memmap2::MmapMut;

use crate::args::BandwidthArgs;

/// Passes over the buffer; the best one counts, because others can only slow a pass down.
const PASSES: usize = 5;
const MIB: usize = 1 << 20;

/// Prints the bandwidth for buffers of some sizes.
pub fn run(args: &BandwidthArgs) -> Result<()> {
    for mib in &args.mib {
        let bytes_per_s = read(mib.saturating_mul(MIB), usize::from(args.threads))?;
        println!("{mib} MiB, {} threads: {:.1} GB/s", args.threads, bytes_per_s / 1e9);
    }
    Ok(())
}

/// Bytes per second, of a buffer of about `bytes` in huge pages.
pub fn read(bytes: usize, n_threads: usize) -> Result<f64> {
    let part = (bytes / n_threads.max(1)).next_multiple_of(2 * MIB);
    let len = part.checked_mul(n_threads.max(1)).context("the buffer is too large")?;
    let mut buffer = MmapMut::map_anon(len).with_context(|| format!("no room for {len} bytes"))?;
    // Where it is refused, pages are small and the figure is some percent lower.
    #[cfg(target_os = "linux")]
    let _ = buffer.advise(memmap2::Advice::HugePage);
    std::thread::scope(|scope| {
        for part in buffer.chunks_mut(part) {
            // Pages that were never written are all the same page of zeros.
            scope.spawn(|| part.fill(1));
        }
    });
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in buffer.chunks(part) {
                scope.spawn(|| black_box(sum(part)));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(len as f64 / best)
}

/// The sum of all 8-byte words: one addition for each, in many chains, so that only memory can be
/// slow.
fn sum(bytes: &[u8]) -> u64 {
    const CHAINS: usize = 16;
    let mut sums = [0u64; CHAINS];
    for block in bytes.chunks_exact(CHAINS * 8) {
        for (sum, word) in sums.iter_mut().zip(block.chunks_exact(8)) {
            let word: [u8; 8] = word.try_into().expect("chunks of 8 are 8 long");
            *sum = sum.wrapping_add(u64::from_ne_bytes(word));
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_added_once() {
        let bytes: Vec<u8> = (0..4096u64).flat_map(u64::to_ne_bytes).collect();
        assert_eq!(sum(&bytes), 4095 * 4096 / 2);
    }

    #[test]
    fn a_small_buffer_has_a_bandwidth() {
        assert!(read(4 * MIB, 2).unwrap() > 0.0);
    }
}
