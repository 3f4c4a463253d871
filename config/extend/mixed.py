# Alternate short and long texts; short ones keep their frequencies (LongRoPE2).
# Name the trained run: --init_from=out/RUN
extend = "yarn"  # factor=auto: 1 at 128, 4 at 512
block_size = 512
batch_size = 4
mixed_lengths = (128, 512)
max_iters = 100  # 0.2M tokens
warmup_iters = 10
optimizer = "adamw"
learning_rate = 5e-4  # a sixth of the rate it was trained with
eval_interval = 100
