// SPDX-License-Identifier: Apache-2.0
//! Literal numbers seen in Brian2 2.9.0 for the authors' equations.

use super::*;
use crate::connectome::Parts;

/// 0 -> 1 with `weight` contacts, 2 unconnected.
fn pair(weight: i32) -> Connectome {
    let mut parts = Parts { index_space: "pair".into(), roots: vec![1, 2, 3], ..Parts::default() };
    parts.set_edges(vec![(0, 1, weight)]).unwrap();
    parts.build().unwrap()
}

fn kicks(list: &[(u64, u32)]) -> Vec<Kick> {
    list.iter().map(|&(tick, neuron)| Kick { tick, neuron }).collect()
}

fn run(reference: &mut Reference, until: u64) -> Vec<(u64, u32)> {
    let mut spikes = Vec::new();
    while reference.tick < until {
        spikes.extend(reference.step().0.iter().map(|s| (s.tick, s.neuron)));
    }
    spikes
}

#[test]
fn a_kick_at_10_spikes_at_11_and_its_weight_is_in_g_at_29() {
    let c = pair(4);
    let mut r = Reference::new(&c, Drive::none(), kicks(&[(10, 0)]));
    assert_eq!(run(&mut r, 29), [(11, 0)]);
    assert_eq!(r.g[1], 0.0);
    r.step();
    assert_eq!(r.g[1], 1.1);
    assert_eq!(r.v[1], -52.0);
    r.step();
    assert_eq!(r.v[1], -52.0 + 1.1 * C);
    assert_eq!(r.g[1], 1.1 * B);
}

#[test]
fn arrivals_are_dropped_for_22_ticks_and_then_accepted() {
    // Neuron 1 spikes at 100. An arrival at tick a comes from a kick of neuron 0 at a - 19.
    for (arrival, kept) in [(99, true), (100, false), (101, false), (121, false), (122, true), (123, true)] {
        let c = pair(4);
        let mut r = Reference::new(&c, Drive::none(), kicks(&[(99, 1), (arrival - 19, 0)]));
        let spikes = run(&mut r, arrival + 1);
        assert!(arrival < 100 || spikes.contains(&(100, 1)));
        assert_eq!(r.g[1] != 0.0, kept, "arrival at {arrival}");
    }
}

#[test]
fn a_kick_in_the_refractory_period_is_dropped() {
    for (second, spikes) in [(121, 1), (122, 2)] {
        let c = pair(4);
        let mut r = Reference::new(&c, Drive::none(), kicks(&[(99, 2), (second, 2)]));
        assert_eq!(run(&mut r, 140).len(), spikes, "second kick at {second}");
    }
}

#[test]
fn a_driven_neuron_has_no_refractory_period() {
    let c = pair(4);
    let drive = Drive { text: String::new(), seed: 0, neurons: vec![(2, 0)] };
    let mut r = Reference::new(&c, drive, kicks(&[(10, 2), (11, 2), (12, 2)]));
    // The kick at 11 meets the spike of the kick at 10 and is dropped with it.
    assert_eq!(run(&mut r, 20), [(11, 2), (13, 2)]);
}

#[test]
fn threshold_is_strict() {
    let c = pair(4);
    let mut r = Reference::new(&c, Drive::none(), vec![]);
    // The smallest v above -45 after the step, and the largest at or below it.
    r.v[2] = -52.0 + 7.0 / A;
    r.v[1] = -52.0 + 7.000_000_1 / A;
    assert!(-52.0 + (r.v[2] + 52.0) * A <= -45.0);
    assert_eq!(run(&mut r, 1), [(0, 1)]);
}

#[test]
fn ten_millivolts_of_g_raise_v_by_ten_c() {
    let c = pair(4);
    let mut r = Reference::new(&c, Drive::none(), vec![]);
    r.g[2] = 10.0;
    r.step();
    assert_eq!(r.v[2], -52.0 + 10.0 * 0.004937935295309022);
}

#[test]
fn a_silent_neuron_comes_to_an_exact_fixed_point() {
    let c = pair(4);
    let mut r = Reference::new(&c, Drive::none(), kicks(&[(0, 0)]));
    run(&mut r, 12_000);
    let (v, g) = (r.v[1], r.g[1]);
    assert_eq!(g, 0.0);
    assert_eq!(V_REST_MV + (v - V_REST_MV) * A + g * C, v);
    run(&mut r, 12_100);
    assert_eq!(v, r.v[1]);
}
