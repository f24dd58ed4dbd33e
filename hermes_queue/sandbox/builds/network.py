"""The only network of a build: a port on its loopback, answered by the worker.

A build runs the code of packages, so its sandbox has a network namespace without a way out: not
to the host's loopback, where Redis may listen, nor to abstract sockets, neighbours or a cloud's
metadata. Before its script starts, the worker gets a socket that listens *in that namespace* and
serves it with a `BuildProxy`. So no process of ours runs beside the build, which could stop or
imitate it.
"""

from __future__ import annotations

import dataclasses
import logging

from hermes_queue.sandbox.base import AssetSpec, ExecutionResult
from hermes_queue.sandbox.builds.hosts import BuildHosts
from hermes_queue.sandbox.builds.proxy import BuildProxy
from hermes_queue.sandbox.host import pip as pip_settings
from hermes_queue.sandbox.local.slot import LocalSlot

logger = logging.getLogger(__name__)

PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


async def run_fenced(
    slot: LocalSlot, spec: AssetSpec, pip: pip_settings.PipSettings, named_hosts: str
) -> ExecutionResult:
    """Run the script of `spec` without network; its output names refused connections.

    `slot` is fresh, with the asset's directory mounted; `named_hosts` is the setting
    `LOCAL_BUILD_HOSTS`. Raises SandboxError: the slot failed.
    """
    proxy = BuildProxy(BuildHosts.of(dict(pip.environment), named_hosts))
    listener = await slot.open_port()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        proxy.serve(listener)
        result = await slot.run(
            ["/bin/bash", "-eu"],
            script=spec.script,
            env=build_variables(pip, url),
            cwd=spec.mount,
            timeout_s=spec.timeout_s,
        )
    finally:
        await proxy.close()
    return with_refusals(result, proxy, spec)


def build_variables(pip: pip_settings.PipSettings, url: str) -> dict[str, str]:
    """Variables of a build whose only way out is the proxy at `url`."""
    variables = {
        name: value for name, value in pip.environment if name.lower() not in PROXY_VARIABLES
    }
    for name in PROXY_VARIABLES[:-1]:
        variables |= {name: url, name.upper(): url}
    return {**variables, "PIP_PROXY": url, "HQ_PIP": pip_settings.COMMAND}


def with_refusals(result: ExecutionResult, proxy: BuildProxy, spec: AssetSpec) -> ExecutionResult:
    """The result of a build, with the connections that were refused to it."""
    for refusal in proxy.refusals:
        logger.warning(
            "%s %s: %s", spec.kind, spec.key[:12], refusal, extra={"action": "build_refused"}
        )
    lines = "".join(f"\nConnection refused by the worker: {text}" for text in proxy.refusals)
    return dataclasses.replace(result, stderr=result.stderr + lines.encode())
