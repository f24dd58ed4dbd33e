"""A package for the bug generator: pinned sdist, pinned dependencies, licence, tests."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import PurePosixPath
from typing import Any

from envs.swe.item import DEFAULT_REQUIREMENTS, PYTEST_OWN, SdistSource
from envs.swe.package.project import normalize
from envs.swe.sources import ASSETS, NETWORK_TROUBLE, asset_key
from hermes_queue.errors import EnvInfraError, InputError
from hermes_queue.sandbox.base import AssetSpec, SandboxBackend, SlotSpec

PERMISSIVE = {
    "MIT": "MIT",
    "BSD": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "ISC": "ISC",
    "Python Software Foundation": "PSF-2.0",
    "Unlicense": "Unlicense",
    "CC0": "CC0-1.0",
    "Zope": "ZPL-2.1",
}
"""Words for permissive licences in free text -> their SPDX ids."""

_PIN = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")


@dataclass(frozen=True, slots=True)
class Package:
    """The package index's data of one release."""

    source: SdistSource
    license: str
    """SPDX id if known, else the first line of the licence in the metadata."""
    permissive: bool
    requirements: tuple[str, ...]
    """pytest, the package's dependencies and the extra requirements: a complete freeze."""


def parse_pin(text: str) -> tuple[str, str]:
    """(name, version) of `NAME==VERSION`.

    Raises:
        InputError: the text is not a pin, or pytest itself depends on the package.
    """
    match = _PIN.fullmatch(text.strip())
    if match is None:
        raise InputError(f"--package: {text!r} is not NAME==VERSION, e.g. schedule==1.2.2")
    name, version = match.groups()
    if normalize(name) in PYTEST_OWN:
        raise _unsuitable(name, "pytest itself needs it")
    return name, version


async def survey(
    backend: SandboxBackend, name: str, version: str, extra_requirements: Sequence[str]
) -> Package:
    """Get a release's data from the package index, in a separate sandbox.

    Raises:
        InputError: the release or its sdist does not exist, a requirement cannot be met, or the
            tests need another copy of the package.
        EnvInfraError: the index cannot be reached.
    """
    for requirement in extra_requirements:
        if not re.match(r"[A-Za-z0-9]", requirement):
            raise InputError(
                f"--extra-requirement: {requirement!r} is not a requirement such as pytz==2025.2"
            )
    asset = _survey_asset(name, version, extra_requirements)
    try:
        await backend.prepare(SlotSpec(assets=(asset,)))
        digest, filename = (await backend.read_asset(asset, "sdist.sha256")).decode().split()
        report = json.loads(await backend.read_asset(asset, "report.json"))
        own = HeaderParser().parsestr((await backend.read_asset(asset, "PKG-INFO")).decode())
    except EnvInfraError as error:
        raise _input_error(name, version, str(error)) or error from error
    if not filename.endswith((".tar.gz", ".tgz")):
        raise InputError(f"--package: the sdist of {name}=={version} is {filename}, not a .tar.gz")
    metadata = {normalize(part["metadata"]["name"]): part["metadata"] for part in report["install"]}
    metadata.pop(normalize(name), None)
    _refuse_second_copy(name, metadata)
    text, permissive = license_of(own)
    return Package(
        source=SdistSource(
            type="sdist", name=name, version=version, filename=filename, sha256=digest
        ),
        license=text,
        permissive=permissive,
        requirements=tuple(sorted(f"{key}=={data['version']}" for key, data in metadata.items())),
    )


def _survey_asset(name: str, version: str, extra_requirements: Sequence[str]) -> AssetSpec:
    pin = f"{name}=={version}"
    pins = " ".join(map(shlex.quote, [*DEFAULT_REQUIREMENTS, *extra_requirements, pin]))
    only_source = f"--no-deps --no-binary {shlex.quote(name)}"
    script = f"""mkdir sdist
$HQ_PIP download --quiet {only_source} {shlex.quote(pin)} -d sdist
(cd sdist && sha256sum -- *) > sdist.sha256
tar -xOf sdist/* --wildcards --no-wildcards-match-slash '*/PKG-INFO' > PKG-INFO || true
$HQ_PIP install --quiet --dry-run --ignore-installed --prefer-binary --report report.json {pins}
"""
    return AssetSpec(
        kind="survey", key=asset_key("survey", script), script=script, mount=f"{ASSETS}/survey"
    )


def _input_error(name: str, version: str, output: str) -> InputError | None:
    """The error in the request that pip's output shows; None if the request is not at fault."""
    if NETWORK_TROUBLE.search(output):
        return None
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if missing and normalize(missing.group(1)).startswith(normalize(name)):
        known = re.search(r"from versions: ([^)]*)\)", output)
        versions = known.group(1) if known else "none"
        hint = f"it has {', '.join(versions.split(', ')[-10:])}"
        if versions == "none":
            hint = "check the name"
        return InputError(f"--package: the package index has no sdist of {name}=={version}; {hint}")
    if missing:
        return InputError(
            f"--extra-requirement: the package index has no {missing.group(1)}, which was "
            f"requested for the tests of {name}"
        )
    if "ResolutionImpossible" in output:
        return InputError(
            f"--package: {name}=={version} cannot be installed beside "
            f"{', '.join(DEFAULT_REQUIREMENTS)} and the extra requirements"
        )
    return None


def _refuse_second_copy(name: str, others: Mapping[str, Mapping[str, Any]]) -> None:
    for other, metadata in others.items():
        for requirement in metadata.get("requires_dist") or ():
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            if match and normalize(match.group()) == normalize(name) and "extra" not in requirement:
                raise _unsuitable(name, f"{other}, which its tests need, depends on it")


def _unsuitable(name: str, reason: str) -> InputError:
    return InputError(
        f"--package: {name} cannot be used: {reason}, so its clean copy would be in the "
        "environment and give away the answer; choose another package"
    )


def license_of(metadata: Message) -> tuple[str, bool]:
    """(SPDX id or text, whether it is known to be permissive) from an sdist's PKG-INFO."""
    expression = str(metadata.get("License-Expression") or "").strip()
    text = (str(metadata.get("License") or "").strip().splitlines() or [""])[0]
    classifiers = [c for c in metadata.get_all("Classifier") or () if c.startswith("License ::")]
    for candidate in (expression, text, *classifiers):
        copyleft = re.search(r"\b[AL]?GPL|General Public|Mozilla|\bMPL", candidate)
        for word, spdx in PERMISSIVE.items():
            if not copyleft and re.search(rf"\b{word}", candidate, re.IGNORECASE):
                return expression or spdx, True
    return expression or text or (classifiers or ["unknown"])[-1].rpartition(" :: ")[2], False


def find_tests(paths: frozenset[str], named: Sequence[str] = ()) -> tuple[str, ...]:
    """The test files of a source tree: all, or those that `named` names or contains.

    Returns files, not directories: given both a directory and a file in it, pytest may run only
    the file.

    Raises:
        InputError: there are none.
    """
    found = [path for path in paths if re.fullmatch(r"(.*/)?(test_[^/]*|[^/]*_test)\.py", path)]
    if not found and not named:
        raise InputError("--tests: the sdist has no test_*.py; name its test files if it has any")
    chosen = set() if named else set(found)
    for entry in (PurePosixPath(text) for text in named):
        inside = {path for path in found if entry in PurePosixPath(path).parents}
        if not inside and str(entry) not in paths:
            raise InputError(f"--tests: the sdist has no tests at {str(entry)!r}")
        chosen |= inside or {str(entry)}
    return tuple(sorted(chosen))
