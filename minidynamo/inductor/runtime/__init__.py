"""What runs beside the compiled code: the disk cache, the C++ toolchain, launchers."""
