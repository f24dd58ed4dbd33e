"""`python -m tools.make_bugs`."""

from tools.make_bugs.command import main

raise SystemExit(main())
