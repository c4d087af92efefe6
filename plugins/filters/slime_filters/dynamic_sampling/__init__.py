"""The filters `dynamic-sampling` and `overlong` of DAPO, and the buffer policy `staleness`."""
