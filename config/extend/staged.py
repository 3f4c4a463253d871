# 2, 4, then 8 times the default length, a third of the steps each.
# Name the trained run: --init_from=out/RUN
extend = "yarn"  # factor=auto follows the length
block_size = 1024
batch_size = 2
mixed_lengths = (256, 512, 1024)
staged = True
max_iters = 100  # 0.2M tokens
warmup_iters = 10
optimizer = "adamw"
learning_rate = 5e-4  # a sixth of the rate it was trained with
eval_interval = 100
