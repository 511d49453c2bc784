"""Simulations with the program in $TIDEGATE_PROGRAM: `python3 -m unittest discover`."""

import importlib.util
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import tidegate

ROOT = pathlib.Path(__file__).resolve().parents[2]
SENDER = (ROOT / "crates/lab/tests/lab/sender.toml").read_text()
PACKETS = SENDER.replace('rate = "1Gbps" }', 'rate = "1Gbps", arrivals = "poisson" }')

RATE = "application.0.workload.load.open.rate"
GRID = {RATE: ["1Gbps", "2Gbps"], "transport.law": ["dctcp", "qtcp"]}


class OtherInt(int):
    """A number with another `repr`, as NumPy's have one."""

    def __repr__(self) -> str:
        return f"OtherInt({int(self)})"


class OtherFloat(float):
    def __repr__(self) -> str:
        return f"OtherFloat({float(self)})"


class SweepTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.scenario = pathlib.Path(folder.name, "packets.toml")
        self.scenario.write_text(PACKETS)

    def test_rows_are_the_points_in_the_order_of_the_grid(self) -> None:
        rows = tidegate.sweep(self.scenario, GRID, seeds=2)
        points = [(row["point"][RATE], row["point"]["transport.law"], row["seed"]) for row in rows]
        laws = GRID["transport.law"]
        wanted = [(rate, law, seed) for rate in GRID[RATE] for law in laws for seed in (1, 2)]
        self.assertEqual(points, wanted)
        self.assertEqual(tidegate.sweep(self.scenario, GRID, seeds=2, workers=1), rows)
        # A point is what the program says of it alone.
        command = [os.environ["TIDEGATE_PROGRAM"], "sim", self.scenario, "--json", "--law", "qtcp"]
        alone = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        row = rows[2]
        self.assertEqual(row.pop("point"), {RATE: "1Gbps", "transport.law": "qtcp"})
        self.assertEqual(row, alone)

    def test_one_simulation_is_what_the_program_prints(self) -> None:
        command = [os.environ["TIDEGATE_PROGRAM"], "sim", self.scenario, "--json"]
        for options, words in [({}, ""), ({"law": "qtcp", "seed": 7}, "--law qtcp --seed 7")]:
            done = subprocess.run(command + words.split(), stdout=subprocess.PIPE, check=True)
            self.assertEqual(tidegate.sim(self.scenario, **options), json.loads(done.stdout))
        out = self.scenario.with_name("series")
        tidegate.sim(self.scenario, out=out)
        self.assertTrue((out / "series.csv").read_text().count("\n") > 1)
        with self.assertRaisesRegex(tidegate.SimulationError, "reno"):
            tidegate.sim(self.scenario, law="reno")

    def test_values_are_those_of_python(self) -> None:
        sizes = [{"fixed": "10kB"}, {"uniform": {"block": "4KiB", "least": 1, "most": 3}}]
        grid = {
            "application.0.workload.sizes": sizes,
            "promises.yields": [True],
            "promises.weights": [(OtherInt(3), 2, 1)],
            "name": ['with a comma, "quotes" and ä'],
            "application.0.workload.offsets": [{"zipf": OtherFloat(0.5)}],
        }
        rows = tidegate.sweep(self.scenario, grid)
        self.assertEqual([row["point"]["application.0.workload.sizes"] for row in rows], sizes)
        self.assertEqual({row["name"] for row in rows}, set(grid["name"]))
        self.assertEqual(rows[0]["point"]["promises.weights"], [3, 2, 1])
        [row] = tidegate.sweep(self.scenario, {})
        self.assertEqual(row["point"], {})

    def test_what_cannot_be_run_is_an_error_in_words(self) -> None:
        with self.assertRaisesRegex(tidegate.SimulationError, "reno.*unknown variant") as caught:
            tidegate.sweep(self.scenario, {"transport.law": ["qtcp", "reno"]})
        self.assertEqual(caught.exception.code, 3)
        with self.assertRaisesRegex(tidegate.SimulationError, "there is no program"):
            tidegate.sweep(self.scenario, GRID, program="no-such-program")
        with self.assertRaisesRegex(tidegate.SimulationError, "cannot start .*Permission denied"):
            tidegate.sim(self.scenario, program=self.scenario)
        with self.assertRaisesRegex(TypeError, "transport.law must be a list of values, not str"):
            tidegate.sweep(self.scenario, {"transport.law": "qtcp"})
        with self.assertRaisesRegex(ValueError, "no values"):
            tidegate.sweep(self.scenario, {"seed": []})
        with self.assertRaises(TypeError):
            tidegate.sweep(self.scenario, {"seed": [None]})

    @unittest.skipUnless(importlib.util.find_spec("ray"), "Ray is not installed")
    def test_ray_gives_the_same_rows(self) -> None:
        rows = tidegate.sweep(self.scenario, GRID, seeds=2)
        self.assertEqual(tidegate.sweep(self.scenario, GRID, seeds=2, ray=True), rows)
        with self.assertRaisesRegex(tidegate.SimulationError, "reno"):
            tidegate.sweep(self.scenario, {"transport.law": ["qtcp", "reno"]}, ray=True)
