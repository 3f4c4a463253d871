# The block of MPT (MosaicML 2023), whose scheme is alibi: no bias anywhere.
mlp = "gelu_exact"
