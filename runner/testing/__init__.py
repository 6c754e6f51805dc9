"""The folders that a session of pytest names in; its items, which run experiments and read goldens, out."""
