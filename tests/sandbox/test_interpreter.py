"""The Python in a slot: found, copied where slots can reach it, or refused with the fix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hermes_queue.errors import EnvInfraError
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.host import interpreter


def ask(executable: Path, code: str) -> str:
    done = subprocess.run(
        [executable, "-I", "-c", code], capture_output=True, text=True, check=True, env={}
    )
    return done.stdout.strip()


def test_the_workers_own_version_is_the_default(cache):
    found = interpreter.prepare(None, cache)
    assert found.version == f"{sys.version_info.major}.{sys.version_info.minor}"
    version = ask(found.executable, "import sys; print('%d.%d' % sys.version_info[:2])")
    assert version == found.version


def test_a_copy_stands_on_its_own_and_holds_no_packages(cache, tmp_path):
    executable, prefix = interpreter._find(interpreter.OWN_VERSION)
    copy = tmp_path / "copy"
    (copy / "bin").mkdir(parents=True)
    interpreter.copy_parts(interpreter.OWN_VERSION, executable.resolve(), prefix, copy)
    binary = copy / "bin" / f"python{interpreter.OWN_VERSION}"
    assert ask(binary, "import sys; print(sys.base_prefix)") == str(copy)
    assert ask(binary, "import ssl, sqlite3, ctypes, asyncio, venv; print('ok')") == "ok"
    loaded = ask(binary, "print(open('/proc/self/maps').read())")
    assert f"{prefix}/lib/libpython" not in loaded
    assert list(copy.glob("lib/python3*/site-packages/*")) == []


def test_a_copy_is_made_once(cache):
    first = interpreter.prepare(None, cache)
    interpreter.prepare.cache_clear()
    stamp = first.executable.stat().st_ino
    assert interpreter.prepare(None, cache).executable.stat().st_ino == stamp


@pytest.mark.parametrize("version", ["3.99", "2.7", "3", "3.11.7", "latest", ""])
def test_what_is_not_to_be_had_is_an_infrastructure_failure(cache, version):
    if not version:
        version = "; rm -rf /"
    with pytest.raises(EnvInfraError, match=r"install|of the form"):
        interpreter.prepare(version, cache)


def test_a_shim_that_starts_another_version_is_passed_over(cache, tmp_path, monkeypatch):
    shim = tmp_path / "python3.98"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvInfraError, match=r"python3\.98"):
        interpreter.prepare("3.98", cache)


async def test_an_interpreter_below_usr_is_used_in_place(make_bench, monkeypatch):
    version = ask(Path("/usr/bin/python3"), "import sys; print('%d.%d' % sys.version_info[:2])")
    found = interpreter._ask(Path("/usr/bin/python3"), version)
    monkeypatch.setattr(interpreter, "_find", lambda wanted: found)
    interpreter.prepare.cache_clear()
    bench = await make_bench("local", slots=1)
    slot = await bench.slot(SlotSpec(python=version))
    code = "import sys; print(sys.executable, sys.base_prefix)"
    assert await bench.out(slot, f"python -c '{code}'") == "/opt/python/bin/python /usr"
    interpreter.prepare.cache_clear()
