// SPDX-License-Identifier: Apache-2.0
//! `herm_full_edgelist.csv` of `cect` 0.3.5: C. elegans, one row per pair and kind of contact.
//!
//! Chemical rows become edges. Electrical ones are counted and left out: a gap junction is no delayed, signed spike,
//! and this kernel has nothing truer for it. There is no transmitter column: the 26 GABA cells of McIntire et al.
//! 1993 are inhibitory, all others excitatory.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use flysim_core::connectome::Parts;
use serde_json::json;

use super::{Imported, groups};

const HEADER: &str = "Source,Target,Weight,Type";
const GABA: [&str; 7] = ["RMEL", "RMER", "RMED", "RMEV", "AVL", "DVB", "RIS"];
const ATTRIBUTION: &str = "\
C. elegans hermaphrodite (White et al. 1986; Cook et al. 2019), through data/herm_full_edgelist.csv of the PyPI
package cect 0.3.5 (OpenWorm ConnectomeToolbox, MIT). Chemical contacts only. Signs: GABA cells after McIntire et al.
1993 are inhibitory, all others excitatory; an approximation.
";

struct Row<'a> {
    from: &'a str,
    to: &'a str,
    contacts: i32,
    chemical: bool,
}

pub(super) fn parse(text: &str) -> anyhow::Result<Imported> {
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default().trim();
    ensure!(header == HEADER, "header: expected {HEADER:?}, found {header:?}");
    let rows: Vec<Row> = lines
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(i, line)| row(line).with_context(|| format!("line {}", i + 2)))
        .collect::<anyhow::Result<_>>()?;
    let names: BTreeMap<&str, u32> = {
        let mut all: Vec<&str> = rows.iter().flat_map(|r| [r.from, r.to]).collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter().zip(0..).collect()
    };
    let mut parts = Parts {
        index_space: format!("cect-herm-{}", names.len()),
        source: "cect 0.3.5 data/herm_full_edgelist.csv".into(),
        default_drive: if names.contains_key("ALML") {
            "ALML:150,ALMR:150,PLML:150,PLMR:150".into()
        } else {
            String::new()
        },
        attribution: ATTRIBUTION.into(),
        // These cells have names and no ids; the names are the groups.
        roots: (0..names.len() as u64).collect(),
        groups: groups(names.iter().flat_map(|(&name, &i)| {
            let sign = if is_gaba(name) { "GABA" } else { "not-GABA" };
            [(name.to_string(), i), (sign.to_string(), i)]
        })),
        ..Parts::default()
    };
    let chemical: Vec<_> = rows.iter().filter(|r| r.chemical).collect();
    let edge =
        |r: &&Row| (names[r.from], names[r.to], if is_gaba(r.from) { -r.contacts } else { r.contacts });
    parts.set_edges(chemical.iter().map(edge).collect()).map_err(anyhow::Error::msg)?;
    let counts = json!({
        "cells": names.len(), "chemical": chemical.len(), "electrical_left_out": rows.len() - chemical.len(),
        "gaba_cells": names.keys().filter(|n| is_gaba(n)).count(),
    });
    Ok(Imported { parts, counts })
}

fn row(line: &str) -> anyhow::Result<Row<'_>> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [from, to, weight, kind] = fields[..] else { bail!("expected 4 fields, found {}", fields.len()) };
    let weight: f64 = weight.parse().with_context(|| format!("weight {weight:?}"))?;
    let usable = weight.fract() == 0.0 && (1.0..=f64::from(i16::MAX)).contains(&weight);
    ensure!(usable, "weight {weight}: expected a whole number of contacts from 1");
    let chemical = match kind {
        "chemical" => true,
        "electrical" => false,
        other => bail!("type {other:?}: expected chemical or electrical"),
    };
    ensure!(!from.is_empty() && !to.is_empty(), "a cell without a name");
    Ok(Row { from, to, contacts: weight as i32, chemical })
}

fn is_gaba(name: &str) -> bool {
    let motor = |prefix: &str, count: u32| {
        name.strip_prefix(prefix).and_then(|n| n.parse().ok()).is_some_and(|n: u32| (1..=count).contains(&n))
    };
    GABA.contains(&name) || motor("DD", 6) || motor("VD", 13) || motor("DD0", 6) || motor("VD0", 9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chemical_rows_are_edges_and_electrical_ones_are_counted() {
        let text =
            "Source,Target,Weight,Type\nAVL , I3   ,10,chemical\nI3,AVL,2,electrical\nI3,M1,4,chemical\n";
        let got = parse(text).unwrap();
        let c = got.parts.build().unwrap();
        assert_eq!((c.neurons(), c.edges()), (3, 2));
        assert_eq!(c.row(0), (&[1u32][..], &[-10i16][..]));
        assert_eq!(got.counts["electrical_left_out"], 1);
    }

    #[test]
    fn rows_of_another_shape_are_refused_with_their_line() {
        for bad in ["a,b,1", "a,b,0,chemical", "a,b,1.5,chemical", "a,b,1,magic", ",b,1,chemical"] {
            let error = parse(&format!("{HEADER}\n{bad}\n")).err().map(|e| format!("{e:#}"));
            assert!(error.as_ref().is_some_and(|e| e.contains("line 2")), "{bad}: {error:?}");
        }
        assert!(parse("from,to\n").is_err());
        let double = format!("{HEADER}\na,b,1,chemical\na,b,2,chemical\n");
        assert!(parse(&double).is_err());
    }
}
