"""A stage, with the controller that listens at $TIDEGATE_SOCKET and the policy of python.rs."""

import copy
import importlib.util
import os
import pathlib
import pickle
import tempfile
import threading
import time
import unittest

import tidegate

MIB = 1 << 20


def traffic(stage: tidegate.Stage) -> tuple[int, int]:
    """Operations and bytes of all channels."""
    counters = stage.counters()
    return sum(one.operations for one in counters), sum(one.bytes for one in counters)


class StageTest(unittest.TestCase):
    def setUp(self) -> None:
        self.stage = tidegate.Stage("training")
        self.addCleanup(self.stage.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_requests_are_counted_with_what_they_moved(self) -> None:
        stage = self.stage
        self.assertGreater(stage.info().generation, 0)
        self.assertEqual(traffic(stage), (0, 0))
        with stage.request("read", 4096, self.folder / "a"):
            pass
        with stage.request("read", 4096) as request:
            request.moved = 100
        with self.assertRaises(KeyError), stage.request("write", 4096):
            raise KeyError
        with stage.request("stat", path="relative"):
            pass
        self.assertEqual(traffic(stage), (4, 4196))

    def test_files_pass_the_gates_and_keep_their_content(self) -> None:
        stage, path = self.stage, self.folder / "data"
        content = bytes(range(256)) * 12_345
        with stage.open(path, "wb") as file:
            self.assertEqual(file.write(content), len(content))
        operations, moved = traffic(stage)
        self.assertEqual(moved, len(content))
        # One to open, and a large write is not one request.
        self.assertGreaterEqual(operations, 1 + len(content) // MIB + 1)
        self.assertEqual(path.read_bytes(), content)
        with stage.open(path) as file:
            self.assertEqual(file.read(), content)
            file.seek(1000)
            self.assertEqual(file.read(300), content[1000:1300])
            with self.assertRaises(OSError, msg="others would read past the gates"):
                file.fileno()
        self.assertGreaterEqual(traffic(stage)[1], 2 * len(content))
        with stage.open(path, "r+b") as file:
            file.seek(3)
            file.write(b"new")
            file.seek(0)
            self.assertEqual(file.read(8), b"\0\1\2new\6\7")
        with stage.open(path, "a+b") as file:
            file.write(b"end")
        self.assertTrue(path.read_bytes().endswith(b"end"))
        with stage.open(self.folder / "text", "w", encoding="utf-8") as file:
            print("grüße", 1, file=file)
        with stage.open(self.folder / "text", encoding="utf-8", mode="r") as file:
            self.assertEqual(list(file), ["grüße 1\n"])
        with self.assertRaises(FileNotFoundError):
            stage.open(self.folder / "no")

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "NumPy is not installed")
    def test_numpy_reads_and_writes_through_the_gates(self) -> None:
        import numpy

        array = numpy.arange(100_000)
        with self.stage.open(self.folder / "array.npy", "wb") as file:
            numpy.save(file, array)
        self.assertGreaterEqual(traffic(self.stage)[1], array.nbytes)
        with self.stage.open(self.folder / "array.npy") as file:
            self.assertTrue((numpy.load(file) == array).all())
        self.assertGreaterEqual(traffic(self.stage)[1], 2 * array.nbytes)

    def test_a_limit_holds_requests_and_other_threads_run(self) -> None:
        with tidegate.Stage("slow") as stage:
            begin, steps = time.monotonic(), 0
            ended = threading.Event()

            def read() -> None:
                for _ in range(3):
                    with stage.request("read", MIB):
                        pass
                ended.set()

            thread = threading.Thread(target=read)
            thread.start()
            while not ended.wait(0.001):
                steps += 1
            thread.join()
            took = time.monotonic() - begin
            waited = sum(one.waited for one in stage.counters())
        # Of 3 MiB at 2 MiB/s, a burst passes at once and the last request may leave a debt.
        self.assertGreater(took, 0.8)
        self.assertTrue(0.8 < waited <= took, waited)
        self.assertGreater(steps, 10, "the wait kept Python's lock")

    def test_a_scope_decides_the_channel(self) -> None:
        with tidegate.Stage() as stage:
            with stage.request("write", 10):
                pass
            with tidegate.scope("flush"):
                with stage.request("write", 200):
                    pass
                with tidegate.scope("other"), stage.request("write", 4000):
                    pass
            moved = sorted(one.bytes for one in stage.counters())
        self.assertEqual(moved, [200, 4010])

    def test_children_pass_the_same_gates(self) -> None:
        child = os.fork()
        if child == 0:
            with self.stage.request("read", 512):
                pass
            self.stage.close()
            os._exit(7)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        with self.stage.request("read", 1):
            pass
        self.assertEqual(traffic(self.stage), (2, 513))

    def test_closing_waits_for_requests_of_other_threads(self) -> None:
        entered, release = threading.Event(), threading.Event()

        def hold() -> None:
            with self.stage.request("read", 1):
                entered.set()
                release.wait()

        thread, closer = threading.Thread(target=hold), threading.Thread(target=self.stage.close)
        thread.start()
        entered.wait()
        closer.start()
        closer.join(0.05)
        self.assertTrue(closer.is_alive())
        release.set()
        closer.join()
        thread.join()
        self.stage.close()
        for call in [self.stage.info, self.stage.counters, self.stage.request("read").__enter__]:
            self.assertRaisesRegex(ValueError, "the stage is closed", call)

    def test_a_request_ends_whatever_it_is_said_to_have_moved(self) -> None:
        with tidegate.Stage("one-at-a-time") as stage, tidegate.scope("one"):
            request = stage.request("read", 100)
            for moved, error in [("100", TypeError), (1.5, TypeError), (-1, ValueError)]:
                with self.assertRaisesRegex(error, "moved must be"), request:
                    request.moved = moved
            request.moved = None
            with request:
                # Entered anew it would wait for itself.
                self.assertRaisesRegex(ValueError, "under way already", request.__enter__)
            self.assertRaisesRegex(ValueError, "not under way", request.__exit__, None, None, None)
            entered = threading.Event()

            def enter() -> None:
                with tidegate.scope("one"), stage.request("read", 7):
                    entered.set()

            # It would wait for a permit for ever if one of the requests had kept its own.
            thread = threading.Thread(target=enter, daemon=True)
            thread.start()
            self.assertTrue(entered.wait(60))
            thread.join()
            self.assertEqual(traffic(stage), (5, 407))

    def test_another_thread_may_end_a_request(self) -> None:
        with self.stage.request("read", 1) as request:
            pass
        request.__enter__()
        thread = threading.Thread(target=request.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
        self.stage.close()

    def test_closing_a_stage_writes_what_its_files_have_gathered(self) -> None:
        with tidegate.Stage("training") as stage:
            binary = stage.open(self.folder / "binary", "wb")
            text = stage.open(self.folder / "text", "w", encoding="utf-8")
            binary.write(b"gathered")
            text.write("gathered")
            child = os.fork()
            if child == 0:
                stage.close()
                os._exit(0)
            os.waitpid(child, 0)
            self.assertEqual((self.folder / "binary").read_bytes(), b"")
        for name in ("binary", "text"):
            self.assertEqual((self.folder / name).read_bytes(), b"gathered")
        binary.close()
        text.close()
        with tidegate.Stage("training") as stage:
            full = stage.open("/dev/full", "wb")
            full.write(b"gathered")
            self.assertRaises(OSError, stage.close)
            self.assertRaisesRegex(ValueError, "the stage is closed", stage.info)
        self.assertRaises(ValueError, full.close)

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "NumPy is not installed")
    def test_numbers_of_numpy_are_numbers(self) -> None:
        import numpy

        with self.stage.request("read", numpy.int64(100)) as request:
            request.moved = numpy.uint32(60)
        self.assertEqual(traffic(self.stage), (1, 60))

    def test_what_cannot_be_has_an_error_of_its_own(self) -> None:
        stage = self.stage
        for call, error, words in [
            (lambda: stage.request("reed"), ValueError, "'reed' is none of read, write"),
            (lambda: stage.request("read", -1), ValueError, "length must be from 0"),
            (lambda: stage.request("read", 1.5), TypeError, "length must be int, not float"),
            (lambda: stage.request("read", 1, "a\0b"), ValueError, "zero byte"),
            (lambda: tidegate.Stage(b"web"), TypeError, "tenant must be str or None, not bytes"),
            (lambda: tidegate.Stage("a\0b"), ValueError, "tenant must not have a zero byte"),
            (lambda: tidegate.Stage(timeout="1"), TypeError, "timeout must be a number or None"),
            (lambda: tidegate.Stage(timeout=-1), ValueError, "timeout must be at least 0 s"),
            (lambda: tidegate.Stage(timeout=float("nan")), ValueError, "timeout must be at least"),
        ]:
            self.assertRaisesRegex(error, words, call)
        for copied in [copy.copy, copy.deepcopy, pickle.dumps]:
            self.assertRaisesRegex(TypeError, "cannot be copied", copied, stage)
        with stage.request("read", 1):
            self.assertRaisesRegex(ValueError, "under way", stage.close)
        self.assertEqual(traffic(stage), (1, 1), "the stage is as good as before")

    def test_without_a_controller_the_reason_is_named(self) -> None:
        missing = self.folder / "no.sock"

        def reason(timeout: float) -> str:
            with self.assertRaises(tidegate.Unreachable) as caught:
                tidegate.Stage("training", socket=missing, timeout=timeout)
            return str(caught.exception)

        # On a busy machine the stage's thread may not have tried yet.
        words = next(filter(lambda it: "not answered" not in it, map(reason, [0.05, 1, 10, 60])))
        self.assertRegex(words, "nothing listens at .*no.sock.*start one with `tidegate up`")
        with tidegate.Stage("training", socket=missing, timeout=None) as stage:
            with stage.request("read", MIB):
                pass
            self.assertEqual(stage.info().generation, 0)

    def test_a_refused_stage_says_why_at_once(self) -> None:
        begin = time.monotonic()
        with self.assertRaisesRegex(tidegate.Unreachable, 'the policy has no tenant "trainnig"'):
            tidegate.Stage("trainnig", timeout=60)
        self.assertLess(time.monotonic() - begin, 30)
        with tidegate.Stage("trainnig", timeout=None) as stage:
            with stage.request("read", MIB):
                pass


if __name__ == "__main__":
    unittest.main()
