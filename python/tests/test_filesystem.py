"""A file system behind gates, with the controller that listens at $TIDEGATE_SOCKET."""

import pathlib
import pickle
import tempfile
import unittest

import fsspec
import tidegate
from tidegate.filesystem import GatedFileSystem
from tidegate.stage import shared

MIB = 1 << 20


class FileSystemTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        self.stage = tidegate.Stage("training")
        self.addCleanup(self.stage.close)
        self.files = GatedFileSystem(fsspec.filesystem("file"), stage=self.stage)

    def moved(self) -> int:
        return sum(one.bytes for one in self.stage.counters())

    def test_local_files_pass_the_gates_both_ways(self) -> None:
        files, path = self.files, f"{self.folder}/shard"
        content = bytes(range(256)) * 9_000
        with files.open(path, "wb") as file:
            file.write(content)
        self.assertEqual(self.moved(), len(content))
        self.assertEqual(files.cat_file(path), content)
        self.assertEqual(self.moved(), 2 * len(content))
        self.assertEqual(files.cat_file(path, 1000, 1200), content[1000:1200])
        self.assertEqual(files.info(path)["size"], len(content))
        self.assertEqual(files.ls(f"{self.folder}/", detail=False), [path])
        files.get_file(path, f"{self.folder}/copy")
        self.assertEqual((self.folder / "copy").read_bytes(), content)
        before = self.moved()
        files.cp_file(path, f"{self.folder}/second")
        self.assertEqual(self.moved() - before, 2 * len(content))
        files.mv(f"{self.folder}/second", f"{self.folder}/third")
        self.assertEqual(files.glob(f"{self.folder}/t*"), [f"{self.folder}/third"])
        files.makedirs(f"{self.folder}/a/b", exist_ok=True)
        files.pipe_file(f"{self.folder}/a/b/c", b"c")
        self.assertEqual(files.find(f"{self.folder}/a"), [f"{self.folder}/a/b/c"])
        files.rm(f"{self.folder}/a", recursive=True)
        files.rm(f"{self.folder}/third")
        self.assertFalse(files.exists(f"{self.folder}/a") or files.exists(f"{self.folder}/third"))
        with self.assertRaises(FileNotFoundError):
            files.open(f"{self.folder}/no")

    def test_text_and_transactions_are_those_of_the_wrapped_file_system(self) -> None:
        path = f"{self.folder}/text"
        with self.files.open(path, "w", encoding="utf-8") as file:
            file.write("grüße\n")
        with self.files.open(path, "r", encoding="utf-8") as file:
            self.assertEqual(file.read(), "grüße\n")
        later = f"{self.folder}/later"
        with self.files.transaction:
            with self.files.open(later, "wb") as file:
                file.write(b"all or nothing")
            self.assertFalse(self.files.exists(later))
        self.assertEqual(self.files.cat_file(later), b"all or nothing")

    def test_a_limit_holds_what_a_remote_file_system_reads(self) -> None:
        memory = fsspec.filesystem("memory")
        memory.pipe_file("/bucket/key", bytes(2 * MIB))
        self.addCleanup(memory.rm, "/bucket", recursive=True)
        with tidegate.Stage("slow") as stage:
            files = GatedFileSystem(memory, stage=stage)
            self.assertEqual(len(files.cat_file("/bucket/key")), 2 * MIB)
            self.assertGreater(sum(one.waited for one in stage.counters()), 0.3)

    def test_paths_below_a_root_and_chains(self) -> None:
        (self.folder / "data").write_bytes(b"content")
        rooted = GatedFileSystem(
            fo=str(self.folder), target_protocol="file", stage=self.stage
        )
        self.assertEqual(rooted.ls("", detail=False), ["data"])
        self.assertEqual(rooted.cat_file("data"), b"content")
        self.assertEqual(rooted.info("/data")["name"], "data")
        fsspec.register_implementation("tidegate", GatedFileSystem, clobber=True)
        url = f"tidegate::file://{self.folder}/data"
        with fsspec.open(url, tidegate={"tenant": "training"}) as file:
            self.assertEqual(file.read(), b"content")
        self.assertGreaterEqual(sum(one.bytes for one in shared("training").counters()), 7)
        for wrong in [{}, {"fs": rooted, "target_protocol": "file"}]:
            with self.assertRaisesRegex(ValueError, "name either"):
                GatedFileSystem(**wrong)

    def test_another_process_opens_a_stage_of_its_own(self) -> None:
        files = GatedFileSystem(fsspec.filesystem("file"), tenant="training")
        copied = pickle.loads(pickle.dumps(files))
        (self.folder / "data").write_bytes(b"content")
        self.assertEqual(copied.cat_file(f"{self.folder}/data"), b"content")
        with self.assertRaisesRegex(TypeError, "open another one"):
            pickle.dumps(self.files)


if __name__ == "__main__":
    unittest.main()
