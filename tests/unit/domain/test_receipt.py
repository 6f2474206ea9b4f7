# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyops.domain import receipt


def a_file(text: str, mode: int = 0o644) -> dict:
    return {"content": text, "mode": mode, "uid": 0, "gid": 0}


CPU, GPU, GPU2, OTHER = (a_file(text) for text in ("cpu\n", "gpu\n", "gpu again\n", "someone's\n"))
PATH = "/etc/fly/backend.env"


def first(seen=CPU, wanted=GPU):
    return receipt.applied(None, "gpu", {PATH: seen}, {PATH: wanted}, "t1")


def test_dump_and_load():
    made = receipt.applied(None, "gpu", {PATH: None, "/b": CPU}, {PATH: GPU, "/b": None}, "t1", made=("/etc/fly",), note="é")
    assert receipt.load(receipt.dump(made)) == made


def test_a_second_apply_keeps_the_first_before():
    second = receipt.applied(first(), "gpu", {PATH: GPU}, {PATH: GPU2}, "t2")
    assert second.entries[PATH].before == CPU
    assert second.entries[PATH].after == GPU2
    assert (second.created, second.updated) == ("t1", "t2")
    assert receipt.befores(second) == {PATH: CPU}


def test_the_same_again_is_the_same_receipt():
    old = first()
    assert receipt.applied(old, "gpu", {PATH: GPU}, {PATH: GPU}, "t2") is old


def test_paths_that_the_second_leaves_out_stay_in_it():
    second = receipt.applied(first(), "gpu", {"/b": None}, {"/b": GPU}, "t2")
    assert receipt.befores(second) == {PATH: CPU, "/b": None}


@pytest.mark.parametrize(
    ("now", "foreign"), [(CPU, False), (GPU, False), (OTHER, True), (None, True), (a_file("gpu\n", 0o600), True), ({**GPU, "uid": 7}, True)]
)
def test_foreign(now, foreign):
    assert bool(receipt.foreign(first(), {PATH: now})) is foreign


def test_a_state_in_between_is_ours():
    """The second apply wrote its receipt and was cut off: the file still has what the first one made."""
    second = receipt.applied(first(), "gpu", {PATH: GPU}, {PATH: GPU2}, "t2")
    assert receipt.foreign(second, {PATH: GPU}) == []
    assert receipt.foreign(second, {PATH: OTHER}) == [PATH]


def damaged_texts():
    text = receipt.dump(first())
    body = json.loads(text)
    yield text[: len(text) // 2]
    yield ""
    yield "[]"
    yield "null"
    yield text.replace("cpu\\n", "cpU\\n")
    yield json.dumps({k: v for k, v in body.items() if k != "sha256"})
    yield json.dumps({**body, "format": 9})


@pytest.mark.parametrize("text", list(damaged_texts()))
def test_damage_is_found(text):
    with pytest.raises(receipt.ReceiptError):
        receipt.load(text)


def test_to_write():
    assert receipt.to_write({PATH: CPU, "/b": GPU}, {PATH: GPU, "/b": GPU}) == {PATH: GPU}
    assert receipt.to_write({PATH: CPU}, {PATH: None}) == {PATH: None}
    assert receipt.to_write({PATH: None}, {PATH: None}) == {}


STATES = st.one_of(st.none(), st.builds(a_file, st.sampled_from(["a", "b", "c", "d"]), st.sampled_from([0o600, 0o644])))
WORLD = st.dictionaries(st.sampled_from(["/a", "/b", "/c"]), STATES, min_size=3, max_size=3)


@given(WORLD, st.lists(st.tuples(WORLD, st.integers(0, 4)), max_size=4))
def test_whatever_is_applied_and_cut_off_a_restore_gives_the_first_state_back(start, steps):
    """Each step writes its receipt and then `cut` of its files; after the last one everything is put back."""
    world, kept = dict(start), None
    for wanted, cut in steps:
        if kept is not None:
            assert receipt.foreign(kept, world) == []
        new = receipt.applied(kept, "gpu", world, wanted, "t")
        kept = receipt.load(receipt.dump(new))
        world.update(sorted(receipt.to_write(world, wanted).items())[:cut])
    if kept is None:
        return
    assert receipt.foreign(kept, world) == []
    world.update(receipt.to_write(world, receipt.befores(kept)))
    assert world == start


def test_restore_steps():
    systemd = receipt.restore_steps("systemd", "/var/lib/flyops/agent", "/var/lib/flyops/restore.json")
    assert systemd[0] == ("python3", "/var/lib/flyops/agent", "--module", "settings_receipt", "--args", "/var/lib/flyops/restore.json")
    assert ("systemctl", "daemon-reload") in systemd
    supervisor = receipt.restore_steps("supervisor", "/b", "/r.json", "/etc/fly/supervisord.conf")
    assert supervisor[-1] == ("supervisorctl", "-c", "/etc/fly/supervisord.conf", "restart", "flysim", "flypage")
    assert receipt.restore_args("/var/lib/flyops/receipts", "gpu")["state"] == "restored"


def test_the_units_of_the_templates_run_these_steps():
    """Templates and this function say the same: one of them changed alone would leave a guest without its way back."""
    text = (Path(__file__).parents[3] / "templates/flyops-restore.service.j2").read_text()
    ran = [line.partition("=")[2].split() for line in text.splitlines() if line.startswith("ExecStart=")]
    steps = receipt.restore_steps("systemd", "/s/restore.pyz", "/s/restore.json")
    assert len(ran) == len(steps)
    for words, step in zip(ran, steps, strict=True):
        line = " ".join(words).replace("{{ flyops_state }}", "/s").replace("-I -S ", "")
        assert line.endswith(" ".join(step))
