// SPDX-License-Identifier: Apache-2.0
use super::*;

fn parts() -> Parts {
    let mut parts = Parts {
        index_space: "test-3".into(),
        source: "by hand".into(),
        attribution: "nobody".into(),
        roots: vec![720_575_940_600_000_001, 720_575_940_600_000_002, 720_575_940_600_000_003],
        groups: vec![
            Group { name: "a".into(), members: vec![0, 2] },
            Group { name: "b".into(), members: vec![1] },
        ],
        ..Parts::default()
    };
    parts.set_edges(vec![(2, 0, -7), (0, 1, 5), (0, 2, 300)]).unwrap();
    parts
}

#[test]
fn what_was_written_is_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.fly");
    let c = parts().write(&path).unwrap();
    assert_eq!((c.neurons(), c.edges(), c.index_space(), c.attribution()), (3, 3, "test-3", "nobody"));
    assert_eq!(c.row(0), (&[1u32, 2][..], &[5i16, 300][..]));
    assert_eq!(c.row(1), (&[][..], &[][..]));
    assert_eq!(c.roots()[0], 720_575_940_600_000_001);
    assert_eq!(c.group("a").unwrap().members, [0, 2]);
    assert!(c.group("c").is_none());
}

#[test]
fn the_fingerprint_follows_the_dynamics_and_not_the_names() {
    let base = parts().build().unwrap();
    let mut renamed = parts();
    renamed.groups[0].name = "z".into();
    assert_eq!(base.fingerprint(), renamed.build().unwrap().fingerprint());
    let mut moved = parts();
    moved.counts[0] = 6;
    assert_ne!(base.fingerprint(), moved.build().unwrap().fingerprint());
    let mut elsewhere = parts();
    elsewhere.index_space = "test-4".into();
    assert_ne!(base.fingerprint(), elsewhere.build().unwrap().fingerprint());
}

#[test]
fn each_wrong_part_is_refused_by_section() {
    type Case = (&'static str, fn(&mut Parts));
    let cases: [Case; 10] = [
        ("meta", |p| p.index_space = "a/b".into()),
        ("roots", |p| p.roots.truncate(0)),
        ("offsets", |p| p.offsets[3] = 2),
        ("offsets", |p| p.offsets[1] = 9),
        ("targets", |p| p.targets[0] = 3),
        ("targets", |p| p.targets.swap(0, 1)),
        ("counts", |p| p.counts[1] = 0),
        ("groups", |p| p.groups[1].name = "a".into()),
        ("members", |p| p.groups[1].members = vec![3]),
        ("members", |p| p.groups[0].members = vec![2, 0]),
    ];
    for (i, (section, damage)) in cases.into_iter().enumerate() {
        let mut damaged = parts();
        damage(&mut damaged);
        let error = damaged.build().unwrap_err();
        let named = error.section == section || (section == "roots" && error.section == "header");
        assert!(named, "case {i}: {error}");
        assert!(!error.expected.is_empty() && !error.advice.is_empty());
    }
}

#[test]
fn any_flipped_byte_is_refused() {
    let image = parts().encode();
    let good = Connectome::from_bytes(&image, "x").unwrap();
    assert_eq!(good.neurons(), 3);
    let used: Vec<usize> = {
        let header = layout::decode(&image).map_err(|e| e.0).unwrap();
        header.entries.iter().flat_map(|e| e.range.clone()).chain(0..64 + 64 * 8).collect()
    };
    for at in used {
        let mut damaged = image.clone();
        damaged[at] ^= 0x10;
        assert!(Connectome::from_bytes(&damaged, "x").is_err(), "byte {at}");
    }
}

#[test]
fn any_truncation_is_refused() {
    let image = parts().encode();
    for len in 0..image.len() {
        assert!(Connectome::from_bytes(&image[..len], "x").is_err(), "{len} bytes");
    }
}

#[test]
fn edges_that_cannot_be_held_are_named() {
    let refused = |edges| parts().set_edges(edges).unwrap_err();
    assert!(refused(vec![(0, 1, 40_000)]).contains("16 bits"));
    assert!(refused(vec![(0, 1, 1), (0, 1, 2)]).contains("twice"));
    assert!(refused(vec![(0, 3, 1)]).contains("3 neurons"));
}

#[test]
fn a_sum_that_could_overflow_is_refused() {
    let n = 66_000;
    let mut wide = Parts { index_space: "wide".into(), roots: (0..n).collect(), ..Parts::default() };
    wide.set_edges((0..n as u32).map(|i| (i, 0, 32_767)).collect()).unwrap();
    let error = wide.build().unwrap_err();
    assert!(error.section == "counts" && error.expected.contains("sum"), "{error}");
}
