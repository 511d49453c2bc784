"""A store, with the data node that listens at $TIDEGATE_AT: `python3 -m unittest discover`."""

import copy
import os
import pickle
import threading
import unittest

import tidegate

AT = os.environ["TIDEGATE_AT"]


class StoreTest(unittest.TestCase):
    def setUp(self) -> None:
        self.store = tidegate.Store(AT, "web", parts=4)
        self.addCleanup(self.store.close)

    def test_values_come_back_as_they_were(self) -> None:
        store = self.store
        for value in [b"", b"\0\xff\0", bytes(range(256)) * 16]:
            store.put(b"k\0ey", value)
            self.assertEqual(store.get(b"k\0ey"), value)
        self.assertIsNone(store.get(b"k\0e"))
        self.assertEqual([store.delete(b"k\0ey"), store.delete(b"k\0ey")], [True, False])

    def test_many_come_in_the_order_of_their_keys(self) -> None:
        keys = [b"many %d" % number for number in range(150)]
        for key in keys[::2]:
            self.store.put(key, key * 3)
        wanted = [key * 3 if place % 2 == 0 else None for place, key in enumerate(keys)]
        self.assertEqual(self.store.get_many(iter(keys)), wanted)
        self.assertEqual(self.store.get_many([]), [])

    def test_what_cannot_be_has_an_error_of_its_own(self) -> None:
        store = self.store
        for key in [b"", bytes(tidegate.KEY_MAX + 1)]:
            with self.assertRaisesRegex(tidegate.KeyLength, "from 1 to 250 bytes"):
                store.get(key)
            with self.assertRaises(tidegate.KeyLength):
                store.get_many([b"k", key])
        with self.assertRaisesRegex(ValueError, "the value has 4097 bytes") as caught:
            store.put(b"k", bytes(tidegate.VALUE_MAX + 1))
        self.assertEqual(caught.exception.status, 13)
        for call, words in [
            (lambda: store.get("text"), "key must be bytes, not str"),
            (lambda: store.delete(None), "key must be bytes, not NoneType"),
            (lambda: store.put("text", b"v"), "key must be bytes, not str"),
            (lambda: store.put(b"k", bytearray(3)), "value must be bytes, not bytearray"),
            (lambda: store.get_many([b"k", 3]), "each of keys must be bytes, not int"),
            (lambda: tidegate.Store(AT, b"web"), "tenant must be str or None, not bytes"),
            (lambda: tidegate.Store(AT, "web", timeout="1"), "timeout must be a number, not str"),
            (lambda: tidegate.Store(AT, "web", parts=1.5), "parts must be int, not float"),
            (lambda: tidegate.scope(b"a").__enter__(), "context must be str, not bytes"),
        ]:
            self.assertRaisesRegex(TypeError, words, call)
        for call, words in [
            (lambda: tidegate.Store(AT, "web\0x"), "tenant must not have a zero byte"),
            (lambda: tidegate.Store(AT + "\0x", "web"), "at must not have a zero byte"),
            (lambda: tidegate.Store(AT, "web", parts=-1), "parts must be from 0 to 4294967295"),
            (lambda: tidegate.Store(AT, "web", locations=1 << 40), "locations must be from 0"),
            (lambda: tidegate.Store(AT, "web", timeout=0), "timeout must be above 0"),
            (lambda: tidegate.Store(AT, "web", timeout=float("nan")), "timeout must be above 0"),
        ]:
            self.assertRaisesRegex(ValueError, words, call)
        for copied in [copy.copy, copy.deepcopy, pickle.dumps]:
            self.assertRaisesRegex(TypeError, "cannot be copied", copied, store)
        self.assertIsNone(store.get(b"nothing"), "the store is as good as before")

    def test_who_is_not_let_in_is_told_why(self) -> None:
        with self.assertRaisesRegex(tidegate.NotAdmitted, "no tenant \"wbe\""):
            tidegate.Store(AT, "wbe")
        with self.assertRaisesRegex(ConnectionError, "no data node listens there"):
            tidegate.Store(AT + ".not")

    def test_threads_have_what_is_theirs(self) -> None:
        wrong: list[bytes] = []

        def work(number: int) -> None:
            keys = [b"thread %d %d" % (number, key) for key in range(10)]
            for _ in range(5):
                for key in keys:
                    self.store.put(key, key)
                    wrong.extend([key] if self.store.get(key) != key else [])
                wrong.extend(keys if self.store.get_many(keys) != keys else [])

        threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_a_closed_store_says_so(self) -> None:
        with tidegate.Store(AT, "web", parts=4) as store:
            store.put(b"k", b"v")
        store.close()
        self.assertRaisesRegex(ValueError, "closed", store.get, b"k")

    def test_a_child_of_fork_has_no_part_in_it(self) -> None:
        child = os.fork()
        if child == 0:
            try:
                self.store.get(b"k")
                code = 1
            except tidegate.Forked:
                self.store.close()
                code = 7
            os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        self.store.put(b"k", b"v")


if __name__ == "__main__":
    unittest.main()
