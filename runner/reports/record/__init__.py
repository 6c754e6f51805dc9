"""Has the results of a run as `result.json` and goldens, and says how two of either differ."""
