# SPDX-License-Identifier: Apache-2.0
"""Compile one .cu file to PTX with NVRTC: no toolkit, no card, standard library only.

The output begins with the sha256 of its source, so that a test can tell when the two have drifted apart. Output with
a fused multiply-add in it is refused: Rust never fuses, and the backends must agree to the last bit.

    python nvrtc.py flysim.cu --arch sm_75 --lib .../libnvrtc.so.12 -o flysim.sm_75.ptx

Importable: `compile_ptx(source, arch, lib)` returns the text, `check_ptx(text)` refuses, `header(text)` reads it.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

OPTIONS = ('--fmad=false', '--std=c++17')


class NvrtcError(RuntimeError):
    """NVRTC refused, or what it made is not usable here."""


@dataclass(frozen=True)
class Header:
    """What a PTX text says of itself."""

    version: str
    target: str
    source_sha256: str


def header(text: str) -> Header:
    """Read `.version`, `.target` and the recorded source hash."""

    def find(pattern: str, what: str) -> str:
        match = re.search(pattern, text, re.MULTILINE)
        if match is None:
            raise NvrtcError(f'PTX: no {what}')
        return match.group(1)

    return Header(
        version=find(r'^\.version\s+(\S+)', '.version'),
        target=find(r'^\.target\s+([^\s,]+)', '.target'),
        source_sha256=find(r'^// source sha256: ([0-9a-f]{64})$', 'source hash'),
    )


def check_ptx(text: str) -> None:
    """Refuse PTX that fuses a multiply with an add."""
    fused = [n for n, line in enumerate(text.splitlines(), 1) if re.search(r'\bfma\.', line)]
    if fused:
        raise NvrtcError(f'PTX: fused multiply-add at lines {fused[:10]}; compile with --fmad=false')


def compile_ptx(source: Path, arch: str, lib: Path) -> str:
    """Compile `source` for `arch` (sm_XX) with the NVRTC at `lib`; return checked PTX with its header comment."""
    if not re.fullmatch(r'sm_\d{2,3}a?', arch):
        raise NvrtcError(f'arch {arch!r}: expected sm_XX')
    text = source.read_bytes()
    ptx, version = _compile(ctypes.CDLL(str(lib)), text, source.name, arch)
    result = (
        f'// SPDX-License-Identifier: Apache-2.0\n'
        f'// source sha256: {hashlib.sha256(text).hexdigest()}\n'
        f'// made by NVRTC {version} from {source.name}: {" ".join(OPTIONS)} --gpu-architecture={arch}\n'
        f'{ptx}'
    )
    check_ptx(result)
    return result


def _compile(nvrtc: ctypes.CDLL, text: bytes, name: str, arch: str) -> tuple[str, str]:
    program = ctypes.c_void_p()
    status = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name.encode(), 0, None, None)
    if status != 0:
        raise NvrtcError(f'nvrtcCreateProgram: status {status}')
    options = [o.encode() for o in (*OPTIONS, f'--gpu-architecture={arch}')]
    array = (ctypes.c_char_p * len(options))(*options)
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), array)
        log = _read(nvrtc, program, 'ProgramLog')
        if status != 0:
            raise NvrtcError(f'{name} for {arch}: status {status}\n{log}')
        if log.strip():
            print(log, file=sys.stderr)
        return _read(nvrtc, program, 'PTX'), _version(nvrtc)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    getattr(nvrtc, f'nvrtcGet{what}Size')(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f'nvrtcGet{what}')(program, buffer)
    return buffer.value.decode()


def _version(nvrtc: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f'{major.value}.{minor.value}'


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description='Compile one .cu file to PTX with NVRTC.')
    parser.add_argument('source', type=Path)
    parser.add_argument('--arch', required=True, help='sm_XX')
    parser.add_argument('--lib', required=True, type=Path, help='path of libnvrtc.so.XX')
    parser.add_argument('-o', '--output', required=True, type=Path)
    args = parser.parse_args()
    try:
        ptx = compile_ptx(args.source, args.arch, args.lib)
    except (NvrtcError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    args.output.write_text(ptx)
    found = header(ptx)
    print(f'{args.output}: .version {found.version}, .target {found.target}, source {found.source_sha256[:12]}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
