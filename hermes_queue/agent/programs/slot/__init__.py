"""Scripts of the build of a program; they import nothing of this project."""
