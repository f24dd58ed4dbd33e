"""Groups for an Atropos trainer."""
