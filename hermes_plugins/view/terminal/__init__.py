"""Trajectories and groups in a terminal, as pieces of styled text.

    tables.py      a group with its aligned steps; tokens by turn, or as text
    trajectory.py  one trajectory: head, transcript, verdict, patch

Whatever is shown has gone through `hermes_plugins.view.present`, which leaves no control character
in it, and every style is one of ours: a terminal never sees a sequence that a record brought along.
"""
