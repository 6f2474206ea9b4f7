# SPDX-License-Identifier: Apache-2.0
"""A service for every_module.yml: answers JSON on a loopback port."""

import http.server
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    """One answer."""

    def do_GET(self) -> None:
        """A number of ticks."""
        data = b'{"ticks": 7}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
