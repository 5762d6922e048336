"""The graph IR: the `dist` dialect on torch-mlir, modules between passes, import from FX, and torch ops of our own."""
