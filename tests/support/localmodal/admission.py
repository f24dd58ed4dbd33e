"""Refuses sandboxes that Modal would refuse, or that we cannot provide."""

from __future__ import annotations

import ipaddress
import re

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from localmodal.wire import Request

CLOUDS = frozenset({"aws", "gcp", "oci", "azure", "auto"})
REGION = re.compile(
    r"(us|eu|europe|ap|asia|uk|ca|me|sa|af|africa|mx|jp|il|au|australia|northamerica|southamerica)"
    r"(-[a-z]+(-?\d+)?)?"
    r"|[a-z]+(us|europe|asia|india|japan|korea|uk|canada|norway|sweden|france|germany)\d*"
    r"|(uk|sweden|norway|france|italy|spain|poland|germany|japan|korea|canada|malaysia|brazil)"
    r"(west)?(central|north|south|east|west)"
)
"""The patterns of region names at Modal and its clouds; the actual regions change."""
MISSING = {
    "nfs_mounts": "network file systems",
    "cloud_bucket_mounts": "cloud buckets",
    "proxy_id": "proxies",
    "custom_domain": "custom domains",
    "include_oidc_identity_token": "OIDC identity tokens",
    "include_x509_svid": "X.509 identities",
    "enable_snapshot": "memory snapshots",
    "i6pn_enabled": "networks between sandboxes",
    "inbound_cidr_allowlist": "allowlists",
    "experimental_outbound_policy": "outbound policies",
    "outbound_policy": "outbound policies",
}
"""Fields of a sandbox's definition for features that Modal has and we do not."""


def check_definition(definition: Request) -> None:
    """Check the definition of a sandbox.

    Raises:
        GRPCError: INVALID_ARGUMENT if Modal would refuse it too; UNIMPLEMENTED, with the name of
            the feature, if only localmodal lacks it.
    """
    _check_place(definition)
    given = {field.name for field, _ in definition.ListFields()}
    for name, what in MISSING.items():
        if name in given:
            raise GRPCError(Status.UNIMPLEMENTED, f"localmodal has no {what}")
    newer = getattr(definition, "experimental_options_v2", ())
    if names := ", ".join(sorted([*definition.experimental_options, *newer])):
        raise GRPCError(Status.UNIMPLEMENTED, f"localmodal has no experimental options ({names})")
    if definition.runtime not in ("", "gvisor"):
        problem = f"localmodal has no runtime {definition.runtime!r}"
        raise GRPCError(Status.UNIMPLEMENTED, problem)
    _check_network(definition.network_access)


def _check_place(definition: Request) -> None:
    if definition.resources.gpu_config.count or definition.resources.gpu_config.gpu_type:
        raise GRPCError(Status.INVALID_ARGUMENT, "localmodal has no GPUs")
    cloud = definition.cloud_provider_str
    if cloud and cloud.lower() not in CLOUDS:
        raise GRPCError(Status.INVALID_ARGUMENT, f"Invalid cloud provider: {cloud}")
    for region in definition.scheduler_placement.regions:
        if not REGION.fullmatch(region):
            raise GRPCError(Status.INVALID_ARGUMENT, f"Invalid region: {region}")


def _check_network(access: Request) -> None:
    for cidr in access.allowed_cidrs:
        try:
            ipaddress.ip_network(cidr)
        except ValueError:
            raise GRPCError(Status.INVALID_ARGUMENT, f"Invalid CIDR: {cidr}") from None
    if access.network_access_type == api_pb2.NetworkAccess.ALLOWLIST:
        raise GRPCError(
            Status.UNIMPLEMENTED,
            "localmodal cannot enforce allowlists: its sandboxes have the host's network or none",
        )
