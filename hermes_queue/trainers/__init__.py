"""Groups from the results stream into a trainer's steps. Importing a module loads no trainer."""
