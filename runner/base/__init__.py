"""Has what every other package uses: words, dtypes, layouts, faults with their places, and plain data."""
