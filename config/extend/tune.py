# A short fine-tune at 4 times the default length. Name the trained run: --init_from=out/RUN
# Compare with --extend='pi(factor=4)', or with --extend=none to see what an extension adds.
extend = "yarn(factor=4)"
block_size = 512
batch_size = 4
max_iters = 100  # 0.2M tokens
warmup_iters = 10
learning_rate = 5e-4  # a sixth of the rate it was trained with
eval_interval = 100
