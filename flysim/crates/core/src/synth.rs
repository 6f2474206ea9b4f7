// SPDX-License-Identifier: Apache-2.0
//! A made-up brain with the statistics of FlyWire v783, for tests and benchmarks without licensed data.
//!
//! Fitted: number of neurons and pairs, contacts per pair (ceil of a lognormal, cut at 2,405; thresholded = the same
//! conditioned on >= 5), out-degrees (lognormal body with sigma 1.07, hub tail to 9,615), in-degrees with hubs, 62 %
//! excitatory, 13.8 % reciprocal, targets clustered in 78 regions, class sizes, KC -> MBON pairs. Everything else
//! is noise. The same arguments give the same bytes on every machine: random numbers are Philox, and the logarithms
//! come from the pure Rust `libm`, not from the system.

use rayon::prelude::*;

use crate::connectome::{Group, Parts};
use crate::philox;

const REGIONS: usize = 78;
const MAX_CONTACTS: f64 = 2_405.0;
const CONTACTS_MU: f64 = 0.0075;
const CONTACTS_SIGMA: f64 = 1.4893;
const DEGREE_SIGMA: f64 = 1.07;
const POPULARITY_SIGMA: f64 = 1.4;
const MAX_OUT_DEGREE: f64 = 9_615.0;
const FULL_NEURONS: usize = 139_255;
/// Share of pairs that also get their reverse; 2q / (1 + q) of all edges are then reciprocal.
const REVERSED: f64 = 0.074;
const EXCITATORY: f64 = 0.62;
/// Share of targets in the own region, and in a neighbouring one.
const LOCAL: f64 = 0.62;
const NEAR: f64 = 0.22;

/// Classes that a region of their own holds: name, size in the whole brain, region.
const CLASSES: [(&str, usize, usize); 5] =
    [("KC", 5_177, 40), ("MBON", 96, 44), ("DAN", 331, 44), ("descending", 1_305, 70), ("motor", 110, 76)];
const PAM: usize = 307;
/// Gives 1.5 to 3 Hz over the whole brain, at both sizes of the published tables.
const DEFAULT_DRIVE: &str = "KC:45";
/// One neuron in eight is sensory: 17,550 of 139,255.
const SENSORY: f64 = 17_550.0 / 139_255.0;

/// What to make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Neurons.
    pub neurons: usize,
    /// Pairs, exactly.
    pub edges: usize,
    /// Smallest number of contacts of a pair: 1 for the full graph, 5 for the thresholded one.
    pub min_contacts: u32,
    /// Seed.
    pub seed: u64,
}

/// Random numbers of one purpose and one item: counter-based, so items can be made in any order.
struct Stream {
    seed: u64,
    item: u32,
    at: u64,
}

impl Stream {
    fn new(seed: u64, purpose: u64, item: usize) -> Stream {
        Stream { seed: seed ^ (purpose << 56), item: item as u32, at: 0 }
    }

    /// Uniform in (0, 1): 52 bits, never an end.
    fn uniform(&mut self) -> f64 {
        let words = philox::quad(self.seed, self.at, self.item);
        self.at += 1;
        let bits = (u64::from(words[0]) << 20) ^ (u64::from(words[1]) >> 12);
        (bits as f64 + 0.5) / (1u64 << 52) as f64
    }

    fn below(&mut self, limit: usize) -> usize {
        ((self.uniform() * limit as f64) as usize).min(limit - 1)
    }

    fn normal(&mut self) -> f64 {
        let (a, b) = (self.uniform(), self.uniform());
        libm::sqrt(-2.0 * libm::log(a)) * libm::cos(std::f64::consts::TAU * b)
    }

    fn lognormal(&mut self, mu: f64, sigma: f64) -> f64 {
        libm::exp(mu + sigma * self.normal())
    }

    fn contacts(&mut self, min: u32) -> u32 {
        loop {
            let x = libm::ceil(self.lognormal(CONTACTS_MU, CONTACTS_SIGMA)).clamp(1.0, MAX_CONTACTS) as u32;
            if x >= min {
                return x;
            }
        }
    }
}

/// Where things are, and how attractive each neuron is as a target.
struct Plan {
    shape: Shape,
    classes: Vec<Group>,
    /// Running sum of popularity, one longer than there are neurons.
    popularity: Vec<f64>,
}

/// Makes a brain. `Err` says why the shape is impossible.
pub fn generate(shape: Shape) -> Result<Parts, String> {
    let Shape { neurons, edges, .. } = shape;
    if neurons < 200 || edges < neurons || edges > neurons * (neurons / 8) {
        let limit = neurons * (neurons / 8);
        return Err(format!(
            "{neurons} neurons, {edges} edges: want >= 200 neurons, neurons <= edges <= {limit}"
        ));
    }
    let plan = Plan { shape, classes: classes(shape), popularity: popularity(shape) };
    let mut rows = plan.forward_rows();
    plan.add_reverses(&mut rows);
    plan.trim_to(edges, &mut rows);
    Ok(plan.finish(&rows))
}

fn region_of(neuron: usize, neurons: usize) -> usize {
    neuron * REGIONS / neurons
}

fn region_start(region: usize, neurons: usize) -> usize {
    (region * neurons).div_ceil(REGIONS)
}

/// Special classes sit at the start of their region; sensory neurons are strewn over all others.
fn classes(shape: Shape) -> Vec<Group> {
    let n = shape.neurons;
    let mut taken = vec![false; n];
    let mut groups = Vec::new();
    for (name, full, region) in CLASSES {
        let size = (full * n).div_ceil(FULL_NEURONS);
        let start = region_start(region, n);
        let members: Vec<u32> = (start..n).filter(|&i| !taken[i]).take(size).map(|i| i as u32).collect();
        members.iter().for_each(|&m| taken[m as usize] = true);
        groups.push(Group { name: name.into(), members });
    }
    let pam = (PAM * n).div_ceil(FULL_NEURONS);
    let pam = groups.iter().find(|g| g.name == "DAN").map(|g| g.members[..pam.min(g.members.len())].to_vec());
    let sensory = |i: usize| !taken[i] && Stream::new(shape.seed, 1, i).uniform() < SENSORY * 1.06;
    let (sensory, central): (Vec<u32>, Vec<u32>) =
        (0..n as u32).filter(|&i| !taken[i as usize]).partition(|&i| sensory(i as usize));
    groups.push(Group { name: "PAM".into(), members: pam.unwrap_or_default() });
    groups.push(Group { name: "sensory".into(), members: sensory });
    groups.push(Group { name: "central".into(), members: central });
    groups
}

fn popularity(shape: Shape) -> Vec<f64> {
    let mut sum = 0.0;
    let mut cumulative = vec![0.0];
    for i in 0..shape.neurons {
        sum += Stream::new(shape.seed, 2, i).lognormal(0.0, POPULARITY_SIGMA);
        cumulative.push(sum);
    }
    cumulative
}

fn is_excitatory(seed: u64, neuron: usize) -> bool {
    Stream::new(seed, 3, neuron).uniform() < EXCITATORY
}

impl Plan {
    fn degrees(&self) -> Vec<usize> {
        let n = self.shape.neurons;
        let raw: Vec<f64> = (0..n)
            .map(|i| {
                let mut s = Stream::new(self.shape.seed, 4, i);
                let hub = if s.uniform() < 0.002 { 6.0 } else { 1.0 };
                hub * s.lognormal(0.0, DEGREE_SIGMA)
            })
            .collect();
        let total: f64 = raw.iter().sum();
        // Duplicates with reverses and cut hubs cost a little: aim above, then trim.
        let wanted = self.shape.edges as f64 / (1.0 + REVERSED) * 1.02;
        let limit = MAX_OUT_DEGREE.min(n as f64 / 6.0);
        raw.iter().map(|r| libm::ceil(r / total * wanted - 0.5).clamp(0.0, limit) as usize).collect()
    }

    fn forward_rows(&self) -> Vec<Vec<u32>> {
        let degrees = self.degrees();
        let mut rows: Vec<Vec<u32>> =
            degrees.par_iter().enumerate().map(|(i, &degree)| self.forward_row(i, degree)).collect();
        self.add_kc_to_mbon(&mut rows);
        rows
    }

    fn forward_row(&self, from: usize, degree: usize) -> Vec<u32> {
        let mut stream = Stream::new(self.shape.seed, 5, from);
        let mut row = Vec::with_capacity(degree);
        // A region can be smaller than a hub's row: give up on distinctness after some rounds, trim_to fills up.
        for _ in 0..4 {
            while row.len() < degree {
                row.push(self.target(from, &mut stream));
            }
            row.sort_unstable();
            row.dedup();
        }
        row.retain(|&t| t as usize != from);
        row
    }

    fn target(&self, from: usize, stream: &mut Stream) -> u32 {
        let n = self.shape.neurons;
        let region = region_of(from, n);
        let u = stream.uniform();
        let region = match () {
            () if u < LOCAL => Some(region),
            () if u < LOCAL + NEAR => Some((region + 1 + stream.below(4) * 19) % REGIONS),
            () => None,
        };
        let (start, end) = match region {
            Some(r) => (region_start(r, n), region_start(r + 1, n)),
            None => (0, n),
        };
        let (low, high) = (self.popularity[start], self.popularity[end]);
        let x = low + stream.uniform() * (high - low);
        let at = start + self.popularity[start + 1..end].partition_point(|&p| p < x);
        at as u32
    }

    fn class(&self, name: &str) -> &[u32] {
        self.classes.iter().find(|g| g.name == name).map_or(&[], |g| &g.members)
    }

    /// 21,438 pairs among 5,177 x 96 at full size: each KC reaches four or five MBONs.
    fn add_kc_to_mbon(&self, rows: &mut [Vec<u32>]) {
        let mbon = self.class("MBON");
        for &kc in self.class("KC") {
            let mut stream = Stream::new(self.shape.seed, 6, kc as usize);
            let count = 4 + usize::from(stream.uniform() < 0.14);
            let row = &mut rows[kc as usize];
            row.extend((0..count).map(|_| mbon[stream.below(mbon.len())]));
            row.sort_unstable();
            row.dedup();
        }
    }

    fn add_reverses(&self, rows: &mut [Vec<u32>]) {
        let reverses: Vec<(u32, u32)> = rows
            .par_iter()
            .enumerate()
            .flat_map_iter(|(from, row)| {
                let mut stream = Stream::new(self.shape.seed, 7, from);
                let chosen: Vec<_> = row.iter().filter(|_| stream.uniform() < REVERSED).collect();
                chosen.into_iter().map(move |&to| (to, from as u32))
            })
            .collect();
        reverses.iter().for_each(|&(from, to)| rows[from as usize].push(to));
        rows.par_iter_mut().for_each(|row| {
            row.sort_unstable();
            row.dedup();
        });
    }

    /// Drops or adds edges one by one, at random neurons, until the number is exact.
    fn trim_to(&self, edges: usize, rows: &mut [Vec<u32>]) {
        let mut total: usize = rows.iter().map(Vec::len).sum();
        let mut stream = Stream::new(self.shape.seed, 8, 0);
        while total != edges {
            let from = stream.below(rows.len());
            if total > edges && rows[from].len() > 1 {
                let at = stream.below(rows[from].len());
                rows[from].remove(at);
                total -= 1;
            } else if total < edges {
                let to = self.target(from, &mut stream);
                if let Err(at) = rows[from].binary_search(&to)
                    && to as usize != from
                {
                    rows[from].insert(at, to);
                    total += 1;
                }
            }
        }
    }

    fn finish(&self, rows: &[Vec<u32>]) -> Parts {
        let Shape { neurons, edges, min_contacts, seed } = self.shape;
        let mut offsets = vec![0u64];
        rows.iter().for_each(|row| offsets.push(offsets[offsets.len() - 1] + row.len() as u64));
        let counts = rows.par_iter().enumerate().flat_map_iter(|(from, row)| {
            let mut stream = Stream::new(seed, 9, from);
            let sign = if is_excitatory(seed, from) { 1 } else { -1 };
            row.iter().map(move |_| sign * stream.contacts(min_contacts) as i16)
        });
        Parts {
            index_space: format!("synth-{neurons}"),
            source: format!(
                "synth v1: neurons {neurons}, edges {edges}, min contacts {min_contacts}, seed {seed}"
            ),
            default_drive: DEFAULT_DRIVE.into(),
            attribution: "Made up by flysim (Apache-2.0); statistics after FlyWire v783. Not a brain.\n"
                .into(),
            roots: (0..neurons as u64).map(|i| 720_575_940_000_000_000 + i).collect(),
            counts: counts.collect(),
            targets: rows.concat(),
            offsets,
            groups: self.groups(),
        }
    }

    fn groups(&self) -> Vec<Group> {
        let n = self.shape.neurons;
        let mut groups = self.classes.clone();
        let (excitatory, inhibitory) =
            (0..n as u32).partition(|&i| is_excitatory(self.shape.seed, i as usize));
        groups.push(Group { name: "excitatory".into(), members: excitatory });
        groups.push(Group { name: "inhibitory".into(), members: inhibitory });
        groups.extend((0..REGIONS).map(|r| Group {
            name: format!("region-{r:02}"),
            members: (region_start(r, n) as u32..region_start(r + 1, n) as u32).collect(),
        }));
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Shape = Shape { neurons: 3_000, edges: 58_000, min_contacts: 5, seed: 1 };

    #[test]
    fn the_same_shape_gives_the_same_bytes_and_another_seed_others() {
        let a = generate(SMALL).unwrap();
        assert_eq!(a, generate(SMALL).unwrap());
        assert_ne!(a.targets, generate(Shape { seed: 2, ..SMALL }).unwrap().targets);
        assert_eq!(a.build().unwrap().fingerprint(), "89fc1ab9f3895547");
    }

    #[test]
    fn the_statistics_are_those_asked_for() {
        let c = generate(SMALL).unwrap().build().unwrap();
        assert_eq!((c.neurons(), c.edges()), (SMALL.neurons, SMALL.edges));
        assert!(c.counts().iter().all(|c| (5..=2_405).contains(&c.unsigned_abs())));
        let excitatory = c.group("excitatory").unwrap().members.len() as f64 / 3_000.0;
        assert!((excitatory - 0.62).abs() < 0.03, "{excitatory}");
        let reciprocal = (0..3_000u32)
            .flat_map(|i| c.row(i).0.iter().map(move |&t| (i, t)))
            .filter(|&(i, t)| c.row(t).0.binary_search(&i).is_ok())
            .count() as f64
            / SMALL.edges as f64;
        // In a brain this small, chance adds to the 13.8 % of the large one.
        assert!((0.12..0.35).contains(&reciprocal), "{reciprocal}");
    }

    #[test]
    fn impossible_shapes_are_refused() {
        for (neurons, edges) in [(10, 100), (1_000, 10), (1_000, 900_000)] {
            assert!(generate(Shape { neurons, edges, ..SMALL }).is_err());
        }
    }
}
