"""Profiles from settings and YAML; what does not fit is named."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hermes_queue.errors import ConfigurationError, SandboxRejected
from hermes_queue.sandbox.modal.abilities import Abilities
from hermes_queue.sandbox.modal.profiles import Profiles, image_key
from hermes_queue.settings import ModalSettings


@pytest.fixture
def load(tmp_path):
    def read(text, **default):
        path = tmp_path / "profiles.yaml"
        path.write_text(text)
        return Profiles(ModalSettings(profiles=path, **default))

    return read


def test_the_default_profile_is_what_the_settings_say():
    profiles = Profiles(ModalSettings(image="debian:12"))
    assert profiles["default"].image == "debian:12"


def test_a_profile_says_only_what_is_its_own(load):
    profiles = load("big: {cpu: 8, gpu: A10G, network: open}", image="debian:12")
    big = profiles["big"]
    assert (big.cpu, big.gpu, big.network, big.image) == (8, "A10G", "open", "debian:12")
    assert profiles["default"].gpu is None


def test_a_dockerfile_is_one_beside_the_file_that_names_it(load, tmp_path):
    assert load("a: {dockerfile: Dockerfile}")["a"].dockerfile == tmp_path / "Dockerfile"


def test_an_unknown_profile_is_refused_with_the_known_ones(load):
    with pytest.raises(SandboxRejected, match=r"'small' is unknown.*big, default"):
        load("big: {cpu: 8}")["small"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("big: {cpus: 8}", r"big\.cpus is not a setting; did you mean cpu\?"),
        ("big: {frobnicate: 8}", r"big\.frobnicate is not a setting; known: allow_cidrs"),
        ("big: {app: other}", r"big\.app is set for the whole worker: HERMES_QUEUE_MODAL_APP"),
        ("big: {cpu: many}", r"big\.cpu: .*number"),
        ("big: {lease_s: 90000}", r"lifetime_s=14400 must exceed lease_s=90000"),
        ("big: {allow_domains: [pypi.org]}", "need network=allowlist"),
        ("big: {network: allowlist}", "needs allow_domains or allow_cidrs"),
        ("big: {min_sandboxes: 3, max_sandboxes: 2}", "max_sandboxes is below"),
        (
            "big: {memory_limit_mb: 8192, slots_per_sandbox: 8}",
            r"slots_per_sandbox=8 times slot_memory_mb=2048 .* to 16384, .*slot_memory_mb to 1024",
        ),
        ("big", "must map profile names"),
        ("big: 3", "'big' must be a mapping"),
        ("big: {", r"profiles\.yaml"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(load, text, expected):
    with pytest.raises(ConfigurationError, match=expected):
        load(text)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml"):
        Profiles(ModalSettings(profiles=tmp_path / "nowhere.yaml"))


def test_no_sandbox_outlives_a_day():
    with pytest.raises(ValidationError, match="86400"):
        ModalSettings(lifetime_s=86_401)


@pytest.mark.parametrize(
    ("settings", "most_mb"),
    [
        ({}, 20480),
        ({"slots_per_sandbox": 1}, 4096),
        ({"slot_memory_mb": 0, "memory_mb": 512}, 512),
        ({"memory_limit_mb": 65536}, 65536),
    ],
)
def test_a_sandbox_may_use_what_its_slots_may(settings, most_mb):
    assert ModalSettings(**settings).memory_most_mb == most_mb


def test_images_differ_by_all_they_are_made_of(tmp_path):
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("FROM debian:12")
    settings = [
        ModalSettings(),
        ModalSettings(image="python:3.12"),
        ModalSettings(build_commands=("apt-get update",)),
        ModalSettings(dockerfile=dockerfile),
    ]
    keys = {image_key(profile) for profile in settings}
    dockerfile.write_text("FROM debian:13")
    assert len(keys | {image_key(settings[-1])}) == 5


FACTS = "python=3.11 mounts=1 propagation=private uids=1 environ=1 leaks=0 hidden=1"


@pytest.mark.parametrize(
    ("changed", "apart", "expected"),
    [
        ({}, True, ""),
        ({"leaks=0": "leaks=1"}, False, "environment of all processes: one slot each"),
        ({"hidden=1": "hidden=0"}, True, "cannot hide processes"),
        ({"uids=1": "uids=0"}, False, "act for other uids: one slot each"),
        ({"uids=1": "uids=0 lacks=setpriv"}, False, "no setpriv: one slot each"),
    ],
)
def test_slots_share_a_sandbox_only_where_its_kernel_keeps_them_apart(changed, apart, expected):
    facts = FACTS
    for old, new in changed.items():
        facts = facts.replace(old, new)
    found = Abilities.parsed(facts, "python:3.11")
    assert found.keeps_apart is apart
    assert expected in found.shortcoming(ModalSettings())
    assert bool(found.shortcoming(ModalSettings())) is bool(expected)
    assert found.shortcoming(ModalSettings(slots_per_sandbox=1)) == ""


def test_an_image_without_what_we_need_is_refused_with_what_it_lacks():
    with pytest.raises(SandboxRejected, match=r"python:slim cannot hold slots \(lacks find, grep"):
        Abilities.parsed(f"lacks=grep lacks=find {FACTS}", "python:slim")
