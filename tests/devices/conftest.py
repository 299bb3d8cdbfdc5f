from tests.converted import small_net, toolchain

__all__ = ["small_net", "toolchain"]
