"""Qualcomm's Neural Processing SDK: DLC files, and boards that run them."""
