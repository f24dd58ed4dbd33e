"""Tools and their routing: a tool runs in the slot or in the worker, unseen by the model.

    base.py          the classes of a tool
    calculator.py    exact arithmetic
    patch.py         replace a piece of text
    process.py       run programs in the background
    read_file.py     show a file
    search_files.py  find text or names
    submit.py        end the trajectory
    terminal.py      run a command
    toolbox.py       runs a call and returns its observation
    write_file.py    write a file

A new tool is one module in this package with a module-level `TOOL`, or any `Tool` named as
`package.module:ATTRIBUTE`. A mistake of the model (unknown tool, malformed arguments) is
answered with text that it can act on; only a failing sandbox raises.
"""

from hermes_queue.tools.base import ToolContext, make_call
from hermes_queue.tools.toolbox import Toolbox, ToolOutcome, load_tool

__all__ = [
    "ToolContext",
    "ToolOutcome",
    "Toolbox",
    "load_tool",
    "make_call",
]
