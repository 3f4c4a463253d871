# No position scheme at all: only the causal mask gives order (Haviv et al. 2022, Kazemnejad et al.
# 2023).
pos = "nope"
