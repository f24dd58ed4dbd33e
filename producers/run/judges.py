"""The judge of `--judge FILE`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from pydantic import ValidationError

from hermes_queue.errors import InputError
from hermes_queue.models import JudgeSpec

FILE_BYTES_MAX = 64 << 10


def read_judge(path: Path) -> JudgeSpec:
    """The judge that a file describes, TOML or (named `.json`) JSON.

    Raises:
        InputError: it cannot be read or describes no judge; names the file and the key.
    """
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1).decode()
        if len(text) > FILE_BYTES_MAX:
            raise InputError(f"--judge {path}: has more than {FILE_BYTES_MAX:,} bytes")
        value = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return JudgeSpec.model_validate(value)
    except OSError as error:
        raise InputError(f"--judge {path}: cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise InputError(f"--judge {path}: {field or 'the file'}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"--judge {path}: {error}") from error
