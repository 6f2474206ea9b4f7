# SPDX-License-Identifier: Apache-2.0
"""The small reader against PyYAML: what programs write is read alike, the rest is refused, never read otherwise."""

from __future__ import annotations

import pytest
import yaml

from flyops.domain import plainyaml

CDI = """---
# made by a generator
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      major: 195
      permissions: rwm   # all of it
- containerEdits:
      deviceNodes:
        - {"path": "/dev/nvidia1"}
  name: 'GPU-it''s'
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
    - hookName: createContainer
      path: /usr/bin/nvidia-cdi-hook
      args:
      - nvidia-cdi-hook
      - create-symlinks
      - --link
      - libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so
  mounts: []
  -
"""


@pytest.mark.parametrize(
    "text",
    [
        CDI.replace("  -\n", ""),
        '{"a": [1, "x"], "b": null}',
        "[1, 2]",
        "a: 1\nb: -2\nc: 0\nd: 1.5\ne: yes please\nf: true\ng: ~\nh:\ni: 'x # y'\nj: x#y\n",
        "a:\n  b:\n    c: x:y\n  d: http://h/p\n",
        "- a\n- b: 1\n  c: 2\n-\n  d: 3\n- - 1\n  - 2\n",
        'a: "tab\\t\\u00e9 \\"q\\""\n"b c": 1\n',
        "mode: 0644\n",
        "a: {}\nb: []\n",
        "just a text\n",
        "",
        "# nothing\n",
    ],
)
def test_what_is_read_is_read_as_by_pyyaml(text: str) -> None:
    assert plainyaml.load(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CDI, "line 28"),
        ("a: &x 1\n", "more than is read"),
        ("a: *x\n", "more than is read"),
        ("a: |\n  text\n", "more than is read"),
        ("a: [x, y]\n", "more than is read"),
        ("a: {x: y}\n", "more than is read"),
        ("a: !!str 1\n", "more than is read"),
        ('a: "\\x41"\n', "more than is read"),
        ("a: 1\na: 2\n", "second time"),
        ("a:\n\tb: 1\n", "tab"),
        ("a: 1\n  b: 2\n", "line 2"),
        ("one\n  two\n", "several lines"),
        ("a:\n  - 1\n b: 2\n", "line 3"),
        ('{"a": 1', "none"),
    ],
)
def test_what_is_not_read_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(plainyaml.YamlError, match=says):
        plainyaml.load(text)
