"""Makes self-contained HTML pages of records, and the parts of these pages."""
