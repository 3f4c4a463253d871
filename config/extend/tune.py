# A short fine-tune at 4 times the length of a trained run, on its corpus: --init_from=out/RUN
# Compare with --extend=pi, or with --extend=none to see what an extension adds.
extend = "yarn"  # factor=auto follows the length
init_from = "out/RUN"  # name yours: --init_from=...
block_size = 512  # 4 times 128; of a run of another length: --block_size, --batch_size
batch_size = 4
max_iters = 100  # 0.2M tokens for a run of 128
warmup_iters = 10
optimizer = "adamw"
learning_rate = 5e-4  # a sixth of the rate it was trained with
eval_interval = 100
