# The block of MPT (MosaicML 2023): ALiBi without any bias.
mlp = "gelu_exact"
pos = "alibi"
