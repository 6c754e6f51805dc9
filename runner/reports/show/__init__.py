"""Shows records and plain data on the terminal, as text, SVG and pages."""
