"""An Azure ML workspace on this machine, for the unmodified SDK. See README.md in this folder."""

from tests.peers.azureml.emulator import AzureML

__all__ = ["AzureML"]
