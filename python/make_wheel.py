"""Makes the wheel for pip: the package, with the library that it calls inside.

No build system of others is needed for that, and so neither a network. The library is the one that
cargo has built (cargo build --release -p tidegate-capi), or that TIDEGATE_LIBRARY names.
"""

import base64
import hashlib
import os
import pathlib
import re
import sysconfig
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
BUILT = HERE.parent / "target" / "release" / "libtidegate.so"

METADATA = """\
Metadata-Version: 2.1
Name: tidegate
Version: {version}
Summary: Scopes, stages and stores of Tidegate, file systems that pass its gates, and simulations
License: MIT OR Apache-2.0
Requires-Python: >=3.9
Provides-Extra: fsspec
Requires-Dist: fsspec>=2022.11; extra == "fsspec"
Provides-Extra: ray
Requires-Dist: ray>=2.9; extra == "ray"
"""

ENTRY_POINTS = """\
[fsspec.specs]
tidegate = tidegate.filesystem.GatedFileSystem
"""

WHEEL = """\
Wheel-Version: 1.0
Generator: tidegate
Root-Is-Purelib: false
Tag: {tag}
"""


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Makes the wheel in a directory, and says its name, as PEP 517 has it."""
    library = pathlib.Path(os.environ.get("TIDEGATE_LIBRARY") or BUILT)
    if not library.is_file():
        raise SystemExit(
            f"there is no {library}; build it with `cargo build --release -p tidegate-capi`, or"
            " name it in TIDEGATE_LIBRARY"
        )
    package = HERE / "tidegate"
    source = (package / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)[1]
    tag = "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())
    about = f"tidegate-{version}.dist-info"
    modules = sorted(package.glob("*.py"))
    files = {
        **{f"tidegate/{module.name}": module.read_bytes() for module in modules},
        "tidegate/py.typed": b"",
        "tidegate/libtidegate.so": library.read_bytes(),
        f"{about}/METADATA": METADATA.format(version=version).encode(),
        f"{about}/entry_points.txt": ENTRY_POINTS.encode(),
        f"{about}/WHEEL": WHEEL.format(tag=tag).encode(),
    }
    record = "".join(f"{name},{digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    wheel = f"tidegate-{version}-{tag}.whl"
    with zipfile.ZipFile(
        pathlib.Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED
    ) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def digest(content):
    """A hash as a wheel's list of files has it."""
    sha = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return "sha256=" + sha.rstrip(b"=").decode()
