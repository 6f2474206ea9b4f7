# SPDX-License-Identifier: Apache-2.0
"""A stand-in that speaks flysim's words: for tests that need a service whose speed, load, words and exit code they choose."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

STAND_IN = textwrap.dedent(
    """\
    #!{python}
    import http.server, json, os, re, signal, sys, threading, time
    words = sys.argv[1:]
    def newest(folder):
        names = sorted(n for n in os.listdir(folder) if n.endswith(".flyck")) if os.path.isdir(folder) else []
        return os.path.join(folder, names[-1]) if names else None
    if "--print-state-compatibility" in words:
        path = newest(words[words.index("--print-state-compatibility") + 1])
        text = open(path).read().strip() if path else "none"
        if text == "damaged":
            sys.exit("no checkpoint is whole")
        print(text)
    elif "--print-compatibility" in words:
        print(open(os.path.join(os.path.dirname(os.path.realpath(__file__)), "compatibility")).read().strip())
    elif "--print-kernel-version" in words:
        print("k1")
    elif words[0] == "replay":
        print(json.dumps({{"hash": "cafe" + open(newest(words[1])).read().strip()[:1], "ticks": int(words[words.index("--ticks") + 1])}}))
    elif words[0] == "thirds":
        spike = int(os.environ.get("STAND_SPIKES", "9"))
        print(json.dumps({{"ok": True, "hash": "aa", "unbroken_hash": "aa", "spikes": 3 * spike, "unbroken_spikes": 3 * spike,
                           "parts": [{{"backend": b, "spikes": spike}} for b in ("cpu", "cuda", "cpu")]}}))
    else:
        say = lambda text: print(text, file=sys.stderr, flush=True)
        if os.environ.get("STAND_CUDA", "1") == "1":
            say("cuda feature compiled in (PTX sm_75)")
        if os.environ.get("STAND_EXIT"):
            say("last words")
            sys.exit(int(os.environ["STAND_EXIT"]))
        gpu = os.environ.get("FLY_LIF_CUDA") == "1"
        say("cuda backend attached (Made Up, PTX sm_75 exact)" if gpu else "cpu backend attached (threads 1, cpus 0)")
        began, factor = time.monotonic(), float(os.environ.get("STAND_FACTOR", "1"))
        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                s = (time.monotonic() - began) * factor
                body = json.dumps({{"tick": int(s * 10000), "spikes": int(s * 668 * 3), "neurons": 668, "pid": os.getpid(), "threads": 1, "speed": 1.0,
                                   "backend": "cuda" if gpu else "cpu", "features": ["cuda"], "gpu": {{"attached": "Made Up, exact"}} if gpu else None}}).encode()
                self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
            def log_message(self, *a): pass
        def burn():
            while True:
                until = time.process_time() + float(os.environ["STAND_BURN"]) / 10
                while time.process_time() < until: pass
                time.sleep(0.1)
        if os.environ.get("STAND_BURN"):
            threading.Thread(target=burn, daemon=True).start()
        host, port = os.environ["FLY_LISTEN"].rsplit(":", 1)
        time.sleep(0.3)
        http.server.ThreadingHTTPServer((host, int(port)), Answer).serve_forever()
    """
)
# Readable to every user, unlike an interpreter below root's home.
SYSTEM_PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
COMPATIBILITY = "k1/space/abc/none/state-1"
CKPT = "ckpt-00000000000000000100.flyck"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
