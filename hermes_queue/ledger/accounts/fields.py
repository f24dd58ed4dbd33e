"""Names of the accounts: fields of the hashes `goodput` and `goodput:{run_id}`.

    s|<account>    seconds for which slots were leased
    d|<account>    measured attempts that did not count in the end: dropped, stale
    l|<account>    their seconds
    n|<outcome>    attempts that ended
    tok|<outcome>  tokens of models that they used
    usd|<outcome>  US dollars of models, where the price is known
    box|<outcome>  US dollars of slots
    c|<name>       trajectories that count: scored, unscored, passed; and the sum of scores
    k|<name>       turns that continue another one (`turns`), drifted ones, breaks by reason
    h|<n>          scores from n tenths on, for n from 0 to 10

An outcome is `measured`, `retry:<cause>`, `failed:<cause>`, `refill`, `cancelled`, `surplus` or
`handed_over`. The seconds of a measured attempt are divided among `WORK`; those of any other one
have its outcome as their account. `death` is charged by the ledger.
"""

from __future__ import annotations

WORK = ("setup", "waiting", "model", "tools", "verify", "overhead")
"""Accounts of attempts that were measured. waiting: for a place of the stage, for
permission to call a model, or while the run is paused; overhead: the rest."""

MEASURED = "measured"

LOST = ("dropped", "stale")
"""Why measured ones do not count in the end, as the ledger's scripts say it."""

TURNS, DRIFTED = "turns", "drifted"
RESERIALISED = "arguments_reserialised"
"""Reason of a break for which a program is the cause, and that is expected."""
