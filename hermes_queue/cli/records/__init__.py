"""Commands that check recorded trajectories again."""
