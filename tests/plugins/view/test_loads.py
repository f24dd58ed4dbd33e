"""What looking may load: nothing that runs jobs."""

from __future__ import annotations

import subprocess
import sys

from source_trees import ROOT


def test_the_viewer_loads_no_celery_and_nothing_else_that_is_large() -> None:
    heavy = "{'celery', 'kombu', 'billiard', 'modal', 'openai', 'pyarrow', 'tokenizers', 'rich'}"
    code = (
        "import sys, hermes_plugins.view.command, hermes_queue.cli.overview;"
        "import hermes_plugins.view.serving;"
        "from hermes_plugins.view.routes import every_route; every_route();"
        f"print(*sorted({heavy} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
