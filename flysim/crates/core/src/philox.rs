// SPDX-License-Identifier: Apache-2.0
//! Philox 4x32-10 (Salmon et al. 2011): random numbers from a counter, so there is no stream to carry.

/// Four random words of one counter under one key.
#[inline]
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for _ in 0..10 {
        let p0 = u64::from(c[0]) * 0xD251_1F53;
        let p1 = u64::from(c[2]) * 0xCD9E_8D57;
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

/// Words for ticks `4 * quad` to `4 * quad + 3` of `neuron`: one call serves four ticks, which is what makes a
/// driven neuron cheap; the number is still a function of seed, tick and neuron alone.
#[inline]
pub fn quad(seed: u64, quad: u64, neuron: u32) -> [u32; 4] {
    philox4x32([quad as u32, (quad >> 32) as u32, neuron, 0], [seed as u32, (seed >> 32) as u32])
}

/// [`quad`] of [`BATCH`] neurons at once, word by word: a shape that compilers turn into vector code.
#[inline(always)]
pub fn quads(seed: u64, quad: u64, neurons: &[u32; BATCH]) -> [[u32; BATCH]; 4] {
    let mut c = [[quad as u32; BATCH], [(quad >> 32) as u32; BATCH], *neurons, [0; BATCH]];
    let mut k = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let mut next = [[0; BATCH]; 4];
        for l in 0..BATCH {
            let p0 = u64::from(c[0][l]) * 0xD251_1F53;
            let p1 = u64::from(c[2][l]) * 0xCD9E_8D57;
            next[0][l] = (p1 >> 32) as u32 ^ c[1][l] ^ k[0];
            next[1][l] = p1 as u32;
            next[2][l] = (p0 >> 32) as u32 ^ c[3][l] ^ k[1];
            next[3][l] = p0 as u32;
        }
        c = next;
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

/// Neurons of one [`quads`] call.
pub const BATCH: usize = 8;

/// The random word of one (seed, tick, neuron).
#[inline]
pub fn word(seed: u64, tick: u64, neuron: u32) -> u32 {
    quad(seed, tick >> 2, neuron)[(tick & 3) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_its_neurons_one_by_one() {
        let neurons = [0, 1, 2, 77, 1000, 139_254, u32::MAX, 5];
        for (l, &neuron) in neurons.iter().enumerate() {
            let words = quads(0x1234_5678_9abc_def0, 1 << 33, &neurons);
            assert_eq!([0, 1, 2, 3].map(|w| words[w][l]), quad(0x1234_5678_9abc_def0, 1 << 33, neuron));
        }
    }

    #[test]
    fn matches_the_authors_known_answers() {
        // kat_vectors of Random123.
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox4x32([!0; 4], [!0; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            philox4x32([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }
}
