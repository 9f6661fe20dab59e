"""Connections, limits, disconnects, health and shutdown over raw sockets: public bug reports by
number. Times are limits of patience, or compared with each other; none is a measurement."""

import concurrent.futures
import http.client
import json
import pathlib
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
import unittest

import server_fixture
from server_fixture import PATIENCE_S, Server, chat_body, parse_events, rule, wait_for

SLOW = rule(["x", " y"], match="slow", repeat=100000, delay_ms=20)
FAST = rule(["a", " b"])
PREFILL = rule(["p"], match="prefill", chunk=1, chunk_ms=50)


def raw_request(body, path="/v1/chat/completions", extra=""):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n{extra}\r\n"
    return head.encode() + data


def read_response(sock):
    """Status and body of a reply with Content-Length; the connection stays usable."""
    response = http.client.HTTPResponse(sock)
    response.begin()
    return response.status, response.read()


def read_all(sock):
    data = b""
    while True:
        piece = sock.recv(65536)
        if not piece:
            return data
        data += piece


def counts(server):
    _, reply = server.health()
    return reply["running"], reply["waiting"]


class ConnectionTest(unittest.TestCase):
    def test_keep_alive_and_pipelining(self):
        with Server([FAST]) as server, server.connect() as sock:
            for _ in range(3):
                sock.sendall(raw_request(chat_body("x")))
                self.assertEqual(read_response(sock)[0], 200)
            sock.sendall(raw_request(chat_body("x")) + raw_request(chat_body("x", stream=True)) +
                         b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            data = read_all(sock)
            self.assertEqual(data.count(b"HTTP/1.1 200"), 3)
            self.assertIn(b"[DONE]", data)

    def test_http_1_0_head_and_unknown_paths(self):
        with Server([FAST]) as server:
            body = json.dumps(chat_body("x", stream=True)).encode()
            with server.connect() as sock:
                sock.sendall(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" %
                             (len(body), body))
                data = read_all(sock).decode()
                self.assertNotIn("chunked", data)
                self.assertEqual(parse_events(data.split("\r\n\r\n", 1)[1])[-1][1], "[DONE]")
            status, headers, text = server.request("HEAD", "/health")
            self.assertEqual((status, text), (200, ""))
            self.assertGreater(int(headers["Content-Length"]), 0)
            self.assertEqual(server.request("GET", "/nowhere")[0], 404)
            self.assertEqual(server.request("GET", "/v1/chat/completions")[0], 405)
            with server.connect() as sock:
                sock.sendall(b"nonsense\r\n\r\n")
                self.assertIn(b" 400 ", read_all(sock))

    def test_errors_have_one_shape_and_methods_are_told(self):
        with Server([FAST]) as server:
            for method, path, status, code in (
                    ("GET", "/", 404, "not_found"), ("POST", "/v1/chat", 404, "not_found"),
                    ("GET", "/v1/chat/completions/", 404, "not_found"),
                    ("DELETE", "/v1/models/stub", 405, "method_not_allowed"),
                    ("GET", "/v1/completions", 405, "method_not_allowed"),
                    ("PUT", "/v1/chat/completions", 405, "method_not_allowed"),
                    ("PATCH", "/health", 405, "method_not_allowed"),
                    ("POST", "/v1/models", 405, "method_not_allowed")):
                got, headers, text = server.request(method, path, "{}")
                self.assertEqual(got, status, (method, path))
                error = json.loads(text)["error"]
                self.assertEqual(set(error), {"message", "type", "param", "code"})
                self.assertEqual((error["code"], error["type"]), (code, "invalid_request_error"))
                self.assertEqual(headers.get("Allow"), None if status == 404 else
                                 "POST, OPTIONS" if "completions" in path else
                                 "GET, HEAD, OPTIONS")
            for path, status in (("/", 404), ("/v1/completions", 405), ("/v1/models", 200)):
                got, headers, text = server.request("HEAD", path)
                self.assertEqual((got, text), (status, ""))
                self.assertGreater(int(headers["Content-Length"]), 0)
            self.assertEqual(server.request("GET", "/v1/models?limit=1")[0], 200)

    def test_pipelined_after_a_bad_request(self):
        with Server([FAST]) as server, server.connect() as sock:
            sock.sendall(raw_request({"messages": 3}) + raw_request(chat_body("x")) +
                         raw_request(chat_body("x"), path="/nowhere",
                                     extra="Connection: close\r\n"))
            data = read_all(sock)
            self.assertEqual([data.count(b"HTTP/1.1 %d" % s) for s in (400, 200, 404)], [1, 1, 1])
            self.assertLess(data.index(b"HTTP/1.1 400"), data.index(b"HTTP/1.1 200"))

    def test_api_keys(self):
        with Server([FAST], {"api_keys": ["alpha", "beta"]}) as server:
            for headers in ({}, {"Authorization": "Bearer gamma"}, {"Authorization": "alpha"},
                            {"Authorization": "Bearer "}, {"X-API-Key": "alph"}):
                status, _, text = server.request("POST", "/v1/completions", {"prompt": "x"},
                                                 headers)
                self.assertEqual(status, 401, headers)
                self.assertEqual(json.loads(text)["error"]["code"], "invalid_api_key")
            for headers in ({"Authorization": "Bearer alpha"}, {"authorization": "bearer beta"},
                            {"X-API-Key": "beta"}):
                self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "x"},
                                                headers)[0], 200)
            self.assertEqual(server.request("GET", "/metrics")[0], 401)
            self.assertEqual(server.request("GET", "/health")[0], 200)
        with Server([FAST]) as server:
            self.assertEqual(server.request("GET", "/v1/models", None,
                                            {"Authorization": "Bearer any"})[0], 200)

    def test_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            cert, key = folder + "/cert.pem", folder + "/key.pem"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days",
                            "2", "-keyout", key, "-out", cert, "-subj", "/CN=localhost",
                            "-addext", "subjectAltName=IP:127.0.0.1"],
                           check=True, capture_output=True)
            with Server([FAST, SLOW], {"tls_cert": cert, "tls_key": key}) as server:
                context = ssl.create_default_context(cafile=cert)
                with context.wrap_socket(server.connect(), server_hostname="127.0.0.1") as sock:
                    for _ in range(3):
                        sock.sendall(raw_request(chat_body("x")))
                        self.assertEqual(read_response(sock)[0], 200)
                    sock.sendall(raw_request(chat_body("x", stream=True),
                                             extra="Connection: close\r\n"))
                    self.assertIn(b"[DONE]", read_all(sock))

    def test_a_slow_reader_is_cut_with_an_error(self):
        flood = rule(["x" * 1000], match="flood", repeat=100000)
        with Server([flood, FAST], {"unsent_bytes_max": 100000}) as server:
            sock = server.connect()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(raw_request(chat_body("flood", stream=True),
                                     extra="Connection: close\r\n"))
            wait_for(lambda: server.metric("vericache_slow_readers_total") == 1)
            wait_for(lambda: counts(server) == (0, 0))
            data = read_all(sock)
            sock.close()
            self.assertIn(b"slow_reader", data)
            self.assertNotIn(b"[DONE]", data)
            self.assertEqual(server.chat()[0], 200)


class DisconnectTest(unittest.TestCase):
    def leave(self, server, body, when, half=False):
        sock = server.connect()
        sock.sendall(raw_request(body))
        wait_for(lambda: when(sock))
        if half:
            sock.shutdown(socket.SHUT_WR)
        else:
            sock.close()
        wait_for(lambda: counts(server) == (0, 0))
        sock.close()

    def test_case_43_mid_stream_whole_and_half_close(self):
        with Server([SLOW, PREFILL, FAST]) as server:
            running = lambda sock: counts(server)[0] == 1
            self.leave(server, chat_body("slow", stream=True), lambda s: s.recv(1))
            self.leave(server, chat_body("slow"), running)
            self.leave(server, chat_body("slow"), running, half=True)
            self.leave(server, chat_body("slow", n=4), lambda s: counts(server)[0] == 4)
            self.leave(server, chat_body("prefill " + "w " * 2000), running)
            self.assertEqual(server.metric('vericache_engine_choices_total{event="cancelled"}'), 8)
            self.assertEqual(server.metric('vericache_http_events_total{event="client_left"}'), 5)
            self.assertEqual(server.chat()[0], 200)

    def test_case_43_a_client_that_leaves_counts_once(self):
        """A write that waits for the client and the read ahead both find out."""
        flood = rule(["x " * 20000], match="flood", repeat=100000, delay_ms=1)
        with Server([flood, FAST], {"unsent_bytes_max": 1 << 30}) as server:
            num_left = 5
            for _ in range(num_left):
                sock = server.connect()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.sendall(raw_request(chat_body("flood", stream=True)))
                sock.recv(1)
                time.sleep(0.4)  # more than the sockets take
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()
                wait_for(lambda: counts(server) == (0, 0))
            name = 'vericache_http_events_total{event="client_left"}'
            wait_for(lambda: server.metric(name) >= num_left)
            self.assertEqual(server.metric(name), num_left)

    def test_case_43_queued_work_never_starts(self):
        with Server([SLOW, FAST], max_running=1) as server:
            first = server.connect()
            first.sendall(raw_request(chat_body("slow", stream=True)))
            first.recv(1)
            queued = server.connect()
            queued.sendall(raw_request(chat_body("y")))
            wait_for(lambda: counts(server) == (1, 1))
            queued.close()
            wait_for(lambda: counts(server) == (1, 0))
            emitted = server.metric('vericache_tokens_total{kind="prompt"}')
            self.assertEqual(emitted, 0)
            first.close()
            wait_for(lambda: counts(server) == (0, 0))

    def test_case_43_random_aborts_disturb_nobody(self):
        words = rule([f" w{i}" for i in range(40)], delay_ms=1)
        expected = "".join(f" w{i}" for i in range(40))
        with Server([words]) as server:
            def visit(i):
                with server.connect() as sock:
                    sock.sendall(raw_request(chat_body("x", stream=True)))
                    if i % 4 == 3:  # a reset instead of a close
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                        struct.pack("ii", 1, 0))
                    if i % 2:
                        sock.settimeout(0.001 * (i % 17))
                        try:
                            sock.recv(100)
                        except OSError:
                            pass
            def stay(_):
                status, reply = server.chat()
                return status, reply["choices"][0]["message"]["content"]
            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                aborts = [pool.submit(visit, i) for i in range(200)]
                stays = [pool.submit(stay, i) for i in range(10)]
                for abort in aborts:
                    abort.result()
                for reply in stays:
                    self.assertEqual(reply.result(), (200, expected))
            wait_for(lambda: counts(server) == (0, 0))
            wait_for(lambda: server.metric("vericache_http_connections") <= 1)


class LimitsTest(unittest.TestCase):
    def test_case_44_preflight_without_key(self):
        with Server([FAST], {"api_keys": ["secret"]}) as server:
            status, headers, text = server.request(
                "OPTIONS", "/v1/chat/completions", None,
                {"Origin": "http://a.example", "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type"})
            self.assertEqual((status, text), (204, ""))
            self.assertEqual(headers["Access-Control-Allow-Origin"], "*")
            self.assertEqual(headers["Access-Control-Allow-Headers"], "authorization,content-type")
            self.assertIn("POST", headers["Access-Control-Allow-Methods"])
            _, headers, _ = server.request("POST", "/v1/chat/completions", chat_body("x"))
            self.assertEqual(headers["Access-Control-Allow-Origin"], "*")  # of an error too

    def test_case_44_large_bodies_and_a_413_that_is_read(self):
        with Server([FAST], {"body_bytes_max": 8 << 20}, context=1 << 30) as server:
            self.assertEqual(server.chat("w" * (1 << 20))[0], 200)
            status, reply = server.chat("w" * (19 << 20))  # 11 MiB over
            self.assertEqual((status, reply["error"]["code"]), (413, "body_too_large"))
            with server.connect() as sock:  # chunked, no length told beforehand
                sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                             b"Transfer-Encoding: chunked\r\n\r\n")
                for _ in range(10):
                    sock.sendall(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
                self.assertEqual(read_response(sock)[0], 413)
            with server.connect() as sock:
                body = json.dumps({"prompt": "x"}).encode()
                sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                             b"Transfer-Encoding: chunked\r\n\r\n")
                for i in range(len(body)):
                    sock.sendall(b"1\r\n" + body[i:i + 1] + b"\r\n")
                sock.sendall(b"0\r\n\r\n")
                self.assertEqual(read_response(sock)[0], 200)
            with server.connect() as sock:
                sock.sendall(b"GET /health HTTP/1.1\r\nA: " + b"x" * (64 << 10) + b"\r\n\r\n")
                self.assertEqual(read_response(sock)[0], 431)
            for expect in (b"100-continue", b"100-Continue"):  # asked before it is sent
                with server.connect() as sock:
                    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                 b"Content-Length: 15\r\nExpect: " + expect + b"\r\n\r\n")
                    self.assertIn(b"100 Continue", sock.recv(100))
                    sock.sendall(b'{"prompt": "x"}')
                    self.assertEqual(read_response(sock)[0], 200)
            with server.connect() as sock:  # and told that it need not come
                sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue"
                             b"\r\nContent-Length: %d\r\n\r\n" % (9 << 20))
                self.assertIn(b" 413 ", sock.recv(100))

    def test_case_44_slow_clients_have_a_total_deadline(self):
        settings = {"header_s_max": 1, "body_grace_s": 1, "body_rate_min": 1000}
        with Server([FAST], settings) as server:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
            slow_header, slow_body = server.connect(), server.connect()
            slow_body.sendall(head + b"\r\n")
            ended = {}
            def trickle(name, sock, data):
                # Ends when the server has said its word and closed.
                try:
                    for byte in data:
                        sock.sendall(bytes([byte]))
                        sock.settimeout(0.2)
                        try:
                            ended[name] = sock.recv(65536)
                            return
                        except socket.timeout:
                            pass
                except OSError as error:
                    ended[name] = str(error).encode()
            threads = [threading.Thread(target=trickle, args=("header", slow_header, head * 3)),
                       threading.Thread(target=trickle, args=("body", slow_body, b" " * 99))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertIn(b" 408 ", ended["header"])
            self.assertIn(b" 408 ", ended["body"])
            slow_header.close()
            slow_body.close()
            self.assertEqual(server.metric('vericache_http_events_total{event="timed_out"}'), 2)

    def test_case_44_and_56_health_beside_slow_and_idle_clients(self):
        with Server([SLOW, FAST], {"connections_max": 300}, max_running=65) as server:
            idle = [server.connect() for _ in range(100)]
            slow = [server.connect() for _ in range(64)]
            for sock in slow:
                sock.sendall(b"P")
            streams = [server.connect() for _ in range(64)]
            for sock in streams:
                sock.sendall(raw_request(chat_body("slow", stream=True)))
            wait_for(lambda: counts(server)[0] == 64)
            for _ in range(20):
                for path in ("/health", "/metrics"):
                    self.assertEqual(server.request("GET", path)[0], 200)
            self.assertEqual(server.chat()[0], 200)
            for sock in idle + slow + streams:
                sock.close()

    def test_too_many_connections(self):
        with Server([FAST], {"connections_max": 3}) as server:
            held = [server.connect() for _ in range(3)]
            wait_for(lambda: self.last_status(server) == 503)
            for sock in held:
                sock.close()
            wait_for(lambda: self.last_status(server) == 200)

    def last_status(self, server):
        try:
            return server.request("GET", "/health")[0]
        except (OSError, http.client.HTTPException):
            return None


class LifeTest(unittest.TestCase):
    def test_case_56_health_while_the_engine_is_frozen(self):
        with Server([SLOW, FAST], {"stuck_s": 0.5}) as server:
            self.assertEqual(server.health()[0], 200)
            server.freeze_file.write_text("")
            waiting = server.connect()
            waiting.sendall(raw_request(chat_body("slow")))
            # Each by itself: a machine that stands still for a while looks stuck before it is.
            wait_for(lambda: server.health()[1]["status"] == "stuck")
            wait_for(lambda: server.health()[0] == 503)
            wait_for(lambda: server.request("GET", "/health/live")[0] == 503)
            self.assertEqual(server.request("GET", "/metrics")[0], 200)
            self.assertGreater(server.metric("vericache_since_progress_seconds"), 0.5)
            server.freeze_file.unlink()
            wait_for(lambda: server.health()[0] == 200)
            waiting.close()

    def test_case_55_stop_idle(self):
        with Server([FAST]) as server, server.connect() as idle:
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(read_response(idle)[0], 200)
            self.assertEqual(server.stop(), 0)
            self.assertEqual(idle.recv(10), b"")

    def test_case_55_stop_streaming_queued_and_in_prefill(self):
        with Server([SLOW, PREFILL, FAST], {"grace_s": 1}, max_running=2) as server:
            stream, prefill, queued = (server.connect() for _ in range(3))
            stream.sendall(raw_request(chat_body("slow", stream=True)))
            stream.recv(1)
            prefill.sendall(raw_request(chat_body("prefill " + "w " * 3000)))
            wait_for(lambda: counts(server)[0] == 2)
            queued.sendall(raw_request(chat_body("queued")))
            wait_for(lambda: counts(server)[1] == 1)
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: server.chat()[0] == 503)
            data = read_all(stream)
            self.assertIn(b"server_stopping", data)
            self.assertNotIn(b"[DONE]", data)
            self.assertTrue(data.endswith(b"0\r\n\r\n"))
            for sock in (prefill, queued):
                status, body = read_response(sock)
                self.assertEqual(status, 503)
                self.assertEqual(json.loads(body)["error"]["code"], "server_stopping")
                sock.close()
            stream.close()
            self.assertEqual(server.process.wait(PATIENCE_S), 0)

    def test_case_55_what_can_end_in_time_does(self):
        with Server([rule(["a"] * 20, delay_ms=20)], {"grace_s": 50}) as server:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                reply = pool.submit(server.chat)
                wait_for(lambda: counts(server)[0] == 1)
                self.assertEqual(server.stop(), 0)
                self.assertEqual(reply.result()[0], 200)

    def test_case_55_second_signal_at_once(self):
        with Server([SLOW], {"grace_s": 1000}) as server, server.connect() as sock:
            sock.sendall(raw_request(chat_body("slow", stream=True)))
            sock.recv(1)
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: server.chat("x")[0] == 503)
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(PATIENCE_S), 128 + signal.SIGTERM)

    def test_case_55_a_frozen_engine_does_not_hold_the_exit(self):
        # The stub's engine ends only between steps, so freeze it within one: cancel is still seen.
        with Server([SLOW], {"grace_s": 0.2}) as server, server.connect() as sock:
            server.freeze_file.write_text("")
            sock.sendall(raw_request(chat_body("slow")))
            wait_for(lambda: counts(server)[0] == 1)
            self.assertEqual(server.stop(), 0)

    def test_case_70_the_port_is_bound_before_the_model_loads(self):
        settings = {"load_ms": 2000}
        with Server([FAST], settings, wait=False) as first:
            first.wait_listening()
            status, reply = first.health()
            self.assertEqual((status, reply["status"], reply["live"]), (503, "loading", True))
            self.assertEqual(first.request("GET", "/health/live")[0], 200)
            self.assertEqual(first.chat()[1]["error"]["code"], "model_loading")
            self.assertEqual(first.request("GET", "/metrics")[0], 200)
            self.assertFalse(first.port_file.exists())
            # A second one fails before it loads anything: while the first is still loading.
            with Server([FAST], {"port": first.port, "load_ms": 10**7}, wait=False) as second:
                self.assertEqual(second.process.wait(PATIENCE_S), 1)
                self.assertIn(f"port {first.port} is taken", second.log_text())
            first.wait_ready()
            self.assertEqual(first.chat()[0], 200)

    def test_case_70_stop_while_loading(self):
        with Server([FAST], {"load_ms": 10**7}, wait=False) as server:
            server.wait_listening()
            self.assertEqual(server.stop(), 0)

    def test_case_70_addresses(self):
        for host, good in (("nowhere.example", False), ("300.1.1.1", False), ("", False),
                           ("192.0.2.1", False), ("0.0.0.0", True), ("localhost", True)):
            with Server([FAST], {"host": host}, wait=False) as server:
                if good:
                    server.wait_ready()
                    self.assertEqual(server.health()[0], 200)
                else:
                    self.assertEqual(server.process.wait(PATIENCE_S), 1)
        if pathlib.Path("/proc/net/if_inet6").exists():
            with Server([FAST], {"host": "::1"}) as server:
                with socket.create_connection(("::1", server.port)) as sock:
                    sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                    self.assertEqual(read_response(sock)[0], 200)

    def test_case_70_an_address_in_time_wait_is_free(self):
        with Server([FAST]) as first:
            with first.connect() as sock:
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                read_all(sock)
            port = first.port
            self.assertEqual(first.stop(), 0)
        with Server([FAST], {"port": port}) as second:
            self.assertEqual(second.chat()[0], 200)


if __name__ == "__main__":
    server_fixture.main()
