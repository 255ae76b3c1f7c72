"""minidynamo: a frame-evaluation JIT compiler for PyTorch."""
