"""Builds the wheel by cargo and the standard library alone: a shared object without bindings is all that it has.

With MESHLOOM_PLUGIN_LIBRARY the shared object is taken from there, and cargo is not called.
"""

import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sysconfig
import tempfile
import tomllib
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
OBJECT = "libmeshloom_plugin.so"


def _project():
    return tomllib.loads((HERE / "pyproject.toml").read_text())["project"]


def _version():
    return tomllib.loads((HERE.parent / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def _library(target):
    named = os.environ.get("MESHLOOM_PLUGIN_LIBRARY")
    if named:
        return pathlib.Path(named)
    command = ["cargo", "build", "--locked", "--profile", "fast", "-p", "meshloom-plugin", "--target-dir", target]
    subprocess.run(command, cwd=HERE.parent, check=True)
    return pathlib.Path(target, "fast", OBJECT)


def _metadata(project, version):
    lines = [
        "Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {version}", f"Summary: {project['description']}",
        f"Keywords: {','.join(project['keywords'])}", f"License-Expression: {project['license']}", "License-File: LICENSE",
        f"Requires-Python: {project['requires-python']}", "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + (HERE / project["readme"]).read_text()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    project, version = _project(), _version()
    stem = f"{project['name'].replace('-', '_')}-{version}"
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    tag = os.environ.get("MESHLOOM_JAX_TAG", f"py3-none-{platform}")
    files = {f"meshloom_jax/{path.name}": path.read_bytes() for path in sorted((HERE / "meshloom_jax").glob("*.py"))}
    target = tempfile.mkdtemp()
    try:
        files[f"meshloom_jax/{OBJECT}"] = _library(target).read_bytes()
    finally:
        shutil.rmtree(target)
    info = f"{stem}.dist-info"
    groups = project["entry-points"].items()
    entries = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items()) for group, points in groups]
    files[f"{info}/METADATA"] = _metadata(project, version).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: meshloom\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = "\n".join(entries).encode()
    files[f"{info}/licenses/LICENSE"] = (HERE / "LICENSE").read_bytes()
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    rows = [f"{name},sha256={digest(data)},{len(data)}\n" for name, data in files.items()] + [f"{info}/RECORD,,\n"]
    files[f"{info}/RECORD"] = "".join(rows).encode()
    name = f"{stem}-{tag}.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            # The same time in every wheel, so that the same files give the same bytes.
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return name
