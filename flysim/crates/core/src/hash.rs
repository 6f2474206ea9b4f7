// SPDX-License-Identifier: Apache-2.0
//! Order-free hash of a state: a sum over neurons, so that threads and devices may add in any order.
//!
//! The same arithmetic stands in `kernels/flysim.cu`; the parity tests hold them together.

/// A bijection of u64 in which every input bit reaches every output bit (the finaliser of splitmix64).
#[inline]
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Share of one neuron in the hash of a tick. `v` and `g` in mV, `refractory` in ticks left.
#[inline]
pub fn neuron(index: u32, v: f64, g: f64, refractory: u8, spiked: bool) -> u64 {
    let flags = u64::from(refractory) | u64::from(spiked) << 8 | u64::from(index) << 32;
    mix(mix(mix(flags ^ 0x9e37_79b9_7f4a_7c15) ^ v.to_bits()) ^ g.to_bits())
}

/// Share of one pending input in the hash of the delay ring.
#[inline]
pub fn pending(tick: u64, neuron: u32, contacts: i32) -> u64 {
    mix(mix(tick ^ 0x6c62_272e_07bb_0142) ^ (u64::from(neuron) << 32 | u64::from(contacts as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_counts() {
        let base = neuron(1, -52.0, 0.0, 0, false);
        let others = [
            neuron(2, -52.0, 0.0, 0, false),
            neuron(1, -51.0, 0.0, 0, false),
            neuron(1, -52.0, -0.0, 0, false),
            neuron(1, -52.0, 0.0, 1, false),
            neuron(1, -52.0, 0.0, 0, true),
        ];
        assert!(others.iter().all(|&h| h != base));
    }

    #[test]
    fn literal_values_hold_across_releases() {
        assert_eq!(mix(1), 0x5692_161d_100b_05e5);
    }
}
