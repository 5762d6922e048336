"""Where programs run: the interpreter, workers, and the engines that start them."""
