"""The samples of a group side by side: what they did, where they part, tests, patches.

    alignment.py  the longest common subsequence, and rows of aligned steps
    patching.py   which patches are equal, and one against another
    samples.py    `compare`: steps, the first different token or message, tests x samples

Pure functions of raw records, as those of `hermes_plugins.view.present`: they never raise because
of a record's shape, and what they return is JSON. Time grows with the size of the records, and with
the product of two samples' numbers of steps only by a machine word at a time.
"""

from hermes_plugins.view.compare.patching import patch_against
from hermes_plugins.view.compare.samples import compare

__all__ = ["compare", "patch_against"]
