"""How a task names the root file system that it brings along."""
