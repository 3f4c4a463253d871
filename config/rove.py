# RoPE that turns values too, by their distance (García-Castellanos et al. 2026).
pos = "rove"
