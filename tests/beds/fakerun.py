# SPDX-License-Identifier: Apache-2.0
"""A made-up driver: libraries that are real ELF files, an installer that behaves as NVIDIA's documents say of theirs, and packages of both.

None of it is NVIDIA's. The installer knows the documented options, stops on its kernel part where a module is loaded, writes its log in
wrapped lines, takes out what it installed before, and leaves an uninstaller.
"""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

SOURCE = "int cuInit(unsigned flags) { return (int)flags + 42; }\n"
FOLDER = "/usr/lib/made-up"  # known to the linker by a file of its own, so that nothing of the system is in the way

INSTALLER = r"""#!/bin/sh
VERSION={version}
LOG=/var/log/nvidia-installer.log
KERNEL=yes
for word in "$@"; do
  case "$word" in
    --advanced-options)
      echo "  --silent"; echo "      Run silently."; echo "  {kernel}"; echo "  --no-x-check"; echo "  --no-nouveau-check"; exit 0 ;;
    {kernel}) KERNEL=no ;;
    --silent|--no-x-check|--no-nouveau-check) ;;
    --log-file-name=*) LOG="${{word#*=}}" ;;
    *) echo "ERROR: Invalid commandline, please run '$0 --help' for usage information." >&2; exit 1 ;;
  esac
done
{{ echo "nvidia-installer log file '$LOG'"; echo "installer version: $VERSION"; echo; }} > "$LOG"
fail() {{ printf 'ERROR: %s\n       %s\nERROR: Installation has failed.  Please see the file\n       %s for details.\n' "$1" "$2" "$LOG" >> "$LOG"; exit 1; }}
[ "$KERNEL" = no ] || fail "An NVIDIA kernel module 'nvidia-uvm' appears to already be loaded in" "your kernel."
[ ! -e /srv/disk-is-full ] || fail "Unable to write '{folder}/libcuda.so.$VERSION'" "(No space left on device)"
[ ! -e /var/lib/made-up-driver ] || while read -r old; do rm -f "$old"; done < /var/lib/made-up-driver
mkdir -p {folder}
base64 -d > "{folder}/libcuda.so.$VERSION" <<END
{cuda}
END
base64 -d > "{folder}/libnvidia-ml.so.$VERSION" <<END
{ml}
END
printf '%s\n' "{folder}/libcuda.so.$VERSION" "{folder}/libnvidia-ml.so.$VERSION" > /var/lib/made-up-driver
echo {folder} > /etc/ld.so.conf.d/made-up.conf
ldconfig
printf '#!/bin/sh\nwhile read -r old; do rm -f "$old"; done < /var/lib/made-up-driver\nrm -f /var/lib/made-up-driver /usr/bin/nvidia-uninstall {folder}/*.so.1\nldconfig\n' > /usr/bin/nvidia-uninstall
chmod 755 /usr/bin/nvidia-uninstall
echo "-> Installation of the driver (version: $VERSION) is now complete." >> "$LOG"
"""


def elf(folder: Path, name: str) -> bytes:
    """A shared library with one function and the right SONAME."""
    target = folder / f"{name}.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-s", f"-Wl,-soname,{name}.so.1", "-xc", "-", "-o", str(target)], input=SOURCE, text=True, check=True)
    return target.read_bytes()


def text(folder: Path, name: str) -> str:
    """The library as base64."""
    return base64.encodebytes(elf(folder, name)).decode().strip()


def installer(folder: Path, version: str, kernel: str = "--no-kernel-modules") -> str:
    """The text of a .run file."""
    return INSTALLER.format(version=version, kernel=kernel, folder=FOLDER, cuda=text(folder, "libcuda"), ml=text(folder, "libnvidia-ml"))


# Run in the guest: arguments are `name version depends library`, four for each package; makes /srv/repo with its index.
REPOSITORY = r"""set -e
mkdir -p /srv/repo; cd /srv/repo
while [ $# -gt 0 ]; do
  name=$1 version=$2 depends=$3 library=$4; shift 4
  tree=$(mktemp -d); mkdir -p "$tree/DEBIAN" "$tree/usr/lib/made-up-apt"; chmod 755 "$tree"
  printf 'Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: nobody <nobody@example.invalid>\nDescription: made up\n' "$name" "$version" > "$tree/DEBIAN/control"
  [ -z "$depends" ] || printf 'Depends: %s\n' "$depends" >> "$tree/DEBIAN/control"
  [ -z "$library" ] || echo "made up, $name $version" > "$tree/usr/lib/made-up-apt/$library.so.${version%-*}"
  mkdir -p "$tree/usr/share/doc/$name"; echo made up > "$tree/usr/share/doc/$name/README"  # dpkg forgets a package that has no file of its own
  dpkg-deb --build --root-owner-group "$tree" "${name}_${version}_all.deb" >/dev/null
  rm -r "$tree"
done
: > Packages
for deb in *.deb; do
  { dpkg-deb -f "$deb"; echo "Filename: ./$deb"; echo "Size: $(stat -c %s "$deb")"; echo "SHA256: $(sha256sum "$deb" | cut -d' ' -f1)"; echo; } >> Packages
done
"""
