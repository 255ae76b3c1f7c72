"""The compiler below the FX graph: aten graph -> loop IR -> fused kernels -> Plan."""
