"""What a run found in; `result.json`, goldens, and what differs between two of either, out."""
