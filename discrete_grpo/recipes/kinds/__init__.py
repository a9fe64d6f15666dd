"""The kinds of samples, one module per kind: how they are measured, drawn, written, read and compared."""
