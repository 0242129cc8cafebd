"""Finds meshloom's plugin and the one that it wraps."""

from __future__ import annotations

import glob
import os
import stat
import sys
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

#: The variable that names meshloom's plugin, where it is not in the package.
LIBRARY = "MESHLOOM_PLUGIN_LIBRARY"

#: The wheels with a CPU plugin, preferred first: name, version, shared object. A test compares them with
#: ``crates/pjrt/src/wheels.rs``.
CPU_WHEELS = [
    ("lammps-jax-pjrt-cpu", "0.11.2", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"),
    ("fastatomstruct-xla-cpu", "2026.6.23", "fastatomstruct_xla_cpu/libpjrt_cpu.so"),
    ("xla-cpu-pjrt", "0.0.1", "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"),
]
TPU_OBJECTS = ["libtpu/libtpu.so"]
CUDA_OBJECTS = ["jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"]


class MeshloomError(RuntimeError):
    """The plugin cannot be registered; the message says what to do."""


@dataclass(frozen=True)
class Inner:
    """A plugin to wrap."""

    #: Its file.
    path: str
    #: ``cpu``, ``cuda`` or ``tpu``; ``None`` for a file whose platform is not known before it is loaded.
    platform: str | None


def find_library(given: str | PathLike[str] | None) -> Path:
    """Meshloom's plugin: a given file, the one that the variable names, or the package's."""
    named = given or os.environ.get(LIBRARY)
    path = Path(fspath(named)) if named else Path(__file__).with_name("libmeshloom_plugin.so")
    if not path.is_file():
        raise MeshloomError(
            f"there is no {path}; install the wheel of meshloom-jax, or build it by `cargo build --release -p meshloom-plugin` "
            f"and set {LIBRARY} to target/release/libmeshloom_plugin.so"
        )
    return path.resolve()


def find_inner(given: str | PathLike[str] | None) -> Inner:
    """The plugin to wrap: a given file, the one that the variable names, or the one for the devices that are there."""
    named = given or os.environ.get("MESHLOOM_PLUGIN_INNER")
    if named:
        path = Path(fspath(named))
        if not path.is_file():
            raise MeshloomError(f"there is no plugin {path}; MESHLOOM_PLUGIN_INNER is to name a PJRT plugin (.so)")
        return Inner(str(path.resolve()), _platform_of(path))
    places = []
    if _has_tpu():
        places.append(("tpu", _installed(TPU_OBJECTS)))
    if _has_gpu():
        places.append(("cuda", _installed(CUDA_OBJECTS)))
    places.append(("cpu", _cached() or _installed([wheel[2] for wheel in CPU_WHEELS])))
    for platform, found in places:
        by_name = os.environ.get(f"MESHLOOM_{platform.upper()}_PLUGIN")
        if by_name and not Path(by_name).is_file():
            raise MeshloomError(f"there is no plugin {by_name}, which MESHLOOM_{platform.upper()}_PLUGIN names")
        if by_name or found:
            return Inner(str(Path(by_name or found).resolve()), platform)
    looked = ", ".join(platform for platform, _ in places)
    name, version, _ = CPU_WHEELS[0]
    raise MeshloomError(
        f"no PJRT plugin is found (looked for: {looked}); set MESHLOOM_PLUGIN_INNER to the path of one, "
        f"or `pip install {name}=={version}` for the CPU"
    )


def _platform_of(path: Path) -> str | None:
    """The platform of a plugin, by the name of its file."""
    names = {"cpu": [wheel[2] for wheel in CPU_WHEELS], "tpu": TPU_OBJECTS, "cuda": CUDA_OBJECTS}
    return next((platform for platform, objects in names.items() if path.name in map(_file_name, objects)), None)


def _file_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _installed(objects: list[str]) -> str | None:
    """The first of these files in an installed package. The current folder is not a package."""
    for one in objects:
        for folder in filter(None, sys.path):
            path = Path(folder, one)
            if path.is_file():
                return str(path)
    return None


def _cached() -> str | None:
    """The first CPU plugin in meshloom's plugin cache. Its digest was checked when it was fetched."""
    caches = [("XDG_CACHE_HOME", ""), ("HOME", ".cache")]
    root = next((Path(os.environ[name], below) for name, below in caches if os.environ.get(name, "").startswith("/")), None)
    if root is None or not _is_private(root / "meshloom"):
        return None
    for name, version, shared_object in CPU_WHEELS:
        path = root / "meshloom" / "plugins" / f"{name}-{version}" / _file_name(shared_object)
        if path.is_file():
            return str(path)
    return None


def _is_private(folder: Path) -> bool:
    """Whether no other user may put a plugin there."""
    try:
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid in (os.geteuid(), 0) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _has_tpu() -> bool:
    """Whether a TPU is attached, by Google's number on the PCI bus and JAX's table of chips."""
    from jax._src import hardware_utils

    return hardware_utils.num_available_tpu_chips_and_device_id()[0] > 0


def _has_gpu() -> bool:
    """Whether an NVIDIA GPU is visible."""
    return bool(glob.glob("/dev/nvidia[0-9]*")) or os.path.exists("/dev/dxg")
