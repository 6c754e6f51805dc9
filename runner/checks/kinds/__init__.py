"""What a check needs in; its verdict out. Each file is a check, or several that are alike; `registry.py` reads all."""
