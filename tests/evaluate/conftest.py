from tests.runner.conftest import faces

__all__ = ["faces"]
