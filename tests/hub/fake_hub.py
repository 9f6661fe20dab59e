"""A Hugging Face Hub on the loopback address, for tests: the tree and resolve calls of its public
API, with faults on demand. Standard library only.

A test registers repositories with add(repo, path, data, **faults) and reads `requests` afterwards.
Faults, of one file:
  cut=N             closes the connection after N bytes of the body, the first `times` times
  stall=N           the same, but goes silent instead of closing
  status=S          answers the download with status S, the first `times` times
  list_status=S     answers the listing with status S
  error_code=C      the X-Error-Code header beside it
  times=N           how often a fault happens (default: always)
  served=BYTES      sends other bytes than the listing promises
  ignore_range      answers 200 and everything, whatever Range says
  wrong_range       answers 206 with another range than asked for
  redirect=HUB      redirects the download to another FakeHub
  redirect_url=URL  redirects to any URL
  no_digest         lists no lfs; the download's headers name digest and size instead
  no_digest_at_all  nor do they
  html              answers the download with a web page and status 200
  html_list         answers the listing so
"""

import hashlib
import http.server
import json
import re
import threading
import time
import urllib.parse

PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"


class RemoteFile:
    def __init__(self, data, faults):
        self.data = data
        self.faults = faults
        self.times_left = faults.get("times", 10**9)
        self.sha256 = hashlib.sha256(data).hexdigest()

    def fault(self, name):
        """The fault's value while it still happens, else None; counts it."""
        if name not in self.faults or self.times_left <= 0:
            return None
        self.times_left -= 1
        return self.faults[name]


class FakeHub:
    def __init__(self, token=None, page_size=1000):
        self.token = token
        self.page_size = page_size
        self.repos = {}
        self.requests = []  # (method, path, headers)
        hub = self

        class Handler(_Handler):
            pass
        Handler.hub = hub
        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def add(self, repo, path, data, **faults):
        self.repos.setdefault(repo, {})[path] = RemoteFile(data, faults)

    def downloads(self):
        return [r for r in self.requests if r[0] == "GET" and "/resolve/" in r[1]]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that leaves early is part of the tests, not worth a traceback."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub = None

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        headers.setdefault("Content_Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.hub.requests.append((self.command, self.path, dict(self.headers)))
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        try:
            tree = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/main", path)
            blob = re.fullmatch(r"/([^/]+/[^/]+)/resolve/main/(.+)", path)
            if self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
                self.answer(401, b"Invalid username or password.")
            elif tree:
                self.list_tree(tree.group(1), urllib.parse.parse_qs(url.query))
            elif blob:
                self.download(*blob.groups())
            else:
                self.answer(404, b"Not Found")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def list_tree(self, repo, query):
        files = self.hub.repos.get(repo)
        if files is None:
            # As the Hub does, which hides whether a private repository exists.
            self.answer(401, b"Invalid username or password.", X_Error_Code="RepoNotFound")
            return
        for file in files.values():
            status = file.fault("list_status")
            if status:
                headers = {"Retry_After": "0"}
                if "error_code" in file.faults:
                    headers["X_Error_Code"] = file.faults["error_code"]
                self.answer(status, b"{}", **headers)
                return
            if file.fault("html_list"):
                self.answer(200, PAGE, Content_Type="text/html")
                return
        names = sorted(files)
        begin = int(query.get("cursor", ["0"])[0])
        end = begin + self.hub.page_size
        entries = [{"type": "directory", "oid": "0", "size": 0, "path": "folder"}]
        for name in names[begin:end]:
            entry = {"type": "file", "oid": "0" * 40, "size": 134, "path": name}
            if not {"no_digest", "no_digest_at_all"} & files[name].faults.keys():
                entry["size"] = len(files[name].data)
                entry["lfs"] = {"oid": files[name].sha256, "size": len(files[name].data),
                                "pointerSize": 134}
            entries.append(entry)
        headers = {"Content_Type": "application/json"}
        if end < len(names):
            link = f"{self.hub.url}/api/models/{repo}/tree/main?recursive=1&cursor={end}"
            headers["Link"] = f'<{link}>; rel="next"'
        self.answer(200, json.dumps(entries).encode(), **headers)

    def download(self, repo, path):
        file = self.hub.repos.get(repo, {}).get(path)
        if file is None:
            self.answer(404, b"Entry not found", X_Error_Code="EntryNotFound")
            return
        status = file.fault("status")
        if status:
            self.answer(status, b"", Retry_After="0")
            return
        if "html" in file.faults:
            self.answer(200, PAGE, Content_Type="text/html; charset=utf-8")
            return
        digest = {"X_Linked_Etag": f'"{file.sha256}"', "X_Linked_Size": str(len(file.data))}
        if "no_digest_at_all" in file.faults:
            digest = {}
        target = file.faults.get("redirect_url")
        if "redirect" in file.faults:
            target = f"{file.faults['redirect'].url}/{repo}/resolve/main/{path}"
        if target:
            self.answer(302, b"", Location=target, **digest)
            return
        self.send_file(file, digest)

    def send_file(self, file, digest):
        data = file.faults.get("served", file.data)
        begin, status, headers = 0, 200, dict(digest)
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted and "ignore_range" not in file.faults:
            begin, status = int(wanted.group(1)), 206
            if "wrong_range" in file.faults:
                begin = 0
            if begin >= len(data):
                self.answer(416, b"", Content_Range=f"bytes */{len(data)}")
                return
            headers["Content_Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        body = data[begin:]
        end, silent = file.fault("cut"), False
        if end is None:
            end = file.fault("stall")
            silent = end is not None
        if end is None or self.command == "HEAD":
            self.answer(status, body, **headers)
            return
        self.answer(status, body[:end], Content_Length=str(len(body)), **headers)
        self.wfile.flush()
        if silent:
            time.sleep(20)  # in a thread nobody waits for
        self.close_connection = True
