"""The results of a run in; `result.json`, goldens, and the differences between two of either, out."""
