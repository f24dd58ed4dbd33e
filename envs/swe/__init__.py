"""Parts of the software-engineering env: items, trusted repositories, patches, grading."""
