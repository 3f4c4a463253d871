# PoSE: reach 4 times the length of a run by training at that length.
# Name the trained run: --init_from=out/RUN (without it, an error says so)
init_from = "out/RUN"
extend = "yarn(factor=4) + pose(target=4.0)"
max_iters = 100  # 0.2M tokens
warmup_iters = 10
optimizer = "adamw"
learning_rate = 5e-4  # a sixth of the rate it was trained with
eval_interval = 100
