// SPDX-License-Identifier: Apache-2.0
//! The plain tick, written as the model reads, one neuron at a time. Slow; the fast kernels must equal it.

use crate::connectome::Connectome;
use crate::drive::Drive;
use crate::hash;
use crate::params::*;
use crate::spikes::{Kick, Spike};
use crate::state::{Pending, State, slot};

/// A brain that is stepped tick by tick.
pub struct Reference<'a> {
    connectome: &'a Connectome,
    drive: Drive,
    kicks: Vec<Kick>,
    tick: u64,
    v: Vec<f64>,
    g: Vec<f64>,
    refractory: Vec<u8>,
    ring: Vec<Vec<i32>>,
}

impl<'a> Reference<'a> {
    /// At rest, with a drive and external events in any order.
    pub fn new(connectome: &'a Connectome, drive: Drive, kicks: Vec<Kick>) -> Reference<'a> {
        let n = connectome.neurons();
        let rest = State::at_rest(n);
        let ring = vec![vec![0; n]; WINDOW];
        let (v, g, refractory) = (rest.v, rest.g, rest.refractory);
        Reference { connectome, drive, kicks, tick: 0, v, g, refractory, ring }
    }

    /// One tick: state update, threshold, arrivals, reset. Gives the spikes and the hash after it.
    pub fn step(&mut self) -> (Vec<Spike>, u64) {
        let mut spikes = Vec::new();
        let mut hash = 0u64;
        let arrivals = std::mem::replace(&mut self.ring[slot(self.tick)], vec![0; self.v.len()]);
        for (i, &contacts) in arrivals.iter().enumerate() {
            let spiked = self.step_neuron(i, contacts);
            if spiked {
                spikes.push(Spike { tick: self.tick, neuron: i as u32 });
            }
            let share = hash::neuron(i as u32, self.v[i], self.g[i], self.refractory[i], spiked);
            hash = hash.wrapping_add(share);
        }
        // The slot of this tick is free now and is the one due in DELAY_TICKS.
        for spike in &spikes {
            let (targets, counts) = self.connectome.row(spike.neuron);
            for (&target, &count) in targets.iter().zip(counts) {
                self.ring[slot(self.tick)][target as usize] += i32::from(count);
            }
        }
        self.tick += 1;
        (spikes, hash)
    }

    fn step_neuron(&mut self, i: usize, contacts: i32) -> bool {
        self.refractory[i] = self.refractory[i].saturating_sub(1);
        if self.refractory[i] > 0 {
            return false;
        }
        self.v[i] = V_REST_MV + (self.v[i] - V_REST_MV) * A + self.g[i] * C;
        self.g[i] *= B;
        if self.g[i].abs() < G_FLUSH_MV {
            self.g[i] = 0.0;
        }
        let driven = self.drive.neurons.binary_search_by_key(&(i as u32), |d| d.0).ok();
        if self.v[i] > V_THRESHOLD_MV {
            self.v[i] = V_RESET_MV;
            self.g[i] = 0.0;
            self.refractory[i] = if driven.is_some() { 0 } else { REFRACTORY_TICKS };
            return true;
        }
        if contacts != 0 {
            self.g[i] += WEIGHT_MV * f64::from(contacts);
        }
        let tick = self.tick;
        let random = driven.is_some_and(|d| self.drive.kicks(tick, i as u32, self.drive.neurons[d].1));
        if random || self.kicks.iter().any(|k| k.tick == tick && k.neuron == i as u32) {
            self.v[i] += KICK_MV;
        }
        false
    }

    /// The state after the last tick.
    pub fn export(&self) -> State {
        let mut pending = Vec::new();
        for tick in self.tick..self.tick + DELAY_TICKS {
            for (i, &contacts) in self.ring[slot(tick)].iter().enumerate().filter(|(_, c)| **c != 0) {
                pending.push(Pending { tick, neuron: i as u32, contacts });
            }
        }
        let (v, g, refractory) = (self.v.clone(), self.g.clone(), self.refractory.clone());
        State { tick: self.tick, v, g, refractory, pending }
    }
}

#[cfg(test)]
#[path = "reference_tests.rs"]
mod tests;
