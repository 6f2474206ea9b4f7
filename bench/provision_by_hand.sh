#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `fly provision NAME --deploy` does, typed by hand by someone who knows every step and makes no mistake: an overlay guest, its limits read
# back, the service's files, its start, and the same three looks at it (3 s, 5 s with its cost, 3 s). bench/provision.py runs it.
# provision_by_hand.sh NAME BASE FILES CPUS MEMORY_BYTES; FILES is a tar of what a deploy writes into a guest.
set -eu
name=$1 base=$2 files=$3 cpus=$4 memory=$5
folder=/var/lib/lxc/$name
inside() { lxc-attach -n "$name" --clear-env -v PATH=/usr/sbin:/usr/bin:/sbin:/bin -- "$@"; }
status() { inside python3 -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:8700/status", timeout=2).read().decode())'; }
tick() { status | sed -n 's/.*"tick": *\([0-9]*\).*/\1/p'; }
held() { # real time is 10,000 ticks a second
  before=$(tick); sleep "$1"; after=$(tick)
  [ $((after - before)) -ge $((9900 * $1)) ] || { echo "real time was not held: $((after - before)) ticks in $1 s" >&2; exit 3; }
}

mkdir -p "$folder/up/etc"
echo "$name" > "$folder/up/etc/hostname"
v=2; grep -q ' cgroup .*cpuset' /proc/mounts && v=
limit=memory.max; [ -z "$v" ] && limit=memory.limit_in_bytes
cat > "$folder/config" <<EOF
lxc.include = /usr/share/lxc/config/common.conf
lxc.uts.name = $name
lxc.rootfs.path = overlay:$base:$folder/up
lxc.apparmor.profile = unconfined
lxc.mount.auto = cgroup:mixed proc:mixed sys:mixed
lxc.net.0.type = empty
lxc.cgroup$v.cpuset.cpus = $cpus
lxc.cgroup$v.$limit = $memory
EOF
lxc-start -d -n "$name"
until inside systemctl is-system-running 2>/dev/null | grep -Eq 'running|degraded'; do sleep 0.2; done
[ "$(lxc-cgroup -n "$name" "$limit")" = "$memory" ]
[ "$(lxc-cgroup -n "$name" cpuset.cpus)" = "$cpus" ]

inside useradd --system --home-dir /var/lib/fly --shell /usr/sbin/nologin fly
inside tar -C / -xpzf - < "$files"
inside chown -R fly:fly /var/lib/fly
inside systemctl daemon-reload
inside systemctl enable --now flysim.service flypage.service
until status >/dev/null 2>&1; do sleep 0.2; done
held 3
inside pidstat -p "$(inside systemctl show -p MainPID --value flysim.service)" 5 1 > /dev/null
held 3
