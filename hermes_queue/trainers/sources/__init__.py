"""What feeds and passes over recorded groups are made of. Nothing here loads a trainer."""
