# No position scheme at all: order is known only from the causal mask (Haviv et al. 2022,
# Kazemnejad et al. 2023).
pos = "nope"
