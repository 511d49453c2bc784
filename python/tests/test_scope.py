"""Scopes in a program without the shim and without the library."""

import unittest

import tidegate
from tidegate import library, scopes


class ScopeTest(unittest.TestCase):
    def test_a_scope_without_a_shim_changes_nothing_and_is_logged_once(self) -> None:
        scopes._note_no_shim.cache_clear()
        entered = []
        with self.assertLogs("tidegate", "DEBUG") as logs:
            for context in ["flush", "x" * 100, ""]:
                with tidegate.scope(context):
                    entered.append(context)
        self.assertEqual(len(entered), 3)
        [record] = logs.records
        self.assertEqual(record.levelname, "DEBUG")
        self.assertIn("without `tidegate run`", record.getMessage())
        self.assertIsNone(library.loaded(), "a scope needs no library")

    def test_errors_of_the_block_and_wrong_names_come_through(self) -> None:
        with self.assertRaises(KeyError), tidegate.scope("flush"):
            raise KeyError
        with self.assertRaisesRegex(TypeError, "context must be str, not bytes"):
            tidegate.scope(b"flush").__enter__()
        with self.assertRaisesRegex(ValueError, "no zero byte"):
            tidegate.scope("a\0b").__enter__()

        @tidegate.scope("flush")
        def flushed(number: int) -> int:
            return number + 1

        self.assertEqual([flushed(1), flushed(2)], [2, 3])

    def test_a_stage_without_the_library_says_how_to_get_it(self) -> None:
        with self.assertRaisesRegex(tidegate.NoLibrary, "cargo build.*TIDEGATE_LIBRARY") as caught:
            tidegate.Stage("training")
        self.assertIsInstance(caught.exception, OSError)
        self.assertIsNone(library.loaded())
