"""Commands that check recorded trajectories again: `regrade` and `rescore`."""
