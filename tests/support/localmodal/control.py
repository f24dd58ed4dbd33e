"""The control plane's calls for accounts, apps, images, secrets and volumes."""

from __future__ import annotations

from typing import Any

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from localmodal.rooted.calls import BUILDER_VERSION, ImageCalls
from localmodal.storage.store import Store
from localmodal.wire import Request, Stream, Tokens, new_id

AUTH_TOKEN_LIFETIME_S = 1200.0
ANONYMOUS = {
    api_pb2.OBJECT_CREATION_TYPE_ANONYMOUS_OWNED_BY_APP,
    api_pb2.OBJECT_CREATION_TYPE_EPHEMERAL,
}


class ControlPlane(ImageCalls):
    """Methods have the names of the protocol; those for sandboxes are in `SandboxCalls`."""

    def __init__(self, store: Store, tokens: Tokens) -> None:
        super().__init__(store)
        self.tokens = tokens

    # --- accounts ---------------------------------------------------------------------

    async def ClientHello(self, request: Request, stream: Stream) -> Any:
        """The SDK's first call."""
        return api_pb2.ClientHelloResponse(image_builder_version=BUILDER_VERSION)

    async def AuthTokenGet(self, request: Request, stream: Stream) -> Any:
        """A token for calls of the V2 protocol."""
        token = self.tokens.make("client", AUTH_TOKEN_LIFETIME_S)
        return api_pb2.AuthTokenGetResponse(token=token)

    async def WorkspaceNameLookup(self, request: Request, stream: Stream) -> Any:
        """Answer `modal profile` and token checks."""
        return api_pb2.WorkspaceNameLookupResponse(workspace_name="localmodal", username="local")

    async def EnvironmentGetOrCreate(self, request: Request, stream: Stream) -> Any:
        """Accept any environment."""
        settings = api_pb2.EnvironmentSettings(image_builder_version=BUILDER_VERSION)
        name = request.deployment_name or "main"
        return api_pb2.EnvironmentGetOrCreateResponse(
            environment_id=new_id("en", 22),
            metadata=api_pb2.EnvironmentMetadata(name=name, settings=settings),
        )

    async def AppGetOrCreate(self, request: Request, stream: Stream) -> Any:
        """An app by name."""
        key = (request.environment_name, request.app_name)
        if key not in self.store.apps:
            if request.object_creation_type != api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                raise GRPCError(Status.NOT_FOUND, f"App '{request.app_name}' not found")
            self.store.apps[key] = new_id("ap", 22)
        return api_pb2.AppGetOrCreateResponse(app_id=self.store.apps[key])

    # --- secrets and volumes ----------------------------------------------------------

    async def SecretGetOrCreate(self, request: Request, stream: Stream) -> Any:
        """Find a secret by name, or create one from the given values."""
        name = request.deployment_name
        anonymous = request.object_creation_type in ANONYMOUS
        secret_id = None if anonymous else self.store.secret_names.get(name)
        creates = request.object_creation_type != api_pb2.OBJECT_CREATION_TYPE_UNSPECIFIED
        if secret_id is None:
            if name and not creates:
                raise GRPCError(Status.NOT_FOUND, f"Secret '{name}' not found")
            secret_id = self.store.add_secret(name, request.env_dict)
        missing = set(request.required_keys) - set(self.store.secrets[secret_id])
        if missing:
            raise GRPCError(Status.NOT_FOUND, f"Secret '{name}' lacks {', '.join(sorted(missing))}")
        return api_pb2.SecretGetOrCreateResponse(secret_id=secret_id)

    async def VolumeGetOrCreate(self, request: Request, stream: Stream) -> Any:
        """Find a volume by name, or create one."""
        volumes, name = self.store.volumes, request.deployment_name
        anonymous = request.object_creation_type in ANONYMOUS
        volume_id = None if anonymous else volumes.find(request.environment_name, name)
        if volume_id is None:
            if request.object_creation_type == api_pb2.OBJECT_CREATION_TYPE_UNSPECIFIED:
                raise GRPCError(Status.NOT_FOUND, f"Volume '{name}' not found")
            volume_id = volumes.create(request.environment_name, "" if anonymous else name)
        return api_pb2.VolumeGetOrCreateResponse(
            volume_id=volume_id, version=api_pb2.VOLUME_FS_VERSION_V2
        )

    async def VolumeHeartbeat(self, request: Request, stream: Stream) -> Any:
        """Do nothing: ephemeral volumes end with the server."""
        return Empty()

    async def VolumeCommit(self, request: Request, stream: Stream) -> Any:
        """Refuse: only a process inside a container may commit, and commands inside cannot."""
        raise GRPCError(
            Status.FAILED_PRECONDITION,
            "only the sandbox that mounts a volume commits it: Sandbox.reload_volumes, or its end",
        )

    VolumeReload = VolumeCommit
