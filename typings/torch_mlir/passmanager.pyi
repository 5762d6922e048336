# The wheel carries no types of its C++ bindings: what they hold is Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
