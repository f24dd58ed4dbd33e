"""What a task may have, and what the names of images and users mean."""

from __future__ import annotations

import pytest

from hermes_plugins.images.permission import (
    check_name,
    check_names,
    check_resources,
    full_name,
    short_name,
    substitute,
)
from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.images.users import Identity, identity
from hermes_queue.errors import SandboxRejected

PASSWD = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:2000:,,,:/srv/app:/bin/sh\nbroken:x:y\n"
GROUP = "root:x:0:\nstaff:x:2000:\ncrew:x:3000:other,app\n"


@pytest.mark.parametrize(
    ("written", "whole"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("ubuntu:24.04", "docker.io/library/ubuntu:24.04"),
        ("alexgshaw/x:1", "docker.io/alexgshaw/x:1"),
        ("index.docker.io/library/a", "docker.io/library/a:latest"),
        ("ghcr.io/a/b", "ghcr.io/a/b:latest"),
        ("localhost:5000/a:t", "localhost:5000/a:t"),
        ("a@sha256:" + "0" * 64, "docker.io/library/a@sha256:" + "0" * 64),
    ],
)
def test_names_are_completed_as_engines_do(written: str, whole: str) -> None:
    assert full_name(written) == whole
    assert full_name(short_name(written)) == whole


@pytest.mark.parametrize("name", ["", "UPPER", "a b", "../x", "a:b:c", "http://x/y", "a" * 600])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(SandboxRejected, match="not the name of an image"):
        full_name(name)


def test_patterns_are_matched_against_every_form_of_a_name() -> None:
    settings = ImageSettings(allowed=("ubuntu:*", "alexgshaw/*", "ghcr.io/org/x:1"))
    check_names(
        ["ubuntu:24.04", "docker.io/library/ubuntu:22.04", "alexgshaw/fix-git:1", "scratch"],
        settings,
    )
    check_name("ghcr.io/org/x:1", settings)
    with pytest.raises(SandboxRejected, match=r"ALLOWED=\[.*\"alexgshaw/\*\".*\"evil/x\"\]"):
        check_name("evil/x", settings)


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        ({"memory_mb": 16384}, "HERMES_QUEUE_IMAGES_MAX_MEMORY_MB=16384"),
        ({"disk_mb": 30000}, "HERMES_QUEUE_IMAGES_MAX_DISK_MB=30000"),
        ({"disk_mb": 0}, "0 MB of disk space: not above 0"),
        ({"cpus": 6.5}, "HERMES_QUEUE_IMAGES_MAX_CPUS=6.5"),
        ({"network": "open"}, "HERMES_QUEUE_IMAGES_NETWORK=open"),
        ({"cpus": 6, "memory_mb": 9000}, "MAX_CPUS=6; .*MAX_MEMORY_MB=9000"),
        ({"cpus": -1.0}, "not above 0"),
        ({"cpus": float("nan")}, "not above 0"),
    ],
)
def test_too_much_is_refused_with_the_line_to_change(wanted: dict[str, object], line: str) -> None:
    modest = {"cpus": 1.0, "memory_mb": 512, "disk_mb": 512, "network": "none"}
    asked: dict[str, object] = {**modest, **wanted}
    with pytest.raises(SandboxRejected, match=line):
        check_resources(ImageSettings(), **asked)  # type: ignore[arg-type]


def test_substitutions_are_found_under_any_form_of_the_name() -> None:
    settings = ImageSettings(base_images={"ubuntu:24.04": "debian:local"})
    assert substitute("docker.io/library/ubuntu:24.04", settings) == "debian:local"
    assert substitute("ubuntu:22.04", settings) is None


@pytest.mark.parametrize(
    ("user", "found"),
    [
        ("", Identity(0, 0, (), "/root", "root")),
        ("app", Identity(1000, 2000, (3000,), "/srv/app", "app")),
        ("1000", Identity(1000, 2000, (3000,), "/srv/app", "app")),
        ("app:crew", Identity(1000, 3000, (), "/srv/app", "app")),
        ("77", Identity(77, 0, (), "/", "")),
        ("77:78", Identity(77, 78, (), "/", "")),
    ],
)
def test_users_are_looked_up_in_the_image(user: str, found: Identity) -> None:
    assert identity(PASSWD, GROUP, user) == found


@pytest.mark.parametrize("user", ["broken", "nobody", "70000", "app:none", "-1", "0x1", "\u0663"])
def test_users_that_are_not_there_are_refused(user: str) -> None:
    with pytest.raises(ValueError, match="the image has no"):
        identity(PASSWD, GROUP, user)
