# SPDX-License-Identifier: Apache-2.0
"""Small programs that look at the host for a module, as text: run by `python3 -I - NAME JSON` with the text on stdin, one JSON object out.

They are texts because what they do (open a CUDA context, read sockets, wait, fork) must end with its own process: a driver that
hangs or crashes in `cuInit` must not take the agent along. Each is run by the tests on the oldest Python that we promise.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Mapping

from flyops.model.host import Completed, Host

_STAT = r"""
import json, os, sys, time
asked = json.loads(sys.argv[2])
def stat(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            rest = f.read().rpartition(")")[2].split()
    except OSError:
        return None
    return {"state": rest[0], "cpu": int(rest[11]) + int(rest[12]), "threads": int(rest[17]), "start": int(rest[19])}
def alive(pid, start):
    seen = stat(pid)
    return bool(seen and seen["state"] not in "ZX" and (not start or seen["start"] == start))
"""

_HTTP = r"""
import http.client
def fetch(url):
    host, _, path = url.partition("://")[2].partition("/")
    try:
        link = http.client.HTTPConnection(host, timeout=asked.get("timeout_s", 5))
        link.request("GET", "/" + path)
        answer = link.getresponse()
        body = answer.read()
        link.close()
        if answer.status != 200:
            return {"error": "%s answered %d" % (url, answer.status)}
        return json.loads(body.decode())
    except (OSError, ValueError, http.client.HTTPException) as err:
        return {"error": "%s: %s" % (url, err)}
"""

# /status shows the last whole batch, up to some 30 ms old, which is 1 % of three seconds: the moment at which its tick moves is the one to time by.
_TIMED = r"""
def timed():
    before, status = time.monotonic(), fetch(asked["url"])
    at, first = time.monotonic(), status.get("tick")
    while first is not None and status.get("tick") == first and not status.get("paused") and at - before < 0.5:
        time.sleep(0.002)
        sent, status = time.monotonic(), fetch(asked["url"])
        at = (sent + time.monotonic()) / 2
    return at, status
"""

# As the service's user: root opens nodes that the service may not.
_CUDA = r"""
import ctypes, json, os, sys
out = {"step": "load libcuda.so.1", "opened": False, "devices": 0}
asked = json.loads(sys.argv[2])
def closed():
    found = {}
    for name in sorted(os.listdir(asked["dev"]) if os.path.isdir(asked.get("dev", "")) else []):
        if name.startswith("nvidia") and not name.startswith("nvidia-caps") and name != "nvidia-modeset":
            try:
                os.close(os.open(os.path.join(asked["dev"], name), os.O_RDWR | os.O_NONBLOCK))
            except OSError as err:
                found[os.path.join(asked["dev"], name)] = os.strerror(err.errno)
    return found
def end():
    if not out["opened"]:
        out["closed"] = closed()  # as the user who could not open a context: which node keeps it out, and how
    print(json.dumps(out)); sys.stdout.flush(); sys.exit(0)
if asked.get("user") and os.geteuid() == 0:
    import pwd
    entry = pwd.getpwnam(asked["user"])
    os.initgroups(asked["user"], entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    out["user"] = asked["user"]
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as err:
    out["error"] = "libcuda.so.1 cannot be loaded: %s; install the driver's libraries in this guest and run ldconfig" % err
    end()
try:
    with open("/proc/self/maps") as f:
        out["library"] = next((line.split()[5] for line in f if "/libcuda.so" in line), "")  # which file the linker really took
except (OSError, IndexError):
    pass
def call(name, *args):
    out["step"] = name
    code = getattr(cuda, name)(*args)
    if code:
        out["code"] = code
        end()
call("cuInit", 0)
version, count = ctypes.c_int(), ctypes.c_int()
call("cuDriverGetVersion", ctypes.byref(version))
out["cuda"] = version.value
call("cuDeviceGetCount", ctypes.byref(count))
out["devices"] = count.value
if count.value:
    device, name, major, minor = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), int(asked.get("index", 0)))
    call("cuDeviceGetName", name, 256, device)
    out["name"] = name.value.decode("utf-8", "replace")
    call("cuDeviceGetAttribute", ctypes.byref(major), 75, device)
    call("cuDeviceGetAttribute", ctypes.byref(minor), 76, device)
    out["cc"] = major.value * 10 + minor.value
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    out["opened"] = True
    call("cuDevicePrimaryCtxRelease_v2" if hasattr(cuda, "cuDevicePrimaryCtxRelease_v2") else "cuDevicePrimaryCtxRelease", device)
end()
"""

_OPEN = r"""
import json, os, sys
failed = {}
for path in json.loads(sys.argv[2])["paths"]:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as err:
        failed[path] = os.strerror(err.errno)
print(json.dumps({"failed": failed}))
"""

_PORT = r"""
import json, socket
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    print(json.dumps({"port": s.getsockname()[1]}))
"""

_READS = (
    _STAT
    + _HTTP
    + _TIMED
    + r"""
def read():
    if asked.get("count", 2) == 1:
        return {"t": time.monotonic(), "status": fetch(asked["url"])}
    at, status = timed()
    return {"t": at, "status": status}
reads = []
for number in range(asked.get("count", 2)):
    if number:
        time.sleep(asked.get("gap_s", 2))
    reads.append(read())
print(json.dumps({"reads": reads}))
"""
)

_AWAIT = (
    _STAT
    + _HTTP
    + r"""
end = time.monotonic() + asked["wait_s"]
out = {"status": None, "ended": False, "seconds": 0}
begun = time.monotonic()
while True:
    status = fetch(asked["url"])
    if "tick" in status and asked.get("pid") and status.get("pid", asked["pid"]) != asked["pid"]:
        status = {"error": "pid %s answers there, not ours (%d): another program holds the port" % (status["pid"], asked["pid"])}
    if "tick" in status:
        out["status"] = status
        break
    out["error"] = status.get("error", "no tick in its answer")
    if asked.get("pid") and not alive(asked["pid"], asked.get("start")):
        out["ended"] = True
        break
    if time.monotonic() > end:
        break
    time.sleep(0.1)
out["seconds"] = round(time.monotonic() - begun, 2)
print(json.dumps(out))
"""
)

# Rows are taken on absolute deadlines, so that a slow read does not stretch the window.
_SAMPLE = (
    _STAT
    + _HTTP
    + _TIMED
    + r"""
import glob, shutil, subprocess
HZ = os.sysconf("SC_CLK_TCK")
def machine():
    with open("/proc/stat") as f:
        lines = [line.split() for line in f if line.startswith("cpu")]
    if asked.get("cpus"):
        lines = [p for p in lines if p[0] in {"cpu%d" % c for c in asked["cpus"]}] or lines[:1]
    else:
        lines = lines[:1]
    every = sum(sum(map(int, p[1:9])) for p in lines)
    idle = sum(int(p[4]) + int(p[5]) for p in lines)
    return every - idle, every
def below(pid):
    # What a process has started costs, too, whoever waits for it.
    total, todo = 0, [pid]
    while todo:
        for path in glob.glob("/proc/%d/task/*/children" % todo.pop()):
            try:
                with open(path) as f:
                    found = [int(word) for word in f.read().split()]
            except OSError:
                continue
            todo += found
            total += sum((stat(child) or {"cpu": 0})["cpu"] for child in found)
    return total
def row():
    now, status = timed()
    seen, (busy, every) = stat(pid), machine()
    if "tick" not in status or seen is None:
        raise SystemExit(json.dumps({"rows": rows, "error": status.get("error", "process %d ended" % pid)}))
    return {"t": now, "cpu_s": (seen["cpu"] + below(pid)) / HZ, "measured": pid, "start": seen["start"], "os_threads": seen["threads"], "busy_jiffies": busy, "all_jiffies": every,
            "tick": status["tick"], "spikes": status.get("spikes", 0), "neurons": status.get("neurons"), "pid": status.get("pid", pid),
            "threads": status.get("threads"), "backend": status.get("backend"), "factor_said": status.get("realtime_factor"), "cores_said": status.get("host_cores")}
pid, rows, tool = asked["pid"], [], None
try:
    time.sleep(asked["warmup_s"])
    if shutil.which("pidstat"):
        tool = subprocess.Popen(["pidstat", "-u", "-p", str(pid), "1", str(max(1, int(asked["window_s"])))], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    begun = time.monotonic()
    steps = max(1, int(round(asked["window_s"] / asked["interval_s"])))
    for step in range(steps + 1):
        time.sleep(max(0.0, begun + step * asked["window_s"] / steps - time.monotonic()))
        rows.append(row())
    text = tool.communicate(timeout=10)[0].decode("utf-8", "replace") if tool else ""
    print(json.dumps({"rows": rows, "pidstat": text}))
except SystemExit as err:
    print(err)
finally:
    if tool and tool.poll() is None:
        tool.kill()
        tool.wait()
"""
)

# From here on the program is nobody's child: the one that was called prints what it writes to `tell`, once that is closed, and ends.
_DETACH = r"""
say, tell = os.pipe()
if os.fork():
    os.close(tell)
    with os.fdopen(say) as f:
        print(f.read() or json.dumps({"error": "the program ended before it began"}))
    sys.stdout.flush()
    os.wait()
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.close(say)
null = os.open(os.devnull, os.O_RDWR)
for fd in (0, 1, 2):
    os.dup2(null, fd)
"""

# The keeper outlives the agent on purpose: it knows the exit code of what it started and ends it after max_s.
_KEEP = (
    _STAT
    + r"""
import signal, subprocess
log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
"""
    + _DETACH
    + r"""
def become():
    os.setsid()
    if asked.get("uid") is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(asked["gid"])
        os.setuid(asked["uid"])
try:
    if asked.get("cpus"):
        os.sched_setaffinity(0, asked["cpus"])
    child = subprocess.Popen(asked["argv"], env=asked["env"], cwd=asked["cwd"], stdin=null, stdout=log, stderr=log, close_fds=True, preexec_fn=become)
except Exception as err:
    os.write(tell, json.dumps({"error": "%s: %s" % (asked["argv"][0], err)}).encode())
    os._exit(1)
seen = stat(child.pid) or {"start": 0}
os.write(tell, json.dumps({"pid": child.pid, "start": seen["start"], "keeper": os.getpid()}).encode())
os.close(tell)
os.close(log)
why = ""
try:
    code = child.wait(asked["max_s"])
except subprocess.TimeoutExpired:
    why = "it ran past its limit of %s s" % asked["max_s"]
    child.terminate()
    try:
        code = child.wait(30)
    except subprocess.TimeoutExpired:
        child.kill()
        code = child.wait()
with open(asked["exit"] + ".new", "w") as f:
    json.dump({"exit_code": code, "why": why}, f)
os.rename(asked["exit"] + ".new", asked["exit"])
os._exit(0)
"""
)

# The drift watch outlives the agent and the controller: samples go to a file on the target, each on an absolute deadline and on the disk before the next.
_WATCH = (
    _STAT
    + _HTTP
    + _TIMED
    + r"""
import ctypes, subprocess
HZ = os.sysconf("SC_CLK_TCK")
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]
def card(pid):
    # Opened for each sample and closed again, so that a watch never holds the driver.
    out = {}
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2():
            return out
    except (OSError, AttributeError):
        return out
    try:
        device, memory, use = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)(), (ctypes.c_uint * 2)()
        if nvml.nvmlDeviceGetHandleByIndex_v2(int(asked["gpu"]), ctypes.byref(device)):
            return out
        if not nvml.nvmlDeviceGetMemoryInfo(device, memory):
            out["card_used_bytes"] = memory[2]
        if not nvml.nvmlDeviceGetUtilizationRates(device, use):
            out["card_util_pct"] = use[0]
        count, found = ctypes.c_uint(256), (Process * 256)()
        if hasattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3") and not nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found):
            own = [p.bytes for p in found[: count.value] if p.pid in pids(pid) and p.bytes != 2 ** 64 - 1]
            out.update({"device_bytes": own[0]} if own else {})
    finally:
        nvml.nvmlShutdown()
    return out
def lines(path):
    try:
        with open(path) as f:
            return f.read().splitlines()
    except OSError:
        return []
def pids(pid):
    # The same process in every pid namespace that can be seen from here.
    found = [line.split()[1:] for line in lines("/proc/%d/status" % pid) if line.startswith("NSpid:")]
    return {int(n) for n in (found[0] if found else [pid])}
def restarts():
    if not asked.get("unit"):
        return "-"
    done = subprocess.run(["systemctl", "show", "-p", "NRestarts", "--value", asked["unit"]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.decode("ascii", "replace").strip() or "-"
def row():
    moment, status = timed()
    at = {"t_s": "%.3f" % (time.time() - time.monotonic() + moment), "mono_s": "%.4f" % moment}
    seen = stat(status["pid"]) if "pid" in status else None
    if seen is None or "tick" not in status:
        return {**at, "error": str(status.get("error", "process %s ended" % status.get("pid"))).replace("\t", " ").replace("\n", " ")}
    pid, checkpoint = status["pid"], status.get("checkpoint") or {}
    rss = [line.split()[1] for line in lines("/proc/%d/status" % pid) if line.startswith("VmRSS:")]
    out = {**at, "pid": pid, "start": seen["start"], "restarts": restarts(), "backend": status.get("backend"), "release": status.get("version"),
           "threads": status.get("threads"), "tick": status["tick"], "spikes": status.get("spikes"), "lag_ms": "%.3f" % status.get("lag_ms", 0), "cpu_s": seen["cpu"] / HZ,
           "rss_kib": rss[0] if rss else 0, "checkpoint_failures": checkpoint.get("failures")}
    out.update(card(pid))
    return out
def write(values):
    line = "\t".join(str(values.get(name, "" if name == "error" else "-")) for name in asked["columns"])
    with open(asked["file"], "a") as f:
        f.write(line + "\n")
        f.flush()
        os.fsync(f.fileno())
"""
    + _DETACH
    + r"""
os.chdir("/")
os.write(tell, json.dumps({"pid": os.getpid(), "start": stat(os.getpid())["start"]}).encode())
os.close(tell)
os.nice(5)
begun, steps = time.monotonic(), int(asked["seconds"] / asked["every_s"] + 1e-9)
for step in range(steps + 1):
    time.sleep(max(0.0, begun + step * asked["every_s"] - time.monotonic()))
    write(row())
os._exit(0)
"""
)

_STOP = (
    _STAT
    + r"""
import signal
pid, start = asked["pid"], asked["start"]
out = {"was": "gone", "seconds": 0}
begun = time.monotonic()
if alive(pid, start):
    out["was"] = "stopped"
    os.kill(pid, signal.SIGTERM)
    while alive(pid, start) and time.monotonic() - begun < asked["wait_s"]:
        time.sleep(0.05)
    if alive(pid, start):
        out["was"] = "killed"
        os.kill(pid, signal.SIGKILL)
        while alive(pid, start) and time.monotonic() - begun < asked["wait_s"] + 5:
            time.sleep(0.05)
# Its keeper has a last word to write; a folder that is removed under it would be left half.
until = time.monotonic() + 5
while asked.get("keeper") and stat(asked["keeper"]) and stat(asked["keeper"])["state"] not in "ZX" and not os.path.exists(asked["exit"]) and time.monotonic() < until:
    time.sleep(0.05)
out["seconds"] = round(time.monotonic() - begun, 2)
print(json.dumps(out))
"""
)

# The live checkpoint is copied to a folder of its own first, so that both releases start from the same bytes; the folder goes at the end.
_REPLAY = r"""
import json, os, re, shutil, subprocess, sys, tempfile
asked = json.loads(sys.argv[2])
if asked.get("cpus"):
    os.sched_setaffinity(0, asked["cpus"])
folder = tempfile.mkdtemp(prefix="flyops-replay-")
def newest():
    found = [(int(m.group(1)), n) for n in os.listdir(asked["state_dir"]) for m in [re.match(r"ckpt-(\d{1,20})\S*\.flyck$", n)] if m]
    return max(found)[1] if found else ""
try:
    name = ""
    for _ in range(5):
        name = newest()
        try:
            if name:
                shutil.copy(os.path.join(asked["state_dir"], name), folder)
            break
        except FileNotFoundError:
            continue
    out = {"checkpoint": name, "runs": []}
    if not name:
        out["error"] = "there is no checkpoint in " + asked["state_dir"]
    for words in asked["runs"] if name else []:
        env = dict(os.environ, **asked.get("env", {}))
        done = subprocess.run([w.replace("{dir}", folder) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, timeout=asked["limit_s"])
        out["runs"].append({"rc": done.returncode, "out": done.stdout.decode("utf-8", "replace")[-20000:], "err": done.stderr.decode("utf-8", "replace")[-2000:]})
except (OSError, subprocess.SubprocessError) as err:
    out = {"error": str(err)}
finally:
    shutil.rmtree(folder, ignore_errors=True)
print(json.dumps(out))
"""

PROGRAMS: Mapping[str, str] = {
    "replay": _REPLAY,
    "cuda": _CUDA,
    "open": _OPEN,
    "port": _PORT,
    "reads": _READS,
    "await": _AWAIT,
    "sample": _SAMPLE,
    "keep": _KEEP,
    "watch": _WATCH,
    "stop": _STOP,
}


def argv(name: str, asked: Mapping[str, Any], host: Host) -> list[str]:
    """The command for a program of ours; its text goes on stdin (`text`). It runs on the interpreter that the agent runs on."""
    python = sys.executable if sys.executable and host.stat(sys.executable, follow=True) else "python3"
    return [python, "-I", "-", name, json.dumps(asked, sort_keys=True)]


def text(name: str) -> bytes:
    """What goes on stdin."""
    return PROGRAMS[name].encode()


def answer(done: Completed) -> dict[str, Any]:
    """The object that a program printed; a program that printed none is an answer with `error`."""
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    said = done.stderr.decode("utf-8", "replace").strip()[-500:]
    ended = f"signal {-done.rc}" if done.rc < 0 else f"exit code {done.rc}"
    return {"error": f"the probe ended with {ended} and no answer: {said}"}
