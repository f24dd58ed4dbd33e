"""What Redis holds of mixes."""

from hermes_queue.keyspace.keys import Key

_OWNER = "hermes_plugins/mix"
_KEPT = "90 days"
_RIGHTS = "rw - r -"

KEYS = (
    Key(
        "mix:{name}",
        "hash",
        _OWNER,
        "a [mix](plugins/mix.md): the process that serves it, how far it has come, the batch that "
        "it enqueues",
        _KEPT,
        _RIGHTS,
    ),
    Key(
        "mix:{name}:live",
        "hash",
        _OWNER,
        "its settings that were changed while it was served",
        _KEPT,
        _RIGHTS,
    ),
    Key(
        "mix:{name}:rows",
        "hash",
        _OWNER,
        "fingerprints of the rows of its sources at the last start",
        _KEPT,
        _RIGHTS,
    ),
    Key("mixes", "zset", _OWNER, "mixes by the time of their last start", _KEPT, _RIGHTS),
)
