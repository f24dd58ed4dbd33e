"""Scripts that are uploaded into slots. They run there with the row's own Python."""
