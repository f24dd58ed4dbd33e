"""Commits the finished shards of a dataset folder to a dataset repository of the Hugging Face hub.

A shard never changes once it has its name, and has each row once. So what is left to do follows
from the folder and the repository alone: the shards that it does not list. Each is one commit, with
the card, on top of the commit whose files were listed; if another came between, the hub refuses it
and the files are listed again. A pusher that is killed has committed a shard or has not.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.telemetry.scrubbing import scrub

logger = logging.getLogger(__name__)

SILENCE_S = 300.0
"""Longest time for which the hub may neither send nor take anything."""
_RACES = 5
"""Commits of others that may come between listing and committing, in a row."""
_REPO = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_QUERY = re.compile(r"(?<=\S)\?\S+")
_CARD = "README.md"


class HubUnavailable(HermesQueueError):
    """The hub does not answer, or fails; everything that it has not got stays in the folder."""


class HubRepository:
    """The repository of one dataset folder.

    Args:
        folder: shards are in `data/`, the card is `README.md`.
        name: `OWNER/NAME`.
        public: whether the repository is created as a public one, and may be one.
        dry_run: only find out what would be committed.

    Raises:
        ConfigurationError: the name is not of that form, or huggingface_hub is missing.
    """

    def __init__(self, folder: Path, name: str, *, public: bool, dry_run: bool) -> None:
        if not _REPO.fullmatch(name):
            raise ConfigurationError(f"--repo {name}: must be OWNER/NAME")
        try:
            import huggingface_hub.errors
            import huggingface_hub.utils
        except ImportError as error:
            raise ConfigurationError(
                "--repo needs huggingface_hub: pip install 'hermes-queue[hub]'"
            ) from error
        self.name = name
        self.remarks: list[str] = []
        """What was committed, or would be, for people."""
        self._folder = folder
        self._public, self._dry_run = public, dry_run
        self._hub: Any = huggingface_hub
        # The library reads the address when it is imported, which may be before it was set.
        endpoint = os.environ.get("HF_ENDPOINT") or None
        self._api = self._hub.HfApi(endpoint=endpoint, library_name="hermes-queue")
        self._host = urlsplit(self._api.endpoint).hostname
        self._head: str | None = None
        """The commit whose files are `_files`; None before they are listed, "" of no repository."""
        self._files: dict[str, str] = {}
        """Path -> `sha256:` and the digest of its content, or the id of git's blob."""
        self._committed = 0

    def push(self, shards: Sequence[Path]) -> int:
        """Commit the shards that the repository does not have; returns their number.

        Raises:
            ConfigurationError: the token is missing or may not, or the repository holds a shard
                that the folder does not, or is public without leave.
            HubUnavailable: the hub failed; the next call does the rest.
        """
        with self._explained():
            for _ in range(_RACES):
                try:
                    return self._push(shards)
                except self._hub.errors.HfHubHTTPError as error:
                    if error.response.status_code != 412:
                        raise
                    self._head = None  # somebody else has committed
            raise HubUnavailable(f"{self.name}: others commit all the time")

    def _push(self, shards: Sequence[Path]) -> int:
        if self._head is None:
            self._head = self._opened()
            self._check(shards)
        missing = [shard for shard in shards if self._place(shard) not in self._files]
        if self._dry_run:
            self.remarks = [f"{self.name}: would commit {self._place(each)}" for each in missing]
            return 0
        for shard in missing:
            self._commit(f"Add {shard.name}", shard)
            self._committed += 1
        card = self._folder / _CARD
        if shards and self._files.get(_CARD) != _blob_id(card):
            self._commit("Update the card")
        self.remarks = [
            f"{self.name}: {len(shards)} shards, {self._committed} of them committed now"
        ]
        return len(missing)

    def _opened(self) -> str:
        """Make the repository if it is not there, and list its files; returns its head."""
        self._be_impatient()
        if not self._dry_run:
            self._api.create_repo(
                self.name, repo_type="dataset", private=not self._public, exist_ok=True
            )
        try:
            info = self._api.repo_info(self.name, repo_type="dataset")
        except self._hub.errors.RepositoryNotFoundError as error:
            if not self._dry_run or error.response.status_code == 401:  # of no or a wrong token
                raise
            self._files = {}
            return ""
        if not info.private and not self._public:
            raise ConfigurationError(
                f"--repo {self.name}: is public; add --public, or make it private"
            )
        head = str(info.sha)
        tree = self._api.list_repo_tree(
            self.name, repo_type="dataset", recursive=True, revision=head
        )
        self._files = {
            each.path: f"sha256:{each.lfs.sha256}" if each.lfs else each.blob_id
            for each in tree
            if hasattr(each, "blob_id")  # a folder has none
        }
        return head

    def _check(self, shards: Sequence[Path]) -> None:
        """Refuse a repository whose shards are not, one by one, those of the folder."""
        own = {self._place(shard): shard for shard in shards}
        theirs = {name for name in self._files if name.startswith("data/")}
        for name in sorted(theirs):
            if name not in own or not _is(own[name], self._files[name]):
                raise ConfigurationError(
                    f"--repo {self.name}: holds {name}, which {self._folder} does not: another "
                    "sink fills it, or this OUT was begun anew. Choose another --repo, or download "
                    "the repository into a new OUT and continue that"
                )
        if not theirs and _CARD in self._files:
            raise ConfigurationError(
                f"--repo {self.name}: has a {_CARD} from elsewhere, which would be replaced; "
                "delete it there, or choose another --repo"
            )

    def _commit(self, message: str, shard: Path | None = None) -> None:
        self._be_impatient()
        add, card = self._hub.CommitOperationAdd, self._folder / _CARD
        operations = [add(path_in_repo=_CARD, path_or_fileobj=str(card))]
        if shard is not None:
            operations.insert(0, add(path_in_repo=self._place(shard), path_or_fileobj=str(shard)))
        done = self._api.create_commit(
            self.name,
            operations,
            repo_type="dataset",
            commit_message=message,
            parent_commit=self._head,
        )
        self._head = str(done.oid)
        self._files[_CARD] = _blob_id(card)
        if shard is not None:
            self._files[self._place(shard)] = "new"
            extra = {"action": "shard_committed", "path": str(shard)}
            logger.info("%s: committed %s", self.name, shard.name, extra=extra)

    def _refusal(self, cause: BaseException) -> int | None:
        """The status of the hub's own answer; a store that it sends uploads to decides nothing."""
        response = getattr(cause, "response", None)
        if response is None or response.request.url.host != self._host:
            return None
        return int(response.status_code)

    def _be_impatient(self) -> None:
        """Bound the waits of the library's connections, which it does not, and quieten them.

        At INFO, httpx logs the address of each request, and those of uploads are signed.
        """
        self._hub.get_session().timeout = SILENCE_S
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._hub.utils.disable_progress_bars()

    @staticmethod
    def _place(shard: Path) -> str:
        return f"data/{shard.name}"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn whatever the library raises into errors of ours, without secrets."""
        try:
            yield
        except HermesQueueError:
            self._head = None
            raise
        except Exception as error:  # noqa: BLE001 - it raises those of httpx, OSError, ValueError, ...
            self._head = None  # what was done is found in the repository
            cause = error.__cause__ or error  # an upload's error is wrapped
            # The address of an upload is signed: whoever has it may make the upload.
            said = _QUERY.sub("?***", scrub(str(cause)))[:500]
            text = f"{self.name}: {type(cause).__name__}: {said}"
            status = self._refusal(cause)
            if status in _REFUSALS or isinstance(error, self._hub.errors.HFValidationError):
                advice = _REFUSALS.get(status or 0, "")
                raise ConfigurationError(f"--repo {text}{advice}") from None
            raise HubUnavailable(f"{text}; what is missing there stays in the folder") from None


_REFUSALS: Mapping[int, str] = {
    400: "",
    401: "; set HF_TOKEN to a token that may write",
    403: "; set HF_TOKEN to a token that may write to it",
    404: "; set HF_TOKEN to a token that may see it",
}
"""Status of an answer that will be the same next time -> advice."""


def _is(path: Path, known: str) -> bool:
    """Whether a file has the content that the hub lists."""
    kind, colon, digest = known.partition(":")
    if not colon:
        return _blob_id(path) == known
    with path.open("rb") as file:
        return kind == "sha256" and hashlib.file_digest(file, "sha256").hexdigest() == digest


def _blob_id(path: Path) -> str:
    """The id that git gives a file."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
