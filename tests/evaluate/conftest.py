from tests.runner.conftest import faces, make_farm

__all__ = ["faces", "make_farm"]
