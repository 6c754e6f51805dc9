class _X: pass
