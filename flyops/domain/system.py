# SPDX-License-Identifier: Apache-2.0
"""Folders that belong to the system as a whole: no task means to remove or move one of them."""

from __future__ import annotations

_TABLE = """
/ /bin /boot /dev /etc /home /lib /lib32 /lib64 /libx32 /media /mnt /opt /proc /root /run /sbin /srv /sys /tmp /usr /var
/etc/apt /etc/lxc /etc/pam.d /etc/ssh /etc/ssl /etc/systemd /etc/systemd/system
/usr/bin /usr/include /usr/lib /usr/lib32 /usr/lib64 /usr/libexec /usr/libx32 /usr/local /usr/sbin /usr/share
/usr/local/bin /usr/local/lib /usr/local/sbin /usr/local/share
/var/backups /var/cache /var/cache/apt /var/lib /var/lib/apt /var/lib/dpkg /var/lib/lxc /var/lib/systemd
/var/local /var/log /var/mail /var/opt /var/run /var/spool /var/tmp
"""
FOLDERS = frozenset(_TABLE.split())
