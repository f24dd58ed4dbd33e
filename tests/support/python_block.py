"""`python -m python_block CODE ...`: runs a block of the documentation; warnings are errors."""

import ast
import asyncio
import inspect
import signal
import sys
import warnings

warnings.simplefilter("error")
text = sys.argv.pop(1)
code = compile(text, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
names = {"__name__": "__main__"}


async def main() -> None:
    await eval(code, names)


if code.co_flags & inspect.CO_COROUTINE:
    asyncio.run(main())
else:
    exec(code, names)
# It has ended on its own: an interrupt that comes while Python shuts down is too late.
signal.signal(signal.SIGINT, signal.SIG_IGN)
