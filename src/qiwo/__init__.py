"""企窝 Qiwo: the public face. A plugin's author writes `from qiwo import Plugin`."""

from kernel import *  # noqa: F403 - the surface is kernel's, name for name
from kernel import __all__ as __all__
