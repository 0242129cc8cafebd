"""Puts meshloom's plugin in front of the PJRT plugin that JAX would use.

JAX calls ``initialize`` of this module at its start. It does nothing unless ``MESHLOOM=1`` is set or ``JAX_PLATFORMS`` names
``meshloom``. From Python, ``enable`` does the same.
"""

from __future__ import annotations

import os
import re
from os import PathLike, fspath
from typing import Any

from ._find import Inner, MeshloomError, find_inner, find_library

__all__ = ["Inner", "MeshloomError", "enable", "initialize"]

#: The name of the backend.
NAME = "meshloom"
#: The variable by which the plugin finds the one that it wraps.
INNER = "MESHLOOM_PLUGIN_INNER"

_enabled: Inner | None = None


def initialize() -> None:
    """Registers the plugin if the environment asks for it. JAX calls this."""
    switch = os.environ.get("MESHLOOM", "")
    if switch not in ("", "0", "1"):
        raise MeshloomError(f"MESHLOOM is {switch!r}, expected 1 or 0")
    if switch == "1" or NAME in os.environ.get("JAX_PLATFORMS", "").split(","):
        enable()


def enable(
    inner: str | PathLike[str] | None = None,
    *,
    library: str | PathLike[str] | None = None,
    options: dict[str, Any] | None = None,
) -> Inner:
    """Registers the plugin, and returns the one that it wraps.

    ``inner`` is the file of the plugin to wrap, ``library`` that of meshloom's plugin; both are found by themselves.
    ``options`` are those of the inner plugin's client. The plugin is the default unless ``JAX_PLATFORMS`` or
    ``jax_platforms`` says otherwise. Later calls change nothing.

    Raises ``MeshloomError`` if a plugin is not found, or JAX has used its devices already.
    """
    global _enabled
    if _enabled is not None:
        return _enabled
    import jax
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        raise MeshloomError("JAX has used its devices already; call meshloom_jax.enable() before anything asks for them")
    wrapper = find_library(library)
    found = find_inner(inner)
    os.environ[INNER] = found.path
    if options is None:
        options = _client_options(found.platform)
    try:
        xla_bridge.register_plugin(NAME, priority=500, library_path=fspath(wrapper), options=options)
    except Exception as error:
        raise MeshloomError(f"JAX does not take {wrapper} around {found.path}: {error}") from error
    if not jax.config.jax_platforms:
        # JAX would open the inner plugin's devices a second time, by the plugin's own registration. A process has them once.
        jax.config.update("jax_platforms", f"{NAME},cpu")
    _mark_cache()
    _enabled = found
    return found


def _client_options(platform: str | None) -> Any:
    """The options of the inner plugin's client, as JAX would choose them."""
    if platform == "cuda":
        return _gpu_options
    if platform == "cpu":
        return _cpu_options
    return None


def _gpu_options() -> dict[str, Any]:
    from jax._src.lib import xla_client

    return {**xla_client.generate_pjrt_gpu_plugin_options(), "platform_name": "cuda"}


def _cpu_options() -> dict[str, Any]:
    """The number of devices, by JAX's setting or by XLA's flag."""
    import jax

    count = getattr(jax.config, "jax_num_cpu_devices", -1)
    if count is None or count < 0:
        flag = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
        # The last of several flags counts.
        count = int(flag[-1]) if flag else 1
    return {"cpu_device_count": count}


def _mark_cache() -> None:
    """Gives programs that are compiled by way of the plugin their own keys in JAX's persistent cache."""
    from jax._src import cache_key

    before = cache_key.custom_hook
    state = "off" if os.environ.get("MESHLOOM_PLUGIN") == "off" else "on"
    # All backends of the process share the hook; an entry too many does no harm.
    cache_key.custom_hook = lambda: f"{before()};meshloom={_version()},{state}"


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("meshloom-jax")
    except metadata.PackageNotFoundError:
        # The module is used from its source folder.
        return "source"
