# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyops.domain import trial

LIVE = "# flysim\nFLY_CONNECTOME=/opt/fly/connectomes/c.fly\nFLY_STATE_DIR=/var/lib/fly\nFLY_LISTEN=127.0.0.1:8700\nFLY_FEED=/run/fly/feed.sock\nFLY_TOKEN_FILE=/etc/fly/token\n"
BACKEND = "FLY_LIF_CUDA=0\nRAYON_NUM_THREADS=4\n"


def test_the_trial_keeps_to_itself():
    found = trial.settings([LIVE, BACKEND], {"FLY_LIF_CUDA": 1, "RAYON_NUM_THREADS": 1, "FLY_PTX": None}, "/t", 4711, "4-7")
    assert found == {
        "FLY_CONNECTOME": "/opt/fly/connectomes/c.fly",
        "FLY_STATE_DIR": "/t/state",
        "FLY_LISTEN": "127.0.0.1:4711",
        "FLY_FEED": "/t/feed.sock",
        "FLY_LIF_CUDA": "1",
        "RAYON_NUM_THREADS": "1",
        "FLY_CPUS": "4-7",
    }


def test_no_feed_stays_no_feed():
    assert "FLY_FEED" not in trial.settings([BACKEND], {}, "/t", 1)


@pytest.mark.parametrize("given", [{"FLY_STATE_DIR": "/var/lib/fly"}, {"FLY_LISTEN": "127.0.0.1:8700"}])
def test_nobody_can_point_it_at_the_live_one(given):
    assert trial.settings([LIVE], given, "/t", 1)["FLY_STATE_DIR"] == "/t/state"
    assert trial.settings([LIVE], given, "/t", 1)["FLY_LISTEN"] == "127.0.0.1:1"


def test_parse_env():
    text = 'A=1\n# B=2\n;C=3\n\n D = x y \nE=\'a "b"\'\nF="q\\"\\$x"\nnot a setting\n9=1\nG=\n'
    assert trial.parse_env(text) == {"A": "1", "D": "x y", "E": 'a "b"', "F": 'q"$x', "G": ""}


@given(
    st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20))
)
def test_env_round_trip(settings):
    assert trial.parse_env(trial.render_env(settings)) == settings


def test_a_setting_is_one_line():
    with pytest.raises(ValueError, match="one line"):
        trial.render_env({"A": "b\nLD_PRELOAD=x"})


def test_newest_checkpoints():
    names = [
        "lock",
        "ckpt-00000000000000000900.flyck",
        "ckpt-00000000000000010000.flyck",
        ".ckpt-1.tmp",
        "damaged",
        "ckpt-x.flyck",
        "ckpt-00000000000000000001.reason",
    ]
    assert trial.newest_checkpoints(names) == ["ckpt-00000000000000010000.flyck", "ckpt-00000000000000000900.flyck"]


def test_unit_argv():
    words = {"env_file": "/t/trial.env", "log": "/t/log", "cpus": "4-5,7", "user": "fly", "folder": "/t", "max_s": 60}
    two = trial.unit_argv("flytrial", ["/b/flysim", "run"], cgroup="v2", **words)
    one = trial.unit_argv("flytrial", ["/b/flysim", "run"], cgroup="v1", **words)
    assert "AllowedCPUs=4-5,7" in two
    assert "CPUAffinity=4-5 7" in one
    assert two[-3:] == ["--", "/b/flysim", "run"]
    assert "--uid=fly" in two
    assert "DeviceAllow=char-nvidia* rw" in two
    assert not [w for w in trial.unit_argv("t", ["x"], cgroup="v2", **{**words, "user": "", "cpus": ""}) if "uid" in w or "CPU" in w]


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_record_that_is_none(text):
    assert trial.load(text) == {}


def test_record_and_show():
    assert trial.load(trial.dump({"pid": 7})) == {"pid": 7}
    assert trial.show("ActiveState=failed\nExecMainStatus=78\n") == {"ActiveState": "failed", "ExecMainStatus": "78"}
