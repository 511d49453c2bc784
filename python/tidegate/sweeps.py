"""Simulations: one, or those at the points of a grid, on this machine or on Ray.

The simulator is the program ``tidegate-lab``. Its output does not depend on where a point runs, nor
on how many run at a time, so both ways give the same rows.
"""

from __future__ import annotations

import json
import numbers
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["SimulationError", "sim", "sweep"]


class SimulationError(Exception):
    """What the simulator said instead of rows, in words. ``code`` is its exit code."""

    code: int = 1


def sim(
    scenario: str | os.PathLike[str],
    *,
    seed: int | None = None,
    model: str | None = None,
    law: str | None = None,
    policy: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    program: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Runs a scenario once, and returns the object that ``tidegate-lab sim --json`` prints.

    ``scenario`` is a file, and ``seed`` another seed than its own. ``model`` is ``"packets"`` or
    ``"dtm"``; ``law`` and ``policy`` are those of the command. With ``out``, time series go to
    files in that directory.

    ``program`` is the simulator: ``tidegate-lab``, or what ``TIDEGATE_PROGRAM`` names.

    Raises SimulationError if the scenario cannot be run.
    """
    options = _options({"seed": seed, "model": model, "law": law, "out": out})
    [row] = _rows(_run(_Order(_program(program), options, _files(scenario, policy), {}, None)))
    return row


def sweep(
    scenario: str | os.PathLike[str],
    grid: Mapping[str, Iterable[Any]],
    *,
    seeds: int | None = None,
    model: str | None = None,
    law: str | None = None,
    policy: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    ray: bool | str = False,
    program: str | os.PathLike[str] | None = None,
) -> list[dict[str, Any]]:
    """Runs a scenario at every point of a grid, and gives what each point has come to.

    ``scenario`` is a file; ``grid`` has keys of it with points, and the values of each::

        tidegate.sweep("scenario.toml", {"transport.law": ["dctcp", "qtcp"]}, seeds=5)

    Rows are in the order of the grid, the last key changing first. A row is the object that
    ``tidegate-lab sim --json`` prints, with the point's values under ``"point"``. ``seeds`` runs
    each point with so many seeds, ``model`` is ``"packets"`` or ``"dtm"``, and ``law`` and
    ``policy`` are those of the command.

    Points run in a process of this machine, ``workers`` at a time, or as many as there are
    processors. With ``ray=True`` they run on the Ray that is there, or on one that is started for
    the call; with ``ray="auto"`` or another address, on that cluster. There a point is a task,
    with all of its seeds. The scenario and the policy go along, but files that a scenario names
    must be at the same place on all machines, and the program must be on the path of each.

    ``program`` is the simulator: ``tidegate-lab``, or what ``TIDEGATE_PROGRAM`` names.

    Raises SimulationError if a point cannot be run; then there are no rows of others either.
    """
    named = _program(program)
    options = _options({"seeds": seeds, "model": model, "law": law})
    files = _files(scenario, policy)
    for key, values in grid.items():
        if isinstance(values, str):
            raise TypeError(f"{key} must be a list of values, not str")
    axes = {key: [_toml(value) for value in values] for key, values in grid.items()}
    for key, values in axes.items():
        if not values:
            raise ValueError(f"{key} has no values")
    if not ray:
        order = _Order(named, options + _sweeps(axes), files, {}, workers)
        return _rows(_run(order))
    # What the files say goes to machines that do not have them.
    texts = {name: path.read_bytes() for name, path in files.items()}
    points: list[dict[str, list[str]]] = [{}]
    for key, values in axes.items():
        points = [{**point, key: [value]} for point in points for value in values]
    orders = [_Order(named, options + _sweeps(point), files, texts, 1) for point in points]
    return [row for answer in _on_ray(orders, ray) for row in _rows(answer)]


def _program(program: str | os.PathLike[str] | None) -> str:
    return os.fspath(program or os.environ.get("TIDEGATE_PROGRAM") or "tidegate-lab")


def _options(values: Mapping[str, object]) -> list[str]:
    """Options of the command; those without a value are left out."""
    given = ((name, value) for name, value in values.items() if value is not None)
    return [word for name, value in given for word in (f"--{name}", str(value))]


def _files(
    scenario: str | os.PathLike[str], policy: str | os.PathLike[str] | None
) -> dict[str, pathlib.Path]:
    named = {"scenario": scenario, "policy": policy}
    return {name: pathlib.Path(path).absolute() for name, path in named.items() if path is not None}


class _Order(NamedTuple):
    """One call of the program."""

    program: str
    options: list[str]
    files: dict[str, pathlib.Path]
    texts: dict[str, bytes]
    """What is in the files, where they may not be."""
    workers: int | None


def _sweeps(axes: Mapping[str, list[str]]) -> list[str]:
    # Without a key there is one point, which is a sweep over one seed.
    each = [f"--sweep={key}={','.join(values)}" for key, values in axes.items()]
    return each or ["--seeds=1"]


def _run(order: _Order) -> tuple[int, str, str]:
    """Calls the program: its exit code, and what it said on both outputs."""
    with tempfile.TemporaryDirectory() as folder:
        at = {}
        for name, path in order.files.items():
            text = order.texts.get(name)
            is_here = text is None or (path.is_file() and path.read_bytes() == text)
            at[name] = path if is_here else pathlib.Path(folder, path.name)
            if not is_here:
                at[name].write_bytes(text or b"")
        command = [order.program, "sim", str(at["scenario"]), "--json", *order.options]
        command += ["--policy", str(at["policy"])] if "policy" in at else []
        # Of an environment for people, nothing is to change what programs get.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")
        }
        if order.workers is not None:
            environment["RAYON_NUM_THREADS"] = str(order.workers)
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
        except FileNotFoundError:
            return 127, "", json.dumps({"error": f"there is no program {order.program!r}"})
        except OSError as error:
            words = f"cannot start {order.program!r}: {error.strerror}"
            return 126, "", json.dumps({"error": words})
        return done.returncode, done.stdout, done.stderr


def _rows(answer: tuple[int, str, str]) -> list[dict[str, Any]]:
    code, out, complaint = answer
    if code == 0:
        return [json.loads(line) for line in out.splitlines()]
    try:
        told = json.loads(complaint)
        parts = [told.get("error"), told.get("cause"), told.get("help")]
        words = "; ".join(part for part in parts if part)
    except (ValueError, AttributeError):
        words = complaint.strip()
    error = SimulationError(words or f"the simulator ended with exit code {code}")
    error.code = code
    raise error


def _on_ray(orders: list[_Order], where: bool | str) -> list[tuple[int, str, str]]:
    """The same on Ray, each a task for one processor."""
    try:
        import ray
    except ImportError as error:
        raise ImportError("Ray is not there; pip install './python[ray]'") from error
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(address=where if isinstance(where, str) else None, log_to_driver=False)
    try:
        # Machines need the program, and not this package.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        task = ray.remote(num_cpus=1)(_run)
        answers: list[tuple[int, str, str]] = ray.get([task.remote(order) for order in orders])
        return answers
    finally:
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        if is_ours:
            ray.shutdown()


def _toml(value: Any) -> str:
    """A value as TOML, so that texts with commas stay one value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    # NumPy's numbers are such numbers too, with another `repr`.
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(str(key))} = {_toml(one)}" for key, one in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, Iterable):
        return "[" + ", ".join(map(_toml, value)) + "]"
    raise TypeError(f"{value!r} is nothing that a scenario can say")
