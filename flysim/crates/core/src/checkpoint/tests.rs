// SPDX-License-Identifier: Apache-2.0
use std::fs;

use super::*;
use crate::state::Pending;

fn state(tick: u64) -> State {
    let mut state = State::at_rest(5);
    state.tick = tick;
    (state.v[1], state.g[1], state.refractory[3]) = (-50.25, 1.5, 7);
    state.pending.push(Pending { tick: tick + 3, neuron: 4, contacts: -12 });
    state
}

fn meta() -> Meta {
    Meta { compatibility: "a/b/c/none/d".into(), seed: u64::MAX, ..Meta::default() }
}

#[test]
fn what_was_written_is_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), &state(7), &meta()).unwrap();
    let back = read(&path).unwrap();
    assert_eq!(back.state, state(7));
    assert_eq!((back.manifest.tick, back.manifest.seed.as_str()), (7, "18446744073709551615"));
    assert_eq!(back.manifest.compatibility, "a/b/c/none/d");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
}

#[test]
fn the_newest_is_read_and_none_is_none() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(read_newest_valid(&dir.path().join("absent")).unwrap(), None);
    assert_eq!(read_newest_valid(dir.path()).unwrap(), None);
    for tick in [9, 100, 20] {
        write(dir.path(), &state(tick), &meta()).unwrap();
    }
    assert_eq!(list(dir.path()).unwrap().iter().map(|c| c.0).collect::<Vec<_>>(), [100, 20, 9]);
    assert_eq!(read_newest_valid(dir.path()).unwrap().unwrap().state.tick, 100);
}

#[test]
fn a_damaged_one_is_set_aside_with_its_reason_and_the_next_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &state(1), &meta()).unwrap();
    let newest = write(dir.path(), &state(2), &meta()).unwrap();
    let mut bytes = fs::read(&newest).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&newest, &bytes).unwrap();
    assert_eq!(read_newest_valid(dir.path()).unwrap().unwrap().state.tick, 1);
    let aside = dir.path().join("damaged").join(newest.file_name().unwrap());
    assert_eq!(fs::read(&aside).unwrap(), bytes, "never deleted, never changed");
    assert!(fs::read_to_string(aside.with_extension("reason")).unwrap().contains("pending"));
}

#[test]
fn all_refused_is_an_error_at_this_start_and_at_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), &state(1), &meta()).unwrap();
    fs::write(&path, b"").unwrap();
    for _ in 0..2 {
        let error = read_newest_valid(dir.path()).unwrap_err();
        assert!(matches!(error, CheckpointError::AllRefused { .. }), "{error}");
    }
    write(dir.path(), &state(5), &meta()).unwrap();
    assert_eq!(read_newest_valid(dir.path()).unwrap().unwrap().state.tick, 5);
}

#[test]
fn two_damaged_ones_of_one_tick_are_both_kept() {
    let dir = tempfile::tempdir().unwrap();
    for content in ["x", "y"] {
        let path = write(dir.path(), &state(1), &meta()).unwrap();
        fs::write(&path, content).unwrap();
        read_newest_valid(dir.path()).unwrap_err();
    }
    assert_eq!(list(&dir.path().join("damaged")).unwrap().len(), 2);
}

#[test]
fn every_flipped_byte_and_every_truncation_is_refused() {
    let bytes = codec::encode(&state(3), &meta());
    assert!(codec::decode(&bytes).is_ok());
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x04;
        assert!(codec::decode(&damaged).is_err(), "byte {at}");
        assert!(codec::decode(&bytes[..at]).is_err(), "{at} bytes");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert!(codec::decode(&longer).is_err());
}

#[test]
fn each_section_is_named_when_it_is_the_damaged_one() {
    let bytes = codec::encode(&state(3), &meta());
    let (manifest, rest) = codec::decode_manifest(&bytes).map_err(|d| d.0).unwrap();
    let mut at = bytes.len() - rest.len();
    for section in &manifest.sections {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert_eq!(codec::decode(&damaged).err().map(|d| d.0).as_ref(), Some(&section.name));
        at += section.bytes as usize;
    }
}

#[test]
fn a_whole_file_with_an_impossible_state_is_refused() {
    let mut impossible = state(3);
    impossible.refractory[1] = 5;
    let damage = codec::decode(&codec::encode(&impossible, &meta())).err().unwrap();
    assert!(damage.0.contains("refractory neuron 1"));
}
