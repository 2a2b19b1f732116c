"""The driver's side of vLLM without vLLM: a stand-in for its HTTP endpoints that answers in every wrong way, and a stand-in
engine under the synchronizer. The real engine: `make test-vllm`."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest

import numpy as np
import refit
import refit.vllm
from stand_in import StandIn, wrong_answers


def drip_after(part):
    """A byte every 50 ms, so that no single read waits for long."""
    def answer(handler):
        handler.wfile.write(part)
        try:
            for _ in range(60):
                time.sleep(0.05)
                handler.wfile.write(b"x")
        except OSError:
            handler.close_connection = True  # the caller has gone
    return answer


class Http(unittest.TestCase):
    def setUp(self):
        self.stand_in = StandIn()
        self.engine = refit.vllm.HttpEngine(self.stand_in.url, headers={"Authorization": "Bearer secret"})

    def tearDown(self):
        self.stand_in.close()

    def refused(self, answer, part, kind=refit.vllm.EngineError, timeout_s=5):
        self.stand_in.answers["/reset_prefix_cache"] = answer
        with self.assertRaises(kind) as caught:
            self.engine.reset_caches(timeout_s)
        self.assertIn(part, str(caught.exception))
        self.assertEqual(caught.exception.peer, self.engine.name)
        self.assertEqual(caught.exception.stage, "/reset_prefix_cache")
        self.assertNotIn("secret", str(caught.exception))

    def test_wrong_answers_are_errors_with_their_reason(self):
        for answer, part, kind, timeout_s in wrong_answers(refit.vllm.EngineError, refit.DeadlineError):
            with self.subTest(part):
                self.refused(answer, part, kind, timeout_s)
        self.refused((200, '{"success": "maybe"}'), "not reset")
        self.refused((200, "[]"), "not reset")

    def test_an_answer_that_drips_ends_at_the_deadline(self):
        head = b"HTTP/1.1 200 OK\r\n"
        for part in (b"", head + b"X-Slow: ", head + b"Content-Length: 1000\r\n\r\n", head + b"Connection: close\r\n\r\n", head + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n"):
            began = time.monotonic()
            self.refused(drip_after(part), "within 0.3 s", refit.DeadlineError, 0.3)
            self.assertLess(time.monotonic() - began, 2)

    def test_nobody_listens(self):
        self.stand_in.close()
        with self.assertRaises(refit.vllm.EngineError) as caught:
            refit.vllm.HttpEngine(self.stand_in.url).start(1)
        self.assertIn("refused", str(caught.exception))
        self.stand_in = StandIn()

    def test_the_four_phases_as_vllm_wants_them(self):
        self.stand_in.answers["/is_paused"] = (200, '{"is_paused": true}')
        self.engine.init({"address": "x"}, 1)
        self.engine.pause("keep", 1)
        self.engine.start(1)
        self.engine.update({"timeout_s": 3}, 1)
        self.engine.finish(1)
        self.engine.label("7", 1)
        self.engine.resume(1)
        self.assertEqual([(m, p, b) for m, p, b, _ in self.stand_in.calls], [
            ("POST", "/init_weight_transfer_engine", {"init_info": {"address": "x"}}),
            ("POST", "/pause?mode=keep&clear_cache=true", None),
            ("GET", "/is_paused", None),
            ("POST", "/start_weight_update", {}),
            ("POST", "/update_weights", {"update_info": {"timeout_s": 3}}),
            ("POST", "/finish_weight_update", {}),
            ("POST", "/update_weight_version", {"new_version": "7"}),
            ("POST", "/resume", None),
        ])
        self.assertTrue(all(h["Authorization"] == "Bearer secret" for *_, h in self.stand_in.calls))

    def test_a_pause_that_did_not_take_effect(self):
        self.stand_in.answers["/is_paused"] = (200, '{"is_paused": false}')
        with self.assertRaises(refit.vllm.EngineError):
            self.engine.pause("wait", 1)

    def test_urls(self):
        for url in ("ftp://a", "127.0.0.1:8000", "http://", "http://user@host", "http://host/path", "http://host?x=1"):
            with self.assertRaises(refit.InvalidError):
                refit.vllm.HttpEngine(url)

    def test_a_wrong_url_is_not_printed_with_its_secrets(self):
        for url in ("http://user:secret@host", "http://:secret@host", "http://host?token=secret", "http://host/secret", "user:secret@host", "http://host#secret", "http://[secret", "http://host:secret", "http://host:0", "http://host:99999"):
            with self.assertRaises(refit.InvalidError) as caught:
                refit.vllm.HttpEngine(url)
            self.assertNotIn("secret", str(caught.exception) + str(caught.exception.__cause__))

    def test_a_handshake_that_drips_ends_at_the_deadline(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            def greet():
                line, _ = server.accept()
                with line, contextlib.suppress(OSError):
                    line.sendall(b"\x16\x03\x03\x20\x00")  # a long record, a byte now and then
                    for _ in range(60):
                        time.sleep(0.05)
                        line.sendall(b"\x02")

            threading.Thread(target=greet, daemon=True).start()
            began = time.monotonic()
            with self.assertRaises(refit.DeadlineError):
                refit.vllm.HttpEngine(f"https://127.0.0.1:{server.getsockname()[1]}").start(0.3)
            self.assertLess(time.monotonic() - began, 2)

    @unittest.skipUnless(shutil.which("openssl"), "makes the certificate")
    def test_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = f"{folder}/key", f"{folder}/certificate"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=stand-in", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate], check=True, capture_output=True)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            trusts = ssl.create_default_context(cafile=certificate)
        self.stand_in.server.socket = context.wrap_socket(self.stand_in.server.socket, server_side=True, do_handshake_on_connect=False)
        url = self.stand_in.url.replace("http:", "https:")
        refit.vllm.HttpEngine(url, context=trusts).start(5)
        self.assertEqual([p for _, p, *_ in self.stand_in.calls], ["/start_weight_update"])
        for wrong in (refit.vllm.HttpEngine(url), refit.vllm.HttpEngine(url.replace("127.0.0.1", "localhost"), context=trusts)):
            with self.assertRaises(refit.vllm.EngineError) as caught:
                wrong.start(5)
            self.assertIn("certificate", str(caught.exception))
        self.assertEqual(len(self.stand_in.calls), 1)

    def test_no_time_left(self):
        with self.assertRaises(refit.DeadlineError):
            self.engine.start(0)
        self.assertEqual(self.stand_in.calls, [])

    def test_a_header_that_would_be_printed(self):
        with self.assertRaises(refit.InvalidError) as caught:
            refit.vllm.HttpEngine("http://127.0.0.1:1", headers={"Authorization": "Bearer secret\n"})
        self.assertNotIn("secret", str(caught.exception))


class Hooks:
    """The worker's side of the stand-in engine, on the receiver's thread."""

    def __init__(self, log):
        self.log, self.entered, self.done = log, threading.Event(), threading.Event()

    def pause(self, timeout_s):
        if not self.entered.wait(timeout_s):
            raise TimeoutError("finish was not called")

    def installed(self, version):
        self.log.append(f"installed {version.number}")

    def resume(self):
        self.done.set()


class Steered:
    """A stand-in engine whose worker is this process. `fail` names a phase that raises."""

    name = "stand-in"

    def __init__(self):
        self.log, self.fail, self.fail_once, self.swallow = [], None, [], False
        self.hooks = Hooks(self.log)

    def phase(self, name):
        self.log.append(name)
        if name in self.fail_once:
            self.fail_once.remove(name)
            raise refit.vllm.EngineError(f"{name} broke once", peer=self.name, stage=name)
        if self.fail == name:
            raise refit.vllm.EngineError(f"{name} broke", peer=self.name, stage=name)

    def init(self, info, timeout_s):
        layout = refit.Layout.from_arrays({"w": np.zeros(8, np.float32)})
        self.memory = np.zeros(8, np.float32)
        self.receiver = refit.Receiver(info["address"], layout, 0, memory={"w": self.memory}, engine=self.hooks)
        self.receiver.start()

    def pause(self, in_flight, timeout_s):
        self.phase(f"pause {in_flight}")

    def reset_caches(self, timeout_s):
        self.phase("reset")

    def start(self, timeout_s):
        self.phase("start")

    def update(self, info, timeout_s):
        self.phase("update")

    def label(self, version, timeout_s):
        self.phase(f"label {version}")

    def finish(self, timeout_s):
        self.phase("finish")
        if self.swallow:
            return
        self.hooks.done.clear()
        self.hooks.entered.set()
        if not self.hooks.done.wait(timeout_s):
            raise refit.DeadlineError("the round did not end", peer=self.name)
        self.hooks.entered.clear()

    def resume(self, timeout_s):
        self.phase("resume")


class Synchronizer(unittest.TestCase):
    def job(self, **options):
        engine = Steered()
        coordinator = refit.Coordinator(1, 1, 1, stall_timeout_s=2, gate_timeout_s=1, total_timeout_s=10, join_timeout_s=5)
        sync = refit.vllm.VllmWeightSynchronizer(coordinator, [engine], **options)
        sync.SETTLE_S = 0.2
        self.addCleanup(sync.shutdown)
        self.weights = np.arange(8, dtype=np.float32)
        joined = threading.Thread(target=sync.init_communicator)
        joined.start()
        publisher = refit.Publisher.from_arrays(coordinator.address, {"w": self.weights})
        self.addCleanup(publisher.close)
        joined.join(20)
        self.addCleanup(lambda: engine.receiver.close())
        publisher.publish(1)
        return engine, publisher, sync

    def test_order_of_a_refit(self):
        engine, _, sync = self.job(in_flight="keep")
        report = sync.sync_weights()
        self.assertEqual(report.outcome, "committed")
        self.assertFalse(sync.is_stale())
        np.testing.assert_array_equal(engine.memory, self.weights)
        self.assertEqual(engine.log, ["pause keep", "reset", "start", "update", "finish", f"installed {report.version.number}", f"label {report.version.number}", "resume"])
        self.assertIn("stand-in", sync.pause_seconds)

    def test_an_engine_that_fails_stays_paused_and_is_repaired(self):
        engine, publisher, sync = self.job()
        engine.fail = "reset"
        with self.assertRaises(refit.Error):
            sync.sync_weights()
        self.assertTrue(sync.is_stale())
        self.assertEqual(engine.log, ["pause wait", "reset"])
        engine.log.clear()
        engine.fail = None
        publisher.publish(2)
        report = sync.sync_weights()
        self.assertEqual(report.outcome, "committed")
        self.assertEqual(engine.log, ["reset", "start", "update", "finish", f"installed {report.version.number}", f"label {report.version.number}", "resume"])
        self.assertFalse(sync.is_stale())

    def test_an_engine_that_answers_well_and_did_not_install_is_not_resumed(self):
        # What vLLM does with several ranks: the workers' errors do not come back.
        engine, publisher, sync = self.job()
        engine.swallow = True
        with self.assertRaises(refit.Error):
            sync.sync_weights()
        self.assertEqual(engine.log, ["pause wait", "reset", "start", "update", "finish"])
        self.assertTrue(sync.is_stale())
        engine.log.clear()
        engine.swallow = False
        publisher.publish(2)
        report = sync.sync_weights()
        self.assertEqual(engine.log[-2:], [f"label {report.version.number}", "resume"])

    def test_an_engine_that_fell_out_of_the_round_is_paused(self):
        engine, publisher, sync = self.job()
        sync.sync_weights()
        engine.log.clear()
        engine.receiver.close()  # its replica is lost; the engine itself would go on generating
        publisher.publish(2)
        with self.assertRaises(refit.Error):
            sync.sync_weights()
        self.assertEqual(engine.log, ["pause wait"])
        self.assertTrue(sync.is_stale())

    def test_a_pause_that_failed_is_asked_again(self):
        engine, publisher, sync = self.job()
        sync.sync_weights()
        engine.log.clear()
        publisher.publish(2)
        engine.fail_once = ["pause wait"]
        with self.assertRaises(refit.Error):
            sync.sync_weights()
        self.assertEqual(engine.log, ["pause wait", "pause wait"], "it would go on generating with the former version")
        self.assertTrue(sync.is_stale())

        engine.log.clear()
        publisher.publish(3)
        sync.sync_weights()
        self.assertEqual(engine.log[0], "reset", "the second one was acknowledged")

        # Neither was acknowledged: nothing may be loaded before one is.
        engine.log.clear()
        engine.fail = "pause wait"
        publisher.publish(4)
        with self.assertRaises(refit.Error):
            sync.sync_weights()
        self.assertEqual(engine.log, ["pause wait", "pause wait"])
        self.assertTrue(sync.is_stale())
        engine.log.clear()
        engine.fail = None
        publisher.publish(5)
        sync.sync_weights()
        self.assertEqual(engine.log[:2], ["pause wait", "reset"])
        self.assertFalse(sync.is_stale())

    def test_after_a_resume_whose_answer_was_lost_the_engine_is_paused_again(self):
        engine, publisher, sync = self.job()
        engine.fail_once = ["resume"]
        with self.assertRaises(refit.Error):
            sync.sync_weights()
        self.assertTrue(sync.is_stale())
        engine.log.clear()
        publisher.publish(2)
        sync.sync_weights()
        self.assertEqual(engine.log[:2], ["pause wait", "reset"])
        self.assertFalse(sync.is_stale())

    def test_options(self):
        with refit.Coordinator(1) as coordinator:
            with self.assertRaises(refit.InvalidError):
                refit.vllm.VllmWeightSynchronizer(coordinator, [Steered()], in_flight="drop")
            with self.assertRaises(refit.InvalidError):
                refit.vllm.VllmWeightSynchronizer(coordinator, [Steered()], timeout_s=1000)
            with self.assertRaises(refit.InvalidError):
                refit.vllm.VllmWeightSynchronizer(coordinator, [])


if __name__ == "__main__":
    unittest.main()
