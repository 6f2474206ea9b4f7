// SPDX-License-Identifier: Apache-2.0
//! Everything that a run needs to go on from one tick, on any backend.

use crate::hash;
use crate::params::{DELAY_TICKS, REFRACTORY_TICKS, V_RESET_MV, V_REST_MV, WINDOW};

/// Name of the layout below in compatibility strings. Changes when an old state could no longer be read.
pub const FORMAT: &str = "state-1";

/// Synaptic input on its way: the sum of contacts that reaches `neuron` at `tick`. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pending {
    /// Tick of arrival, within [`DELAY_TICKS`] of the state's tick.
    pub tick: u64,
    /// Target.
    pub neuron: u32,
    /// Signed sum of contacts.
    pub contacts: i32,
}

/// A brain between two ticks. The delay ring is state, so any tick is a place to stop, also inside a window.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Ticks completed.
    pub tick: u64,
    /// Membrane potential in mV.
    pub v: Vec<f64>,
    /// Synaptic drive in mV.
    pub g: Vec<f64>,
    /// Ticks of refractory period left; 22 just after a spike.
    pub refractory: Vec<u8>,
    /// Input under way, ordered by tick, then neuron.
    pub pending: Vec<Pending>,
}

/// A state that cannot be a state of this brain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("state refused: {what}: expected {expected}, found {found}")]
pub struct StateError {
    /// Which part.
    pub what: String,
    /// What it had to be.
    pub expected: String,
    /// What it was.
    pub found: String,
}

impl State {
    /// All neurons at rest at tick 0.
    pub fn at_rest(neurons: usize) -> State {
        State {
            tick: 0,
            v: vec![V_REST_MV; neurons],
            g: vec![0.0; neurons],
            refractory: vec![0; neurons],
            pending: Vec::new(),
        }
    }

    /// Order-free hash of v, g, refractory and who just spiked: what `advance_hashed` gives after each tick,
    /// except that a state cannot know spikes of driven neurons (they have no refractory period).
    pub fn neuron_hash(&self) -> u64 {
        let neurons = self.v.iter().zip(&self.g).zip(&self.refractory).enumerate();
        neurons.fold(0, |sum: u64, (i, ((&v, &g), &r))| {
            sum.wrapping_add(hash::neuron(i as u32, v, g, r, r == REFRACTORY_TICKS))
        })
    }

    /// Order-free hash of the delay ring.
    pub fn ring_hash(&self) -> u64 {
        self.pending
            .iter()
            .fold(0, |sum: u64, p| sum.wrapping_add(hash::pending(p.tick, p.neuron, p.contacts)))
    }

    /// One number for the whole state: tick, neurons and ring.
    pub fn hash(&self) -> u64 {
        hash::mix(self.neuron_hash() ^ hash::mix(self.ring_hash() ^ hash::mix(self.tick)))
    }

    /// Refuses what no run of `neurons` neurons could have produced. Backends rely on it.
    pub fn validate(&self, neurons: usize) -> Result<(), StateError> {
        for (what, found) in [("v", self.v.len()), ("g", self.g.len()), ("refractory", self.refractory.len())]
        {
            if found != neurons {
                return Err(refuse(format!("length of {what}"), neurons, found));
            }
        }
        self.validate_neurons()?;
        self.validate_pending(neurons)
    }

    fn validate_neurons(&self) -> Result<(), StateError> {
        for (i, ((&v, &g), &r)) in self.v.iter().zip(&self.g).zip(&self.refractory).enumerate() {
            if !v.is_finite() || !g.is_finite() {
                return Err(refuse(format!("neuron {i}"), "finite v and g", format!("v {v}, g {g}")));
            }
            if r > REFRACTORY_TICKS {
                let expected = format!("at most {REFRACTORY_TICKS}");
                return Err(refuse(format!("refractory of neuron {i}"), expected, r));
            }
            // The CPU window steps refractory neurons too, which is exact only at the fixed point.
            if r > 0 && (v != V_RESET_MV || g != 0.0) {
                let found = format!("v {v}, g {g}");
                return Err(refuse(format!("refractory neuron {i}"), "v at reset, g 0", found));
            }
        }
        Ok(())
    }

    fn validate_pending(&self, neurons: usize) -> Result<(), StateError> {
        let due = self.tick..self.tick + DELAY_TICKS;
        for (i, p) in self.pending.iter().enumerate() {
            if !due.contains(&p.tick) || p.neuron as usize >= neurons || p.contacts == 0 {
                let expected = format!("tick in {due:?}, neuron below {neurons}, contacts not 0");
                return Err(refuse(format!("input {i} of the delay ring"), expected, format!("{p:?}")));
            }
        }
        match self.pending.windows(2).position(|w| (w[0].tick, w[0].neuron) >= (w[1].tick, w[1].neuron)) {
            Some(i) => Err(refuse(
                format!("input {} of the delay ring", i + 1),
                "order by tick, then neuron, each once",
                format!("{:?} after {:?}", self.pending[i + 1], self.pending[i]),
            )),
            None => Ok(()),
        }
    }
}

/// Slot of the delay ring that belongs to `tick`.
#[inline]
pub fn slot(tick: u64) -> usize {
    (tick % WINDOW as u64) as usize
}

fn refuse(what: String, expected: impl ToString, found: impl ToString) -> StateError {
    StateError { what, expected: expected.to_string(), found: found.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_is_accepted() {
        assert_eq!(State::at_rest(3).validate(3), Ok(()));
    }

    #[test]
    fn each_impossible_state_is_refused_by_name() {
        type Case = (&'static str, fn(&mut State));
        let cases: [Case; 8] = [
            ("length of v", |s| s.v.truncate(1)),
            ("neuron 1", |s| s.g[1] = f64::NAN),
            ("refractory of neuron 0", |s| s.refractory[0] = 23),
            ("refractory neuron 2", |s| (s.refractory[2], s.g[2]) = (3, 0.5)),
            ("input 0", |s| s.pending.push(Pending { tick: 18, neuron: 0, contacts: 1 })),
            ("input 0", |s| s.pending.push(Pending { tick: 0, neuron: 3, contacts: 1 })),
            ("input 0", |s| s.pending.push(Pending { tick: 0, neuron: 0, contacts: 0 })),
            ("input 1", |s| {
                s.pending.extend([Pending { tick: 1, neuron: 0, contacts: 1 }; 2]);
            }),
        ];
        for (name, damage) in cases {
            let mut state = State::at_rest(3);
            damage(&mut state);
            let error = state.validate(3).unwrap_err();
            assert!(error.what.contains(name), "{error}");
        }
    }
}
