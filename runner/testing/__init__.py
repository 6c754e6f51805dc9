"""The folders that a pytest session collects in; the items that run experiments and compare goldens, out."""
