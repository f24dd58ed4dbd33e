"""What a host lacks for slots is said with what to do about it."""

from __future__ import annotations

import pytest

from hermes_queue.sandbox.host import cgroups, isolation, seccomp
from hermes_queue.sandbox.host.isolation import shortcomings
from hermes_queue.sandbox.host.paths import SLOT_UID
from hermes_queue.settings import LocalSandboxSettings


@pytest.fixture
def host(monkeypatch):
    """A host that has everything; tests take something away."""
    monkeypatch.setattr(cgroups, "available", lambda: True)
    monkeypatch.setattr(cgroups, "shares_processors", lambda: True)
    monkeypatch.setattr(seccomp, "unsupported", lambda: "")
    monkeypatch.setattr(isolation, "is_root", lambda: True)
    monkeypatch.setattr(isolation, "is_mapped", lambda first, count: True)
    return monkeypatch


def lacks(**settings) -> str:
    return "\n".join(
        f"{lack.what}: {lack.fix}" for lack in shortcomings(LocalSandboxSettings(**settings))
    )


def test_nothing_is_said_of_a_host_that_has_everything(host):
    assert lacks() == ""


def test_without_control_groups_limits_hold_per_process(host):
    host.setattr(cgroups, "available", lambda: False)
    host.setattr(cgroups, "shares_processors", lambda: False)
    assert "limits hold per process" in lacks()
    assert lacks().count("processors") == 1


def test_a_missing_cpu_controller_is_named_with_its_remedy(host):
    host.setattr(cgroups, "shares_processors", lambda: False)
    assert "delegate the cpu controller" in lacks()


def test_a_kernel_without_filters_is_said_with_its_reason(host):
    host.setattr(seccomp, "unsupported", lambda: "no filter is written for riscv64")
    assert "(no filter is written for riscv64)" in lacks()
    assert lacks(isolation="none") == ""


def test_a_root_worker_without_uids_for_its_slots_reports_it(host):
    assert f"all slots run as uid {SLOT_UID}" in lacks(uids=0)
    host.setattr(isolation, "is_mapped", lambda first, count: False)
    assert f"all slots run as uid {SLOT_UID}" in lacks()
    host.setattr(isolation, "is_root", lambda: False)
    assert lacks() == ""
