import pytest

from edgeloop.testing.contracts.platform import SmallModel
from tests.converted import small_net, tensor_models, toolchain

__all__ = ["small_net", "tensor_models", "toolchain"]


@pytest.fixture
def small_model(small_net: SmallModel) -> SmallModel:
    """As the contract of devices calls it."""
    return small_net
