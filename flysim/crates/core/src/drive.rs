// SPDX-License-Identifier: Apache-2.0
//! The Poisson drive: groups of neurons kicked at random, each at its own rate.

use crate::connectome::Connectome;
use crate::params::TICKS_PER_SECOND;
use crate::philox;

/// A drive ready to run. Driven neurons have no refractory period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drive {
    /// Text it was parsed from, for logs and manifests.
    pub text: String,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Driven neurons in ascending order, each once, with the u32 threshold that its random word must be below.
    pub neurons: Vec<(u32, u32)>,
}

/// A drive text that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("drive {text:?}: {reason}")]
pub struct DriveError {
    /// The text as given.
    pub text: String,
    /// What is wrong and what would be right.
    pub reason: String,
}

impl Drive {
    /// Nobody is driven.
    pub fn none() -> Drive {
        Drive::default()
    }

    /// Parses `group:Hz,group:Hz`. A neuron in two of the groups gets the sum of the rates.
    pub fn parse(text: &str, seed: u64, connectome: &Connectome) -> Result<Drive, DriveError> {
        let refuse = |reason: String| DriveError { text: text.into(), reason };
        let mut rates = std::collections::BTreeMap::<u32, f64>::new();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            // The rate stands behind the last colon: group names of some sources contain one.
            let (name, hz) =
                part.rsplit_once(':').ok_or_else(|| refuse(format!("{part:?} is not group:Hz")))?;
            let hz = parse_rate(hz).map_err(&refuse)?;
            let group = connectome.group(name).ok_or_else(|| refuse(unknown_group(name, connectome)))?;
            group.members.iter().for_each(|&n| *rates.entry(n).or_default() += hz);
        }
        let neurons = rates.into_iter().map(|(n, hz)| (n, threshold(hz))).collect();
        Ok(Drive { text: text.into(), seed, neurons })
    }

    /// Refuses neurons outside the brain or out of order.
    pub fn validate(&self, neurons: usize) -> Result<(), String> {
        let ascending = self.neurons.windows(2).all(|w| w[0].0 < w[1].0);
        match self.neurons.last() {
            Some(last) if last.0 as usize >= neurons || !ascending => {
                Err(format!("drive {:?}: neurons must ascend below {neurons}", self.text))
            }
            _ => Ok(()),
        }
    }

    /// Whether a neuron with `threshold` is kicked at `tick`.
    #[inline]
    pub fn kicks(&self, tick: u64, neuron: u32, threshold: u32) -> bool {
        philox::word(self.seed, tick, neuron) < threshold
    }

    /// Bit k is set when the neuron is kicked at `tick + k`; `ticks` is at most 32.
    #[inline]
    pub fn kick_mask(&self, tick: u64, ticks: usize, neuron: u32, threshold: u32) -> u32 {
        let mut mask = 0;
        let last = tick + ticks as u64;
        for quad in tick >> 2..=(last - 1) >> 2 {
            let words = philox::quad(self.seed, quad, neuron);
            for (at, &word) in (quad * 4..).zip(&words) {
                if word < threshold && (tick..last).contains(&at) {
                    mask |= 1 << (at - tick);
                }
            }
        }
        mask
    }
}

/// Probability of a kick in one tick, as a u32 threshold (2^32 would be certain; the last step is out of reach).
fn threshold(hz: f64) -> u32 {
    (hz / TICKS_PER_SECOND as f64 * 4_294_967_296.0).round().min(4_294_967_295.0) as u32
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let limit = TICKS_PER_SECOND as f64;
    match text.trim().parse::<f64>() {
        Ok(hz) if (0.0..=limit).contains(&hz) => Ok(hz),
        _ => Err(format!("rate {text:?} must be a number of Hz from 0 to {limit}")),
    }
}

fn unknown_group(name: &str, connectome: &Connectome) -> String {
    let names: Vec<&str> = connectome.groups().iter().map(|g| g.name.as_str()).collect();
    let shown = names.iter().take(40).copied().collect::<Vec<_>>().join(" ");
    let more = names.len().saturating_sub(40);
    format!(
        "no group {name:?}; there are: {shown}{}",
        if more > 0 { format!(" and {more} more") } else { String::new() }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_equals_the_single_ticks() {
        let drive = Drive { text: String::new(), seed: 7, neurons: vec![] };
        for tick in 0..40 {
            for ticks in 1..=18 {
                let mask = drive.kick_mask(tick, ticks, 5, 1 << 31);
                for k in 0..ticks {
                    assert_eq!(mask >> k & 1 == 1, drive.kicks(tick + k as u64, 5, 1 << 31));
                }
                assert_eq!(mask >> ticks, 0);
            }
        }
    }

    #[test]
    fn rates_become_thresholds() {
        assert_eq!(threshold(0.0), 0);
        assert_eq!(threshold(5_000.0), 1 << 31);
        assert_eq!(threshold(10_000.0), u32::MAX);
    }
}
