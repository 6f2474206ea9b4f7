// SPDX-License-Identifier: Apache-2.0
//! `circuit.seed.json` of `flywire-coding-cortex` 0.1.1: 668 cells, one row per pair and neuropil, already signed.
//!
//! Rules (decision 5): rows of aminergic cells were halved there, so half-integer rows are doubled; whole ones that
//! were halved cannot be told and stay. There is no transmitter column: the sign of a cell is the sign of its summed
//! weight, and every row follows it. How many rows that overruled is counted.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use flysim_core::connectome::Parts;
use serde_json::json;

use super::{Imported, groups};

const ATTRIBUTION: &str = "\
FlyWire FAFB v783 (Dorkenwald et al. 2024, Schlegel et al. 2024; synapses Buhmann et al. 2021, transmitters Eckstein
et al. 2024), through circuit.seed.json of the PyPI package flywire-coding-cortex.
The data is licensed CC BY-NC 4.0: attribution required, no commercial use. The package's code is MIT.
Approximate: weights of aminergic cells were halved and rounded by the source; signs are per cell, by summed weight.
";

#[derive(serde::Deserialize)]
struct Seed {
    neurons: Vec<Cell>,
    edges: Vec<(u32, u32, f64)>,
}

#[derive(serde::Deserialize)]
struct Cell {
    id: String,
    #[serde(rename = "type")]
    cell_type: String,
    role: String,
    side: String,
}

/// Contacts of one pair, unsigned, and how many rows were doubled or overruled in all.
#[derive(Default)]
struct Tally {
    doubled: u64,
    overruled: u64,
    pairs: BTreeMap<(u32, u32), i32>,
}

pub(super) fn parse(text: &str) -> anyhow::Result<Imported> {
    let seed: Seed = serde_json::from_str(text).context("not a circuit.seed.json")?;
    let n = seed.neurons.len();
    let rows = rows(&seed)?;
    let tally = sum(&rows, &signs(&rows, n));
    let mut parts = Parts {
        index_space: "flywire-coding-cortex-668".into(),
        source: "flywire-coding-cortex 0.1.1 assets/circuit.seed.json".into(),
        default_drive: "LC4:50,LPLC2:50".into(),
        attribution: ATTRIBUTION.into(),
        roots: roots(&seed.neurons)?,
        groups: groups(names(&seed.neurons)),
        ..Parts::default()
    };
    let edges = tally.pairs.iter().map(|(&(from, to), &contacts)| (from, to, contacts)).collect();
    parts.set_edges(edges).map_err(anyhow::Error::msg)?;
    let counts = json!({
        "neurons": n, "rows": rows.len(), "pairs": tally.pairs.len(),
        "half_integer_rows_doubled": tally.doubled, "rows_overruled_by_cell_sign": tally.overruled,
    });
    Ok(Imported { parts, counts })
}

fn roots(cells: &[Cell]) -> anyhow::Result<Vec<u64>> {
    let roots: Vec<u64> = cells
        .iter()
        .enumerate()
        .map(|(i, c)| c.id.parse().with_context(|| format!("neurons[{i}].id: {:?} is no root id", c.id)))
        .collect::<anyhow::Result<_>>()?;
    let mut sorted = roots.clone();
    sorted.sort_unstable();
    let double = sorted.windows(2).find(|w| w[0] == w[1]);
    ensure!(double.is_none(), "root id {} stands there twice", double.map_or(0, |w| w[0]));
    Ok(roots)
}

/// Rows as (source, target, signed contacts, was doubled); refuses what is no number of half contacts.
fn rows(seed: &Seed) -> anyhow::Result<Vec<(u32, u32, i32, bool)>> {
    let n = seed.neurons.len() as u32;
    let row = |(i, &(from, to, weight)): (usize, &(u32, u32, f64))| {
        ensure!(from < n && to < n, "edges[{i}]: {from} -> {to} among {n} neurons");
        let halves = weight * 2.0;
        let usable = halves.fract() == 0.0 && weight != 0.0 && halves.abs() < 60_000.0;
        ensure!(usable, "edges[{i}]: weight {weight} is not a whole or half number of contacts");
        let doubled = weight.fract() != 0.0;
        Ok((from, to, if doubled { halves } else { weight } as i32, doubled))
    };
    seed.edges.iter().enumerate().map(row).collect()
}

/// Sign of each cell: of its summed weight; a tie counts as excitatory.
fn signs(rows: &[(u32, u32, i32, bool)], neurons: usize) -> Vec<i32> {
    let mut sums = vec![0i64; neurons];
    rows.iter().for_each(|r| sums[r.0 as usize] += i64::from(r.2));
    sums.iter().map(|&s| if s < 0 { -1 } else { 1 }).collect()
}

fn sum(rows: &[(u32, u32, i32, bool)], signs: &[i32]) -> Tally {
    let mut tally = Tally::default();
    for &(from, to, contacts, doubled) in rows {
        let sign = signs[from as usize];
        tally.doubled += u64::from(doubled);
        tally.overruled += u64::from(contacts.signum() != sign);
        *tally.pairs.entry((from, to)).or_default() += sign * contacts.abs();
    }
    tally
}

/// Types as they stand (`LC4`, `sensory`), roles where they add something, sides.
fn names(cells: &[Cell]) -> impl Iterator<Item = (String, u32)> + '_ {
    cells.iter().enumerate().flat_map(|(i, c)| {
        let role = (!c.role.eq_ignore_ascii_case(&c.cell_type)).then(|| format!("role-{}", c.role));
        let names = [Some(c.cell_type.clone()), role, Some(format!("side-{}", c.side))];
        names.into_iter().flatten().map(move |name| (name, i as u32))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(edges: &str) -> String {
        let cell = |id: u32, t: &str, role: &str| {
            format!(
                r#"{{"id": "72057594060398942{id}", "type": "{t}", "role": "{role}", "side": "left", "pos": []}}"#
            )
        };
        let cells = [cell(0, "LC4", "lc4"), cell(1, "central", "gf"), cell(2, "sensory", "other")].join(",");
        format!(r#"{{"source": "x", "neurons": [{cells}], "edges": {edges}}}"#)
    }

    #[test]
    fn neuropils_are_summed_halves_doubled_and_signs_made_one_per_cell() {
        let got = parse(&seed("[[0, 1, -51.0], [0, 1, -2.5], [0, 2, 3.0], [1, 2, 6.0]]")).unwrap();
        let c = got.parts.build().unwrap();
        assert_eq!(c.row(0), (&[1u32, 2][..], &[-56i16, -3][..]));
        assert_eq!(c.row(1).1, [6]);
        assert_eq!(got.counts["rows"], 4);
        assert_eq!(got.counts["pairs"], 3);
        assert_eq!(got.counts["half_integer_rows_doubled"], 1);
        assert_eq!(got.counts["rows_overruled_by_cell_sign"], 1);
        assert_eq!(c.roots()[2], 720_575_940_603_989_422);
        assert_eq!(c.group("LC4").unwrap().members, [0]);
        assert_eq!(c.group("role-gf").unwrap().members, [1]);
        assert!(c.attribution().contains("CC BY-NC 4.0"));
    }

    #[test]
    fn what_cannot_be_contacts_is_refused() {
        for edges in ["[[0, 3, 5.0]]", "[[0, 1, 0.0]]", "[[0, 1, 5.25]]", "[[0, 1]]", "[[0, 1, 99999.0]]"] {
            assert!(parse(&seed(edges)).is_err(), "{edges}");
        }
    }
}
